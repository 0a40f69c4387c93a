"""A reservoir: a fixed number of rows drawn uniformly from all rows ever inserted.

N slots, B rows in one insertion. Rows are any pytree of arrays, stored as a structure of arrays
with leading axis N. A reservoir and never a ring: with a sliding window the networks would fit
the recent iterations only, and the average over iterations would not converge.

Row number n of the stream (from 0) takes slot n while n < N; afterwards it is kept with
probability N / (n + 1), in a uniformly random slot (Vitter, Random Sampling with a Reservoir,
1985, Algorithm R). The whole batch is inserted at once: each row's number follows from a
cumulative sum of the valid flags, and of several rows that choose one slot the last one wins, as
if they had come one after the other.

bfloat16 is stored as its bits: XLA on a CPU would turn the whole store into float32 and back for
every scatter into it. `insert` and `sample` convert, so only `Reservoir.rows` shows the bits.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Reservoir(NamedTuple):
    """The memory. `insert` donates it: use the returned one afterwards."""

    rows: Any  # pytree of dtype[N, ...], bfloat16 as uint16 bits; no rows from `size` on
    seen: jax.Array  # uint32[2]; rows inserted since it was empty, (low, high) words of 64 bits

    @property
    def capacity(self) -> int:
        """N."""
        return jax.tree.leaves(self.rows)[0].shape[0]


def create(example_row: Any, capacity: int) -> Reservoir:
    """Return an empty reservoir.

    Args:
      example_row: pytree of arrays without a leading axis; gives shapes and dtypes.
      capacity: N, at least 1.

    Returns:
      An empty `Reservoir`.

    Raises:
      ValueError: if the capacity is not between 1 and 2^30, or if a leaf is uint16, which is how
        bfloat16 is stored.
    """
    if not 1 <= capacity <= 2**30:
        raise ValueError(f"capacity={capacity}: must be between 1 and 2^30 samples; e.g. 1_000_000")
    if any(leaf.dtype == jnp.uint16 for leaf in jax.tree.leaves(example_row)):
        raise ValueError("example_row has a uint16 leaf: must be another dtype; e.g. int32")
    rows = jax.tree.map(
        lambda leaf: jnp.zeros((capacity, *leaf.shape), _to_bits(leaf).dtype), example_row
    )
    return Reservoir(rows, jnp.zeros(2, jnp.uint32))


def emptied(reservoir: Reservoir) -> Reservoir:
    """Return the reservoir without its rows, in the same buffers."""
    return reservoir._replace(seen=jnp.zeros_like(reservoir.seen))


def size(reservoir: Reservoir) -> jax.Array:
    """Return the number of filled slots, int32: rows 0 .. size-1 are meaningful."""
    low, high = reservoir.seen
    capacity = jnp.uint32(reservoir.capacity)
    return jnp.where(high > 0, capacity, jnp.minimum(low, capacity)).astype(jnp.int32)


def num_seen(reservoir: Reservoir) -> int:
    """Return how many rows were inserted since it was empty, a Python int; waits for the device."""
    low, high = jax.device_get(reservoir.seen)
    return int(low) + (int(high) << 32)


@partial(jax.jit, donate_argnames="reservoir")
def insert(reservoir: Reservoir, rows: Any, valid: jax.Array, key: jax.Array) -> Reservoir:
    """Insert the valid rows of a batch, in order; the reservoir's buffers are donated.

    Args:
      reservoir: N slots.
      rows: pytree like one row with a leading axis B.
      valid: bool[B]; rows that are not valid do not count as seen.
      key: consumed.

    Returns:
      The reservoir afterwards. The time does not depend on N.
    """
    slots, seen = _choose_slots(reservoir.seen, reservoir.capacity, valid, key)
    slots = _last_writer(slots, reservoir.capacity)
    stored = jax.tree.map(partial(_write, slots), reservoir.rows, rows)
    return Reservoir(stored, seen)


def sample(reservoir: Reservoir, key: jax.Array, batch_size: int) -> Any:
    """Draw rows uniformly with replacement.

    Args:
      reservoir: if it is empty, the rows drawn are all zeros.
      key: consumed.
      batch_size: B.

    Returns:
      Rows with leading axis B.
    """
    filled = size(reservoir)
    indices = jax.random.randint(key, (batch_size,), 0, jnp.maximum(filled, 1))
    # What an emptied reservoir held is still in its buffers.
    drawn = jax.tree.map(
        lambda store: jnp.where(filled > 0, store[indices], 0).astype(store.dtype), reservoir.rows
    )
    return jax.tree.map(_from_bits, drawn)


def _choose_slots(
    seen: jax.Array, capacity: int, valid: jax.Array, key: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return int32[B], a slot for each row (N for rows not kept), and the new `seen`."""
    batch = valid.shape[0]
    low, high = seen
    counts = jnp.cumsum(valid, dtype=jnp.uint32)
    # Row numbers in 64 bits: a low word that wrapped around is smaller than before.
    number_low = low + counts - valid
    number_high = high + (number_low < low)
    seen_low = low + counts[-1]
    seen = jnp.stack([seen_low, high + (seen_low < low)])

    accept_key, slot_key = jax.random.split(key)
    # Two words of random bits make a uniform number with full float32 precision down to 2^-64, so
    # that the acceptance probability is right to 1 part in 10^6 however long the stream.
    bits = jax.random.bits(accept_key, (2, batch), jnp.uint32).astype(jnp.float32)
    uniform = bits[0] * 2.0**-32 + bits[1] * 2.0**-64
    number = number_high.astype(jnp.float32) * 2.0**32 + number_low.astype(jnp.float32)
    accepted = uniform * (number + 1.0) < capacity

    filling = (number_high == 0) & (number_low < capacity)
    random_slot = jax.random.randint(slot_key, (batch,), 0, capacity)
    slot = jnp.where(filling, number_low.astype(jnp.int32), random_slot)
    return jnp.where(valid & (filling | accepted), slot, capacity), seen


def _last_writer(slots: jax.Array, capacity: int) -> jax.Array:
    """Keep the last of equal slots; send all other rows to distinct slots past the end.

    The order in which a scatter applies duplicate indices is undefined on accelerators.
    """
    order = jnp.arange(slots.shape[0], dtype=jnp.int32)
    by_slot, row = jax.lax.sort((slots, order), num_keys=1, is_stable=True)
    followed = jnp.append(by_slot[:-1] == by_slot[1:], False)
    dropped = followed | (by_slot >= capacity)
    unique = jnp.where(dropped, capacity + order, by_slot)
    return jnp.zeros_like(slots).at[row].set(unique, unique_indices=True)


def _write(slots: jax.Array, store: jax.Array, new: jax.Array) -> jax.Array:
    """Write rows at unique slots, dropping those past the end."""
    new = _to_bits(new.astype(jnp.bfloat16)) if store.dtype == jnp.uint16 else new
    return store.at[slots].set(new.astype(store.dtype), mode="drop", unique_indices=True)


def _to_bits(leaf: jax.Array) -> jax.Array:
    """Return the bits of a bfloat16 array as uint16; any other array as it is."""
    if leaf.dtype == jnp.bfloat16:
        return jax.lax.bitcast_convert_type(leaf, jnp.uint16)
    return leaf


def _from_bits(leaf: jax.Array) -> jax.Array:
    """Undo `_to_bits`."""
    if leaf.dtype == jnp.uint16:
        return jax.lax.bitcast_convert_type(leaf, jnp.bfloat16)
    return leaf
