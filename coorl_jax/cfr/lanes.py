"""The lanes of the lockstep machine: registers, stacks, and the few operations on them.

B lanes, T traversals, D frames on a stack, E of them branchings, A actions, P packed bytes.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from coorl_jax.cfr.sampling import Scheme
from coorl_jax.games.game import NUM_PLAYERS, Game, State

# Lanes.status
IDLE = 0  # no traversal, or the last one is finished
DECIDING = 1  # at a decision, to be evaluated in the next pass
RETURNING = 2  # carrying `value` to the top frame

# Streams of random numbers below a traversal's key.
_DEAL = 0
_TARGET = 1
_DECISION = 2  # + depth
_BRANCHING = 0xFFFF_FFFF  # then depth

EVERY_ACTION = -1  # Frame.main_action: all branches give strategy samples


class Roots(NamedTuple):
    """What is drawn for each traversal before it starts."""

    state: State  # leaves [T, ...], the deal
    traverser: jax.Array  # int32[T], 0 or 1
    noise_key: jax.Array  # uint32[T, 2], data of the traversal's key
    target: jax.Array  # int32[T], the scheme's choice


class Lanes(NamedTuple):
    """The registers of the lanes."""

    state: State  # leaves [B, ...]
    status: jax.Array  # int32[B]
    traversal: jax.Array  # int32[B], index of the traversal
    depth: jax.Array  # int32[B], decisions since the deal
    own_decisions: jax.Array  # int32[B], the traverser's among them
    branchings: jax.Array  # int32[B], branching frames on the stack
    height: jax.Array  # int32[B], frames on the stack
    gives_strategy: jax.Array  # bool[B], whether opponent nodes give strategy samples
    value: jax.Array  # float32[B], utility carried up while RETURNING
    value_sample: jax.Array  # float32[B], of the last frame, see sampling.Baseline


class Valued(NamedTuple):
    """What a frame also holds for a scheme that reads a value network."""

    whole: jax.Array  # uint8[W]
    own: jax.Array  # bool, whether it is a node of the traverser
    trace_weight: jax.Array  # float32, c in the value sample


class Frame(NamedTuple):
    """A recorded node; in the stack with leading axes [B, D]."""

    packed: jax.Array  # uint8[P]
    legal: jax.Array  # bool[A]
    sigma: jax.Array  # float32[A]
    utility: jax.Array  # float32[A], u of the actions explored so far, the baseline elsewhere
    pending: jax.Array  # bool[A], actions still to be explored
    weight: jax.Array  # float32, of each explored action
    action: jax.Array  # int32, being explored now
    main_action: jax.Array  # int32, whose branch gives strategy samples, or EVERY_ACTION
    depth: jax.Array  # int32
    own_decisions: jax.Array  # int32
    branchings: jax.Array  # int32, branching frames below this one
    valued: Valued | None


class Stack(NamedTuple):
    """All frames, and the states of those that branched."""

    frames: Frame  # leaves [B, D, ...]
    states: State  # leaves [B, E, ...]


def at_root(roots: Roots, traversal: jax.Array, status: jax.Array) -> Lanes:
    """Return lanes at the start of their traversals.

    Args:
      roots: of all traversals.
      traversal: int32[B].
      status: int32[B].
    """
    zeros = jnp.zeros_like(traversal)
    return Lanes(
        state=jax.tree.map(lambda leaf: leaf[traversal], roots.state),
        status=status,
        traversal=traversal,
        depth=zeros,
        own_decisions=zeros,
        branchings=zeros,
        height=zeros,
        gives_strategy=jnp.ones(traversal.shape, jnp.bool_),
        value=jnp.zeros(traversal.shape, jnp.float32),
        value_sample=jnp.zeros(traversal.shape, jnp.float32),
    )


def empty_stack(game: Game, scheme: Scheme, state: State) -> Stack:
    """Return a stack for each lane of `state` (leaves [B, ...]), of the depth the scheme needs."""
    lanes = jax.tree.leaves(state)[0].shape[0]
    num_actions = game.num_actions

    def stacked(depth: int, *shape: int, dtype: Any) -> jax.Array:
        return jnp.zeros((lanes, depth, *shape), dtype)

    depth = scheme.max_records(game)
    branchings = scheme.max_branchings(game)
    valued = None
    if scheme.reads_values:
        valued = Valued(
            whole=stacked(depth, game.whole_size, dtype=jnp.uint8),
            own=stacked(depth, dtype=jnp.bool_),
            trace_weight=stacked(depth, dtype=jnp.float32),
        )
    frames = Frame(
        packed=stacked(depth, game.packed_size, dtype=jnp.uint8),
        legal=stacked(depth, num_actions, dtype=jnp.bool_),
        sigma=stacked(depth, num_actions, dtype=jnp.float32),
        utility=stacked(depth, num_actions, dtype=jnp.float32),
        pending=stacked(depth, num_actions, dtype=jnp.bool_),
        weight=stacked(depth, dtype=jnp.float32),
        action=stacked(depth, dtype=jnp.int32),
        main_action=stacked(depth, dtype=jnp.int32),
        depth=stacked(depth, dtype=jnp.int32),
        own_decisions=stacked(depth, dtype=jnp.int32),
        branchings=stacked(depth, dtype=jnp.int32),
        valued=valued,
    )
    states = jax.tree.map(
        lambda leaf: stacked(branchings, *leaf.shape[1:], dtype=leaf.dtype), state
    )
    return Stack(frames, states)


@partial(jax.jit, static_argnames=("game", "scheme"))
def draw_roots(game: Game, scheme: Scheme, traverser: jax.Array, key: jax.Array) -> Roots:
    """Deal all traversals and make their schemes' choices; traversal i depends on (key, i).

    Args:
      game: the rules.
      scheme: whose choices are stratified over the traversals of either traverser.
      traverser: int32[T], 0 or 1.
      key: consumed.

    Returns:
      T roots.
    """
    is_player = traverser[:, None] == jnp.arange(NUM_PLAYERS)[None]
    rank = pick(jnp.cumsum(is_player, axis=0) - 1, traverser)
    count = jnp.sum(is_player, axis=0)[traverser]

    def draw(i: jax.Array) -> Roots:
        traversal_key = jax.random.fold_in(key, i)
        within = jax.random.uniform(jax.random.fold_in(traversal_key, _TARGET))
        stratum = (rank[i].astype(jnp.float32) + within) / count[i]
        return Roots(
            state=game.init(jax.random.fold_in(traversal_key, _DEAL)),
            traverser=traverser[i],
            noise_key=jax.random.key_data(traversal_key),
            target=scheme.target(game, stratum),
        )

    return jax.vmap(draw)(jnp.arange(len(traverser), dtype=jnp.int32))


def decision_noise(noise_key: jax.Array, depth: jax.Array) -> jax.Array:
    """Return the uniform number that decides the action at a depth of a traversal.

    Args:
      noise_key: uint32[2], from `Roots`.
      depth: int32.

    Returns:
      float32 in [0, 1).
    """
    key = jax.random.wrap_key_data(noise_key)
    return jax.random.uniform(jax.random.fold_in(key, _DECISION + depth))


def branching_noise(noise_key: jax.Array, depth: jax.Array, num_actions: int) -> jax.Array:
    """Return the uniform numbers that choose the actions of a branching at a depth.

    Args:
      noise_key: uint32[2], from `Roots`.
      depth: int32.
      num_actions: A.

    Returns:
      float32[A] in [0, 1).
    """
    key = jax.random.fold_in(jax.random.wrap_key_data(noise_key), _BRANCHING)
    return jax.random.uniform(jax.random.fold_in(key, depth), (num_actions,))


def scatter(arrays: Any, index: tuple[jax.Array, ...], rows: Any) -> Any:
    """Write rows at distinct indices; an index past the end of the first axis writes nothing."""
    return jax.tree.map(lambda a, r: a.at[index].set(r, mode="drop"), arrays, rows)


def compact(mask: jax.Array, width: int) -> jax.Array:
    """Return int32[width], the first positions where the mask holds, then the mask's length."""
    length = mask.shape[0]
    place = jnp.where(mask, jnp.cumsum(mask, dtype=jnp.int32) - 1, width)
    empty = jnp.full(width, length, jnp.int32)
    return empty.at[place].set(jnp.arange(length, dtype=jnp.int32), mode="drop")


def select(mask: jax.Array, a: Any, b: Any) -> jax.Array:
    """Select by lane: the mask bool[B] is broadcast over trailing axes."""
    a = jnp.asarray(a)
    return jnp.where(mask.reshape(mask.shape + (1,) * max(a.ndim - 1, 0)), a, b)


def first_action(mask: jax.Array) -> jax.Array:
    """Return int32[B], the lowest action of bool[B, A]."""
    return jnp.argmax(mask, axis=-1).astype(jnp.int32)


def pick(values: jax.Array, index: jax.Array) -> jax.Array:
    """Return values[b, index[b]], dtype[B], of dtype[B, A]."""
    return jnp.take_along_axis(values, index[:, None], axis=1)[:, 0]
