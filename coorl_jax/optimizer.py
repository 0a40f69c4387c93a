"""The optimiser of all networks: Adam on clipped gradients, with a rate that falls by iteration."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax


def direction(gradient_clip: float) -> optax.GradientTransformation:
    """Return Adam's direction, to be scaled by the learning rate of the iteration.

    Args:
      gradient_clip: greatest global norm of a gradient; longer ones are scaled down.
    """
    return optax.chain(
        optax.clip_by_global_norm(gradient_clip), optax.scale_by_adam(), optax.scale(-1.0)
    )


def learning_rate(first: float, decay_iterations: int, iteration: jax.Array) -> jax.Array:
    """Return the learning rate of iteration int32 t, float32: l / (1 + (t - 1) / d).

    A bootstrapped target moves by a step of about 1 / t; a rate that falls like it keeps what the
    network forgets and mixes up in proportion.

    Args:
      first: l, that of the first iteration.
      decay_iterations: d, after which it is half of that; 0 = it stays.
      iteration: t, from 1.
    """
    if decay_iterations == 0:
        return jnp.float32(first)
    return first / (1.0 + (iteration - 1) / decay_iterations)
