"""Memory: the most that a run takes, beside the sum that it prints at its start.

Peaks are of a whole process, so every run is one of its own:

    python -m coorl_jax.benchmarks.memory ITERATIONS < config.json

prints what it took as JSON.
"""

from __future__ import annotations

import dataclasses
import json
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import jax

from coorl_jax import config as config_lib
from coorl_jax.cfr.iteration import STAGES, Trainer
from coorl_jax.settings import Settings

_MEGABYTE = 1e6
_STATUS = Path("/proc/self/status")


@dataclasses.dataclass(frozen=True)
class Peak:
    """The most memory that iterations took, in megabytes.

    `where` is "host" on a CPU, the resident memory of the process, and otherwise "device". `bare`
    is what the process takes before there is a trainer. Ratios are to the sum that a run prints.
    """

    table: ClassVar[str] = "memory"

    where: str
    iterations: int
    printed_megabytes: float
    bare_megabytes: float
    peak_megabytes: float
    ratio: float
    ratio_without_bare: float


def measure(settings: Settings, iterations: int) -> Iterator[Peak]:
    """Run iterations in a process of their own.

    Args:
      settings: of the run; nothing is evaluated or saved.
      iterations: how many.
    """
    # Of two processes an accelerator has the memory of both; on a CPU it does not matter.
    child = subprocess.run(
        [sys.executable, "-m", "coorl_jax.benchmarks.memory", str(iterations)],
        input=json.dumps(config_lib.to_dict(settings)),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    took = json.loads(child.stdout)
    yield Peak(
        where=took["where"],
        iterations=iterations,
        printed_megabytes=took["printed"] / _MEGABYTE,
        bare_megabytes=took["bare"] / _MEGABYTE,
        peak_megabytes=took["peak"] / _MEGABYTE,
        ratio=took["peak"] / took["printed"],
        ratio_without_bare=(took["peak"] - took["bare"]) / took["printed"],
    )


def _run(iterations: int) -> dict[str, int | str]:
    """Run iterations of the configuration on standard input; return bytes."""
    jax.block_until_ready(jax.numpy.zeros(1) + 1)
    where, bare = _peak()
    trainer = Trainer(config_lib.from_dict(json.load(sys.stdin)))
    state = trainer.init()
    for _ in range(iterations * len(STAGES)):
        state, _ = trainer.run_stage(state)
    return {"where": where, "bare": bare, "peak": _peak()[1], "printed": trainer.memory_bytes()}


def _peak() -> tuple[str, int]:
    """Return where memory is measured and the most that was in use there so far, bytes."""
    device = jax.local_devices()[0]
    if device.platform != "cpu":
        return "device", device.memory_stats()["peak_bytes_in_use"]
    if _STATUS.exists():
        # Linux counts in `getrusage` what the parent had when it started this process.
        match = re.search(r"VmHWM:\s+(\d+) kB", _STATUS.read_text())
        assert match
        return "host", 1024 * int(match[1])
    return "host", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # Bytes on macOS.


if __name__ == "__main__":
    print(json.dumps(_run(int(sys.argv[1]))))
