"""The test that a policy is better: its rule, how often it errs, and that its decks are its own."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coorl_jax.evaluation import gate
from coorl_jax.evaluation.match import MatchResult
from coorl_jax.games.kuhn_poker import KuhnPoker

KUHN = KuhnPoker()
KEY = jax.random.key(0)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Table:
    """A policy for Kuhn poker."""

    bets: jax.Array  # float32[card, history], probability

    def action_probabilities(self, packed, legal):
        bet = self.bets[packed[:, 0], packed[:, 1]]
        return jnp.stack([1 - bet, bet], axis=1) * legal


def equilibrium(bluff):
    """Return an equilibrium policy; there is one for each rate of bluffs from 0 to 1/3."""
    bets = np.zeros((3, 11), np.float32)
    bets[:, 0] = [bluff, 0, 3 * bluff]
    bets[:, 4] = [0, bluff + 1 / 3, 1]
    bets[:, 1] = [1 / 3, 0, 1]
    bets[:, 2] = [0, 1 / 3, 1]
    return Table(jnp.asarray(bets))


UNIFORM = Table(jnp.full((3, 11), 0.5))


def test_accepts_above_the_quantile_of_the_standard_error(monkeypatch):
    # Means of pairs 0, 0, 2, 2: mean 1, standard error sqrt(4/3 / 4), 1.732 of them above zero, so
    # that a normal is as high with probability 0.0416.
    points = np.array([[1, -1], [0, 0], [2, 2], [1, 3]], np.float32)
    result = MatchResult(points, np.ones((4, 2), np.int32))
    monkeypatch.setattr(gate, "play", lambda *arguments: result)

    def verdict(significance):
        return gate.challenge(KUHN, UNIFORM, UNIFORM, 4, significance, KEY)

    assert verdict(0.042) == (True, 1.0, pytest.approx(3**-0.5))
    assert verdict(0.041) == (False, 1.0, pytest.approx(3**-0.5))


def test_accepts_what_is_better_and_nothing_else():
    better, worse = equilibrium(1 / 3), UNIFORM
    assert gate.challenge(KUHN, better, worse, 300, 0.05, KEY).accepted
    assert not gate.challenge(KUHN, worse, better, 300, 0.5, KEY).accepted
    # A policy does not beat itself, however little it would take.
    assert gate.challenge(KUHN, better, better, 300, 0.5, KEY) == (False, 0.0, 0.0)


def test_accepts_what_is_only_as_good_at_the_stated_rate():
    """Two equilibria, which differ in their bluffs, are worth the same against each other."""
    policies = equilibrium(0.0), equilibrium(1 / 3)
    tests, rate = 300, 0.2
    verdicts = [
        gate.challenge(KUHN, *policies, 100, rate, gate.gate_key(5, iteration))
        for iteration in range(tests)
    ]
    error = np.sqrt(rate * (1 - rate) / tests)
    assert abs(np.mean([verdict.accepted for verdict in verdicts]) - rate) < 3 * error
    assert len({verdict.points_per_round for verdict in verdicts}) > 10
