"""The updates of PPO: epochs of minibatches over one iteration's decisions.

N decisions, M of a minibatch, A actions, P packed bytes, W bytes of a whole state.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from coorl_jax import optimizer
from coorl_jax.cfr.lanes import pick
from coorl_jax.networks import Network, Params, ValueNetwork, mask_illegal
from coorl_jax.settings import PpoSettings

_TINY = 1e-8


class Decisions(NamedTuple):
    """What is learnt from, leading axis N."""

    packed: jax.Array  # uint8[P]
    whole: jax.Array  # uint8[W]
    legal: jax.Array  # bool[A]
    action: jax.Array  # int32
    log_probability: jax.Array  # float32, of the action when it was taken
    advantage: jax.Array  # float32
    value: jax.Array  # float32, what the value network is to learn
    weight: jax.Array  # float32, 1, or 0 for a decision that is not learnt from


class Learnt(NamedTuple):
    """The networks with their optimisers."""

    policy: Params
    policy_optimizer: optax.OptState
    value: Params
    value_optimizer: optax.OptState


class UpdateMetrics(NamedTuple):
    """Means over the updates, float32, and a count."""

    policy_loss: jax.Array
    value_loss: jax.Array
    entropy: jax.Array  # nats
    kl: jax.Array  # of the new from the old policy, nats, estimated from the actions taken
    clipped: jax.Array  # share of decisions whose ratio is out of bounds
    skipped: jax.Array  # int32, updates skipped because a gradient was not finite


def init(
    network: Network, value_network: ValueNetwork, settings: PpoSettings, key: jax.Array
) -> Learnt:
    """Return new networks and optimisers; consumes the key."""
    policy_key, value_key = jax.random.split(key)
    return with_optimizers(network.init(policy_key), value_network.init(value_key), settings)


def with_optimizers(policy: Params, value: Params, settings: PpoSettings) -> Learnt:
    """Return networks with new optimisers."""
    adam = optimizer.direction(settings.gradient_clip)
    return Learnt(policy, adam.init(policy), value, adam.init(value))


def update(
    network: Network,
    value_network: ValueNetwork,
    settings: PpoSettings,
    learnt: Learnt,
    reference: Params,
    decisions: Decisions,
    learning_rate: jax.Array,
    key: jax.Array,
) -> tuple[Learnt, UpdateMetrics]:
    """Make all updates of an iteration.

    An update whose gradient is not finite changes nothing and is counted.

    Args:
      network: gives logits.
      value_network: gives values.
      settings: how.
      learnt: the networks so far.
      reference: parameters of the policy that the new one is to stay close to.
      decisions: leading axis N, a multiple of `settings.minibatches`.
      learning_rate: float32.
      key: consumed.

    Returns:
      The networks, and what was measured.

    References:
      Schulman et al., Proximal Policy Optimization Algorithms, 2017, eq. 7 and 9.
    """
    size = decisions.weight.shape[0]
    adam = optimizer.direction(settings.gradient_clip)
    of_policy = jax.value_and_grad(_policy_loss, argnums=2, has_aux=True)
    of_value = jax.value_and_grad(_value_loss, argnums=1)

    def step(learnt: Learnt, batch: Decisions) -> tuple[Learnt, tuple[jax.Array, ...]]:
        (policy_loss, measured), policy_gradient = of_policy(
            network, settings, learnt.policy, reference, batch
        )
        value_loss, value_gradient = of_value(value_network, learnt.value, batch)

        def improved(params: Params, state: optax.OptState, gradient: Params) -> Any:
            changes, state = adam.update(gradient, state, params)
            return optax.apply_updates(params, optax.tree.scale(learning_rate, changes)), state

        new = Learnt(
            *improved(learnt.policy, learnt.policy_optimizer, policy_gradient),
            *improved(learnt.value, learnt.value_optimizer, value_gradient),
        )
        finite = jnp.isfinite(optax.tree.norm((policy_gradient, value_gradient)))
        learnt = jax.tree.map(partial(jnp.where, finite), new, learnt)
        return learnt, (policy_loss, value_loss, *measured, finite)

    def pass_over(learnt: Learnt, batch: Decisions) -> tuple[Learnt, tuple[jax.Array, ...]]:
        del batch
        return learnt, (*[jnp.float32(0)] * 5, jnp.bool_(False))

    def step_on(learnt: Learnt, chosen: jax.Array) -> tuple[Learnt, tuple[Any, ...]]:
        batch = jax.tree.map(lambda leaf: leaf[chosen], decisions)
        counts = jnp.any(batch.weight > 0)
        learnt, (*measured, finite) = jax.lax.cond(counts, step, pass_over, learnt, batch)
        return learnt, (*measured, finite, counts & ~finite)

    def epoch(learnt: Learnt, key: jax.Array) -> tuple[Learnt, tuple[Any, ...]]:
        order = jax.random.permutation(key, size)
        # What is not learnt from comes last, in minibatches that cost nothing: against an opponent
        # it is half of everything.
        order = order[jnp.argsort(decisions.weight[order] == 0, stable=True)]
        return jax.lax.scan(step_on, learnt, order.reshape(settings.minibatches, -1))

    learnt, (*means, made, skipped) = jax.lax.scan(
        epoch, learnt, jax.random.split(key, settings.epochs)
    )
    means = [jnp.mean(mean, where=made) for mean in means]
    return learnt, UpdateMetrics(*means, skipped=jnp.sum(skipped))


def _policy_loss(
    network: Network, settings: PpoSettings, params: Params, reference: Params, batch: Decisions
) -> tuple[jax.Array, tuple[jax.Array, jax.Array, jax.Array]]:
    """Return the loss of a minibatch; and entropy, KL from the old policy, share clipped."""
    log_policy = _log_policy(network, params, batch)
    ratio_log = pick(log_policy, batch.action) - batch.log_probability
    ratio = jnp.exp(ratio_log)
    advantage = _normalized(batch.advantage, batch.weight)
    clipped = jnp.clip(ratio, 1.0 - settings.clip, 1.0 + settings.clip)
    gain = _mean(jnp.minimum(ratio * advantage, clipped * advantage), batch.weight)
    policy = jnp.exp(log_policy)
    entropy = -_mean(
        jnp.sum(jnp.where(batch.legal, policy * log_policy, 0.0), axis=1), batch.weight
    )
    loss = -gain - settings.entropy * entropy
    if settings.reference_kl:
        log_ratio = log_policy - _log_policy(network, reference, batch)
        distance = jnp.sum(jnp.where(batch.legal, policy * log_ratio, 0.0), axis=1)
        loss += settings.reference_kl * _mean(distance, batch.weight)
    # Never negative, and less noisy than the mean of -log r: http://joschu.net/blog/kl-approx.html
    kl = _mean(ratio - 1.0 - ratio_log, batch.weight)
    return loss, (entropy, kl, _mean(jnp.abs(ratio - 1.0) > settings.clip, batch.weight))


def _value_loss(network: ValueNetwork, params: Params, batch: Decisions) -> jax.Array:
    errors = network.apply(params, batch.whole)[:, 0] - batch.value
    return _mean(jnp.square(errors), batch.weight)


def _log_policy(network: Network, params: Params, batch: Decisions) -> jax.Array:
    logits = mask_illegal(network.apply(params, batch.packed), batch.legal)
    return jax.nn.log_softmax(logits, axis=1)


def _mean(values: jax.Array, weight: jax.Array) -> jax.Array:
    return jnp.sum(values * weight) / jnp.maximum(jnp.sum(weight), 1.0)


def _normalized(advantage: jax.Array, weight: jax.Array) -> jax.Array:
    """Return advantages with mean 0 and standard deviation 1."""
    centred = advantage - _mean(advantage, weight)
    return centred / (jnp.sqrt(_mean(jnp.square(centred), weight)) + _TINY)
