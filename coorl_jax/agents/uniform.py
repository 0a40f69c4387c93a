"""Random play."""

from __future__ import annotations

import dataclasses

import jax

from coorl_jax.cfr.regret_matching import uniform_policy


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Uniform:
    """Plays every legal action with equal probability, in any game."""

    def action_probabilities(self, packed: jax.Array, legal: jax.Array) -> jax.Array:
        """Return float32[B, A] from uint8[B, P], which is not looked at, and bool[B, A]."""
        del packed
        return uniform_policy(legal)
