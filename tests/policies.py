"""Policies: functions of uint8[B, P] and bool[B, A] for exact computations, and a `Policy`."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np


def uniform(packed, legal):
    return legal / legal.sum(axis=1, keepdims=True)


def uneven(packed, legal):
    """Return other probabilities in every information state, some of them 0."""
    rng = np.random.default_rng(5)
    weights = rng.random(legal.shape) * legal
    weights[rng.random(legal.shape) < 0.1] = 0
    weights[weights.sum(axis=1) == 0] = legal[weights.sum(axis=1) == 0]
    return weights / weights.sum(axis=1, keepdims=True)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Fixed:
    """Plays every state with the same probabilities."""

    weights: jax.Array  # float32[A]

    def action_probabilities(self, packed, legal):
        weights = legal * self.weights[None]
        total = jnp.sum(weights, axis=1, keepdims=True)
        return weights / jnp.where(total > 0, total, 1)


def fixed(*weights):
    return Fixed(jnp.array(weights, jnp.float32))
