"""The player that tries every action: what it estimates, on which deals, and how it plays."""

from __future__ import annotations

import dataclasses
import functools

import game_checks
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact_values import expectation

from configs import mini_lost_cities
from coorl_jax import config
from coorl_jax.agents import search
from coorl_jax.agents.search import SearchPolicy
from coorl_jax.agents.uniform import Uniform
from coorl_jax.evaluation.match import play
from coorl_jax.games import registry
from coorl_jax.games import tree as trees
from coorl_jax.games.game import Game
from coorl_jax.games.kuhn_poker import KuhnPoker
from coorl_jax.games.lost_cities import LostCities
from coorl_jax.games.lost_cities.information import UNSEEN
from coorl_jax.games.lost_cities.locations import DISCARD, EXPEDITION, HAND
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


def searching(game, policy, samples=4, seed=0):
    return SearchPolicy(game, policy, jax.random.key(seed), samples)


roll_out = jax.jit(search.roll_out)


@jax.jit
def action_values(policy, packed, legal):
    """Return the means over the deals, float32[B, A]."""
    return jnp.mean(search.roll_out(policy, packed, legal).returns, axis=2)


probabilities = jax.jit(lambda policy, packed, legal: policy.action_probabilities(packed, legal))


@functools.cache
def positions(game, count=12):
    """Return uint8[B, P] of the movers and bool[B, A] of decisions of random rounds."""
    rounds = game_checks.random_rounds(game, seed=5)
    lanes, times = np.nonzero(~rounds.terminal)
    chosen = np.random.default_rng(0).permutation(len(lanes))[:count]
    at = lanes[chosen], times[chosen]
    return rounds.packed[*at, rounds.player[at]], rounds.legal[at]


def test_what_is_better_beyond_doubt_is_played_and_else_the_policy():
    packed, legal = positions(MINI, count=40)
    policy = searching(MINI, ByKnowledge(MINI), samples=8)
    legal = legal.copy()
    legal[::5] = False
    # Nothing needs to be tried where there is no choice.
    legal[1] = [False, True, False, False, False]
    played = np.asarray(probabilities(policy, packed, legal))
    assert played.dtype == np.float32
    returns = np.asarray(roll_out(policy, packed, legal).returns, np.float64)
    own = np.asarray(probabilities(policy.policy, packed, legal))
    improved = 0
    for row in range(len(packed)):
        gains = returns[row] - own[row] @ returns[row]
        least = gains.mean(axis=1) - 2 * gains.std(axis=1, ddof=1) / np.sqrt(8)
        least[~legal[row]] = -np.inf
        best = least.argmax()
        if legal[row].sum() > 1 and least[best] > 1e-3:
            improved += 1
            assert played[row].tolist() == np.eye(legal.shape[1])[best].tolist()
        else:
            np.testing.assert_array_equal(played[row], own[row])
    assert 2 < improved < len(packed) - 10
    np.testing.assert_array_equal(probabilities(policy, packed, legal), played)


def test_random_numbers_are_of_the_key_and_the_state_alone():
    """Not of the other states in the batch, nor of the actions that are asked about."""
    packed, legal = positions(MINI)
    policy = searching(MINI, Uniform())
    returns = np.asarray(roll_out(policy, packed, legal).returns)
    order = np.random.default_rng(1).permutation(len(packed))
    shuffled = roll_out(policy, packed[order], legal[order]).returns
    np.testing.assert_array_equal(shuffled, returns[order])
    fewer = legal & (np.arange(legal.shape[1]) % 2 == 0)
    found = roll_out(policy, packed, fewer).returns
    np.testing.assert_array_equal(found, np.where(fewer[:, :, None], returns, 0.0))
    another = roll_out(searching(MINI, Uniform(), seed=1), packed, legal).returns
    assert (np.asarray(another) != returns)[legal].any()


def test_lanes_change_nothing(monkeypatch):
    packed, legal = positions(MINI)
    policy = searching(MINI, Uniform())
    expected = roll_out(policy, packed, legal)
    monkeypatch.setattr(search, "_LANES", 9)
    monkeypatch.setattr(search, "_LANES_OF_A_CPU", 9)
    monkeypatch.setattr(search, "_NARROWEST", 2)
    found = jax.jit(lambda *arguments: search.roll_out(*arguments))(policy, packed, legal)
    np.testing.assert_array_equal(found.returns, expected.returns)
    assert int(found.decisions) == int(expected.decisions)
    # Nine lanes are hardly ever empty, some of all at once are.
    assert int(found.decisions) / int(found.evaluated) > 0.6
    assert int(found.evaluated) < int(expected.evaluated)


def test_only_legal_actions_cost_something():
    packed, legal = positions(MINI)
    policy = searching(MINI, Uniform())
    one = np.zeros_like(legal)
    one[3] = legal[3]
    few = roll_out(policy, packed, one)
    assert int(few.decisions) < int(roll_out(policy, packed, legal).decisions) / 4
    # Copies in a row are played once.
    copies = roll_out(policy, *(np.repeat(array[3:4], 12, axis=0) for array in (packed, legal)))
    assert (few.decisions, few.evaluated) == (copies.decisions, copies.evaluated)
    np.testing.assert_array_equal(copies.returns, np.repeat(few.returns[3:4], 12, axis=0))
    none = roll_out(policy, packed, np.zeros_like(legal))
    assert (int(none.decisions), int(none.evaluated)) == (0, 0)


def exact(policy):
    """Return the mini game's tree, and of every information state's actions mean and variance.

    A player's histories of an information state are equally many for each deal of what that player
    has not seen, so that all histories count alike: float64[I, A] each, to the player who moves.
    """
    tree = trees.enumerate_game(MINI)
    sigma = trees.evaluate_policy(tree, jax.jit(policy.action_probabilities))
    count, mean, square = (np.zeros(tree.legal.shape) for _ in range(3))
    values = [level.returns.copy() for level in tree.levels]
    squares = [level.returns**2 for level in tree.levels]
    for depth in reversed(range(len(values) - 1)):
        values[depth] += expectation(tree, sigma, depth, values[depth + 1])
        squares[depth] += expectation(tree, sigma, depth, squares[depth + 1])
        child = tree.levels[depth + 1]
        state = tree.levels[depth].information_state[child.parent]
        sign = 1 - 2 * tree.player[state]
        np.add.at(count, (state, child.action), 1)
        np.add.at(mean, (state, child.action), sign * values[depth + 1])
        np.add.at(square, (state, child.action), squares[depth + 1])
    mean, square = mean / np.maximum(count, 1), square / np.maximum(count, 1)
    return tree, mean, square - mean**2


def test_values_are_the_expectations():
    """Of random information states, and of late ones."""
    tree, mean, variance = exact(ByKnowledge(MINI))
    late = np.argsort((tree.packed[:, : MINI.num_cards] == UNSEEN).sum(axis=1))[-40:]
    chosen = np.random.default_rng(3).permutation(len(tree.packed))[:88]
    chosen = np.concatenate([late, chosen])
    legal = tree.legal[chosen]
    policy = searching(MINI, ByKnowledge(MINI), SAMPLES)
    values = np.asarray(action_values(policy, tree.packed[chosen], legal))
    assert values.dtype == np.float32
    assert (values[~legal] == 0).all()
    error = np.sqrt(variance[chosen] / SAMPLES)
    certain = legal & (error < 1e-6)
    np.testing.assert_allclose(values[certain], mean[chosen][certain], atol=1e-4)
    uncertain = legal & (error >= 1e-6)
    z = (values - mean[chosen])[uncertain] / error[uncertain]
    assert len(z) > 100
    assert np.abs(z).max() < 5
    # Actions of a state share their deals: about 100 numbers are independent.
    assert 0.6 < np.mean(z**2) < 1.6


def test_equal_wagers_have_equal_values():
    """The same deals and the same noise: exactly, and other actions differ."""
    packed, legal = positions(WAGERS, count=400)
    slots = packed[:, WAGERS.num_cards : WAGERS.num_cards + WAGERS.hand_size]
    twice = (slots[:, 0] == slots[:, 1]) & (slots[:, 0] % (WAGERS.ranks + 1) == 0) & legal[:, 0]
    packed, legal = packed[twice][:12], legal[twice][:12]
    assert len(packed) == 12
    values = np.asarray(action_values(searching(WAGERS, ByKnowledge(WAGERS), 2), packed, legal))
    np.testing.assert_array_equal(values[:, 0], values[:, 2])
    np.testing.assert_array_equal(values[:, 1], values[:, 3])
    assert (values[:, 0] != values[:, 1]).any()


def last_turn(hand, expedition):
    """Return player 0's last turn, one card in the deck: cards held, cards in the expedition."""
    game = LostCities(colors=2, ranks=4, wagers=1, hand_size=3, max_discard_draws=0)
    order = [card for card in range(game.num_cards) if card not in hand + expedition]
    location = np.zeros(game.num_cards, np.uint8)
    location[hand] = HAND
    location[expedition] = EXPEDITION
    location[order[:3]] = HAND + 1
    piles = [card for card in order[3:] if card < 5], [card for card in order[3:] if card >= 5]
    # The opponent's cards and the last of the deck apart, all has been discarded.
    (last,) = [pile.pop() for pile in piles if pile][-1:]
    for pile in piles:
        location[pile] = DISCARD + np.arange(len(pile), dtype=np.uint8)
    deck = np.concatenate([np.setdiff1d(np.arange(game.num_cards), [last]), [last]])
    state = game.init(jax.random.key(0))._replace(
        location=jnp.asarray(location),
        hands=jnp.asarray(np.array([sorted(hand), order[:3]], np.uint8)),
        deck=jnp.asarray(deck.astype(np.uint8)),
        deck_left=jnp.int32(1),
        discard_draws_left=jnp.int32(0),
    )
    packed, legal = jax.jit(
        lambda state: (game.information_state(state, state.mover), game.legal_actions(state))
    )(state)
    return game, packed[None], legal[None]


@pytest.mark.parametrize(
    ("hand", "expedition", "best"),
    [
        # Face 5 makes -11 of faces 2 and 3, -15 points; opening the other colour costs 15.
        ([3, 4, 9], [1, 2], 2),
        # Faces 4 and 5, -11 points, cannot be added to, but by discarding any card they stay.
        ([1, 6, 7], [3, 4], 1),
        # With a wager face 5 makes -22 of -32.
        ([4, 6, 7], [0, 3], 0),
    ],
)
def test_the_last_turn_is_played_exactly(hand, expedition, best):
    """Only the deck can be drawn from, and the round is over: what is played counts at once."""
    game, packed, legal = last_turn(hand, expedition)
    played = probabilities(searching(game, Uniform()), packed, legal)
    assert played[0].tolist() == np.eye(game.num_actions)[best].tolist()


def test_searching_random_play_beats_it():
    """In the mini game, where random play loses up to 2.6 points a round."""
    policy = searching(MINI, Uniform(), samples=16)
    result = play(MINI, policy, Uniform(), 128, jax.random.key(2))
    mean, error = result.points_per_round
    assert mean > 0.8
    assert mean > 5 * error


def test_what_cannot_be_searched():
    network = Network(MINI, NetworkSpec("mlp", width=4, depth=1))
    mixture = MixturePolicy(network, PolicySpec("strategy"), (), jnp.ones(1))
    with pytest.raises(ValueError, match="not a mixture"):
        searching(MINI, mixture)
    with pytest.raises(ValueError, match=r"not kuhn_poker; e\.g\. lost_cities"):
        searching(KuhnPoker(), Uniform())
    with pytest.raises(ValueError, match="search=1: must have at least 2 samples"):
        searching(MINI, Uniform(), samples=1)
    with pytest.raises(ValueError, match="max_discard_draws=None"):
        searching(dataclasses.replace(MINI, max_discard_draws=None), Uniform())
