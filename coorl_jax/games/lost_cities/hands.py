"""Hands: short ascending rows of card ids, changed by vector operations only."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np


def pick(row: jax.Array, index: jax.Array) -> jax.Array:
    """Return row[index] as a masked sum: a vector operation, where a gather is a scalar loop."""
    chosen = np.arange(row.shape[0], dtype=np.int32) == index.astype(jnp.int32)
    return jnp.sum(jnp.where(chosen, row, jnp.zeros((), row.dtype)), dtype=row.dtype)


def remove_slot(hand: jax.Array, slot: jax.Array, empty: int) -> jax.Array:
    """Return the ascending hand uint8[H] without one slot, closed up, `empty` at the end."""
    shifted = jnp.concatenate([hand[1:], jnp.full(1, empty, hand.dtype)])
    return jnp.where(np.arange(hand.shape[0]) < slot, hand, shifted)


def insert_sorted(hand: jax.Array, card: jax.Array) -> jax.Array:
    """Return the ascending hand uint8[H] with `card` in place of its one empty slot."""
    before = jnp.concatenate([jnp.zeros(1, hand.dtype), hand[:-1]])
    follows = jnp.concatenate([jnp.zeros(1, jnp.bool_), hand[:-1] > card])
    return jnp.where(hand < card, hand, jnp.where(follows, before, card))
