"""Learning curves: exact NashConv as training goes on, against nodes and seconds.

The seconds are those of training alone. The clock stands still while NashConv is computed, and
what jax spends on tracing and compiling is counted apart: it is the same however long a run is, and
nothing for programs that an earlier run in the process has compiled.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax

from coorl_jax import runtime
from coorl_jax.cfr import iteration as iteration_lib
from coorl_jax.evaluation import suite
from coorl_jax.settings import Settings

# NashConv is computed after iterations 1, 2, 3, 5, 8, 12, ...: evenly spaced on a logarithmic axis;
# but after the first only where the average policy has just been fitted.
_SPACING = 1.5


class Point(NamedTuple):
    """What training has come to after an iteration."""

    iteration: int  # iterations completed
    nodes: int  # decision points that traversals have visited
    seconds: float  # of training
    compile_seconds: float  # of tracing and compiling, not among `seconds`
    nash_conv: dict[str, float]  # by policy, points a round
    finished: bool  # whether it is the last one


def learning_curve(
    settings: Settings, seconds: float, on_iteration: Callable[[float], None]
) -> Iterator[Point]:
    """Train for some time, and compute NashConv at geometrically spaced iterations and at the end.

    Args:
      settings: of the run; its number of iterations has no effect.
      seconds: of training, after which the iteration then running is the last.
      on_iteration: called after every iteration with the seconds of training so far.

    Yields:
      The points, the last one with `finished`.

    Raises:
      ValueError: for rules that make no game, a network that cannot read it, or a game that is too
        large to enumerate.
    """
    trainer = iteration_lib.Trainer(settings)
    state = trainer.init()
    every = settings.strategy.every
    completed, nodes, due = 0, 0, 1
    with runtime.CompileCounter() as compilations:
        clock = _Clock(compilations)
        while clock.seconds < seconds:
            with clock.running():
                for _ in iteration_lib.STAGES:
                    state, metrics = trainer.run_stage(state)
                    nodes += int(metrics.get("traversal/nodes", 0))
                # The device may still be at work.
                jax.block_until_ready(state)
            completed += 1
            on_iteration(clock.seconds)
            finished = clock.seconds >= seconds
            if completed == due or finished:
                yield Point(
                    completed,
                    nodes,
                    clock.seconds,
                    clock.compile_seconds,
                    suite.nash_convs(trainer.game, trainer.policies(state)),
                    finished,
                )
                due = every * math.ceil(_SPACING * completed / every)


class _Clock:
    """Adds up the seconds of training, and apart from them those of compiling."""

    def __init__(self, compilations: runtime.CompileCounter) -> None:
        self.seconds = 0.0
        self.compile_seconds = 0.0
        self._compilations = compilations

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Let the clock run."""
        self._compilations.take()
        start = time.perf_counter()
        yield
        elapsed = time.perf_counter() - start
        compiling = self._compilations.take()["compile_seconds"]
        self.seconds += max(elapsed - compiling, 0.0)
        self.compile_seconds += compiling
