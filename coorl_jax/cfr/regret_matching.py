"""Regret matching, and drawing an action from a policy."""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

Fallback = Literal["argmax", "uniform"]
"""What to play where no advantage is positive."""

_LARGEST = 1e30
"""Bound on advantages, such that its inverse is a normal float32."""


def regret_matching(
    advantages: jax.Array, legal: jax.Array, fallback: Fallback = "argmax"
) -> tuple[jax.Array, jax.Array]:
    """Turn advantages into a policy proportional to their positive parts.

    Where no legal advantage is positive, "argmax" gives the legal action with the highest
    advantage (the lowest number among equals) probability 1, and "uniform" plays every legal
    action alike. The result is a distribution whatever a network puts out: advantages are clipped
    to +-1e30, NaN counts as -1e30, and those below the smallest normal float32 as not positive.

    Args:
      advantages: float32[..., A].
      legal: bool[..., A].
      fallback: "argmax" or "uniform".

    Returns:
      sigma, float32[..., A]: exactly zero on illegal actions, summing to one over legal ones
      (all zero where nothing is legal); and bool[...]: where the fallback was used.

    References:
      Zinkevich et al., Regret Minimization in Games with Incomplete Information, 2007, eq. 8;
      the fallback "argmax": Brown et al., Deep Counterfactual Regret Minimization, 2019, sec. 2.1.
    """
    advantages = jnp.where(jnp.isnan(advantages), -_LARGEST, advantages.astype(jnp.float32))
    advantages = jnp.clip(advantages, -_LARGEST, _LARGEST)
    positive = jnp.where(legal, jnp.maximum(advantages, 0.0), 0.0)
    peak = jnp.max(positive, axis=-1, keepdims=True)
    has_positive = peak > jnp.finfo(jnp.float32).tiny
    # Dividing by the largest first keeps the sum between 1 and A: no overflow, no 0/0.
    scaled = positive / jnp.where(has_positive, peak, 1.0)
    matched = scaled / jnp.where(has_positive, jnp.sum(scaled, axis=-1, keepdims=True), 1.0)

    any_legal = jnp.any(legal, axis=-1, keepdims=True)
    if fallback == "argmax":
        best = jnp.argmax(jnp.where(legal, advantages, -jnp.inf), axis=-1)
        instead = jax.nn.one_hot(best, legal.shape[-1], dtype=jnp.float32) * any_legal
    else:
        instead = uniform_policy(legal)
    sigma = jnp.where(has_positive, matched, instead)
    return sigma, (any_legal & ~has_positive)[..., 0]


def uniform_policy(legal: jax.Array) -> jax.Array:
    """Return float32[..., A], every action of bool[..., A] alike; zeros where none is legal."""
    count = jnp.sum(legal, axis=-1, keepdims=True)
    return legal.astype(jnp.float32) / jnp.maximum(count, 1).astype(jnp.float32)


def sample_action(probabilities: jax.Array, uniform: jax.Array) -> jax.Array:
    """Draw an action by inverting the cumulative distribution.

    Never returns an action of probability zero: not at uniform = 0, nor where rounding lets the
    cumulative sum end below `uniform`, when the last possible action is taken.

    Args:
      probabilities: float32[..., A], summing to about one; where all are zero the result is 0.
      uniform: float32[...] in [0, 1).

    Returns:
      int32[...].
    """
    possible = probabilities > 0
    cumulative = jnp.cumsum(probabilities, axis=-1)
    # Asking for `possible` too matters: a parallel cumulative sum may differ in the last bit
    # across an action of probability zero.
    candidates = possible & (cumulative > uniform[..., None])
    num_actions = probabilities.shape[-1]
    last = (num_actions - 1 - jnp.argmax(possible[..., ::-1], axis=-1)) * jnp.any(possible, axis=-1)
    action = jnp.where(jnp.any(candidates, axis=-1), jnp.argmax(candidates, axis=-1), last)
    return action.astype(jnp.int32)
