"""Pictures: a study's NashConv, a tournament's points as a heat map, curves of points a round."""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

# An extra: imported where it is used.
if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Black, and of Paul Tol's schemes "vibrant" and "muted", which the colour-blind can tell apart.
_COLORS = (
    "#000000",
    "#CC3311",
    "#0077BB",
    "#117733",
    "#AA4499",
    "#EE7733",
    "#33BBEE",
    "#999933",
    "#882255",
    "#44AA99",
)
_DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)))
_INK = "#333333"
_WIDTH, _ROW_HEIGHT = 11.0, 4.4  # inches
_LABEL_SPACING = 0.052  # between two labels, as a share of the panel's height
_CELL = 0.72  # side of a heat map's cell, inches


@dataclasses.dataclass(frozen=True)
class Curve:
    """NashConv as training goes on, of one variant; P points."""

    nodes: np.ndarray  # float64[P]
    seconds: np.ndarray  # float64[P]
    nash_conv: np.ndarray  # float64[P], points a round
    lowest: np.ndarray  # float64[P], of all seeds
    highest: np.ndarray  # float64[P]


def require() -> None:
    """Check that pictures can be drawn.

    Raises:
      ValueError: when matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError(
            "matplotlib: not installed, needed to draw; e.g. pip install 'coorl-jax[plots]'"
        )


def curve(runs: Sequence[Sequence[Mapping[str, Any]]], policy: str) -> Curve:
    """Return the mean curve of runs that differ in their seed.

    Seeds share the iterations at which NashConv is computed, but for the last: runs of one length
    in seconds end at different iterations. Last points go with last points.

    Args:
      runs: for each seed its points, as `results.jsonl` has them.
      policy: whose NashConv.

    Returns:
      The means over seeds, geometric ones of NashConv, which is drawn on a logarithmic axis.
    """
    shared = set.intersection(*({point["iteration"] for point in run[:-1]} for run in runs))
    aligned = [[p for p in run[:-1] if p["iteration"] in shared] + [run[-1]] for run in runs]

    def values(name: str) -> np.ndarray:
        return np.array([[point[name] for point in run] for run in aligned], np.float64)

    nash_conv = np.array([[point["nash_conv"][policy] for point in run] for run in aligned])
    return Curve(
        nodes=values("nodes").mean(axis=0),
        seconds=values("seconds").mean(axis=0),
        nash_conv=np.exp(np.log(nash_conv).mean(axis=0)),
        lowest=nash_conv.min(axis=0),
        highest=nash_conv.max(axis=0),
    )


def draw(
    path: Path,
    title: str,
    rows: Mapping[str, Mapping[str, Curve]],
    threshold: float | None = None,
) -> None:
    """Write a PNG with a row of two panels, against nodes and against seconds, for each group.

    Args:
      path: the file.
      title: of the picture.
      rows: the curves of each group, by the group's heading and the curve's name; the first curve
        of a group is the black one that others are compared with.
      threshold: a NashConv to mark, points a round.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, NullFormatter

    figure = Figure(figsize=(_WIDTH, 0.6 + _ROW_HEIGHT * len(rows)), dpi=150, layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=13, fontweight="bold", color=_INK)
    panels = figure.subplots(len(rows), 2, sharex="col", sharey="row", squeeze=False)
    for (left, right), (heading, curves) in zip(panels, rows.items(), strict=True):
        for number, each in enumerate(curves.values()):
            _draw_curve(left, each.nodes, each, number)
            _draw_curve(right, each.seconds, each, number)
        left.set_title(heading, loc="left", fontsize=11, color=_INK)
        left.set_ylabel("NashConv, points a round", color=_INK)
        for axes in (left, right):
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.grid(which="major", color="#dddddd", linewidth=0.8)
            axes.grid(which="minor", axis="y", color="#eeeeee", linewidth=0.5)
            axes.set_axisbelow(True)
            axes.spines[["top", "right"]].set_visible(False)
            axes.tick_params(which="both", colors=_INK, labelbottom=True)
            if threshold is not None:
                axes.axhline(threshold, color="#888888", linewidth=1, linestyle=":")
        plain = FuncFormatter(lambda value, _: f"{value:g}")
        for axis, formatter in (
            (left.xaxis, EngFormatter(sep="")),
            (right.xaxis, plain),
            (left.yaxis, plain),
        ):
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter(formatter)
            axis.set_minor_formatter(NullFormatter())
        _label(right, curves)
        left.set_xlabel("nodes visited", color=_INK)
        right.set_xlabel("seconds of training, without compilation", color=_INK)
    figure.align_ylabels(panels[:, 0])
    figure.savefig(path, format="png")


def _draw_curve(axes: Axes, x: np.ndarray, drawn: Curve, number: int) -> None:
    """Draw a curve, with the range of its seeds if there are several."""
    style: dict[str, Any] = {"color": _color(number), "linestyle": _DASHES[number % len(_DASHES)]}
    axes.plot(x, drawn.nash_conv, linewidth=2.4 if number == 0 else 1.6, **style)
    axes.plot(x[-1:], drawn.nash_conv[-1:], "o", color=_color(number), markersize=4)
    if np.any(drawn.highest > drawn.lowest):
        axes.fill_between(
            x, drawn.lowest, drawn.highest, color=_color(number), alpha=0.12, linewidth=0
        )


def _label(axes: Axes, curves: Mapping[str, Curve]) -> None:
    """Write the curves' names and last values beside their ends, none over another."""
    low, high = (math.log(limit) for limit in axes.get_ylim())
    ends = np.array([math.log(each.nash_conv[-1]) for each in curves.values()])
    ends = (ends - low) / (high - low)
    places = spread(ends, _LABEL_SPACING)
    for number, (name, each) in enumerate(curves.items()):
        axes.annotate(
            f"{name}  {each.nash_conv[-1]:#.3g}",
            xy=(each.seconds[-1], each.nash_conv[-1]),
            xytext=(1.05, places[number]),
            textcoords=axes.transAxes,
            va="center",
            fontsize=9,
            color=_color(number),
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": _color(number),
                "linewidth": 0.7,
                "shrinkA": 1,
                "shrinkB": 2,
            },
        )


def spread(places: np.ndarray, spacing: float) -> np.ndarray:
    """Return the places nearest to those given, in least squares, that keep a distance.

    Args:
      places: float64[N], in any order.
      spacing: the distance between neighbours.

    Returns:
      float64[N], in the same order; the pool adjacent violators algorithm finds them.
    """
    order = np.argsort(places, kind="stable")
    # Less the room that those before take, places need only not fall: an isotonic regression.
    room = spacing * np.arange(len(places))
    blocks: list[tuple[float, int]] = []  # mean and size
    for place in places[order] - room:
        mean, size = float(place), 1
        while blocks and blocks[-1][0] > mean:
            before, count = blocks.pop()
            mean, size = (before * count + mean * size) / (count + size), count + size
        blocks.append((mean, size))
    result = np.empty(len(places))
    result[order] = np.concatenate([np.full(size, mean) for mean, size in blocks]) + room
    return result


def payoff_heat_map(
    path: Path, names: Sequence[str], payoff: np.ndarray, errors: np.ndarray, decimals: int
) -> None:
    """Write a PNG of what each player wins of each other one, with the numbers in its cells.

    Colours follow the square root of the points: between players of about the same strength they
    still differ when another player loses to all by far.

    Args:
      path: the file, which is whole or not there.
      names: of the n players, in the order of rows and columns.
      payoff: float64[n, n], points per round of row against column.
      errors: float64[n, n], their standard errors.
      decimals: digits of the numbers after the point.
    """
    from matplotlib.colors import FuncNorm
    from matplotlib.figure import Figure

    n = len(names)
    # The map has a fixed size, and the picture grows as the names need it.
    figure = Figure(figsize=(_CELL * n, _CELL * n), dpi=150)
    axes = figure.add_axes((0, 0, 1, 1))
    highest = float(np.max(np.abs(payoff))) or 1.0
    norm = FuncNorm(
        (lambda x: np.sign(x) * np.sqrt(np.abs(x)), lambda y: np.sign(y) * np.square(y)),
        vmin=-highest,
        vmax=highest,
    )
    # Of ColorBrewer: diverging, and told apart by the colour-blind.
    image = axes.imshow(payoff, cmap="RdBu", norm=norm)
    brightness = image.cmap(norm(payoff))[..., :3] @ np.array([0.299, 0.587, 0.114])
    for row, column in itertools.permutations(range(n), 2):
        axes.annotate(
            f"{payoff[row, column]:+.{decimals}f}\n\N{PLUS-MINUS SIGN}"
            f"{errors[row, column]:.{decimals}f}",
            (column, row),
            ha="center",
            va="center",
            fontsize=8,
            color=_INK if brightness[row, column] > 0.58 else "white",
        )
    # Names would not fit above their columns.
    axes.set_xticks(range(n), [str(number) for number in range(1, n + 1)])
    axes.set_yticks(range(n), [f"{name}  {number}" for number, name in enumerate(names, start=1)])
    axes.tick_params(length=0, labeltop=True, labelbottom=False, colors=_INK)
    axes.spines[:].set_visible(False)
    scale = figure.add_axes((1 + 0.2 / n, 0, 0.2 / n, 1))
    figure.colorbar(image, cax=scale).outline.set_visible(False)
    scale.set_ylabel("points a round of row against column", color=_INK)
    scale.tick_params(colors=_INK)
    temporary = path.with_name(f".{path.name}.tmp")
    figure.savefig(temporary, format="png", bbox_inches="tight", pad_inches=0.15)
    temporary.replace(path)


def _color(number: int) -> str:
    return _COLORS[number % len(_COLORS)]


def learning_curves(
    path: Path,
    title: str,
    curves: Mapping[str, tuple[Sequence[float], Sequence[float], Sequence[float]]],
    x_label: str,
) -> None:
    """Write a PNG of points a round as training goes on, with bands of two standard errors.

    Args:
      path: the file, which is whole or not there.
      title: of the picture.
      curves: by name, places on the x axis, points a round there, and their standard errors.
      x_label: what the x axis shows.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    figure = Figure(figsize=(0.7 * _WIDTH, _ROW_HEIGHT + 0.6), dpi=150, layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold", color=_INK)
    axes.axhline(0.0, color=_INK, linewidth=0.8)
    for number, (name, (places, points, errors)) in enumerate(curves.items()):
        color, dashes = _color(number), _DASHES[number // len(_COLORS) % len(_DASHES)]
        low, high = (
            [point + side * error for point, error in zip(points, errors, strict=True)]
            for side in (-2.0, 2.0)
        )
        axes.fill_between(places, low, high, color=color, alpha=0.15, linewidth=0)
        axes.plot(places, points, color=color, linestyle=dashes, linewidth=1.8, label=name)
    axes.xaxis.set_major_formatter(EngFormatter())
    axes.set_xlabel(x_label, color=_INK)
    axes.set_ylabel("points a round", color=_INK)
    axes.grid(alpha=0.25)
    axes.tick_params(colors=_INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, labelcolor=_INK)
    temporary = path.with_name(f".{path.name}.tmp")
    figure.savefig(temporary, format="png")
    temporary.replace(path)
