"""Runs a command as `python -m` does, and notes every program that it compiles.

    python -m coorl_jax.benchmarks.listener FILE coorl_jax.train --config=...

writes to FILE, as JSON, the name of every compiled program and the seconds it took to trace, lower
and compile, or to take from the cache; in order, and also if the command fails.
"""

from __future__ import annotations

import json
import re
import runpy
import sys
import threading
from pathlib import Path

import jax

TRACE = "/jax/core/compile/jaxpr_trace_duration"
LOWER = "/jax/core/compile/jaxpr_to_mlir_module_duration"
COMPILE = "/jax/core/compile/backend_compile_duration"


class Listener:
    """Collects the compilations of all threads from the events of `jax.monitoring`.

    Attributes:
      programs: of each compilation its `program` and its `trace`, `lower` and `compile` seconds.
    """

    def __init__(self) -> None:
        self.programs: list[dict[str, str | float]] = []
        # (thread, program) -> seconds; functions that are traced as parts of others stay here.
        self._traced: dict[tuple[int, str], float] = {}
        self._lowered: dict[tuple[int, str], float] = {}

    def on_event(self, event: str, duration_secs: float, **details: str | int) -> None:
        """Take note of an event."""
        if event not in (TRACE, LOWER, COMPILE):
            return
        name = re.sub(r"^\w+\((.*)\)$", r"\1", str(details["fun_name"]))
        place = threading.get_ident(), name
        if event == TRACE:
            self._traced[place] = duration_secs
        elif event == LOWER:
            self._lowered[place] = duration_secs
        else:
            self.programs.append(
                {
                    "program": name,
                    "trace": self._traced.pop(place, 0.0),
                    "lower": self._lowered.pop(place, 0.0),
                    "compile": duration_secs,
                }
            )


def main(arguments: list[str]) -> None:
    """Run the command."""
    file, module, *flags = arguments
    listener = Listener()
    jax.monitoring.register_event_duration_secs_listener(listener.on_event)
    sys.argv = [module, *flags]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        Path(file).write_text(json.dumps(listener.programs), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
