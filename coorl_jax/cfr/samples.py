"""What one training sample is, and how legal actions are packed into bits.

A actions, P packed bytes. A sample is stored as few bytes as it can be, since memories hold
millions: the packed information state instead of its features, the legal mask as bits.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Sample(NamedTuple):
    """One advantage sample or one strategy sample; with leading axes, many of them."""

    packed: jax.Array  # uint8[P]; information state of the player whose decision it is
    legal: jax.Array  # uint8[ceil(A/8)]; legal actions as bits, see `pack_legal`
    target: jax.Array  # target dtype[A]; sampled advantages, or the policy sigma_t
    iteration: jax.Array  # int32; the iteration t of the traversal, from 1


def pack_legal(legal: jax.Array) -> jax.Array:
    """Pack a mask of legal actions into bits, action 0 in the highest bit of byte 0.

    Args:
      legal: bool[..., A].

    Returns:
      uint8[..., ceil(A/8)]; the bits past action A-1 are zero.
    """
    return jnp.packbits(legal, axis=-1)


def unpack_legal(bits: jax.Array, num_actions: int) -> jax.Array:
    """Unpack a mask of legal actions, the inverse of `pack_legal`.

    Args:
      bits: uint8[..., ceil(A/8)].
      num_actions: A.

    Returns:
      bool[..., A].
    """
    return jnp.unpackbits(bits, axis=-1, count=num_actions).astype(jnp.bool_)


def example(packed_size: int, num_actions: int, target_dtype: jnp.dtype) -> Sample:
    """Return one sample of zeros: the shapes and dtypes of a memory's rows.

    Args:
      packed_size: P.
      num_actions: A.
      target_dtype: storage dtype of the targets, e.g. `jnp.bfloat16`.

    Returns:
      A `Sample` without leading axes.
    """
    return Sample(
        packed=jnp.zeros(packed_size, jnp.uint8),
        legal=pack_legal(jnp.zeros(num_actions, jnp.bool_)),
        target=jnp.zeros(num_actions, target_dtype),
        iteration=jnp.zeros((), jnp.int32),
    )
