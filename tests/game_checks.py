"""Checks that every game has to pass, and random rounds to look at."""

from __future__ import annotations

import copy
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from coorl_jax.games.game import CardGame


class Rounds(NamedTuple):
    """B random rounds, all their T + 1 states (the last ones repeat), on the host."""

    states: Any  # fields with leading axes [B, T + 1]
    actions: np.ndarray  # int32[B, T], drawn at random even after the end
    player: np.ndarray  # int32[B, T + 1]
    legal: np.ndarray  # bool[B, T + 1, A]
    terminal: np.ndarray  # bool[B, T + 1]
    returns: np.ndarray  # float32[B, T + 1, 2]
    packed: np.ndarray  # uint8[B, T + 1, 2, P], of both players
    whole: np.ndarray  # uint8[B, T + 1, W]


@functools.partial(jax.jit, static_argnames=("game", "rounds"))
def _random_rounds(game, key, rounds):
    def look(state):
        return (
            game.player(state),
            game.legal_actions(state),
            game.is_terminal(state),
            game.returns(state),
            jax.vmap(game.information_state, in_axes=(None, 0))(state, jnp.arange(2)),
            game.whole_state(state),
        )

    def decide(state, key):
        noise = jax.random.uniform(key, (game.num_actions,))
        action = jnp.argmax(jnp.where(game.legal_actions(state), noise, -1.0)).astype(jnp.int32)
        return game.step(state, action), (state, action, look(state))

    def one(key):
        deal, play = jax.random.split(key)
        last, (states, actions, looks) = jax.lax.scan(
            decide, game.init(deal), jax.random.split(play, game.max_decisions)
        )
        append = functools.partial(
            jax.tree.map, lambda leaf, end: jnp.concatenate([leaf, end[None]])
        )
        return Rounds(append(states, last), actions, *append(looks, look(last)))

    return jax.vmap(one)(jax.random.split(key, rounds))


def random_rounds(game, seed: int = 0, rounds: int = 24) -> Rounds:
    """Play rounds of uniformly random legal actions to `max_decisions`, under one jit."""
    return jax.device_get(_random_rounds(game, jax.random.key(seed), rounds))


def check_game(game) -> Rounds:
    """Check a game against the protocol: types, shapes, play, end. Return the rounds played."""
    check_static(game)
    check_shapes(game)
    rounds = random_rounds(game)
    check_rounds(game, rounds)
    check_batching(game, rounds)
    check_whole_states(game, rounds)
    return rounds


def check_static(game) -> None:
    """A game is a static argument of jit: equal games are one compilation."""
    assert hash(game) == hash(copy.deepcopy(game))
    assert game == copy.deepcopy(game)
    sizes = ("packed_size", "num_features", "whole_size", "num_whole_features")
    for name in ("num_actions", "max_decisions", *sizes):
        value = getattr(game, name)
        assert type(value) is int, name
        assert value > 0, name


def check_shapes(game) -> None:
    def shape(function, *args):
        return jax.tree.map(
            lambda leaf: (leaf.shape, leaf.dtype.name), jax.eval_shape(function, *args)
        )

    state = jax.eval_shape(game.init, jax.random.key(0))
    scalar = jax.ShapeDtypeStruct((), jnp.int32)
    packed = jax.ShapeDtypeStruct((game.packed_size,), jnp.uint8)
    assert shape(game.step, state, scalar) == shape(game.init, jax.random.key(0))
    assert shape(game.player, state) == ((), "int32")
    assert shape(game.legal_actions, state) == ((game.num_actions,), "bool")
    assert shape(game.is_terminal, state) == ((), "bool")
    assert shape(game.returns, state) == ((2,), "float32")
    assert shape(game.information_state, state, scalar) == ((game.packed_size,), "uint8")
    assert shape(game.features, packed) == ((game.num_features,), "float32")
    assert shape(game.seat, packed) == ((), "int32")
    whole = jax.ShapeDtypeStruct((game.whole_size,), jnp.uint8)
    assert shape(game.whole_state, state) == ((game.whole_size,), "uint8")
    assert shape(game.whole_features, whole) == ((game.num_whole_features,), "float32")
    if isinstance(game, CardGame):
        view = jax.eval_shape(game.card_view, packed)
        whole_view = jax.eval_shape(game.whole_card_view, whole)
        assert whole_view.shared.ndim == 1
        assert whole_view.suits.shape[0] == game.num_suits
        assert whole_view.suits.dtype == whole_view.shared.dtype == jnp.float32
        assert view.suits.shape[0] == game.num_suits
        assert view.suits.ndim == 2
        assert view.shared.ndim == 1
        assert view.suits.dtype == view.shared.dtype == jnp.float32
        assert (view.action_index.shape, view.action_index.dtype) == (
            (game.num_actions,),
            jnp.int32,
        )


def check_rounds(game, rounds: Rounds) -> None:
    terminal = rounds.terminal
    assert not terminal[:, 0].any()
    assert terminal[:, -1].all(), "a round outlasts max_decisions"
    assert (np.diff(terminal.astype(int), axis=1) >= 0).all(), "a round goes on after its end"
    assert rounds.legal.any(axis=2)[~terminal].all(), "no legal action before the end"
    assert set(np.unique(rounds.player)) <= {0, 1}
    np.testing.assert_array_equal(rounds.returns.sum(axis=2), 0)
    assert np.isfinite(rounds.returns).all()
    for name, leaf in zip(rounds.states._fields, rounds.states, strict=True):
        for before, after, ended in zip(leaf, leaf[:, 1:], terminal, strict=True):
            stays = before[:-1][ended[:-1]], after[ended[:-1]]
            np.testing.assert_array_equal(*stays, err_msg=f"{name} changes after the end")
    moves = np.zeros(terminal[:, 1:].shape, bool)
    for leaf in rounds.states:
        differs = leaf[:, 1:] != leaf[:, :-1]
        moves |= differs.reshape(*moves.shape, -1).any(axis=2)
    assert moves[~terminal[:, :-1]].all(), "a legal action changes nothing"


def check_batching(game, rounds: Rounds) -> None:
    """Functions of one state agree with themselves under vmap and jit, and give finite numbers."""
    packed = rounds.packed[:, :: max(1, rounds.packed.shape[1] // 16)].reshape(-1, game.packed_size)
    seats = jax.jit(jax.vmap(game.seat))(packed)
    np.testing.assert_array_equal(np.asarray(seats).reshape(-1, 2), [[0, 1]] * (len(packed) // 2))
    features = np.asarray(jax.jit(jax.vmap(game.features))(packed))
    assert np.isfinite(features).all()
    assert features.std(axis=0).any()
    np.testing.assert_allclose(features[7], jax.jit(game.features)(packed[7]), rtol=1e-6)
    state = jax.tree.map(lambda leaf: leaf[1, 1], rounds.states)
    after = jax.jit(game.step)(state, rounds.actions[1, 1])
    for leaf, expected in zip(after, rounds.states, strict=True):
        np.testing.assert_array_equal(leaf, expected[1, 2])
    if isinstance(game, CardGame):
        view = jax.device_get(jax.jit(jax.vmap(game.card_view))(packed))
        assert np.isfinite(view.suits).all()
        assert np.isfinite(view.shared).all()
        outputs = game.num_suits * game.suit_logits + game.shared_logits
        assert (view.action_index >= 0).all()
        assert (view.action_index < outputs).all()


def check_whole_states(game, rounds: Rounds) -> None:
    """A whole state tells who moves, what is legal and all that either player knows."""
    lanes, times = np.nonzero(~rounds.terminal)
    seen: dict[bytes, bytes] = {}
    for at in zip(lanes, times, strict=True):
        parts = rounds.player[at], rounds.legal[at], rounds.packed[at]
        known = b"".join(part.tobytes() for part in parts)
        assert seen.setdefault(rounds.whole[at].tobytes(), known) == known
    whole = rounds.whole[lanes, times]
    features = np.asarray(jax.jit(jax.vmap(game.whole_features))(whole))
    assert np.isfinite(features).all()
    assert features.std(axis=0).any()
    if isinstance(game, CardGame):
        view = jax.device_get(jax.jit(jax.vmap(game.whole_card_view))(whole))
        assert np.isfinite(view.suits).all()
        assert np.isfinite(view.shared).all()
