"""States dealt again: what the player to move cannot tell apart, all of it and equally often."""

from __future__ import annotations

import collections
import functools
import gzip
import itertools
import json
import pathlib

import game_checks
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coorl_jax.games.game import DeterminizableGame
from coorl_jax.games.kuhn_poker import KuhnPoker
from coorl_jax.games.lost_cities import LostCities
from coorl_jax.games.lost_cities.information import OPPONENT_KNOWN, UNSEEN
from coorl_jax.games.lost_cities.locations import DECK, HAND, KNOWN

DATA = pathlib.Path(__file__).parent / "data"

CLASSIC = LostCities()
PATIENT = LostCities(max_discard_draws=None)  # as the recorded rounds were played
MINI = LostCities(colors=2, ranks=3, min_rank=1, wagers=0, hand_size=1, max_discard_draws=2)
WAGERS = LostCities(colors=2, ranks=4, wagers=3, hand_size=3, max_discard_draws=6)
PLAIN = LostCities(colors=3, ranks=5, wagers=0, hand_size=4, max_discard_draws=20)
UNLIMITED = LostCities(colors=2, ranks=4, wagers=1, hand_size=2, max_discard_draws=None)
GAMES = [CLASSIC, MINI, WAGERS, PLAIN]
NAMES = ["classic", "mini", "wagers", "plain"]


def recorded_rounds(count=16):
    """Return the states of recorded rounds of two bots, leading axis [N], at all decisions."""
    with gzip.open(DATA / "games_balanced_vs_cautious.jsonl.gz", "rt") as lines:
        games = [json.loads(line) for line in itertools.islice(lines, count)]
    decks = np.array([game["deck"] for game in games], np.uint8)
    played = np.zeros((count, max(len(game["steps"]) for game in games)), np.int32)
    for row, game in zip(played, games, strict=True):
        row[: len(game["steps"])] = [step["action"] for step in game["steps"]]

    def replay(deck, actions):
        def step(state, action):
            return PATIENT.step(state, action), state

        return jax.lax.scan(step, PATIENT.from_deck(deck), actions)

    _, states = jax.device_get(jax.jit(jax.vmap(replay))(decks, played))
    # Some rounds were broken off: what was not recorded was not played.
    recorded = np.arange(played.shape[1]) < np.array([[len(game["steps"])] for game in games])
    return jax.tree.map(lambda leaf: leaf[recorded], states)


@functools.cache
def random_rounds(game):
    rounds = game_checks.random_rounds(game, seed=3, rounds=16)
    at = np.nonzero(~rounds.terminal)
    return jax.tree.map(lambda leaf: leaf[at], rounds.states)


@functools.partial(jax.jit, static_argnums=0)
def look(game, states):
    packed = jax.vmap(game.information_state)(states, states.mover)
    return packed, jax.vmap(game.legal_actions)(states)


@functools.partial(jax.jit, static_argnums=0)
def dealt_again(game, packed, keys):
    return jax.vmap(game.sample_state)(packed, keys)


def check_dealt_again(game, states, count=200):
    chosen = np.random.default_rng(0).integers(len(states.phase), size=count)
    states = jax.tree.map(lambda leaf: jnp.asarray(leaf[chosen]), states)
    packed, legal = look(game, states)
    again = dealt_again(game, packed, jax.random.split(jax.random.key(8), count))
    packed_again, legal_again = look(game, again)
    np.testing.assert_array_equal(packed_again, packed)
    np.testing.assert_array_equal(legal_again, legal)
    for before, after in zip(states, again, strict=True):
        assert (before.shape, before.dtype) == (after.shape, after.dtype)
    states, again = jax.device_get((states, again))
    for name in ("deck_left", "phase", "mover", "barred", "discard_draws_left"):
        np.testing.assert_array_equal(getattr(again, name), getattr(states, name))
    cards = np.arange(game.num_cards)
    np.testing.assert_array_equal(np.sort(again.deck, axis=1), np.tile(cards, (count, 1)))
    for i in range(count):
        left = again.deck[i, game.num_cards - again.deck_left[i] :]
        assert {*left} == {*np.flatnonzero(again.location[i] == DECK)}
        for seat in (0, 1):
            held = np.flatnonzero(np.isin(again.location[i], (HAND + seat, KNOWN + seat)))
            expected = np.full(game.hand_size, game.num_cards)
            expected[: len(held)] = held
            np.testing.assert_array_equal(again.hands[i, seat], expected)
            assert seat == again.mover[i] or len(held) == game.hand_size
    return states, again


@pytest.mark.parametrize("game", GAMES, ids=NAMES)
def test_the_mover_cannot_tell_it_apart(game):
    states, again = check_dealt_again(game, random_rounds(game))
    # But it is another state, mostly.
    assert (states.location != again.location).any(axis=1).mean() > 0.4


def test_nor_after_decisions_that_make_sense():
    states, again = check_dealt_again(PATIENT, recorded_rounds())
    assert (states.location != again.location).any(axis=1).mean() > 0.9


def test_without_a_limit_of_discard_draws():
    states = jax.jit(jax.vmap(UNLIMITED.init))(jax.random.split(jax.random.key(0), 8))
    check_dealt_again(UNLIMITED, states, 8)


def test_the_round_goes_on_to_its_end():
    """Every card of the deck is drawn from it once."""
    states, again = check_dealt_again(WAGERS, random_rounds(WAGERS))
    draw = jnp.int32(2 * WAGERS.hand_size)

    def discard_and_draw(state, _):
        action = jnp.where(state.phase == 0, 1, draw).astype(jnp.int32)
        return WAGERS.step(state, action), None

    last = jax.jit(
        jax.vmap(
            lambda state: jax.lax.scan(discard_and_draw, state, length=2 * WAGERS.num_cards)[0]
        )
    )(again)
    assert (last.deck_left == 0).all()
    assert (last.location != DECK).all()
    hands = jax.device_get(last.hands)
    assert (hands < WAGERS.num_cards).sum() == 2 * WAGERS.hand_size * len(states.phase)


def known_position(game, fewest_known):
    """Return uint8[P] of a mover who knows some cards of the opponent's hand, but not all."""
    states = random_rounds(game)
    packed = np.asarray(look(game, jax.tree.map(jnp.asarray, states))[0])
    known = (packed[:, : game.num_cards] == OPPONENT_KNOWN).sum(axis=1)
    good = (known >= fewest_known) & (known < game.hand_size) & (states.deck_left >= 4)
    return packed[np.flatnonzero(good)[0]]


@pytest.mark.parametrize(("game", "known"), [(CLASSIC, 1), (MINI, 0), (WAGERS, 1), (PLAIN, 2)])
def test_unseen_cards_are_dealt_equally_often(game, known):
    packed, draws = known_position(game, known), 20_000
    keys = jax.random.split(jax.random.key(1), draws)
    again = jax.device_get(dealt_again(game, np.tile(packed, (draws, 1)), keys))
    unseen = np.flatnonzero(packed[: game.num_cards] == UNSEEN)
    deck_left, opponent = int(again.deck_left[0]), 1 - int(again.mover[0])
    share = 1 - deck_left / len(unseen)
    held = (again.location == HAND + opponent).mean(axis=0)
    assert held[np.setdiff1d(np.arange(game.num_cards), unseen)].max() == 0
    error = np.sqrt(share * (1 - share) / draws)
    assert np.abs(held[unseen] - share).max() < 4.5 * error
    # Wherever in the deck, every unseen card is found equally often: chi-square, mean + 5 sigma.
    for place in {0, deck_left // 2, deck_left - 1}:
        drawn = again.deck[:, game.num_cards - deck_left + place]
        counts = np.bincount(drawn, minlength=game.num_cards)[unseen]
        assert counts.sum() == draws
        expected = draws / len(unseen)
        freedom = len(unseen) - 1
        chi_square = ((counts - expected) ** 2 / expected).sum()
        assert chi_square < freedom + 5 * np.sqrt(2 * freedom) + 5


def test_every_deal_is_drawn_equally_often():
    """Hand and order of the deck together: a start of the mini game has 5! of them."""
    packed, draws = known_position(MINI, 0), 24_000
    keys = jax.random.split(jax.random.key(2), draws)
    again = jax.device_get(dealt_again(MINI, np.tile(packed, (draws, 1)), keys))
    dealt = np.concatenate([again.hands[:, 1 - again.mover[0]], again.deck[:, -4:]], axis=1)
    counts = collections.Counter(map(tuple, dealt.tolist()))
    assert len(counts) == 120
    expected = draws / 120
    chi_square = sum((count - expected) ** 2 / expected for count in counts.values())
    assert chi_square < 119 + 5 * np.sqrt(2 * 119)


def test_which_games_can_deal_again():
    assert isinstance(CLASSIC, DeterminizableGame)
    assert not isinstance(KuhnPoker(), DeterminizableGame)
