"""Gatekeeping: whether a policy is better than the best so far, by a test on paired deals.

A win rate against some opponent goes up and down by luck, and the highest of many is luckier than
good. Here the two policies play each other, on the same decks from both seats, and the candidate is
taken for better only where its mean points a round are further above zero than luck explains: a
one-sided z test. Of candidates that are exactly as good as the best so far, the test accepts a
share of `significance`, each time that it is held: in a run of many tests that learns nothing more,
the best is replaced now and then, by its equal.
"""

from __future__ import annotations

import statistics
from typing import NamedTuple

import jax

from coorl_jax.evaluation.match import play
from coorl_jax.games.game import Game
from coorl_jax.policy import AnyPolicy

# Stream of random numbers below the seed; training (cfr/iteration.py) and evaluation (suite.py) use
# others.
_GATE = 2


class Verdict(NamedTuple):
    """The outcome of a test."""

    accepted: bool
    points_per_round: float  # mean, of the candidate
    points_per_round_se: float


def gate_key(seed: int, iteration: int) -> jax.Array:
    """Return the key of the test after an iteration, of decks that are used for nothing else."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), _GATE), iteration)


def challenge(
    game: Game,
    candidate: AnyPolicy,
    best: AnyPolicy,
    pairs: int,
    significance: float,
    key: jax.Array,
) -> Verdict:
    """Test whether a policy is better than another.

    Args:
      game: the rules.
      candidate: the policy that may be better.
      best: the policy to beat.
      pairs: deals, each played twice with seats swapped; so many that their mean is normal.
      significance: probability of accepting a candidate that is only as good, in (0, 1).
      key: consumed.

    Returns:
      The verdict: accepted if the mean is above z(1 - significance) standard errors.
    """
    mean, error = play(game, candidate, best, pairs, key).points_per_round
    quantile = statistics.NormalDist().inv_cdf(1 - significance)
    return Verdict(mean > quantile * error, mean, error)
