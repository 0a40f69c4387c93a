"""Compare sampling schemes and settings on a game small enough for exact NashConv.

    python -m coorl_jax.study --config=configs/leduc.py --seconds=120 --directory=studies/leduc

Trains variants of the configuration, one after the other, each for the same seconds of training:
the clock stands still during compilation and while NashConv is computed. It prints a table and
leaves in the directory

    study.json       what is compared
    results.jsonl    one line per variant, seed and iteration at which NashConv was computed
    nash_conv.png    NashConv of the average policy against nodes and seconds

Given the same directory again a study goes on: variants that are finished stay as they are, one
that was stopped starts anew, and the picture is drawn again. With --variants=external,critic it
trains and shows only these.
"""

from __future__ import annotations

import datetime
import difflib
import json
import math
import re
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich.box
import rich.console
import rich.progress
import rich.table
from absl import flags

from coorl_jax import commandline, studydir
from coorl_jax import config as config_lib
from coorl_jax import variants as variants_lib
from coorl_jax.progress import tell
from coorl_jax.studydir import POLICIES, Run

if TYPE_CHECKING:
    from coorl_jax.games.game import Game

_SECONDS = flags.DEFINE_float("seconds", 120.0, "seconds of training for each variant and seed")
_DIRECTORY = flags.DEFINE_string(
    "directory", None, "directory of the study; if not given, studies/ and the configuration's name"
)
_VARIANTS = flags.DEFINE_list(
    "variants", None, "variants, e.g. external,critic; if not given, all that differ"
)
_SEEDS = flags.DEFINE_list("seeds", "0", "seeds with which each variant is trained")
_THRESHOLD = flags.DEFINE_float(
    "threshold",
    None,
    "NashConv, points a round: the table tells when the average policy reaches it",
)

# Policies kept for the mixture where the configuration keeps none.
_MIXTURE_CAPACITY = 2000


def main(argv: list[str]) -> None:
    """Run a study by the flags."""
    del argv
    settings = commandline.config_settings()
    seconds, threshold = _SECONDS.value, _THRESHOLD.value
    for flag, value in (("seconds", seconds), ("threshold", threshold)):
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"--{flag}={value:g}: must be a finite number above 0; e.g. 0.5")
    seeds = _parse_seeds(_SEEDS.value)
    names = _parse_variants(settings, _VARIANTS.value)
    directory = Path(_DIRECTORY.value or f"studies/{settings.name}")
    study(settings, directory, names, seeds=seeds, seconds=seconds, threshold=threshold)


def study(
    settings: config_lib.Settings,
    directory: Path,
    names: Sequence[str],
    *,
    seeds: Sequence[int],
    seconds: float,
    threshold: float | None = None,
) -> dict[str, list[Run]]:
    """Train the variants that are not finished yet, and show all of them.

    Args:
      settings: what the variants are variants of.
      directory: of the study, existing or not.
      names: of variants.
      seeds: with which each variant is trained.
      seconds: of training for each variant and seed.
      threshold: a NashConv of interest, points a round.

    Returns:
      The runs of every variant, one for each seed.

    Raises:
      ValueError: for a game that is too large, a variant that the configuration does not allow, or
        a directory where another study is.
    """
    # What loads jax is imported where it is used, so that mistakes are answered at once.
    from coorl_jax import plot, runtime
    from coorl_jax.policy import make_network

    plot.require()
    runtime.configure()
    variants = _all_variants(settings)
    # All of them, so that none is refused after others were trained.
    made = {
        (name, seed): _variant(settings, name, variants[name], seed)
        for seed in seeds
        for name in names
    }
    _enumerate(make_network(settings).game)

    results = directory / studydir.RESULTS
    with studydir.locked(directory):
        studydir.check_same(directory, settings, variants, seconds)
        runs = studydir.finished(directory)
        waiting = [run for run in made if run not in runs]
        if len(waiting) < len(made):
            tell(f"{len(made) - len(waiting)} of {len(made)} runs were finished before")
        with _Progress(len(waiting), seconds) as progress:
            for name, seed in waiting:
                runs[name, seed] = _train(made[name, seed], name, seed, results, progress)
                _draw(directory, settings, _by_variant(runs, names), threshold)
        shown = _by_variant(runs, names)
        if not waiting:
            _draw(directory, settings, shown, threshold)
    _print_table(shown, threshold)
    tell(f"picture {directory / studydir.PICTURE}, numbers {results}")
    return shown


def _enumerate(game: Game) -> None:
    """Enumerate the game, which NashConv takes; the tree is kept."""
    from coorl_jax.evaluation import suite

    tell(f"enumerating {game.name}")
    try:
        suite.enumerated(game)
    except ValueError as error:
        limit = re.search(r"more than ([\d,]+ (?:deals|histories))", str(error))
        if limit is None:
            raise
        raise ValueError(
            f"config.game.name={game.name}: must have at most {limit[1]} for exact NashConv; "
            "e.g. --config=configs/leduc.py"
        ) from error


def _train(
    settings: config_lib.Settings, name: str, seed: int, results: Path, progress: _Progress
) -> Run:
    """Train a variant with a seed, and write a line for each point."""
    from coorl_jax.evaluation.learning_curve import learning_curve

    run: Run = []
    progress.begin(f"{name}, seed {seed}")
    with results.open("a", encoding="utf-8") as file:
        for point in learning_curve(settings, progress.seconds, progress.iteration):
            run.append({"variant": name, "seed": seed, **point._asdict()})
            file.write(json.dumps(run[-1]) + "\n")
            file.flush()
            nash_conv = ", ".join(f"{p} {point.nash_conv[p]:.4g}" for p in POLICIES)
            progress.say(
                f"{name}, seed {seed}: iteration {point.iteration}, {point.seconds:.1f} s, "
                f"{point.nodes:,} nodes; NashConv {nash_conv}; {progress.time_left()} left"
            )
    progress.end()
    return run


class _Progress:
    """Tells how a study gets on: lines, and on a terminal a bar below them. A context manager."""

    def __init__(self, runs: int, seconds: float) -> None:
        self.seconds = seconds
        self._runs = runs
        self._done = 0  # runs
        self._trained = 0.0  # seconds of the present run
        self._start = time.perf_counter()
        self._bar = rich.progress.Progress(
            "{task.description}", rich.progress.BarColumn(), "{task.fields[left]} left",
            disable=not sys.stdout.isatty(),
        )  # fmt: skip
        self._task = self._bar.add_task("", total=max(runs, 1) * seconds, left="")

    def __enter__(self) -> _Progress:
        if self._runs:
            self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """Print a line."""
        if self._bar.disable:
            tell(text)
        else:
            self._bar.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def begin(self, run: str) -> None:
        """Tell that a run begins."""
        self._bar.update(self._task, description=f"{self._done + 1}/{self._runs} {run}")
        self.say(f"{run}: compiling")

    def iteration(self, trained: float) -> None:
        """Take note that the present run has trained for so many seconds."""
        self._trained = min(trained, self.seconds)
        self._bar.update(self._task, completed=self._all_trained(), left=self.time_left())

    def end(self) -> None:
        """Take note that the present run is finished."""
        self._done, self._trained = self._done + 1, 0.0

    def time_left(self) -> str:
        """Return how long the study goes on, as it went so far, compilations included."""
        trained = self._all_trained()
        pace = (time.perf_counter() - self._start) / trained if trained else 1.0
        return str(datetime.timedelta(seconds=round((self._runs * self.seconds - trained) * pace)))

    def _all_trained(self) -> float:
        return self._done * self.seconds + self._trained


def _all_variants(settings: config_lib.Settings) -> variants_lib.Variants:
    return variants_lib.schemes(settings) | variants_lib.alternatives(settings)


def _variant(
    settings: config_lib.Settings, name: str, overrides: Mapping[str, Any], seed: int
) -> config_lib.Settings:
    """Return the settings of a variant with a seed, and with a mixture to be measured."""
    capacity = settings.mixture.capacity or _MIXTURE_CAPACITY
    overrides = {"mixture.capacity": capacity, **overrides, "seed": seed}
    return variants_lib.apply(settings, name, overrides)


def _parse_seeds(words: Sequence[str]) -> list[int]:
    seeds = [int(word) for word in words if word.isdecimal()]
    # 0 and 00 are one seed.
    if not words or len(set(seeds)) < len(words):
        raise ValueError(
            f"--seeds={','.join(words)}: must be different integers from 0, separated by commas; "
            "e.g. 0,1"
        )
    return [config_lib.check_value("seed", seed) for seed in seeds]


def _parse_variants(settings: config_lib.Settings, words: Sequence[str] | None) -> list[str]:
    """Return the names of the variants to train, all that differ where none are given."""
    variants = _all_variants(settings)
    if words is None:
        names = variants_lib.distinct(settings, variants)
        if same := [name for name in variants if name not in names]:
            tell(f"left out, as this configuration has it already: {', '.join(same)}")
        return names
    for word in words:
        if word not in variants:
            close = difflib.get_close_matches(word, variants, n=1)
            example = close[0] if close else variants_lib.REFERENCE
            raise ValueError(
                f"--variants={word}: must be among {', '.join(variants)}; e.g. {example}"
            )
    if not words or len(set(words)) < len(words):
        raise ValueError(
            f"--variants={','.join(words)}: must be different names, separated by commas, and at "
            "least one; e.g. external,critic"
        )
    return list(words)


def _by_variant(runs: Mapping[tuple[str, int], Run], names: Sequence[str]) -> dict[str, list[Run]]:
    """Return the runs of those variants that have any, in the order of their seeds."""
    shown = {name: [runs[key] for key in sorted(runs) if key[0] == name] for name in names}
    return {name: of_variant for name, of_variant in shown.items() if of_variant}


def _draw(
    directory: Path,
    settings: config_lib.Settings,
    shown: Mapping[str, Sequence[Run]],
    threshold: float | None,
) -> None:
    """Draw runs, schemes and other settings apart."""
    from coorl_jax import plot

    curves = {name: plot.curve(runs, "average") for name, runs in shown.items()}
    seeds = max(len(runs) for runs in shown.values())
    of_seeds = f", geometric mean and range of {seeds} seeds" if seeds > 1 else ""
    schemes = variants_lib.schemes(settings)
    others = [name for name in curves if name not in schemes]
    groups = {"sampling schemes": [name for name in curves if name in schemes]}
    if others:
        reference = [name for name in curves if name == variants_lib.REFERENCE]
        if groups["sampling schemes"] == reference:
            groups.clear()
        groups["settings, with external sampling"] = reference + others
    plot.draw(
        directory / studydir.PICTURE,
        f"{settings.name}: NashConv of the average policy{of_seeds}",
        {heading: {name: curves[name] for name in group} for heading, group in groups.items()},
        threshold,
    )


def _print_table(shown: Mapping[str, Sequence[Run]], threshold: float | None) -> None:
    """Print the ends of the runs, means over seeds; in Markdown where output is piped."""
    console = rich.console.Console(width=None if sys.stdout.isatty() else 200)
    box = rich.box.SIMPLE if console.is_terminal else rich.box.MARKDOWN
    table = rich.table.Table(box=box)
    table.add_column("variant")
    headings = ["seeds", "iterations", "nodes", "nodes/s", *(f"NashConv {p}" for p in POLICIES)]
    headings += ["compilation s", *([f"s to {threshold:g}"] if threshold else [])]
    for heading in headings:
        table.add_column(heading, justify="right")
    for name, runs in shown.items():
        ends = [run[-1] for run in runs]
        cells = [
            str(len(runs)),
            f"{statistics.mean(end['iteration'] for end in ends):,.0f}",
            f"{statistics.mean(end['nodes'] for end in ends):,.0f}",
            f"{statistics.mean(end['nodes'] / end['seconds'] for end in ends):,.0f}",
            *(_mean([end["nash_conv"][policy] for end in ends]) for policy in POLICIES),
            f"{statistics.mean(end['compile_seconds'] for end in ends):.1f}",
        ]
        if threshold:
            # The median counts seeds that never get there as the slowest.
            reached = statistics.median(_seconds_to(run, threshold) for run in runs)
            cells.append(f"{reached:.1f}" if reached < math.inf else "never")
        table.add_row(name, *cells)
    console.print(table)


def _mean(values: Sequence[float]) -> str:
    """Return the mean in words, with its standard error where there is one."""
    mean = f"{statistics.mean(values):.4f}"
    if len(values) == 1:
        return mean
    return f"{mean} +- {statistics.stdev(values) / math.sqrt(len(values)):.4f}"


def _seconds_to(run: Run, threshold: float) -> float:
    """Return the seconds at the first point whose average policy is as good as a threshold."""
    reached = (p["seconds"] for p in run if p["nash_conv"]["average"] <= threshold)
    return next(reached, math.inf)


if __name__ == "__main__":
    commandline.run(main, config=True)
