"""The player that tries every action: what it estimates, on which deals, and how it plays."""

from __future__ import annotations

import dataclasses
import functools

import game_checks
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from policies import fixed

from configs import mini_lost_cities
from coorl_jax import config
from coorl_jax.agents import search
from coorl_jax.agents.search import SearchPolicy
from coorl_jax.agents.uniform import Uniform
from coorl_jax.evaluation.match import play
from coorl_jax.games import registry
from coorl_jax.games.game import Game
from coorl_jax.games.kuhn_poker import KuhnPoker
from coorl_jax.games.lost_cities import LostCities
from coorl_jax.games.lost_cities.information import UNSEEN
from coorl_jax.networks import Network, NetworkSpec
from coorl_jax.policy import MixturePolicy, PolicySpec

SETTINGS = config.from_config_dict(mini_lost_cities.get_config())
MINI = registry.make(SETTINGS.game.name, dict(SETTINGS.game.rules))
WAGERS = LostCities(colors=2, ranks=2, wagers=3, hand_size=3, max_discard_draws=2)
SAMPLES = 400


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ByKnowledge:
    """Plays otherwise in every information state: what the wrong player knows would show."""

    game: Game = dataclasses.field(metadata={"static": True})

    def action_probabilities(self, packed, legal):
        # Integers below 2^24, and their ratios: the same in numpy.
        place = np.arange(1, packed.shape[1] + 1, dtype=np.int32)
        known = jnp.sum(packed.astype(jnp.int32) * place[None], axis=1, keepdims=True)
        action = np.arange(legal.shape[1], dtype=np.int32)
        weights = legal * (1 + (known * (3 + action[None])) % 7)
        return weights / jnp.maximum(jnp.sum(weights, axis=1, keepdims=True), 1)


def searching(game, policy, samples=8, seed=0):
    return SearchPolicy(game, policy, jax.random.key(seed), samples)


action_values = jax.jit(search.action_values)
roll_out = jax.jit(search.roll_out)
probabilities = jax.jit(lambda policy, packed, legal: policy.action_probabilities(packed, legal))


@functools.cache
def positions(game, count=24):
    """Return uint8[B, P] of the movers and bool[B, A] of decisions of random rounds."""
    rounds = game_checks.random_rounds(game, seed=5)
    lanes, times = np.nonzero(~rounds.terminal)
    chosen = np.random.default_rng(0).permutation(len(lanes))[:count]
    at = lanes[chosen], times[chosen]
    return rounds.packed[*at, rounds.player[at]], rounds.legal[at]


def test_it_is_a_policy_without_chance():
    packed, legal = positions(MINI)
    legal = legal.copy()
    legal[::5] = False
    played = np.asarray(probabilities(searching(MINI, Uniform()), packed, legal))
    assert played.dtype == np.float32
    assert (played[~legal] == 0).all()
    np.testing.assert_array_equal(played.sum(axis=1), legal.any(axis=1))
    assert set(np.unique(played)) == {0.0, 1.0}
    again = probabilities(searching(MINI, Uniform()), packed, legal)
    np.testing.assert_array_equal(again, played)


def test_the_random_numbers_are_of_the_key_and_the_state_alone():
    """Not of the other states in the batch, of the actions that are asked about, or of the lanes."""
    packed, legal = positions(MINI)
    policy = searching(MINI, Uniform(), samples=20)
    values = np.asarray(action_values(policy, packed, legal))
    order = np.random.default_rng(1).permutation(len(packed))
    np.testing.assert_array_equal(action_values(policy, packed[order], legal[order]), values[order])
    fewer = legal & (np.arange(legal.shape[1]) % 2 == 0)
    np.testing.assert_array_equal(
        action_values(policy, packed, fewer), np.where(fewer, values, 0.0)
    )
    another = searching(MINI, Uniform(), samples=20, seed=1)
    assert (np.asarray(action_values(another, packed, legal)) != values)[legal].any()


@pytest.mark.parametrize("lanes", [1, 7, 300])
def test_lanes_change_nothing(lanes, monkeypatch):
    packed, legal = positions(MINI)
    policy = searching(MINI, ByKnowledge(MINI), samples=6)
    values = np.asarray(action_values(policy, packed, legal))
    monkeypatch.setattr(search, "_LANES_OF_A_CPU", lanes)
    monkeypatch.setattr(search, "_NARROWEST", 4)
    np.testing.assert_array_equal(jax.jit(lambda *a: search.action_values(*a))(policy, packed, legal), values)


def test_only_legal_actions_cost_something():
    packed, legal = positions(MINI, count=8)
    policy = searching(MINI, Uniform(), samples=2)
    one = np.zeros_like(legal)
    one[3] = legal[3]
    few = roll_out(policy, packed, one)
    np.testing.assert_array_equal(
        few.totals, np.where(one, roll_out(policy, packed, legal).totals, 0)
    )
    # Copies in a row are played once.
    copies = roll_out(policy, np.repeat(packed[3:4], 8, axis=0), np.repeat(legal[3:4], 8, axis=0))
    assert int(few.decisions) == int(copies.decisions)
    assert int(few.evaluated) == int(copies.evaluated)
    np.testing.assert_array_equal(copies.totals, np.repeat(few.totals[3:4], 8, axis=0))
    none = roll_out(policy, packed, np.zeros_like(legal))
    assert (int(none.decisions), int(none.evaluated)) == (0, 0)
    # Nor is anything tried where there is no choice.
    single = np.zeros_like(legal)
    single[:, 1] = True
    jaxpr = jax.make_jaxpr(policy.action_probabilities)(packed, single)
    assert jaxpr
    np.testing.assert_array_equal(probabilities(policy, packed, single), single)


def expected_value(game, state, mover, policy):
    """Return the mean return of the mover where both go on by the policy: every line of play."""
    values, reach = [], []
    # Level by level: states with leading axis [n], and the probability of each.
    states, weight = jax.tree.map(lambda leaf: np.asarray(leaf)[None], state), np.ones(1)
    look = _look(game)
    while len(weight):
        ended, returns, probability = jax.device_get(look(policy, states))
        values += (returns[ended][:, mover] * weight[ended]).tolist()
        reach += weight[ended].tolist()
        lane, action = np.nonzero((probability > 0) & ~ended[:, None])
        weight = weight[lane] * probability[lane, action]
        states = jax.device_get(_step(game)(jax.tree.map(lambda leaf: leaf[lane], states), action))
    assert sum(reach) == pytest.approx(1, abs=1e-5)
    return sum(values)
