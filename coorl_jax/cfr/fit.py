"""Fitting a network to a memory: weighted losses and one scan of Adam updates.

B batch, A actions. All updates of a fit are one `scan`: batches are gathered on the device and
features are computed inside the loss, so nothing returns to the host between updates.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from coorl_jax.cfr import reservoir as reservoirs
from coorl_jax.cfr.reservoir import Reservoir
from coorl_jax.cfr.samples import Sample, unpack_legal
from coorl_jax.networks import Network, Params, mask_illegal

Loss = Literal["advantage", "strategy"]
Weighting = Literal["linear", "uniform"]


@dataclasses.dataclass(frozen=True)
class FitSpec:
    """How a network is fitted to its memory in one iteration."""

    start: Literal["scratch", "warm"]  # new parameters, or those of the last iteration
    updates: int  # gradient steps
    batch_size: int  # samples per step
    learning_rate: float  # of Adam
    gradient_clip: float  # greatest global norm of a gradient
    weighting: Weighting  # of samples, by their iteration


class FitMetrics(NamedTuple):
    """What one fit reports."""

    loss: jax.Array  # float32; mean over the last tenth of the updates
    skipped: jax.Array  # int32; updates skipped because the gradient was not finite


@partial(jax.jit, static_argnames=("network", "spec"))
def init(network: Network, spec: FitSpec, key: jax.Array) -> tuple[Params, optax.OptState]:
    """Return new parameters and a new optimiser state; consumes the key."""
    params = network.init(key)
    return params, _optimizer(spec).init(params)


def fit(
    network: Network,
    spec: FitSpec,
    loss: Loss,
    params: Params,
    opt_state: optax.OptState,
    reservoir: Reservoir,
    key: jax.Array,
    iteration: jax.Array,
) -> tuple[Params, optax.OptState, FitMetrics]:
    """Fit a network to a memory of samples.

    A step whose gradient is not finite leaves parameters and optimiser alone and is counted. An
    empty memory gives zero gradients.

    Args:
      network: what to fit.
      spec: how; with start "scratch", `params` and `opt_state` are replaced by new ones.
      loss: "advantage" for regression, "strategy" for cross entropy, see `loss_value`.
      params: parameters of the last fit.
      opt_state: optimiser state of the last fit, from `init` or `fit`.
      reservoir: rows are `Sample`s; not donated.
      key: consumed.
      iteration: int32 T, the current iteration, from 1; scales the linear weights.

    Returns:
      Parameters, optimiser state and metrics.

    References:
      Brown et al., Deep Counterfactual Regret Minimization, 2019, Algorithm 1.
    """
    init_key, updates_key = jax.random.split(key)
    if spec.start == "scratch":
        params, opt_state = init(network, spec, init_key)
    return _update(network, spec, loss, params, opt_state, reservoir, updates_key, iteration)


@partial(jax.jit, static_argnames=("network", "spec", "loss"))
def _update(
    network: Network,
    spec: FitSpec,
    loss: Loss,
    params: Params,
    opt_state: optax.OptState,
    reservoir: Reservoir,
    key: jax.Array,
    iteration: jax.Array,
) -> tuple[Params, optax.OptState, FitMetrics]:
    """Make all updates of a fit; arguments as for `fit`."""
    optimizer = _optimizer(spec)

    def update(carry, batch_key):
        params, opt_state = carry
        batch = reservoirs.sample(reservoir, batch_key, spec.batch_size)
        value, gradient = jax.value_and_grad(loss_value, argnums=3)(
            network, spec.weighting, loss, params, batch, iteration
        )
        finite = jnp.isfinite(optax.tree.norm(gradient))
        changes, new_opt_state = optimizer.update(gradient, opt_state, params)
        new = optax.apply_updates(params, changes), new_opt_state
        carry = jax.tree.map(partial(jnp.where, finite), new, carry)
        return carry, (value, ~finite)

    (params, opt_state), (values, skipped) = jax.lax.scan(
        update, (params, opt_state), jax.random.split(key, spec.updates)
    )
    tail = max(spec.updates // 10, 1)
    return params, opt_state, FitMetrics(jnp.mean(values[-tail:]), jnp.sum(skipped))


def loss_value(
    network: Network,
    weighting: Weighting,
    loss: Loss,
    params: Params,
    batch: Sample,
    iteration: jax.Array,
) -> jax.Array:
    """Return the weighted mean loss of a batch.

    Per sample "advantage" is the mean over legal actions of the squared error, and "strategy" the
    cross entropy of the softmax over legal logits with the target policy. Weights are 1
    ("uniform"), or 2t/T ("linear") for a sample of iteration t, about 1 on average, so that the
    learning rate means the same for both.

    Args:
      network: B information states to [B, A].
      weighting: "linear" or "uniform".
      loss: "advantage" or "strategy".
      params: of the network.
      batch: samples with leading axis B.
      iteration: int32 T.

    Returns:
      float32 scalar.
    """
    outputs = network.apply(params, batch.packed)
    legal = unpack_legal(batch.legal, network.game.num_actions)
    targets = batch.target.astype(jnp.float32)
    if loss == "advantage":
        errors = jnp.where(legal, jnp.square(targets - outputs), 0.0)
        losses = jnp.sum(errors, axis=1) / jnp.maximum(jnp.sum(legal, axis=1), 1)
    else:
        log_policy = jax.nn.log_softmax(mask_illegal(outputs, legal), axis=1)
        losses = -jnp.sum(jnp.where(legal, targets * log_policy, 0.0), axis=1)
    return jnp.mean(sample_weights(weighting, batch.iteration, iteration) * losses)


def sample_weights(weighting: Weighting, iterations: jax.Array, current: jax.Array) -> jax.Array:
    """Return float32[B], the weights of samples of iterations int32[B] at iteration `current`."""
    if weighting == "uniform":
        return jnp.ones(iterations.shape, jnp.float32)
    return 2.0 * iterations.astype(jnp.float32) / current


def _optimizer(spec: FitSpec) -> optax.GradientTransformation:
    return optax.chain(
        optax.clip_by_global_norm(spec.gradient_clip), optax.adam(spec.learning_rate)
    )
