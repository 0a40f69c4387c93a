"""Timing: candidates that are compared take turns, so that a machine's drift hits all of them.

A machine that other programs use may slow down by half within minutes. Two candidates timed one
after the other then differ by that much for no reason of their own; timed in turns, the *ratio*
within a round is steady. So a comparison is the median of the ratios of its rounds and never the
ratio of two medians.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

_FEWEST = 2  # rounds that are timed, whatever the budget
_SHORTEST = 0.02  # seconds of one timing: shorter calls are repeated within it
_MOST_CALLS = 1000  # within one timing


@dataclasses.dataclass(frozen=True)
class Effort:
    """How long to measure.

    Attributes:
      repeats: rounds that are timed, after a warm-up.
      budget: seconds after which no further round begins, once there are two.
    """

    repeats: int
    budget: float = math.inf


@dataclasses.dataclass(frozen=True)
class Spread:
    """What repeats of one measurement gave."""

    median: float
    minimum: float
    maximum: float
    repeats: int


def spread(values: Sequence[float]) -> Spread:
    """Summarise repeats; there must be one at least."""
    return Spread(statistics.median(values), min(values), max(values), len(values))


@dataclasses.dataclass(frozen=True)
class Timing:
    """Seconds of a call, in every round."""

    seconds: tuple[float, ...]

    def per(self, count: float, unit: float = 1.0) -> Spread:
        """Return the time of one of `count` things that a call does, in units of so many seconds.

        Args:
          count: of things; 1 for the call itself.
          unit: 1e-3 for milliseconds.
        """
        return spread([seconds / count / unit for seconds in self.seconds])

    def rate(self, count: float) -> Spread:
        """Return how many things a second are done, of which a call does `count`."""
        return spread([count / seconds for seconds in self.seconds])

    def over(self, other: Timing) -> float:
        """Return the median ratio to another timing of the same rounds."""
        return statistics.median(
            mine / theirs for mine, theirs in zip(self.seconds, other.seconds, strict=True)
        )


def interleave(
    candidates: Mapping[str, Callable[[], Any]],
    effort: Effort,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Time candidates in turns, round by round, after a warm-up that compiles.

    Args:
      candidates: by name; each is called without arguments, and what it returns is waited for.
      effort: of the comparison.
      clock: gives seconds.

    Returns:
      The timings by name; all have the same rounds.
    """
    for candidate in candidates.values():
        jax.block_until_ready(candidate())
    calls = dict.fromkeys(candidates, 1)
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    started = clock()
    for number in range(effort.repeats):
        if number >= _FEWEST and clock() - started >= effort.budget:
            break
        for name, candidate in candidates.items():
            taken = _seconds(candidate, calls[name], clock)
            if number == 0 and taken < _SHORTEST:
                calls[name] = min(math.ceil(_SHORTEST / max(taken, 1e-9)), _MOST_CALLS)
                taken = _seconds(candidate, calls[name], clock)
            seconds[name].append(taken)
    return {name: Timing(tuple(values)) for name, values in seconds.items()}


def _seconds(candidate: Callable[[], Any], calls: int, clock: Callable[[], float]) -> float:
    """Return the seconds of a call, on average, each waited for."""
    started = clock()
    for _ in range(calls):
        jax.block_until_ready(candidate())
    return (clock() - started) / calls
