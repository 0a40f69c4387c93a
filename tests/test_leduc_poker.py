"""Leduc poker: by hand, and every history against rules written down once more."""

from __future__ import annotations

import functools

import game_checks
import jax
import jax.numpy as jnp
import numpy as np
import plain_leduc_poker as plain
import pytest

from coorl_jax.games import registry, tree
from coorl_jax.games.leduc_poker import CALL, FOLD, RAISE, LeducPoker, State

LEDUC = LeducPoker()
# Two of each rank: 0 and 1 jacks, 2 and 3 queens, 4 and 5 kings.
JACK, QUEEN, OTHER_QUEEN, KING, OTHER_KING = 0, 2, 3, 4, 5


@pytest.fixture(scope="module")
def leduc():
    return tree.enumerate_game(LEDUC)


@functools.cache
def compiled_step():
    return jax.jit(LEDUC.step)


def play(cards, actions):
    """Return the state after the actions, letters of f, c and r; a slash is for the reader."""
    state = State(jnp.array(cards, jnp.int32), jnp.zeros(2, jnp.int32))
    for letter in actions.replace("/", ""):
        action = "fcr".index(letter)
        assert LEDUC.legal_actions(state)[action], (actions, letter)
        state = compiled_step()(state, jnp.int32(action))
    return state


def test_leduc_is_a_game():
    game_checks.check_game(LEDUC)
    assert registry.make("leduc_poker", {}) == LEDUC
    assert (FOLD, CALL, RAISE) == (0, 1, 2)
    assert (LEDUC.max_decisions, LEDUC.max_player_decisions) == (8, 4)


@pytest.mark.parametrize(
    ("cards", "actions", "of_player_0"),
    [
        # A fold costs what was put in: the ante, and what was called before.
        ([JACK, KING, QUEEN], "rf", 1),
        ([KING, JACK, QUEEN], "crf", -1),
        ([KING, JACK, QUEEN], "rrf", -3),
        ([JACK, KING, QUEEN], "crrf", 3),
        ([JACK, KING, QUEEN], "cc/rf", 1),
        ([KING, JACK, QUEEN], "rc/crf", -3),
        ([KING, JACK, QUEEN], "rrc/rrf", -9),
        # Showdowns: the higher rank, a pair before it, equal ranks split.
        ([KING, QUEEN, JACK], "cc/cc", 1),
        ([QUEEN, KING, JACK], "cc/cc", -1),
        ([QUEEN, KING, OTHER_QUEEN], "rc/cc", 3),
        ([KING, QUEEN, OTHER_QUEEN], "crc/rc", -7),
        ([KING, OTHER_KING, QUEEN], "rrc/rrc", 0),
        ([KING, QUEEN, OTHER_KING], "crrc/crrc", 13),
    ],
)
def test_rounds_by_hand(cards, actions, of_player_0):
    state = play(cards, actions)
    assert LEDUC.is_terminal(state)
    assert LEDUC.returns(state).tolist() == [of_player_0, -of_player_0]
    assert not LEDUC.legal_actions(state).any()


@pytest.mark.parametrize(
    ("actions", "player", "legal"),
    [
        ("", 0, [CALL, RAISE]),
        ("c", 1, [CALL, RAISE]),
        ("r", 1, [FOLD, CALL, RAISE]),
        ("cr", 0, [FOLD, CALL, RAISE]),
        ("rr", 0, [FOLD, CALL]),
        ("crr", 1, [FOLD, CALL]),
        ("rc/", 0, [CALL, RAISE]),
        ("crrc/c", 1, [CALL, RAISE]),
        ("cc/rr", 0, [FOLD, CALL]),
    ],
)
def test_who_may_do_what(actions, player, legal):
    state = play([JACK, QUEEN, KING], actions)
    assert LEDUC.player(state) == player
    assert np.flatnonzero(LEDUC.legal_actions(state)).tolist() == legal
    assert not LEDUC.is_terminal(state)


def test_the_public_card_is_hidden_in_the_first_round():
    for player in (0, 1):
        views = [
            np.asarray(LEDUC.information_state(play(cards, "cr"), jnp.int32(player)))
            for cards in ([JACK, QUEEN, KING], [JACK, QUEEN, OTHER_KING])
        ]
        np.testing.assert_array_equal(*views)
        assert views[0][[0, 1, 4]].tolist() == [(JACK, QUEEN)[player], 6, player]
        state = play([JACK, QUEEN, KING], "crc")
        assert LEDUC.information_state(state, jnp.int32(player))[1] == KING


def test_features_by_hand():
    packed = LEDUC.information_state(play([JACK, OTHER_QUEEN, KING], "rc/c"), jnp.int32(1))
    features = np.asarray(LEDUC.features(packed))
    # Queen; king; "rc" is line 7 of the 11 that are open or called; "c" is line 1 of 6; seat 1.
    assert np.flatnonzero(features).tolist() == [1, 3 + 2, 6 + 7, 17 + 1, 23 + 1]
    hidden = LEDUC.information_state(play([JACK, OTHER_QUEEN, KING], "r"), jnp.int32(1))
    assert np.flatnonzero(LEDUC.features(hidden)).tolist() == [1, 6 + 2, 17 + 0, 23 + 1]


def test_information_states(leduc):
    """By player: 6 cards x 3 open lines, then 6 x 5 cards x 5 called lines x 3 open lines."""
    assert len(leduc.packed) == 2 * (6 * 3 + 6 * 5 * 5 * 3) == 936
    features = np.asarray(jax.vmap(LEDUC.features)(leduc.packed))
    distinct, first = np.unique(features, axis=0, return_inverse=True)
    # By rank, where all pairs of ranks occur: 3 x 3 and 3 x 3 x 5 x 3 for either player.
    assert len(distinct) == 2 * (3 * 3 + 3 * 3 * 5 * 3) == 288
    # States of the same features differ in suits only.
    ranks = leduc.packed.copy()
    ranks[:, :2] //= 2
    assert len(np.unique(np.column_stack([first, ranks]), axis=0)) == 288


def test_every_history_equals_the_plain_rules():
    """All betting sequences at once for all 120 deals."""
    deals, probabilities = LEDUC.enumerate_deals()
    cards = np.asarray(deals.cards).tolist()
    assert len(cards) == len({tuple(deal) for deal in cards}) == 120
    np.testing.assert_array_equal(probabilities, 1 / 120)
    step = jax.jit(jax.vmap(LEDUC.step, in_axes=(0, None)))
    look = jax.jit(
        jax.vmap(
            lambda state: (
                LEDUC.player(state),
                LEDUC.legal_actions(state),
                LEDUC.is_terminal(state),
                LEDUC.returns(state)[0],
            )
        )
    )
    pending, histories = [(plain.Betting(), deals)], 0
    while pending:
        betting, states = pending.pop()
        histories += 1
        player, legal, terminal, returns = jax.device_get(look(states))
        assert set(terminal.tolist()) == {betting.over}
        assert (legal == [action in betting.legal() for action in range(3)]).all()
        if betting.over:
            np.testing.assert_array_equal(returns, [betting.returns(deal) for deal in cards])
        else:
            assert set(player.tolist()) == {betting.player}
        for action in betting.legal():
            pending.append((betting.after(action), step(states, jnp.int32(action))))
    # A round has 6 open, 5 called and 4 folded lines; a called first line starts a second round.
    assert histories == 6 + 4 + 5 * (6 + 5 + 4)
