"""The value network's opinion of every action, against successors visited one by one."""

import functools

import game_checks
import jax
import jax.numpy as jnp
import machine_runs as runs
import numpy as np
import pytest

from coorl_jax.cfr import critic
from coorl_jax.games.kuhn_poker import BET, PASS, KuhnPoker
from coorl_jax.games.leduc_poker import LeducPoker
from coorl_jax.games.lost_cities import LostCities

KUHN = KuhnPoker()
# 11 and 16 actions: with eight successors a lane at once, two turns or more.
WIDE = LostCities(colors=2, ranks=4, wagers=1, hand_size=4, max_discard_draws=2)
MANY = LostCities(colors=3, ranks=4, wagers=1, hand_size=6, max_discard_draws=2)
VALUES = runs.hash_values()
SCALE = 4.0


@functools.partial(jax.jit, static_argnums=0)
def action_values(game, state, legal):
    return critic.action_values(game, VALUES.network, VALUES.params, state, legal, SCALE)


@functools.partial(jax.jit, static_argnums=0)
def _visit(game, state, action):
    after = game.step(state, action)
    value = VALUES.network.apply(VALUES.params, game.whole_state(after)[None])[0, 0]
    return value, game.player(after), game.is_terminal(after), game.returns(after)


def plain_action_values(game, state, legal):
    """One lane: visit every successor."""
    values = np.zeros(len(legal))
    mover = int(game.player(state))
    for action in np.flatnonzero(legal):
        value, player, ended, returns = _visit(game, state, np.int32(action))
        if ended:
            values[action] = returns[mover] / SCALE
        else:
            values[action] = value if player == mover else -value
    return values


@pytest.mark.parametrize("game", [KUHN, LeducPoker(), WIDE], ids=lambda game: game.name)
def test_action_values_are_those_of_the_successors(game):
    rounds = game_checks.random_rounds(game, seed=1, rounds=6)
    lanes, times = np.nonzero(~rounds.terminal)
    chosen = np.random.default_rng(0).permutation(len(lanes))[:40]
    at = lanes[chosen], times[chosen]
    states = jax.tree.map(lambda leaf: leaf[at], rounds.states)
    legal = rounds.legal[at].copy()
    legal[::7] = False  # as of lanes without a traversal
    values = np.asarray(action_values(game, states, legal))
    for i in range(len(chosen)):
        state = jax.tree.map(lambda leaf, i=i: leaf[i], states)
        np.testing.assert_allclose(values[i], plain_action_values(game, state, legal[i]), rtol=1e-6)
    assert (values[~legal] == 0).all()


def test_more_actions_than_are_evaluated_at_once():
    """All lanes in the card phase with every slot playable and discardable: several turns."""
    states = jax.vmap(MANY.init)(jax.random.split(jax.random.key(0), 5))
    legal = jax.vmap(MANY.legal_actions)(states)
    assert int(legal.sum(axis=1).min()) > critic._PER_LANE
    values = action_values(MANY, states, legal)
    for i in range(5):
        state = jax.tree.map(lambda leaf, i=i: leaf[i], states)
        expected = plain_action_values(MANY, state, np.asarray(legal[i]))
        np.testing.assert_allclose(values[i], expected, rtol=1e-6)


def test_signs_and_ends_by_hand():
    """Player 1, card 0 against card 1, after a pass: a pass loses 1, a bet leaves player 0 to move.

    The value network speaks for the player to move, so that a bet is worth minus its value.
    """
    state = KUHN.init(jax.random.key(0))._replace(cards=jnp.array([1, 0], jnp.int32))
    state = KUHN.step(state, jnp.int32(PASS))
    one = jax.tree.map(lambda leaf: leaf[None], state)
    values = action_values(KUHN, one, jnp.ones((1, 2), bool))[0]
    assert float(values[PASS]) == -1 / SCALE
    after = KUHN.whole_state(KUHN.step(state, jnp.int32(BET)))
    assert after.tolist() == [1, 0, 4, 0]
    assert float(values[BET]) == -float(VALUES.network.apply(VALUES.params, after[None])[0, 0])


def test_a_mover_who_goes_on_keeps_the_sign():
    """In Lost Cities the player who has played a card draws one before the turn passes on."""
    state = jax.vmap(WIDE.init)(jax.random.split(jax.random.key(3), 1))
    one = jax.tree.map(lambda leaf: leaf[0], state)
    discard = jnp.int32(1)
    values = action_values(WIDE, state, WIDE.legal_actions(one)[None])[0]
    after = WIDE.step(one, discard)
    assert int(WIDE.player(after)) == 0
    whole = WIDE.whole_state(after)[None]
    assert float(values[1]) == float(VALUES.network.apply(VALUES.params, whole)[0, 0])
    drawn = action_values(
        WIDE, jax.tree.map(lambda leaf: leaf[None], after), WIDE.legal_actions(after)[None]
    )[0]
    draw = 2 * WIDE.hand_size
    whole = WIDE.whole_state(WIDE.step(after, jnp.int32(draw)))[None]
    assert float(drawn[draw]) == -float(VALUES.network.apply(VALUES.params, whole)[0, 0])
