"""A match: many deals, each played twice with seats swapped, in lockstep.

K pairs of rounds, T = max_decisions; `lockstep.py` plays them. Both rounds of a pair have the same
deck and the same action noise per decision, so that luck largely cancels in their mean: standard
errors are those of a mean over independent pairs. A policy that meets itself plays the same round
twice, and swapping two policies swaps the two rounds of every pair: the numbers are then exactly
zero, and exactly negated.

Of a mixture, a few pairs in a row, a *group*, share the members that are drawn, one for each seat:
each round is played by a member with the right probability, and one network serves many lanes.
Groups are independent of each other, pairs within one are not: standard errors are then those of a
mean over groups.
"""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from coorl_jax.evaluation.lockstep import play_rounds
from coorl_jax.games.game import NUM_PLAYERS, Game
from coorl_jax.policy import AnyPolicy, EitherKindPolicy, MixturePolicy, NetworkPolicy

_CHUNK = 4096
"""Pairs played by one call; more are played chunk by chunk by the same compiled program."""
_LANES = 1024
"""Rounds of a call at once, at most; with a mixture a call has no more rounds than these."""
_AT_ONCE = 2
"""Chunks played at once on a CPU: what one does on a single core, the game and the bots, goes on
beside the other's networks, which use all cores. An accelerator is filled by one."""
_GROUP = 16
"""Pairs that share a draw from a mixture, at most: a power of two."""


@dataclasses.dataclass(frozen=True)
class Recording:
    """What a match keeps of every round when asked to; the last axis of two is policies a, b.

    Attributes:
      starts: the dealt states, leading axis K.
      finals: the states at the end, leading axes K, 2.
      actions: int32[K, 2, T], what was played, zeros after the end.
      entropy: float32[K, 2, 2], sum over a policy's decisions of its entropy, nats.
      fallbacks: int32[K, 2, 2], a policy's decisions at which no advantage was positive.
    """

    starts: Any
    finals: Any
    actions: np.ndarray
    entropy: np.ndarray
    fallbacks: np.ndarray


@dataclasses.dataclass(frozen=True)
class MatchResult:
    """Rounds between policies a and b; row i is deal i, column s has policy a in seat s.

    Rates and means come with their standard error.

    Attributes:
      points: float32[K, 2], points of policy a minus those of policy b.
      decisions: int32[K, 2], length of each round, both players together.
      group: pairs in a row that are not independent, since they share a draw from a mixture.
      recording: everything else, if recorded.
      passes: how often either policy was asked to decide, and
      batch: for how many rounds at once.
    """

    points: np.ndarray
    decisions: np.ndarray
    group: int = 1
    recording: Recording | None = None
    passes: int = 0
    batch: int = 0

    @property
    def recorded(self) -> Recording:
        """The recording of a match that was recorded.

        Raises:
          ValueError: if it was not.
        """
        if self.recording is None:
            raise ValueError("recording=None: this match was not recorded; play(..., record=True)")
        return self.recording

    @property
    def rounds(self) -> int:
        """Rounds played."""
        return self.points.size

    @property
    def points_per_round(self) -> tuple[float, float]:
        """Mean points per round for policy a."""
        return self.mean_and_error(self.points)

    @property
    def win_rate(self) -> tuple[float, float]:
        """Share of rounds that policy a wins."""
        return self.mean_and_error(self.points > 0)

    @property
    def draw_rate(self) -> tuple[float, float]:
        """Share of drawn rounds."""
        return self.mean_and_error(self.points == 0)

    @property
    def loss_rate(self) -> tuple[float, float]:
        """Share of rounds that policy a loses."""
        return self.mean_and_error(self.points < 0)

    @property
    def decisions_per_round(self) -> float:
        """Mean length of a round."""
        return float(np.mean(self.decisions))

    def mean_and_error(self, values: np.ndarray) -> tuple[float, float]:
        """Return the mean of [K, 2], and its standard error from groups that are independent."""
        by_pair = values.mean(axis=1, dtype=np.float64)
        mean = by_pair.mean()
        # The last group may be smaller, so deviations are summed and not averaged:
        # "cluster-robust".
        starts = np.arange(0, by_pair.size, self.group)
        deviations = np.add.reduceat(by_pair - mean, starts)
        groups = deviations.size
        variance = np.sum(deviations**2) * groups / (groups - 1) / by_pair.size**2
        return float(mean), float(np.sqrt(variance))


def play(
    game: Game,
    policy_a: AnyPolicy,
    policy_b: AnyPolicy,
    pairs: int,
    key: jax.Array,
    *,
    record: bool = False,
    one_by_one: bool = False,
) -> MatchResult:
    """Play `pairs` deals twice each, policy a once in each seat.

    Deal i depends on (key, i) alone: with the same key, any two policies meet on the same decks,
    and more pairs begin with the same rounds (with a mixture, if there are more than 32 already).

    Args:
      game: the rules.
      policy_a: whose points are counted.
      policy_b: its opponent.
      pairs: K, at least 2 for a standard error.
      key: consumed.
      record: whether to keep decks, actions and what else a `Recording` has.
      one_by_one: whether to play no chunks side by side; for timing, changes no result.

    Returns:
      The rounds.

    Raises:
      ValueError: with fewer than two pairs.
    """
    if pairs < 2:
        raise ValueError(f"pairs={pairs}: must be at least 2 for a standard error; e.g. 1000")
    drawn = isinstance(policy_a, MixturePolicy) or isinstance(policy_b, MixturePolicy)
    at_once = _AT_ONCE if jax.default_backend() == "cpu" else 1
    # Powers of two, so that few different programs are ever compiled.
    size = 1 << ((pairs - 1) // at_once).bit_length()
    size = min(max(size, 2), _LANES // NUM_PLAYERS if drawn else _CHUNK)
    lanes = min(NUM_PLAYERS * size, _LANES)
    # Two groups at least, for a standard error.
    group = min(_GROUP, size // 2) if drawn else 1

    # Whether a run's current or its average policy plays, the program is the same.
    policy_a, policy_b = (
        EitherKindPolicy.of(policy) if isinstance(policy, NetworkPolicy) else policy
        for policy in (policy_a, policy_b)
    )

    def play_chunk(first: int) -> Any:
        return jax.device_get(
            play_rounds(
                game,
                policy_a,
                policy_b,
                key,
                jnp.int32(first),
                jnp.int32(min(size, pairs - first)),
                size=size,
                lanes=lanes,
                groups=size // group if drawn else 1,
                record=record,
            )
        )

    threads = ThreadPoolExecutor(1 if one_by_one else at_once)
    try:
        chunks = list(threads.map(play_chunk, range(0, pairs, size)))
    finally:
        # An interrupt does not wait for chunks that are being played.
        threads.shutdown(wait=False, cancel_futures=True)
    *results, passes = zip(*chunks, strict=True)
    starts, rounds = (
        jax.tree.map(lambda *parts: np.concatenate(parts)[:pairs], *result) for result in results
    )
    recording = None if rounds.recorded is None else Recording(starts, *rounds.recorded)
    return MatchResult(
        rounds.points, rounds.decisions, group, recording, int(sum(passes)), lanes // NUM_PLAYERS
    )
