"""Random play."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Uniform:
    """Plays every legal action with equal probability, in any game."""

    def action_probabilities(self, packed: jax.Array, legal: jax.Array) -> jax.Array:
        """Return float32[B, A] from uint8[B, P], which is not looked at, and bool[B, A]."""
        del packed
        return legal / jnp.maximum(jnp.sum(legal, axis=-1, keepdims=True), 1)
