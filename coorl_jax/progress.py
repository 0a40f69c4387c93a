"""What a training run tells while it runs: lines where output is piped, a panel on a terminal."""

from __future__ import annotations

import datetime
import os
import re
import sys
import time
from collections.abc import Sequence

import rich.live
import rich.progress_bar
import rich.table

from coorl_jax.metrics import Metrics

_RECENT_ITERATIONS = 20
_PHASES = {
    "traversal_seconds": "traversal",
    "value_train_seconds": "value",
    "advantage_train_seconds": "advantage",
    "strategy_train_seconds": "strategy",
    "update_seconds": "updates",
    "evaluation_seconds": "evaluation",
    "gate_seconds": "gate",
    "checkpoint_seconds": "checkpoint",
}


def tell(text: str) -> None:
    """Print a line; go on in silence once nobody reads standard output any more.

    The reader of a pipe may end before the run does: at Ctrl-C, `train | tee log` loses its tee
    at once, and the run still has a checkpoint to write.
    """
    try:
        print(text, flush=True)
    except BrokenPipeError:
        silence()


def silence() -> None:
    """Send what is still to be printed nowhere, the flush at exit included."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


class Progress:
    """Tells how a training run gets on: plain lines. A context manager."""

    def __init__(self, iterations: int) -> None:
        """Args: iterations: how many the run has in all."""
        self._iterations = iterations
        self._iteration_seconds: list[float] = []

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exception: object) -> None:
        """Leave the display."""

    def say(self, text: str) -> None:
        """Print a line."""
        tell(text)

    def resume(self, iteration: int) -> None:
        """Take note that so many iterations were done before."""

    def stage(self, iteration: int, stage: str) -> None:
        """Take note that a stage of an iteration, counted from 1, begins."""

    def iteration(self, iteration: int, metrics: Metrics) -> None:
        """Tell the numbers of a complete iteration."""
        self._note_seconds(metrics)
        parts = [f"iteration {iteration}/{self._iterations}", *summary(metrics).values()]
        self.say("; ".join([*parts, f"{self._time_left(iteration)} left"]))
        for line in evaluation_lines(metrics):
            self.say(f"  {line}")

    def _note_seconds(self, metrics: Metrics) -> None:
        """Remember what an iteration took, without compilations, which do not come again."""
        self._iteration_seconds.append(
            max(metrics["iteration_seconds"] - metrics.get("compile_seconds", 0.0), 0.0)
        )

    def _time_left(self, iteration: int) -> str:
        recent = self._iteration_seconds[-_RECENT_ITERATIONS:]
        seconds = (self._iterations - iteration) * sum(recent) / max(len(recent), 1)
        return str(datetime.timedelta(seconds=round(seconds)))


class LiveProgress(Progress):
    """Tells how a training run gets on: a panel at the foot of a terminal."""

    def __init__(self, iterations: int) -> None:
        """Args: iterations: how many the run has in all."""
        super().__init__(iterations)
        self._done = 0
        self._stage, self._stage_start = "starting", time.monotonic()
        self._rows: dict[str, str] = {}
        self._evaluation: list[str] = []
        self._live = rich.live.Live(get_renderable=self._panel, refresh_per_second=2)

    def __enter__(self) -> Progress:
        self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        """Print a line above the panel."""
        self._live.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def resume(self, iteration: int) -> None:
        """Show that so many iterations were done before."""
        self._done = iteration

    def stage(self, iteration: int, stage: str) -> None:
        """Show which stage of which iteration, counted from 1, runs."""
        self._stage, self._stage_start = f"{stage} of iteration {iteration}", time.monotonic()

    def iteration(self, iteration: int, metrics: Metrics) -> None:
        """Show the numbers of a complete iteration."""
        self._note_seconds(metrics)
        self._done, self._rows = iteration, summary(metrics)
        self._evaluation = evaluation_lines(metrics) or self._evaluation

    def _panel(self) -> rich.table.Table:
        table = rich.table.Table.grid(padding=(0, 2))
        bar = rich.progress_bar.ProgressBar(self._iterations, self._done, width=40)
        left = f"{self._time_left(self._done)} left" if self._iteration_seconds else ""
        table.add_row("iteration", f"{self._done}/{self._iterations}  {left}")
        table.add_row("", bar)
        table.add_row("stage", f"{self._stage}, {time.monotonic() - self._stage_start:.0f} s")
        for name, text in self._rows.items():
            table.add_row(name, text)
        for number, line in enumerate(self._evaluation):
            table.add_row("" if number else "evaluation", line)
        return table


def progress(iterations: int) -> Progress:
    """Return the progress display that suits standard output."""
    return LiveProgress(iterations) if sys.stdout.isatty() else Progress(iterations)


def summary(metrics: Metrics) -> dict[str, str]:
    """Return an iteration's seconds, speed and losses in words, by topic."""
    phases = [
        f"{label} {metrics[name]:.1f}"
        for name, label in _PHASES.items()
        if metrics.get(name) is not None
    ]
    texts = {"seconds": f"{metrics['iteration_seconds']:.1f} s ({', '.join(phases)})"}
    if "traversal/nodes_per_second" in metrics:
        texts["speed"] = (
            f"{metrics['traversal/nodes_per_second']:,.0f} nodes/s, "
            f"occupancy {metrics['traversal/lane_occupancy']:.2f}"
        )
    losses = [
        f"{name.removeprefix('loss/')} {value:.4g}"
        for name, value in metrics.items()
        if name.startswith("loss/")
    ]
    if losses:
        texts["loss"] = f"loss {', '.join(losses)}"
    if skipped := metrics.get("precision/nonfinite_steps"):
        texts["skipped"] = f"WARNING: {skipped:.0f} updates skipped, their gradient was not finite"
    return texts


def evaluation_lines(metrics: Metrics) -> list[str]:
    """Return what an evaluation found: a line per policy and opponent met, and some more.

    There is one for each policy whose NashConv is known, and one for the test against the best so
    far. They come from the metrics `eval/<opponent>/<policy>/<metric>`, `eval/nash_conv/<policy>`
    and `gate/<metric>`.
    """
    pairs = dict.fromkeys(
        tuple(name.split("/")[1:3]) for name in metrics if re.fullmatch("eval/[^/]+/[^/]+/.+", name)
    )
    lines = []
    for opponent, policy in pairs:
        points, points_error, wins, wins_error = (
            metrics[f"eval/{opponent}/{policy}/{metric}"]
            for metric in ("points_per_round", "points_per_round_se", "win_rate", "win_rate_se")
        )
        lines.append(
            f"{policy} against {opponent}: {points:+.2f} +- {points_error:.2f} points a round, "
            f"wins {100 * wins:.1f} +- {100 * wins_error:.1f} %"
        )
    for name, value in metrics.items():
        if name.startswith("eval/nash_conv/"):
            lines.append(f"{name.rpartition('/')[2]}: NashConv {value:.4f} points")
    if "gate/accepted" in metrics:
        test = f"against the best so far: {points}; " if (points := _gate_points(metrics)) else ""
        verdict = "is now" if metrics["gate/accepted"] else "stays"
        lines.append(f"{test}iteration {metrics['gate/best_iteration']} {verdict} the best")
    return lines


def best_line(lines: Sequence[Metrics]) -> str | None:
    """Return which iteration is the best, out of the metrics of all; None if none is known."""
    accepted = [metrics for metrics in lines if metrics.get("gate/accepted")]
    if not accepted:
        return None
    points = _gate_points(accepted[-1])
    test = f", {points} against the best before" if points else ""
    return f"best: iteration {accepted[-1]['gate/best_iteration']}{test}"


def _gate_points(metrics: Metrics) -> str | None:
    """Return the result of a test; None if the policies were the first and there was none."""
    if "gate/points_per_round" not in metrics:
        return None
    points, error = (metrics[f"gate/points_per_round{suffix}"] for suffix in ("", "_se"))
    return f"{points:+.2f} +- {error:.2f} points a round"
