"""The policies of past iterations, kept so that one can be drawn for each round (SD-CFR).

K slots. The average policy of CFR is, at the start of a round, one of the iterations' policies
drawn with weight t^p and kept for the round. Deep CFR approximates it with a second network;
keeping the advantage parameters themselves makes no such error. Once there are more iterations than
slots, those kept are a uniform sample of all, so weights by iteration stay right on average.

Reference: Steinberger, Single Deep Counterfactual Regret Minimization, 2019.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from coorl_jax.cfr import reservoir as reservoirs
from coorl_jax.cfr.reservoir import Reservoir
from coorl_jax.networks import Params


class Member(NamedTuple):
    """A row of the reservoir: the policy sigma_t that the traversals of iteration t followed."""

    params: tuple[Params, ...]  # of the advantage network after iteration t - 1
    iteration: jax.Array  # int32 t, from 1


def create(params: tuple[Params, ...], capacity: int) -> Reservoir:
    """Return an empty mixture with `capacity` slots for parameters like these."""
    return reservoirs.create(Member(params, jnp.int32(0)), capacity)


@partial(jax.jit, donate_argnames="mixture")
def insert(
    mixture: Reservoir, params: tuple[Params, ...], iteration: jax.Array, key: jax.Array
) -> Reservoir:
    """Insert the policy of one iteration; the mixture is donated and the key consumed."""
    row = jax.tree.map(lambda leaf: leaf[None], Member(params, iteration))
    return reservoirs.insert(mixture, row, jnp.ones(1, jnp.bool_), key)


@partial(jax.jit, static_argnames="exponent")
def weights(mixture: Reservoir, exponent: float) -> jax.Array:
    """Return float32[K], t^p for the exponent p, with sum 1 unless empty; 0 for free slots."""
    iteration = mixture.rows.iteration.astype(jnp.float32)
    filled = jnp.arange(mixture.capacity) < reservoirs.size(mixture)
    # Relative to the latest, so that a power of a long run's iterations stays finite.
    latest = jnp.maximum(jnp.max(jnp.where(filled, iteration, 0.0)), 1.0)
    weight = jnp.where(filled, (iteration / latest) ** exponent, 0.0)
    return weight / jnp.maximum(jnp.sum(weight), 1.0)
