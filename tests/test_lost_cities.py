"""Lost Cities against its rules: hand-computed scores, scripted rounds, recorded games."""

from __future__ import annotations

import pathlib

import game_checks
import jax
import numpy as np
import pytest

from coorl_jax.games.lost_cities import LostCities, records
from coorl_jax.games.lost_cities.locations import DISCARD, EXPEDITION, HAND, KNOWN

DATA = pathlib.Path(__file__).parent / "data"
CLASSIC = LostCities()
TINY = LostCities(
    colors=2, ranks=4, min_rank=2, wagers=1, hand_size=2, bonus_threshold=3, max_discard_draws=2
)


@pytest.mark.parametrize("path", sorted(DATA.glob("*.jsonl.gz")), ids=lambda path: path.name)
def test_every_recorded_line_agrees(path):
    found = list(records.read_records(path))
    assert len(found) >= 50
    assert [str(disagreement) for disagreement in records.replay(found)] == []


@pytest.mark.parametrize("game", [CLASSIC, TINY], ids=["classic", "tiny"])
def test_is_a_game(game):
    game_checks.check_game(game)


def test_sizes_of_the_classic_game():
    assert (CLASSIC.num_cards, CLASSIC.num_actions) == (60, 22)
    assert CLASSIC.max_decisions == 2 * (44 + 60)
    assert CLASSIC.packed_size <= 80


from_deck = jax.jit(LostCities.from_deck, static_argnums=0)
step = jax.jit(LostCities.step, static_argnums=0)
legal_actions = jax.jit(LostCities.legal_actions, static_argnums=0)
scores = jax.jit(LostCities.scores, static_argnums=0)
returns = jax.jit(LostCities.returns, static_argnums=0)
information_state = jax.jit(LostCities.information_state, static_argnums=0)


def deal(game, deck=None):
    """Deal on the host, so that fields can be looked at and changed as numpy arrays."""
    deck = np.arange(game.num_cards) if deck is None else np.array(deck)
    return jax.device_get(from_deck(game, deck.astype(np.uint8)))


def play(game, state, *actions):
    """Play actions, all of which must be legal."""
    for action in actions:
        assert legal_actions(game, state)[action], action
        state = jax.device_get(step(game, state, np.int32(action)))
    return state


def legal(game, state):
    return np.flatnonzero(legal_actions(game, state)).tolist()


def relocate(state, cards, place):
    """Return the state with some cards put elsewhere, whatever that means."""
    location = state.location.copy()
    location[cards] = place
    return state._replace(location=location)


# Scores. Faces of the classic game: rank r counts r + 1.


@pytest.mark.parametrize(
    ("wagers", "ranks", "points"),
    [
        (0, [], 0),
        (1, [], -40),
        (3, [], -80),
        (0, [1], -18),
        (0, [9], -10),
        (0, [8, 9], -1),
        (2, [4, 7, 9], 9),  # (5 + 8 + 10 - 20) * 3
        (0, [1, 2, 3, 4, 5, 6, 7], 15),  # seven cards: 35 - 20
        (0, [1, 2, 3, 4, 5, 6, 7, 8], 44),  # eight: 44 - 20, and 20
        (3, [1, 2, 3, 4, 5], 20),  # (20 - 20) * 4 and a bonus that is not multiplied
        (3, [1, 2, 3, 4], -24),  # (14 - 20) * 4, seven cards
        (3, [1, 2, 3, 4, 5, 6, 7, 8, 9], 156),  # (54 - 20) * 4 + 20
    ],
)
@pytest.mark.parametrize("seat", [0, 1])
def test_score_of_an_expedition(wagers, ranks, points, seat):
    color = 3
    cards = [color * 12 + k for k in [*range(wagers), *(rank + 2 for rank in ranks)]]
    state = relocate(deal(CLASSIC), cards, EXPEDITION + seat)
    expected = np.zeros((2, 5), int)
    expected[seat, color] = points
    np.testing.assert_array_equal(scores(CLASSIC, state), expected)
    np.testing.assert_array_equal(
        returns(CLASSIC, state), [[points, -points], [-points, points]][seat]
    )


def test_scoring_follows_the_parameters():
    game = LostCities(
        colors=1, ranks=5, min_rank=3, wagers=1, hand_size=2, expedition_penalty=-7,
        bonus_threshold=2, bonus_amount=9,
    )  # fmt: skip
    state = deal(game)
    # Wager and the ranks 2 and 5, which count 4 and 7: (11 - 7) * 2 + 9.
    state = relocate(state, [0, 2, 5], EXPEDITION)
    assert scores(game, state).tolist() == [[17], [0]]


# Scripted rounds of TINY: cards 0-4 are the first colour, 5-9 the second, 0 and 5 the wagers;
# hands of two; actions 0, 2 play, 1, 3 discard, 4 draws the deck, 5 and 6 the piles.


def test_deal_alternates_and_player_0_starts():
    state = deal(TINY, [7, 3, 1, 9, 0, 2, 4, 5, 6, 8])
    assert state.hands.tolist() == [[1, 7], [3, 9]]
    assert (int(state.mover), int(state.phase), int(state.deck_left)) == (0, 0, 6)
    assert state.location.tolist() == [
        0, HAND, 0, HAND + 1, 0, 0, 0, HAND, 0, HAND + 1,
    ]  # fmt: skip
    assert legal(TINY, state) == [0, 1, 2, 3]


def test_a_turn_is_a_card_and_a_draw_by_the_same_player():
    state = deal(TINY, [7, 3, 1, 9, 0, 2, 4, 5, 6, 8])
    state = play(TINY, state, 0)
    assert (int(state.mover), int(state.phase)) == (0, 1)
    assert state.hands[0].tolist() == [7, TINY.num_cards]
    state = play(TINY, state, 4)
    assert (int(state.mover), int(state.phase)) == (1, 0)
    assert state.hands[0].tolist() == [0, 7]
    assert state.location[1] == EXPEDITION


def test_numbers_rise_and_wagers_come_first():
    # Player 0 holds 2 and 3 of the first colour, draws its wager, then its 1.
    state = deal(TINY, [2, 8, 3, 9, 0, 5, 1, 6, 4, 7])
    state = play(TINY, state, 0, 4, 1, 4)
    assert state.hands[0].tolist() == [0, 3]
    assert legal(TINY, state) == [1, 2, 3]  # the wager may only be discarded now
    state = play(TINY, state, 1, 4, 1, 4)
    assert state.hands[0].tolist() == [1, 3]
    assert legal(TINY, state) == [1, 2, 3]  # the 1 is lower than the 2 on the table


def test_the_pile_of_this_turns_discard_is_barred():
    state = deal(TINY, [1, 6, 2, 7, 0, 3, 4, 5, 8, 9])
    state = play(TINY, state, 1)
    assert int(state.barred) == 0
    assert legal(TINY, state) == [4]
    state = play(TINY, state, 4, 0)
    assert int(state.barred) == TINY.colors
    assert legal(TINY, state) == [4, 5]  # the other player may take it
    state = play(TINY, state, 5)
    assert state.location[1] == KNOWN + 1


def test_piles_are_last_in_first_out():
    state = deal(TINY, [3, 6, 1, 7, 8, 4, 2, 0, 5, 9])
    state = play(TINY, state, 1, 4)  # player 0 discards card 1, draws 8
    state = play(TINY, state, 0, 4)  # player 1 plays card 6, draws 4
    state = play(TINY, state, 1, 4)  # player 0 discards card 3 on it, draws 2
    assert state.location[[1, 3]].tolist() == [DISCARD, DISCARD + 1]
    state = play(TINY, state, 2, 5)  # player 1 plays card 7 and takes the 3
    assert state.location[[1, 3]].tolist() == [DISCARD, KNOWN + 1]
    assert state.hands[1].tolist() == [3, 4]


def test_stall_limit_ends_discard_draws():
    state = deal(TINY, [1, 6, 2, 7, 0, 3, 4, 5, 8, 9])
    state = play(TINY, state, 1, 4)  # player 0 discards a card
    assert int(state.discard_draws_left) == 2
    state = play(TINY, state, 1, 5)  # player 1 another, and takes the first
    state = play(TINY, state, 1, 6)  # player 0 another, and takes the second
    assert int(state.discard_draws_left) == 0
    state = play(TINY, state, 3)
    assert legal(TINY, state) == [4]


def test_without_limit_discard_draws_go_on():
    game = LostCities(colors=2, ranks=4, wagers=1, hand_size=2, max_discard_draws=None)
    state = deal(game, [1, 6, 2, 7, 0, 3, 4, 5, 8, 9])
    taken = 0
    while taken < 300:
        state = play(game, state, 1)
        draw = legal(game, state)[-1]  # a pile if there is one
        state = play(game, state, draw)
        taken += draw > 4
    assert state.deck_left > 0
    with pytest.raises(ValueError, match="max_discard_draws"):
        _ = game.max_decisions


def test_round_ends_with_the_last_deck_card():
    state = deal(TINY)
    for turn in range(6):
        assert state.deck_left == 6 - turn
        assert not TINY.is_terminal(state)
        state = play(TINY, state, 1)
        assert int(state.mover) == turn % 2
        state = play(TINY, state, 4)
    assert TINY.is_terminal(state)
    assert int(state.deck_left) == 0
    for action in range(TINY.num_actions):
        for leaf, same in zip(step(TINY, state, np.int32(action)), state, strict=True):
            np.testing.assert_array_equal(leaf, same)


# What players know.


def information(game, state, seat):
    return information_state(game, state, np.int32(seat)).tolist()


def test_taken_cards_are_known_until_they_leave_the_hand():
    taken = deal(TINY, [1, 6, 2, 7, 0, 3, 4, 5, 8, 9])
    # Player 1 holds 6 and 7, plays 6 and takes card 1 from the pile; or draws it from the deck.
    taken = play(TINY, taken, 1, 4, 0, 5)
    assert taken.location[1] == KNOWN + 1
    unknown = relocate(taken, [1], HAND + 1)
    for seat in (0, 1):
        assert information(TINY, taken, seat) != information(TINY, unknown, seat)
    taken = play(TINY, taken, 1, 4)
    assert taken.location[1] == KNOWN + 1
    taken = play(TINY, taken, 0)
    assert taken.location[1] == EXPEDITION + 1


@pytest.mark.parametrize("slot", [0, 1])
@pytest.mark.parametrize("discard", [0, 1])
def test_a_known_wager_is_the_one_that_leaves(slot, discard):
    """Holding a known and an unknown wager of a colour, the remaining one is unknown."""
    game = LostCities(colors=2, ranks=2, wagers=3, hand_size=2, max_discard_draws=4)
    for own in (0, 1, 2):  # the unknown wager, which may be the lower or the higher card
        known = (own + 1) % 3
        # Player 1 holds `own` and card 9; takes `known`, which player 0 discarded.
        rest = [c for c in range(10) if c not in (own, known, 9, 8)]
        state = deal(game, [known, own, 8, 9, *rest])
        state = play(game, state, 1, 4)  # player 0 discards `known`
        assert state.location[known] == DISCARD
        state = play(game, state, 2, 5)  # player 1 plays card 9, takes it
        assert sorted(state.hands[1].tolist()) == sorted([own, known])
        state = play(game, state, 3, 4)  # player 0 parts with any card
        assert (state.location == KNOWN + 1).sum() == 1
        state = play(game, state, 2 * slot + discard)
        assert not (state.location == KNOWN + 1).any()
        assert (state.location == HAND + 1).sum() == 1


@pytest.mark.parametrize("slot", [0, 1])
def test_of_two_known_wagers_one_stays_known(slot):
    game = LostCities(colors=2, ranks=2, wagers=3, hand_size=2, max_discard_draws=4)
    state = deal(game, [0, 8, 1, 9, 2, 3, 4, 5, 6, 7])
    state = play(game, state, 1, 4, 0, 5)  # player 0 discards a wager, player 1 takes it
    state = play(game, state, 1, 4, 2, 5)  # and another
    assert state.hands[1].tolist() == [0, 1]
    assert (state.location[:2] == KNOWN + 1).all()
    state = play(game, state, 3, 4, 2 * slot)
    assert (
        state.location[:2].tolist()
        == [[EXPEDITION + 1, KNOWN + 1], [KNOWN + 1, EXPEDITION + 1]][slot]
    )


# Parameters.


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("colors", 0),
        ("ranks", 0),
        ("ranks", 2.5),
        ("wagers", -1),
        ("hand_size", 0),
        ("hand_size", 30),
        ("bonus_threshold", 0),
        ("max_discard_draws", -1),
        ("max_discard_draws", True),
    ],
)
def test_impossible_rules_are_refused(field, value):
    with pytest.raises(ValueError, match=f"{field}=.*e.g."):
        LostCities(**{field: value})
