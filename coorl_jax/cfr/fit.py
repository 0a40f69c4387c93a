"""Fitting a network to a memory: weighted losses and one scan of Adam updates.

B batch, A actions. All updates of a fit are one `scan`: batches are gathered on the device and
features are computed inside the loss, so nothing returns to the host between updates.
"""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from coorl_jax import optimizer
from coorl_jax.cfr import reservoir as reservoirs
from coorl_jax.cfr.reservoir import Reservoir
from coorl_jax.cfr.samples import Sample, unpack_legal
from coorl_jax.networks import Network, Params, mask_illegal
from coorl_jax.settings import AdvantageSettings, FitSettings, WeightedFitSettings

Loss = Literal["squared_error", "cross_entropy"]


@dataclasses.dataclass(frozen=True)
class FitSpec:
    """How a network is fitted to its memory in one iteration."""

    start: Literal["scratch", "warm"]  # new parameters, or those of the last iteration
    updates: int  # gradient steps
    batch_size: int  # samples per step
    learning_rate: float  # of Adam, in the first iteration
    decay_iterations: int  # after which it is half of that, see optimizer.py; 0 = never
    annealed: bool  # whether it also falls within the fit, linearly from its start to 0
    gradient_clip: float  # greatest global norm of a gradient
    exponent: float  # p of the samples' weights, see `sample_weights`
    keep_negative: bool = False  # in bootstrapped targets, see `bootstrapped`


def fit_spec(settings: FitSettings) -> FitSpec:
    """Return how a network is fitted, from the settings of any of them."""
    exponent = settings.exponent if isinstance(settings, WeightedFitSettings) else 0.0
    keep_negative = False
    if isinstance(settings, AdvantageSettings) and settings.cumulative == "bootstrapped":
        exponent = 0.0  # All samples are of one iteration; its weight is in the step.
        keep_negative = settings.keep_negative
    return FitSpec(
        start=settings.start,
        updates=settings.updates,
        batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        decay_iterations=settings.decay_iterations,
        annealed=settings.annealed,
        gradient_clip=settings.gradient_clip,
        exponent=exponent,
        keep_negative=keep_negative,
    )


class Fitted(NamedTuple):
    """A network of one or two seats: one entry that serves both, or one for each.

    The value network has one entry, or none where the sampling scheme reads no values.
    """

    params: tuple[Params, ...]
    opt_state: tuple[Any, ...]


class FitMetrics(NamedTuple):
    """What one fit reports."""

    loss: jax.Array  # float32; mean over the last tenth of the updates, nan if all were skipped
    skipped: jax.Array  # int32; updates skipped because the gradient was not finite


@partial(jax.jit, static_argnames=("network", "spec"))
def init(network: Network, spec: FitSpec, key: jax.Array) -> tuple[Params, optax.OptState]:
    """Return new parameters and a new optimiser state; consumes the key."""
    params = network.init(key)
    return params, optimizer.direction(spec.gradient_clip).init(params)


def fit(
    network: Network,
    spec: FitSpec,
    loss: Loss,
    params: Params,
    opt_state: optax.OptState,
    reservoir: Reservoir,
    key: jax.Array,
    iteration: jax.Array,
    step: jax.Array | None = None,
) -> tuple[Params, optax.OptState, FitMetrics]:
    """Fit a network to a memory of samples.

    A step whose gradient is not finite leaves parameters and optimiser alone and is counted. An
    empty memory gives zero gradients.

    Args:
      network: what to fit.
      spec: how; with start "scratch", the fit begins with new parameters and optimiser state.
      loss: for regression or for policies, see `loss_value`.
      params: parameters of the last fit.
      opt_state: optimiser state of the last fit, from `init` or `fit`.
      reservoir: rows are `Sample`s; not donated.
      key: consumed.
      iteration: int32 T, the current iteration, from 1; scales the weights.
      step: float32 eta, to fit to `bootstrapped` targets; None fits to the targets as they are.

    Returns:
      Parameters, optimiser state and metrics.

    References:
      Brown et al., Deep Counterfactual Regret Minimization, 2019, Algorithm 1.
    """
    init_key, updates_key = jax.random.split(key)
    last_params = None if step is None else params
    if spec.start == "scratch":
        params, opt_state = init(network, spec, init_key)
    return _update(
        network, spec, loss, params, opt_state, reservoir, updates_key, iteration, step, last_params
    )


def fit_networks(
    name: str,
    network: Network,
    spec: FitSpec,
    loss: Loss,
    fitted: Fitted,
    memories: tuple[Reservoir, ...],
    key: jax.Array,
    iteration: int,
    step: jax.Array | None = None,
) -> tuple[Fitted, dict[str, float]]:
    """Fit a network to each of the memories, and wait for the results.

    Args:
      name: of the network, for the metrics.
      network: as for `fit`.
      spec: as for `fit`.
      loss: as for `fit`.
      fitted: as many entries as there are memories.
      memories: as for `fit`, each.
      key: consumed.
      iteration: as for `fit`.
      step: as for `fit`.

    Returns:
      What was fitted, and the metrics `loss/NAME` and `precision/nonfinite_steps`.

    Raises:
      ValueError: if no gradient in the last tenth of a fit is finite, so that it learns no more.
    """
    results = [
        fit(
            network,
            spec,
            loss,
            params,
            opt_state,
            memory,
            jax.random.fold_in(key, n),
            jnp.int32(iteration),
            step,
        )
        for n, (params, opt_state, memory) in enumerate(
            zip(fitted.params, fitted.opt_state, memories, strict=True)
        )
    ]
    reports = jax.device_get([result[2] for result in results])
    mean_loss = float(np.mean([report.loss for report in reports]))
    if not math.isfinite(mean_loss):
        # Regret matching would make a policy of whatever such a network puts out.
        raise ValueError(
            f"config.{name}.learning_rate={spec.learning_rate}: must be lower, as the {name} "
            "network has diverged: none of its last gradients is finite; "
            f"e.g. {spec.learning_rate / 10:g}"
        )
    fitted = Fitted(tuple(r[0] for r in results), tuple(r[1] for r in results))
    jax.block_until_ready(fitted)
    return fitted, {
        f"loss/{name}": mean_loss,
        "precision/nonfinite_steps": float(sum(report.skipped for report in reports)),
    }


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
    step: jax.Array | None,
    last_params: Params | None,
) -> tuple[Params, optax.OptState, FitMetrics]:
    """Make all updates of a fit; arguments as for `fit`."""
    adam = optimizer.direction(spec.gradient_clip)
    rate = optimizer.learning_rate(spec.learning_rate, spec.decay_iterations, iteration)
    rates = rate * jnp.ones(spec.updates, jnp.float32)
    if spec.annealed:
        rates *= 1.0 - jnp.arange(spec.updates) / spec.updates

    def update(carry, step_inputs):
        batch_key, rate = step_inputs
        params, opt_state = carry
        batch = reservoirs.sample(reservoir, batch_key, spec.batch_size)
        if step is not None:
            batch = bootstrapped(network, last_params, batch, step, spec.keep_negative)
        value, gradient = jax.value_and_grad(loss_value, argnums=3)(
            network, spec.exponent, loss, params, batch, iteration
        )
        finite = jnp.isfinite(optax.tree.norm(gradient))
        changes, new_opt_state = adam.update(gradient, opt_state, params)
        changes = optax.tree.scale(rate, changes)
        new = optax.apply_updates(params, changes), new_opt_state
        carry = jax.tree.map(partial(jnp.where, finite), new, carry)
        return carry, (value, ~finite)

    (params, opt_state), (values, skipped) = jax.lax.scan(
        update, (params, opt_state), (jax.random.split(key, spec.updates), rates)
    )
    tail = slice(-max(spec.updates // 10, 1), None)
    mean_loss = jnp.mean(values[tail], where=~skipped[tail])
    return params, opt_state, FitMetrics(mean_loss, jnp.sum(skipped))


def loss_value(
    network: Network,
    exponent: float,
    loss: Loss,
    params: Params,
    batch: Sample,
    iteration: jax.Array,
) -> jax.Array:
    """Return the weighted mean loss of a batch.

    Per sample "squared_error" is the mean over legal actions of the squared error, and
    "cross_entropy" that of the softmax over legal logits with the target policy.

    Args:
      network: B information states to [B, A].
      exponent: p of the weights, see `sample_weights`.
      loss: "squared_error" or "cross_entropy".
      params: of the network.
      batch: samples with leading axis B.
      iteration: int32 T.

    Returns:
      float32 scalar.
    """
    outputs = network.apply(params, batch.packed)
    legal = unpack_legal(batch.legal, outputs.shape[1])
    targets = batch.target.astype(jnp.float32)
    if loss == "squared_error":
        errors = jnp.where(legal, jnp.square(targets - outputs), 0.0)
        losses = jnp.sum(errors, axis=1) / jnp.maximum(jnp.sum(legal, axis=1), 1)
    else:
        log_policy = jax.nn.log_softmax(mask_illegal(outputs, legal), axis=1)
        losses = -jnp.sum(jnp.where(legal, targets * log_policy, 0.0), axis=1)
    return jnp.mean(sample_weights(exponent, batch.iteration, iteration) * losses)


def sample_weights(exponent: float, iterations: jax.Array, current: jax.Array) -> jax.Array:
    """Return the weights of samples by their iterations.

    They are (p + 1) (t / T)^p, about 1 on average over t = 1 .. T, so that the learning rate means
    the same for all p: 0 weighs all iterations alike, 1 is linear CFR.

    Args:
      exponent: p >= 0.
      iterations: int32[B] t.
      current: int32 T.

    Returns:
      float32[B].

    References:
      Brown and Sandholm, Solving Imperfect-Information Games via Discounted Regret Minimization,
      2019; theirs are products of (t / (t + 1))^p.
    """
    return (exponent + 1.0) * (iterations.astype(jnp.float32) / current) ** exponent


def bootstrap_step(exponent: float, min_step: float, iteration: jax.Array) -> jax.Array:
    """Return the step eta_t of `bootstrapped` that gives iterations weights of about t^p.

    It is (p + 1) / (t + p), of which repeated steps make a mean over iterations with weights
    (t + p - 1)! / (t - 1)!: all alike for p = 0, linear for p = 1, growing like t^p.

    Args:
      exponent: p >= 0.
      min_step: the least step; above 0, old iterations are forgotten exponentially.
      iteration: int32 t, from 1, of those that update the network; the first step is 1.

    Returns:
      float32 scalar.
    """
    return jnp.maximum(min_step, (exponent + 1.0) / (iteration.astype(jnp.float32) + exponent))


def bootstrapped(
    network: Network, params: Params, batch: Sample, step: jax.Array, keep_negative: bool = False
) -> Sample:
    """Return the samples with cumulative targets: (1 - eta) [A(I, a)]_+ + eta r(a).

    The network stands for the memory of all earlier iterations. Its positive part makes the sum
    that of CFR+, where an action whose advantage becomes positive is played at once. But bad
    actions then have advantages of about eta r, however long they have been bad, which a network
    must tell from 0 by its errors alone; with `keep_negative` A(I, a) stands in place of its
    positive part, and they come near the mean of r.

    Args:
      network: B information states to [B, A].
      params: of the network after the last iteration, A.
      batch: samples r of this iteration with leading axis B.
      step: float32 eta in [0, 1].
      keep_negative: whether A(I, a) below 0 is kept.

    Returns:
      The samples, with targets float32[B, A].

    References:
      Tammelin, Solving Large Imperfect Information Games Using CFR+, 2014; bootstrapping as in
      VR-DeepDCFR+ (Xu et al., Deep (Predictive) Discounted Counterfactual Regret Minimization,
      2025).
    """
    cumulative = network.apply(params, batch.packed)
    if not keep_negative:
        cumulative = jnp.maximum(cumulative, 0.0)
    target = (1.0 - step) * cumulative + step * batch.target.astype(jnp.float32)
    return batch._replace(target=target)
