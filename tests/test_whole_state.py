"""Whole states: all that either player knows, and nothing of what nobody has seen."""

import functools

import game_checks
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from plain_lost_cities import permute_cards

from coorl_jax.games.kuhn_poker import KuhnPoker
from coorl_jax.games.leduc_poker import LeducPoker
from coorl_jax.games.lost_cities import LostCities
from coorl_jax.games.lost_cities.locations import DECK, HAND
from coorl_jax.networks import NetworkSpec, ValueNetwork

CLASSIC = LostCities()
TINY = LostCities(colors=2, ranks=2, wagers=0, hand_size=1, max_discard_draws=2)
WAGERS = LostCities(colors=2, ranks=2, wagers=2, hand_size=2, max_discard_draws=2)
THREE = LostCities(colors=3, ranks=3, wagers=0, hand_size=2, max_discard_draws=2)
ALL = [KuhnPoker(), LeducPoker(), CLASSIC, TINY, WAGERS]
NAMES = ["kuhn", "leduc", "classic", "tiny", "wagers"]


@functools.partial(jax.jit, static_argnums=0)
def whole_states(game, states):
    return jax.vmap(game.whole_state)(states)


@functools.cache
def rounds_of(game):
    # Many of a small game, so that the same whole state is met again.
    return game_checks.random_rounds(game, seed=2, rounds=24 if game == CLASSIC else 400)


def decisions(game, most=64, seed=0):
    """Return the states, on the host, and the whole states of some decisions."""
    rounds = rounds_of(game)
    lanes, times = np.nonzero(~rounds.terminal)
    chosen = np.random.default_rng(seed).permutation(len(lanes))[:most]
    at = lanes[chosen], times[chosen]
    states = jax.tree.map(lambda leaf: leaf[at], rounds.states)
    return unstacked(states, len(chosen)), rounds.whole[at]


def unstacked(states, count):
    return [jax.tree.map(lambda leaf, i=i: leaf[i], states) for i in range(count)]


def stacked(states):
    return jax.tree.map(lambda *leaves: np.stack(leaves), *states)


@pytest.mark.parametrize("game", ALL, ids=NAMES)
def test_a_whole_state_tells_who_moves_what_is_legal_and_what_both_know(game):
    rounds = rounds_of(game)
    game_checks.check_whole_states(game, rounds)
    met = rounds.whole[~rounds.terminal]
    assert game == CLASSIC or len(np.unique(met, axis=0)) < 0.95 * len(met)


@pytest.mark.parametrize("game", ALL, ids=NAMES)
def test_what_both_know_tells_the_whole_state(game):
    """Nothing else is in it, but which of equal wagers the engine moved."""
    rounds = rounds_of(game)
    known = rounds.packed[~rounds.terminal].reshape(-1, 2 * game.packed_size)
    whole_of = {}
    for both, whole in zip(known, rounds.whole[~rounds.terminal], strict=True):
        assert whole_of.setdefault(both.tobytes(), whole.tobytes()) == whole.tobytes()


@pytest.mark.parametrize("game", [TINY, WAGERS], ids=NAMES[3:])
def test_the_order_of_the_deck_is_not_in_it(game):
    states, whole = decisions(game)
    rng = np.random.default_rng(0)
    shuffled = []
    for state in states:
        deck, left = state.deck.copy(), int(state.deck_left)
        deck[len(deck) - left :] = rng.permutation(deck[len(deck) - left :])
        shuffled.append(state._replace(deck=deck))
    changed = [(a.deck != b.deck).any() for a, b in zip(states, shuffled, strict=True)]
    assert np.mean(changed) > 0.1
    np.testing.assert_array_equal(whole_states(game, stacked(shuffled)), whole)


def test_the_public_card_of_leduc_is_in_it_once_it_is_turned_up():
    game = LeducPoker()
    states, whole = decisions(game)
    other = [
        state._replace(
            cards=np.array([*state.cards[:2], min({*range(6)} - {*state.cards.tolist()})], np.int32)
        )
        for state in states
    ]
    hidden = np.array([state.lines[1] == 0 and state.lines[0] < 6 for state in states])
    assert 0.1 < hidden.mean() < 0.9
    same = (np.asarray(whole_states(game, stacked(other))) == whole).all(axis=1)
    np.testing.assert_array_equal(same, hidden)


@pytest.mark.parametrize("game", [KuhnPoker(), LeducPoker()], ids=NAMES[:2])
def test_the_hidden_card_of_the_opponent_is_in_the_features(game):
    """Cards of the same rank are the same to the features of Leduc poker."""
    states, whole = decisions(game)
    cards = 3 if game.name == "kuhn_poker" else 6
    rank = (lambda card: card) if cards == 3 else (lambda card: card // 2)
    features = jax.jit(jax.vmap(game.whole_features))
    before = np.asarray(features(whole))
    for new in range(cards):
        others = []
        for state in states:
            dealt, seat = state.cards.copy(), int(game.player(state))
            # A card that the public card or the mover holds cannot be the opponent's as well.
            dealt[1 - seat] = new if new not in dealt else dealt[1 - seat]
            others.append(state._replace(cards=dealt))
        after = np.asarray(features(np.asarray(whole_states(game, stacked(others)))))
        for i, (state, other) in enumerate(zip(states, others, strict=True)):
            seat = int(game.player(state))
            changed = rank(state.cards[1 - seat]) != rank(other.cards[1 - seat])
            assert (before[i] != after[i]).any() == changed


@pytest.mark.parametrize("game", [CLASSIC, TINY, WAGERS], ids=NAMES[2:])
def test_the_hidden_hand_of_the_opponent_is_in_features_and_card_view(game):
    """Exchange a hidden card of the opponent for one of the deck of another kind."""
    states, _ = decisions(game)
    before, after = [], []
    for state in states:
        held = np.flatnonzero(state.location == HAND + 1 - state.mover)
        deck = np.flatnonzero(state.location == DECK)
        pairs = [(a, b) for a in held for b in deck if kind(game, a) != kind(game, b)]
        if pairs:
            order = np.arange(game.num_cards)
            a, b = pairs[0]
            order[[a, b]] = b, a
            before.append(state)
            after.append(permute_cards(game, state, order))
    assert len(before) > 20
    mover = stacked(before).mover
    own = jax.jit(jax.vmap(game.information_state))
    np.testing.assert_array_equal(own(stacked(before), mover), own(stacked(after), mover))
    wholes = [np.asarray(whole_states(game, stacked(states))) for states in (before, after)]
    assert (wholes[0] != wholes[1]).any(axis=1).all()
    features = [np.asarray(jax.jit(jax.vmap(game.whole_features))(whole)) for whole in wholes]
    assert (features[0] != features[1]).any(axis=1).all()
    views = [jax.device_get(jax.jit(jax.vmap(game.whole_card_view))(whole)) for whole in wholes]
    assert (views[0].suits != views[1].suits).any(axis=(1, 2)).all()
    np.testing.assert_array_equal(views[0].shared, views[1].shared)


def kind(game, number):
    """Wagers of one colour are the same card."""
    color, k = divmod(int(number), game.suit_size)
    return color, max(k, game.wagers - 1)


@pytest.mark.parametrize("game", [WAGERS, THREE], ids=["wagers", "three"])
def test_the_value_of_the_cards_network_does_not_depend_on_the_names_of_the_colors(game):
    states, whole = decisions(game)
    network = ValueNetwork(game, NetworkSpec("cards", width=16, depth=3))
    params = network.init(jax.random.key(0))
    view = jax.jit(jax.vmap(game.whole_card_view))
    colors = np.roll(np.arange(game.colors), 1)
    order = np.arange(game.num_cards).reshape(game.colors, game.suit_size)
    order = (order % game.suit_size + colors[:, None] * game.suit_size).reshape(-1)
    renamed = stacked([permute_cards(game, state, order, colors) for state in states])
    renamed = np.asarray(whole_states(game, renamed))
    assert (renamed != whole).any(axis=1).mean() > 0.9
    before, after = jax.device_get((view(whole), view(renamed)))
    np.testing.assert_allclose(after.suits[:, colors], before.suits, atol=1e-6)
    np.testing.assert_allclose(after.shared, before.shared, atol=1e-6)
    apply = jax.jit(network.apply)
    values = np.asarray(apply(params, whole))
    np.testing.assert_allclose(apply(params, renamed), values, rtol=0, atol=1e-5)
    # It does depend on the cards: mixing them among the colours is another state.
    mixed = permute_states(game, states)
    assert np.abs(np.asarray(apply(params, mixed)) - values).max() > 1e-3


def permute_states(game, states):
    """Return whole states in which hidden cards of the opponent have become others of the deck."""
    rng = np.random.default_rng(0)
    mixed = []
    for state in states:
        hidden = np.flatnonzero(
            (state.location == DECK) | (state.location == HAND + 1 - state.mover)
        )
        order = np.arange(game.num_cards)
        order[hidden] = rng.permutation(hidden)
        mixed.append(permute_cards(game, state, order))
    return jnp.asarray(whole_states(game, stacked(mixed)))
