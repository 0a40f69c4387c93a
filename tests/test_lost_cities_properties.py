"""Invariants of Lost Cities under random rules and random play."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import game_checks
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_lost_cities import PlainRound, assert_same, card, permute_cards

from coorl_jax.games.lost_cities import LostCities
from coorl_jax.games.lost_cities.locations import DECK, DISCARD, EXPEDITION, HAND, KNOWN

CLASSIC = LostCities()
# Small enough for random rounds to meet the same knowledge again.
TINY = [
    LostCities(colors=2, ranks=2, wagers=0, hand_size=1, max_discard_draws=1),
    LostCities(colors=1, ranks=2, wagers=5, hand_size=2, max_discard_draws=3),
    LostCities(colors=2, ranks=1, wagers=2, hand_size=1, max_discard_draws=2),
]
SAMPLES = 48  # states examined of each game


@st.composite
def games(draw):
    """Rule parameters of any size, the corners included."""
    colors = draw(st.integers(1, 6))
    ranks = draw(st.integers(1, 10))
    wagers = draw(st.integers(0, 4))
    cards = colors * (ranks + wagers)
    if cards < 3:
        ranks, cards = 3, colors * (3 + wagers)
    return LostCities(
        colors=colors,
        ranks=ranks,
        wagers=wagers,
        min_rank=draw(st.integers(1, 3)),
        hand_size=draw(st.integers(1, min(9, (cards - 1) // 2))),
        expedition_penalty=draw(st.integers(-30, 0)),
        bonus_threshold=draw(st.integers(1, 9)),
        bonus_amount=draw(st.integers(0, 30)),
        max_discard_draws=draw(st.integers(0, 20)),
    )


@settings(max_examples=6)
@given(game=games(), seed=st.integers(0, 2**31 - 1))
def test_random_rules(game, seed):
    check_everything(game, seed)


@pytest.mark.parametrize("game", [CLASSIC, *TINY], ids=["classic", "tiny0", "tiny1", "tiny2"])
def test_chosen_rules(game):
    check_everything(game, seed=1)


def check_everything(game: LostCities, seed: int) -> None:
    rounds = game_checks.random_rounds(game, seed)
    game_checks.check_rounds(game, rounds)
    check_cards(game, rounds)
    check_expeditions_increase(game, rounds)
    check_end(game, rounds)
    check_against_plain_rounds(game, rounds)
    check_information(game, rounds, np.random.default_rng(seed))


def state_at(rounds: game_checks.Rounds, lane: int, time: int):
    return jax.tree.map(lambda leaf: leaf[lane, time], rounds.states)


def check_cards(game, rounds) -> None:
    """Every card is in exactly one place, and both descriptions of the hands agree."""
    location = rounds.states.location
    cards = np.arange(game.num_cards)
    color = cards // game.suit_size
    np.testing.assert_array_equal((location == DECK).sum(axis=2), rounds.states.deck_left)
    for seat in (0, 1):
        held = (rounds.states.hands[:, :, seat, :, None] == cards).sum(axis=2)
        in_hand = (location == HAND + seat) | (location == KNOWN + seat)
        np.testing.assert_array_equal(held, in_hand)
        waiting = (rounds.player == seat) & (rounds.states.phase == 1) & ~rounds.terminal
        np.testing.assert_array_equal(held.sum(axis=2), game.hand_size - waiting)
        assert (np.diff(rounds.states.hands[:, :, seat].astype(int), axis=2) >= 0).all()
    for c in range(game.colors):
        pile = location[:, :, color == c].astype(int)
        heights = np.sort(np.where(pile >= DISCARD, pile - DISCARD, 1000), axis=2)
        expected = np.where(heights < 1000, np.arange(game.suit_size), 1000)
        np.testing.assert_array_equal(heights, expected)


def check_expeditions_increase(game, rounds) -> None:
    location = rounds.states.location
    ranks = np.array([card(game, number)[1] for number in range(game.num_cards)])
    color = np.arange(game.num_cards) // game.suit_size
    for seat in (0, 1):
        own = location == EXPEDITION + seat
        assert (own[:, 1:] >= own[:, :-1]).all(), "a card leaves an expedition"
        lane, time, added = np.nonzero(own[:, 1:] & ~own[:, :-1])
        before = own[lane, time] & (color == color[added][:, None])
        highest = np.max(before * ranks, axis=1, initial=0)
        assert ((ranks[added] > highest) | ((ranks[added] == 0) & (highest == 0))).all()


def check_end(game, rounds) -> None:
    np.testing.assert_array_equal(rounds.terminal, rounds.states.deck_left == 0)
    used = game.max_discard_draws - rounds.states.discard_draws_left
    assert (used >= 0).all()
    assert (used <= game.max_discard_draws).all()
    decisions = (~rounds.terminal).sum(axis=1)
    undealt = game.num_cards - 2 * game.hand_size
    np.testing.assert_array_equal(decisions, 2 * (undealt + used[:, -1]))


def plain_rounds(game, rounds, lane: int):
    """Yield the time and the plain round before every decision, and at the end."""
    plain = PlainRound(game, rounds.states.deck[lane, 0])
    for time in range(rounds.terminal.shape[1]):
        yield time, plain
        if plain.ended:
            return
        plain.step(int(rounds.actions[lane, time]))


def check_against_plain_rounds(game, rounds) -> None:
    for lane in range(3):
        for time, plain in plain_rounds(game, rounds, lane):
            assert rounds.terminal[lane, time] == plain.ended
            assert_same(plain, state_at(rounds, lane, time))
            if not plain.ended:
                assert rounds.player[lane, time] == plain.mover
                assert np.flatnonzero(rounds.legal[lane, time]).tolist() == plain.legal()
        points = [sum(side) for side in plain.expedition_scores()]
        np.testing.assert_array_equal(
            rounds.returns[lane, -1], [points[0] - points[1], points[1] - points[0]]
        )


# What players know: states in which cards are renamed, batched so that a game compiles it once.


class Views(NamedTuple):
    """What the engine says of n states."""

    packed: Any  # uint8[n, 2, P], of both players
    legal: Any  # bool[n, A]
    features: Any  # float32[n, F], of the player to move
    cards: Any  # CardView with leading axis n, of the player to move


@functools.partial(jax.jit, static_argnames="game")
def _view(game, states) -> Views:
    def view(state):
        packed = jax.vmap(game.information_state, in_axes=(None, 0))(state, jnp.arange(2))
        own = packed[game.player(state)]
        return Views(packed, game.legal_actions(state), game.features(own), game.card_view(own))

    return jax.vmap(view)(states)


@functools.partial(jax.jit, static_argnames="game")
def _step(game, states, actions):
    return jax.vmap(game.step)(states, actions)


def view(game, states: list) -> Views:
    return jax.device_get(_view(game, stack(states)))


def stack(states: list):
    return jax.tree.map(lambda *leaves: np.stack(leaves), *states)


def check_information(game, rounds, rng) -> None:
    lanes, times = np.nonzero(~rounds.terminal)
    chosen = rng.integers(len(lanes), size=SAMPLES)
    states = [state_at(rounds, *at) for at in zip(lanes[chosen], times[chosen], strict=True)]
    actions = rounds.actions[lanes[chosen], times[chosen]]
    after = [state_at(rounds, *at) for at in zip(lanes[chosen], times[chosen] + 1, strict=True)]
    seen, seen_after = view(game, states), view(game, after)
    check_hidden_cards(game, states, seen, rng)
    check_wagers(game, states, actions, seen, seen_after, rng)
    check_colors(game, states, actions, seen, seen_after, rng)
    check_logits(game, states, seen)


def check_hidden_cards(game, states, seen: Views, rng) -> None:
    """The opponent's unknown cards and the deck may be anything: the player sees no difference."""
    for seat in (0, 1):
        shuffled = []
        for state in states:
            hidden = np.flatnonzero((state.location == DECK) | (state.location == HAND + 1 - seat))
            order = np.arange(game.num_cards)
            order[hidden] = rng.permutation(hidden)
            shuffled.append(permute_cards(game, state, order))
        np.testing.assert_array_equal(view(game, shuffled).packed[:, seat], seen.packed[:, seat])


def check_wagers(game, states, actions, seen: Views, seen_after: Views, rng) -> None:
    """Wagers of one colour are the same card, now and after any action."""
    renamed = []
    for state in states:
        order = np.arange(game.num_cards).reshape(game.colors, game.suit_size)
        for suit in order:
            suit[: game.wagers] = rng.permutation(suit[: game.wagers])
        renamed.append(permute_cards(game, state, order.reshape(-1)))
    jax.tree.map(np.testing.assert_array_equal, view(game, renamed), seen)
    after = jax.device_get(_step(game, stack(renamed), actions))
    np.testing.assert_array_equal(jax.device_get(_view(game, after)).packed, seen_after.packed)


def check_colors(game, states, actions, seen: Views, seen_after: Views, rng) -> None:
    """Renaming the colours renames what is seen, and nothing else."""
    colors = rng.permutation(game.colors)
    order = np.arange(game.num_cards).reshape(game.colors, game.suit_size)
    order = (order % game.suit_size + colors[:, None] * game.suit_size).reshape(-1)
    renamed = [permute_cards(game, state, order, colors) for state in states]
    now = view(game, renamed)
    np.testing.assert_allclose(now.cards.suits[:, colors], seen.cards.suits, atol=1e-6)
    np.testing.assert_allclose(now.cards.shared, seen.cards.shared, atol=1e-6)
    np.testing.assert_allclose(
        np.sort(now.features, axis=1), np.sort(seen.features, axis=1), atol=1e-6
    )
    in_suits = game.num_suits * game.suit_logits
    moved = []
    for i, (state, new) in enumerate(zip(states, renamed, strict=True)):
        to = map_actions(game, state, new, order, colors)
        moved.append(to[actions[i]])
        np.testing.assert_array_equal(now.legal[i][to], seen.legal[i])
        for action in np.flatnonzero(seen.legal[i]):
            logit = seen.cards.action_index[i, action]
            suit, inside = divmod(logit, game.suit_logits)
            expected = colors[suit] * game.suit_logits + inside if logit < in_suits else logit
            assert now.cards.action_index[i, to[action]] == expected
    after = jax.device_get(_step(game, stack(renamed), np.array(moved, np.int32)))
    np.testing.assert_allclose(
        jax.device_get(_view(game, after)).cards.suits[:, colors],
        seen_after.cards.suits,
        atol=1e-6,
    )


def map_actions(game, state, renamed, order, colors) -> np.ndarray:
    """Return for every action its number after cards and colours are renamed."""
    slots = 2 * game.hand_size
    hand, new_hand = state.hands[state.mover], renamed.hands[state.mover].tolist()
    to = np.arange(game.num_actions)
    for slot, held in enumerate(hand):
        place = new_hand.index(order[held]) if held < game.num_cards else slot
        to[[2 * slot, 2 * slot + 1]] = 2 * place, 2 * place + 1
    to[slots + 1 :] = slots + 1 + colors
    return to


def check_logits(game, states, seen: Views) -> None:
    """A logit means one thing, whatever the hand: equal cards share it, different ones do not."""
    slots = 2 * game.hand_size
    logit_of: dict[Any, int] = {}
    for i, state in enumerate(states):
        hand = state.hands[state.mover]
        for action in np.flatnonzero(seen.legal[i]):
            if action < slots:
                meaning = (*card(game, hand[action // 2]), "discard" if action % 2 else "play")
            else:
                meaning = int(action)
            logit = int(seen.cards.action_index[i, action])
            assert logit_of.setdefault(meaning, logit) == logit
    assert len(set(logit_of.values())) == len(logit_of)


@pytest.mark.parametrize("game", TINY, ids=["tiny0", "tiny1", "tiny2"])
def test_packed_state_is_exactly_what_a_player_knows(game):
    """Two states look the same packed if and only if the player knows the same."""
    rounds = game_checks.random_rounds(game, seed=3, rounds=400)
    packed_of: dict[Any, bytes] = {}
    known_of: dict[bytes, Any] = {}
    met = 0
    for lane in range(len(rounds.player)):
        for time, plain in plain_rounds(game, rounds, lane):
            for seat in (0, 1):
                known, packed = plain.view(seat), rounds.packed[lane, time, seat].tobytes()
                met += known in packed_of
                assert packed_of.setdefault(known, packed) == packed
                assert known_of.setdefault(packed, known) == known
    assert met > 1000
