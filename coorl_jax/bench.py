"""Measure how fast this program is, beside the floor that it cannot beat.

    python -m coorl_jax.bench traversal fit

Benchmarks: forward (a network's call, by batch and precision), traversal (nodes a second of every
scheme, and where the time goes), fit (updates beside bare gradient steps), evaluate (rounds a
second), iteration (the stages of one, beside the predecessor's), scaling (lanes, networks,
memories), memory (the peak of a process beside the sum it prints) and compile (programs, and how
soon a run starts). They measure the configuration `predecessor`, compile that of `smoke`, unless
--config names another. Numbers are medians, in brackets the least and the greatest of so many
repeats after a warm-up; ratios are medians over rounds in which both sides are measured.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import itertools
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import rich.box
import rich.console
import rich.markup
import rich.table
from absl import flags

from coorl_jax import commandline, common_flags, runtime
from coorl_jax import config as config_lib
from coorl_jax.benchmarks import (
    compilation,
    evaluation,
    fit,
    forward,
    iteration,
    memory,
    scaling,
    traversal,
)
from coorl_jax.benchmarks.timing import Effort, Spread
from coorl_jax.common_flags import JSON, SEED, check_seed
from coorl_jax.policy import make_network
from coorl_jax.settings import Settings

flags.adopt_module_key_flags(common_flags)
_REPEATS = flags.DEFINE_integer("repeats", 5, "rounds that are timed, fewer where they take long")
_QUICK = flags.DEFINE_boolean(
    "quick", False, "measure small batches, short fits and the first of --lanes, for a first look"
)
_SCHEMES = flags.DEFINE_list("schemes", list(traversal.SCHEMES), "of traversal")
_LANES = flags.DEFINE_list(
    "lanes",
    [str(count) for count in traversal.LANES],
    "of traversal, to try with the first scheme; the others have the best of them",
)

BENCHMARKS = (
    *("forward", "traversal", "fit", "evaluate"),
    *("iteration", "scaling", "memory", "compile"),
)
_BUDGET = 60.0  # seconds of the timed rounds of a row, and of a quick one:
_QUICK_BUDGET = 5.0
_PACKAGES = ("jax", "jaxlib", "flax", "optax")
_PIPED_WIDTH = 10_000  # columns


def main(argv: list[str]) -> None:
    """Measure by the flags."""
    names = _checked_names(argv)
    check_seed()
    if not 1 <= _REPEATS.value <= 1000:
        raise ValueError(f"--repeats={_REPEATS.value}: must be an integer from 1 to 1000; e.g. 5")
    _checked_schemes()
    _checked_lanes()
    settings = {name: settings_of(name) for name in names}
    if "iteration" in names:
        iteration.check(settings["iteration"])
    runtime.configure()
    header = {**describe(), "repeats": _REPEATS.value, "quick": _QUICK.value}
    if not JSON.value:
        print("; ".join(f"{name} {value}" for name, value in header.items()), flush=True)
    results = {}
    for name in names:
        rows = list(_with_progress(name, partial(_rows, name, settings[name])))
        tables = {
            table: list(group) for table, group in itertools.groupby(rows, lambda row: row.table)
        }
        results[name] = {
            table: [dataclasses.asdict(row) for row in group] for table, group in tables.items()
        }
        if not JSON.value:
            for table, group in tables.items():
                _print_table(name if table == name else f"{name}: {table}", group)
    if JSON.value:
        print(json.dumps({**header, "benchmarks": results}), flush=True)


def settings_of(benchmark: str) -> Settings:
    """Return the settings that a benchmark measures: those of --config, or of a preset.

    Raises:
      ValueError: when they are none.
    """
    if commandline.config_path() is not None:
        return commandline.config_settings()
    return commandline.preset_settings("smoke" if benchmark == "compile" else "predecessor")


def describe() -> dict[str, str | int]:
    """Return on what is measured: device, cores and versions."""
    versions = {name: importlib.metadata.version(name) for name in _PACKAGES}
    return {
        "device": runtime.describe_device(),
        "cores": os.cpu_count() or 1,
        "python": platform.python_version(),
        **versions,
    }


def _rows(benchmark: str, settings: Settings) -> Iterator[Any]:
    """Yield what a benchmark measures, row by row."""
    effort = Effort(_REPEATS.value, _QUICK_BUDGET if _QUICK.value else _BUDGET)
    key = jax.random.key(SEED.value)
    lanes = _checked_lanes()
    less: Mapping[str, Any] = {}
    if _QUICK.value:
        lanes, less = lanes[:1], _QUICK_SIZES.get(benchmark, {})
        settings = config_lib.override(settings, _QUICK_SETTINGS)
    measures: dict[str, Callable[[], Iterator[Any]]] = {
        "forward": lambda: forward.measure(make_network(settings).game, effort, key, **less),
        "traversal": lambda: traversal.measure(settings, effort, key, _checked_schemes(), lanes),
        "fit": lambda: fit.measure(settings, effort, key),
        "evaluate": lambda: evaluation.measure(settings, effort, key),
        "iteration": lambda: iteration.measure(settings, effort, key),
        "scaling": lambda: scaling.measure(settings, effort, key, **less),
        "memory": lambda: memory.measure(settings, _REPEATS.value),
        "compile": lambda: compilation.measure(settings),
    }
    return measures[benchmark]()


_QUICK_SETTINGS = {"advantage.updates": 32, "strategy.updates": 32, "evaluation.pairs": 100}
_QUICK_SIZES: dict[str, dict[str, Any]] = {
    "forward": {
        "networks": {"512x3": forward.NETWORKS["512x3"]},
        "batches": tuple(batch for batch in forward.BATCHES if batch <= 1024),
    },
    "scaling": {
        "lanes": scaling.LANES[:2],
        "networks": {"128x3": scaling.NETWORKS["128x3"]},
        "capacities": scaling.CAPACITIES[:2],
    },
}


def _checked_names(argv: Sequence[str]) -> list[str]:
    """Return the benchmarks to run, each once."""
    if not argv:
        raise ValueError(
            f"BENCHMARK: must be given, one or more of {', '.join(BENCHMARKS)}; e.g. traversal"
        )
    for name in argv:
        if name not in BENCHMARKS:
            raise ValueError(f"{name}: must be one of {', '.join(BENCHMARKS)}; e.g. traversal")
    return list(dict.fromkeys(argv))


def _checked_schemes() -> list[str]:
    known = traversal.SCHEMES
    if not _SCHEMES.value or not set(_SCHEMES.value) <= set(known):
        raise ValueError(
            f"--schemes={','.join(_SCHEMES.value)}: must be some of {', '.join(known)}; "
            "e.g. outcome,branch"
        )
    return _SCHEMES.value


def _checked_lanes() -> list[int]:
    lanes = [int(text) if text.isdecimal() else 0 for text in _LANES.value]
    if not lanes or not all(1 <= count <= 2**20 for count in lanes):
        raise ValueError(
            f"--lanes={','.join(_LANES.value)}: must be integers from 1 to {2**20}, separated by "
            "commas; e.g. 256,1024"
        )
    return lanes


def _with_progress(name: str, run: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    """Yield the rows of a benchmark, and tell of them on standard error as they come.

    A terminal shows how many there are; elsewhere each row is printed, so that of a benchmark that
    is stopped what it has measured is not lost.
    """
    console = rich.console.Console(stderr=True, highlight=False)
    with console.status(f"{name}: compiling and measuring") as status:
        for number, row in enumerate(run(), start=1):
            yield row
            status.update(f"{name}: {number} measured")
            if not console.is_terminal:
                fields = (f"{key} {_cell(value)}" for key, value in vars(row).items())
                console.print(f"{name}: {'; '.join(fields)}", soft_wrap=True, markup=False)


def _print_table(title: str, rows: Sequence[Any]) -> None:
    """Print rows of one kind, a field a column; plain text where it is piped."""
    console = rich.console.Console(
        width=None if sys.stdout.isatty() else _PIPED_WIDTH, highlight=False
    )
    console.print(f"\n{title}")
    box = rich.box.SIMPLE if console.is_terminal else None
    table = rich.table.Table(box=box, padding=(0, 2, 0, 0))
    names = [field.name for field in dataclasses.fields(rows[0])]
    for name in names:
        is_text = isinstance(getattr(rows[0], name), str)
        table.add_column(name.replace("_", " "), justify="left" if is_text else "right")
    for row in rows:
        table.add_row(*(_cell(getattr(row, name)) for name in names))
    console.print(table)


def _cell(value: Any) -> str:
    """Return a value as a table shows it."""
    if value is None:
        return ""
    if isinstance(value, Spread):
        least, greatest = _number(value.minimum), _number(value.maximum)
        return f"{_number(value.median)} ({least}-{greatest}; {value.repeats})"
    return _number(value) if isinstance(value, int | float) else rich.markup.escape(value)


def _number(value: float) -> str:
    """Return a whole number as it is, another one with three significant digits at least."""
    if isinstance(value, int):
        return f"{value:,}"
    if abs(value) < 1:
        return f"{value:.3g}"
    whole_digits = len(str(int(abs(value))))
    return f"{value:,.{max(4 - whole_digits, 0)}f}"


if __name__ == "__main__":
    commandline.run(main, config=True, arguments=True)
