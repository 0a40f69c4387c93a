"""The small Lost Cities of configs/mini_lost_cities.py: worth learning, and solvable."""

from __future__ import annotations

import numpy as np
import pytest
from policies import uniform

from configs import mini_lost_cities
from coorl_jax import config
from coorl_jax.evaluation.exploitability import nash_conv, nash_conv_of_mixture
from coorl_jax.games import registry
from coorl_jax.games import tree as trees

SETTINGS = config.from_config_dict(mini_lost_cities.get_config())
GAME = registry.make(SETTINGS.game.name, dict(SETTINGS.game.rules))


@pytest.fixture(scope="module")
def mini():
    return trees.enumerate_game(GAME)


def test_every_action_is_tried_everywhere(mini):
    """Both players' longest sequences, and the bound of the configuration."""
    decisions = [len(player.starts) - 1 for player in mini.sequence_form.decisions]
    assert max(decisions) == GAME.max_player_decisions == SETTINGS.traversal.max_branching_nodes


def test_uniform_mini_lost_cities(mini):
    assert sum(len(level.parent) for level in mini.levels) == 439_860
    assert mini.legal.shape == (48_030, 5)
    assert nash_conv(mini, uniform).nash_conv == pytest.approx(5.253472, abs=1e-6)


@pytest.mark.parametrize("card_action", ["play", "discard"])
def test_neither_always_playing_nor_always_discarding_is_good(mini, card_action):
    """Actions: 0 plays, 1 discards, 2 draws from the deck, which is always legal."""
    order = np.array([[2.0, 1.0, 2.0, 0, 0], [1.0, 2.0, 2.0, 0, 0]][card_action == "discard"])
    policy = np.eye(5)[np.argmax(np.where(mini.legal, order, -1), axis=1)]
    assert nash_conv(mini, lambda packed, legal: policy).nash_conv > 3


def test_counterfactual_regret_minimization_solves_it(mini):
    """CFR+ (Tammelin 2014) on what is packed: forgetting the past costs next to nothing here."""
    regret = np.zeros(mini.legal.shape)
    policies = []
    for _ in range(30):
        total = regret.sum(axis=1, keepdims=True)
        matched = regret / np.where(total > 0, total, 1)
        policies.append(np.where(total > 0, matched, uniform(mini.packed, mini.legal)))
        found = trees.advantages(mini, lambda packed, legal: policies[-1])
        regret = np.maximum(regret + found.reach[:, None] * found.advantage, 0)
    found = nash_conv_of_mixture(mini, policies, np.arange(1, 31))
    assert 0 <= found.nash_conv < 0.05  # 0.036; uniform play: 5.25
    assert found.value == pytest.approx(-1 / 6, abs=0.005)
