"""Compilation: every program of a run, and how soon a run starts with an empty and a full cache.

The real training command runs three times for a few iterations: with an empty cache, again with
what that left there, and, since that takes time of its own, once more to write down the optimised
programs.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from coorl_jax import config as config_lib
from coorl_jax import metrics as metrics_lib
from coorl_jax.runtime import CACHE_VARIABLE
from coorl_jax.settings import Settings

COMMAND = "coorl_jax.train"
"""The module that is started."""

_ITERATIONS = 2  # the first compiles, the second shows that nothing is left to
_CONFIG_FILE = """
import json, pathlib, ml_collections

def get_config():
    return ml_collections.ConfigDict(
        json.loads(pathlib.Path(__file__).with_suffix(".json").read_text())
    )
"""
_DUMP = re.compile(r"module_\d+\.(?:jit_)?(.+?)\.[^.]*after_optimizations\.txt")


@dataclasses.dataclass(frozen=True)
class Start:
    """A run of the training command: "first" with an empty cache, "cached" with a full one.

    Attributes:
      start: which.
      seconds: of the whole command.
      seconds_to_first_iteration: from the command to the beginning of the first iteration, and
      seconds_to_second_iteration: to the end of the first, with its evaluations and checkpoint.
      compilations: programs compiled, or taken from the cache, until then.
      compile_seconds: that this took; several threads may compile at once.
      compilations_later: in the second iteration.
    """

    table: ClassVar[str] = "starts"

    start: str
    seconds: float
    seconds_to_first_iteration: float
    seconds_to_second_iteration: float
    compilations: int
    compile_seconds: float
    compilations_later: int


@dataclasses.dataclass(frozen=True)
class Program:
    """Compilations of one function, for all its shapes, in the first start.

    `instructions` are those of the optimised programs, fused ones included.
    """

    table: ClassVar[str] = "programs"

    program: str
    compilations: int
    trace_seconds: float
    lower_seconds: float
    compile_seconds: float
    instructions: int


def measure(settings: Settings) -> Iterator[Start | Program]:
    """Start the training command, and count what it compiles.

    Args:
      settings: of the run, whose length is not heeded.

    Yields:
      Both starts, then the programs, those first that took longest.

    Raises:
      RuntimeError: when the command fails.
    """
    settings = config_lib.override(settings, {"iterations": _ITERATIONS})
    with tempfile.TemporaryDirectory(prefix="coorl_jax_compile_") as name:
        directory = Path(name)
        (directory / "config.py").write_text(_CONFIG_FILE, encoding="utf-8")
        values = json.dumps(config_lib.to_dict(settings))
        (directory / "config.json").write_text(values, encoding="utf-8")
        cache = {CACHE_VARIABLE: str(directory / "cache")}
        yield _start("first", directory, cache)
        yield _start("cached", directory, cache)
        dump = directory / "dump"
        flags = f"--xla_dump_to={dump} --xla_dump_hlo_as_text"
        flags = f"{os.environ.get('XLA_FLAGS', '')} {flags}"
        _start("dumped", directory, {CACHE_VARIABLE: "off", "XLA_FLAGS": flags})
        compiled = json.loads((directory / "first.programs").read_text(encoding="utf-8"))
        yield from programs(compiled, instructions(dump))


def _start(name: str, directory: Path, environment: Mapping[str, str]) -> Start:
    """Run the command once, with a run directory of its own."""
    workdir = directory / name
    command = [
        *(sys.executable, "-m", "coorl_jax.benchmarks.listener"),
        *(str(directory / f"{name}.programs"), COMMAND),
        *(f"--config={directory / 'config.py'}", f"--workdir={workdir}"),
    ]
    started, first_iteration = time.perf_counter(), None
    with (directory / f"{name}.errors").open("w+", encoding="utf-8") as errors:
        with subprocess.Popen(
            command, env=os.environ | environment, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if first_iteration is None and line.startswith("iteration 1/"):
                    first_iteration = time.perf_counter() - started
        seconds = time.perf_counter() - started
        errors.seek(0)
        if process.returncode or first_iteration is None:
            raise RuntimeError(f"{' '.join(command)}: failed: {errors.read()}")
    first, second = metrics_lib.read(workdir / "metrics.jsonl")
    return Start(
        start=name,
        seconds=seconds,
        seconds_to_first_iteration=first_iteration - first["iteration_seconds"],
        seconds_to_second_iteration=first_iteration,
        compilations=int(first["compilations"]),
        compile_seconds=first["compile_seconds"],
        compilations_later=int(second["compilations"]),
    )


def instructions(dump: Path) -> dict[str, int]:
    """Count the instructions of the optimised programs that XLA wrote to a directory, by name."""
    counts: dict[str, int] = defaultdict(int)
    for file in dump.iterdir():
        if match := _DUMP.fullmatch(file.name):
            lines = file.read_text(encoding="utf-8").splitlines()
            counts[match[1]] += sum(" = " in line for line in lines)
    return dict(counts)


def programs(compiled: list[dict[str, Any]], counts: Mapping[str, int]) -> list[Program]:
    """Put together what is known of each program.

    Args:
      compiled: from `listener.py`.
      counts: instructions, from `instructions`.

    Returns:
      The programs, those first that took longest.
    """
    of_program: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for compilation in compiled:
        of_program[compilation["program"]].append(compilation)

    def total(name: str, part: str) -> float:
        return sum(compilation[part] for compilation in of_program[name])

    found = [
        Program(
            program=name,
            compilations=len(of_program[name]),
            trace_seconds=total(name, "trace"),
            lower_seconds=total(name, "lower"),
            compile_seconds=total(name, "compile"),
            # XLA's names have underscores where Python's have other characters.
            instructions=counts[re.sub(r"\W", "_", name)],
        )
        for name in of_program
    ]
    return sorted(
        found, key=lambda p: p.trace_seconds + p.lower_seconds + p.compile_seconds, reverse=True
    )
