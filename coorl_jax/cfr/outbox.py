"""Outboxes: samples on their way from the lanes to a memory.

A pass gives a few samples, in a number not known beforehand. They are appended here, and the
memory takes many at once when the outbox is nearly full: a reservoir insertion costs a sort.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from coorl_jax.cfr import reservoir, samples
from coorl_jax.cfr.lanes import scatter, select
from coorl_jax.cfr.reservoir import Reservoir
from coorl_jax.cfr.samples import Sample
from coorl_jax.games.game import Game


class Outbox(NamedTuple):
    """Samples in order of arrival."""

    rows: Sample  # leaves [capacity, ...], targets float32; meaningful below `filled`
    filled: jax.Array  # int32

    def has_room(self, samples_given: int) -> jax.Array:
        """Return bool, whether that many more samples fit."""
        return self.filled <= self.rows.iteration.shape[0] - samples_given


def create(packed_size: int, num_actions: int, capacity: int) -> Outbox:
    """Return an empty outbox with room for `capacity` samples of P packed bytes and A actions."""
    row = samples.example(packed_size, num_actions, jnp.dtype(jnp.float32))
    rows = jax.tree.map(lambda leaf: jnp.zeros((capacity, *leaf.shape), leaf.dtype), row)
    return Outbox(rows, jnp.int32(0))


def append(
    outbox: Outbox,
    gives: jax.Array,
    packed: jax.Array,
    legal: jax.Array,
    target: jax.Array,
    iteration: jax.Array,
) -> Outbox:
    """Append the rows that are marked, in order.

    Args:
      outbox: must have room for them; rows past its capacity would be lost.
      gives: bool[B], the rows to append.
      packed: uint8[B, P].
      legal: bool[B, A].
      target: float32[B, A].
      iteration: int32, of all rows.

    Returns:
      The outbox afterwards.
    """
    capacity = outbox.rows.iteration.shape[0]
    position = outbox.filled + jnp.cumsum(gives, dtype=jnp.int32) - 1
    rows = Sample(
        packed=packed,
        legal=samples.pack_legal(legal),
        target=target,
        iteration=jnp.broadcast_to(iteration, gives.shape),
    )
    return Outbox(
        rows=scatter(outbox.rows, (select(gives, position, capacity),), rows),
        filled=outbox.filled + jnp.sum(gives),
    )


def flush(
    outbox: Outbox, memories: tuple[Reservoir, ...], game: Game, key: jax.Array
) -> tuple[Reservoir, ...]:
    """Insert all samples into the memories; consumes the key.

    With a memory for each seat, every sample goes into that of its player.
    """
    capacity = outbox.rows.iteration.shape[0]
    valid = jnp.arange(capacity, dtype=jnp.int32) < outbox.filled
    if len(memories) == 1:
        return (reservoir.insert(memories[0], outbox.rows, valid, key),)
    seat = jax.vmap(game.seat)(outbox.rows.packed)
    return tuple(
        reservoir.insert(memory, outbox.rows, valid & (seat == s), jax.random.fold_in(key, s))
        for s, memory in enumerate(memories)
    )
