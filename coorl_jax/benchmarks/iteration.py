"""Whole iterations: their stages, and what of them is not the networks' own arithmetic."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import jax

from coorl_jax import config as config_lib
from coorl_jax.benchmarks import fit, forward, resident
from coorl_jax.benchmarks.timing import Effort, Spread, spread
from coorl_jax.cfr.iteration import STAGES, Trainer
from coorl_jax.cfr.sampling import make_scheme
from coorl_jax.games.game import NUM_PLAYERS
from coorl_jax.settings import Settings

PREDECESSOR = {"traverse": 10.71, "fit_advantage": 4.72, "fit_strategy": 2.39, "iteration": 17.85}
"""Seconds of the program that this one replaces, on an RTX 3090."""
PREDECESSOR_WORK = {
    "game.name": "lost_cities",
    "network.kind": "mlp",
    "network.width": 512,
    "network.depth": 3,
    "network.per_player": True,
    "traversal.scheme": "outcome",
    "traversal.traversals": 280,
    "traversal.alternating": False,
    "advantage.updates": 512,
    "advantage.batch_size": 1024,
    "strategy.updates": 512,
    "strategy.batch_size": 1024,
}
"""What it did in them. With less work, or more, the seconds are no comparison."""


@dataclasses.dataclass(frozen=True)
class Stage:
    """A stage, or the iteration; beside it the predecessor's, where it does the same work."""

    table: ClassVar[str] = "stages"

    stage: str
    seconds: Spread
    predecessor_seconds: float | None


@dataclasses.dataclass(frozen=True)
class Overhead:
    """What of an iteration is more than its floor; medians over iterations.

    The floor is nodes / bare states a second + updates x bare gradient step. `overhead` is the
    share of the iteration that is above it, and with it what a second network costs at nodes where
    those of both seats are asked.
    """

    table: ClassVar[str] = "overhead"

    nodes: float
    occupancy: float
    updates: float
    bare_per_second: float
    bare_step_milliseconds: float
    floor_seconds: float
    overhead: float


def measure(settings: Settings, effort: Effort, key: jax.Array) -> Iterator[Stage | Overhead]:
    """Run iterations, and measure their floor after each of them.

    Args:
      settings: of the run, see `check`; nothing is evaluated or saved.
      effort: of the iterations, after a first one that compiles.
      key: consumed.
    """
    trainer = Trainer(settings)
    floors = _Floors(settings, trainer, key)
    state = trainer.init()
    rounds: list[dict[str, float]] = []
    started = time.perf_counter()
    for number in range(effort.repeats + 1):
        if number > 2 and time.perf_counter() - started >= effort.budget:
            break
        metrics: dict[str, float] = {}
        for stage in STAGES:
            before = time.perf_counter()
            state, reported = trainer.run_stage(state)
            metrics |= reported | {stage: time.perf_counter() - before}
        metrics["iteration"] = sum(metrics[stage] for stage in STAGES)
        rounds.append(metrics | floors.measure(metrics))
        if number == 0:
            started = time.perf_counter()
    del rounds[0]  # It compiled.
    same_work = config_lib.override(settings, PREDECESSOR_WORK) == settings
    for stage in (*STAGES, "iteration"):
        if stage != "fit_value":
            yield Stage(
                stage=stage,
                seconds=spread([metrics[stage] for metrics in rounds]),
                predecessor_seconds=PREDECESSOR[stage] if same_work else None,
            )
    medians = {
        name: statistics.median(metrics[name] for metrics in rounds)
        for name in (field.name for field in dataclasses.fields(Overhead))
    }
    yield Overhead(**medians)


def check(settings: Settings) -> None:
    """Refuse a scheme that reads values, whose floor nobody has worked out.

    Raises:
      ValueError: naming it.
    """
    if make_scheme(settings).reads_values:
        raise ValueError(
            f"config.traversal.scheme={settings.traversal.scheme!r}: must read no value network "
            "for the benchmark iteration; e.g. outcome"
        )


class _Floors:
    """What an iteration cannot do without, measured in the same round."""

    def __init__(self, settings: Settings, trainer: Trainer, key: jax.Array):
        precision = settings.precision
        network = dataclasses.replace(trainer.network, precision=precision.traversal)
        fitted = dataclasses.replace(trainer.network, precision=precision.fit)
        networks = NUM_PLAYERS if settings.network.per_player else 1
        self._lanes = settings.traversal.lanes
        self._passes = forward.bare_passes(
            network, resident.parameters(network, key), self._lanes, key
        )
        self._steps = {
            "advantage": fit.bare_steps(fitted, settings.advantage, "squared_error", key),
            "strategy": fit.bare_steps(fitted, settings.strategy, "cross_entropy", key),
        }
        alternating = settings.traversal.alternating
        self._fits = {"advantage": 1 if alternating else networks, "strategy": networks}
        self._updates = {
            "advantage": settings.advantage.updates,
            "strategy": settings.strategy.updates,
        }

    def measure(self, metrics: dict[str, float]) -> dict[str, float]:
        """Return the numbers of `Overhead` for an iteration with these metrics."""
        # Not every iteration fits the average policy.
        fitted = [name for name in self._steps if f"loss/{name}" in metrics]
        steps = {name: _seconds(self._steps[name]) for name in fitted}
        fits = sum(self._fits[name] * steps[name] for name in fitted)
        updates = sum(self._fits[name] * self._updates[name] for name in fitted)
        rate = forward.PASSES * self._lanes / _seconds(self._passes)
        nodes, iteration = metrics["traversal/nodes"], metrics["iteration"]
        floor = nodes / rate + fits
        return {
            "nodes": nodes,
            "occupancy": metrics["traversal/lane_occupancy"],
            "updates": updates,
            "bare_per_second": rate,
            "bare_step_milliseconds": 1e3 * fits / updates,
            "floor_seconds": floor,
            "overhead": 1.0 - floor / iteration,
        }


def _seconds(function: Callable[[], Any]) -> float:
    started = time.perf_counter()
    jax.block_until_ready(function())
    return time.perf_counter() - started
