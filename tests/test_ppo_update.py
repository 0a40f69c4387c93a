"""PPO's updates against a plain gradient step."""

from __future__ import annotations

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import trainers
from ppo_play import GAMES, PLAYED, SHAPE, play, random_params
from ppo_settings import ppo_settings

from coorl_jax.networks import ValueNetwork
from coorl_jax.ppo import update as updates


def leduc_decisions(seed=0):
    """Return two networks, their parameters, and a batch of 56 decisions, some without weight."""
    game, rng = GAMES["leduc"], np.random.default_rng(seed)
    policy, segment, _ = play(game, *PLAYED["leduc"])
    value_network = ValueNetwork(game, SHAPE)
    segment = jax.tree.map(lambda leaf: leaf[8:16].reshape(-1, *leaf.shape[2:]), segment)
    size = len(segment.action)
    assert {*segment.legal.sum(axis=1).tolist()} == {0, 2, 3}  # Also where a round is over.
    decisions = updates.Decisions(
        packed=segment.packed,
        whole=segment.whole,
        legal=segment.legal,
        action=segment.action,
        # Far enough from the policy that ratios are clipped on both sides.
        log_probability=segment.log_probability + np.float32(rng.normal(0, 0.3, size)),
        advantage=np.float32(rng.normal(1, 3, size)),
        value=np.float32(rng.normal(size=size)),
        weight=np.float32(segment.is_learner & (rng.random(size) < 0.8)),
    )
    params = policy.params[0], random_params(value_network, 3)
    return policy.network, value_network, params, jax.tree.map(jnp.asarray, decisions)


def spec(**changes):
    fields = {
        **{"epochs": 1, "minibatches": 1, "gradient_clip": 100.0},
        **{"clip": 0.2, "entropy": 0.0, "reference_kl": 0.0},
    }
    return dataclasses.replace(ppo_settings().ppo, **fields | changes)


_update = jax.jit(updates.update, static_argnames=("network", "value_network", "settings"))


def plain_update(network, value_network, spec, params, reference, decisions, rate):
    """Make full-batch updates, decision by decision from the formulas, by optax's own Adam."""
    rows = [n for n in range(len(decisions.weight)) if decisions.weight[n] == 1]
    advantage = np.asarray(decisions.advantage)[rows]
    advantage = (advantage - advantage.mean()) / advantage.std()

    def probabilities(params, row):
        odds = row.legal * jnp.exp(network.apply(params, row.packed[None])[0])
        return odds / odds.sum()

    def policy_loss(params, row, advantage):
        p, q = probabilities(params, row), probabilities(reference, row)
        ratio = p[row.action] / jnp.exp(row.log_probability)
        clipped = jnp.maximum(jnp.minimum(ratio, 1 + spec.clip), 1 - spec.clip)
        gain = jnp.minimum(ratio * advantage, clipped * advantage)
        # Illegal actions, whose terms are 0, as an action with p = q = 1.
        p, q = jnp.where(row.legal, p, 1), jnp.where(row.legal, q, 1)
        entropy, distance = -jnp.sum(p * jnp.log(p)), jnp.sum(p * jnp.log(p / q))
        return -gain - spec.entropy * entropy + spec.reference_kl * distance

    def value_loss(params, row, _):
        return (value_network.apply(params, row.whole[None])[0, 0] - row.value) ** 2

    improved = []
    for loss, tree in zip((policy_loss, value_loss), params, strict=True):
        gradient_of = jax.jit(jax.grad(loss))
        adam = optax.chain(optax.clip_by_global_norm(spec.gradient_clip), optax.adam(rate))
        state = adam.init(tree)
        for _ in range(spec.epochs):
            gradients = [
                gradient_of(tree, jax.tree.map(lambda leaf, n=n: leaf[n], decisions), a)
                for n, a in zip(rows, advantage, strict=True)
            ]
            mean = jax.tree.map(lambda *leaves: sum(leaves) / len(rows), *gradients)
            changes, state = adam.update(mean, state)
            tree = optax.apply_updates(tree, changes)
        improved.append(tree)
    return improved


@pytest.mark.parametrize(
    "changes",
    [
        {"epochs": 3, "entropy": 0.3, "reference_kl": 0.7, "clip": 0.1},
        # Adam does not see a gradient's length, but the lengths of several.
        {"epochs": 3, "gradient_clip": 0.05},
    ],
    ids=["regularised", "gradients clipped"],
)
def test_updates_are_those_of_a_plain_gradient_step(changes):
    network, value_network, params, decisions = leduc_decisions()
    assert 10 < decisions.weight.sum() < len(decisions.weight)
    how, rate = spec(**changes), 0.02
    reference = random_params(network, 4)
    learnt, metrics = _update(
        network,
        value_network,
        how,
        updates.with_optimizers(*params, how),
        reference,
        decisions,
        jnp.float32(rate),
        jax.random.key(0),
    )
    assert 0.1 < metrics.clipped < 0.9
    assert metrics.skipped == 0
    expected = plain_update(network, value_network, how, params, reference, decisions, rate)
    for found, wanted, before in zip((learnt.policy, learnt.value), expected, params, strict=True):
        moved = jax.tree.map(lambda a, b: a - b, found, before)
        wanted = jax.tree.map(lambda a, b: a - b, wanted, before)
        assert optax.tree.norm(wanted) > 0.05
        assert optax.tree.norm(optax.tree.sub(moved, wanted)) < 1e-3 * optax.tree.norm(wanted)


MINIBATCHES = spec(epochs=2, minibatches=4, entropy=0.1, reference_kl=0.1)


def updated(decisions, networks, params, rate=0.02):
    """Return the networks before and after updates by minibatches, and what was measured."""
    before = updates.with_optimizers(*params, MINIBATCHES)
    return before, *_update(
        *networks,
        MINIBATCHES,
        before,
        params[0],
        decisions,
        jnp.float32(rate),
        jax.random.key(5),
    )


def made_of(decisions):
    """Return the minibatches of an epoch that have something to learn from."""
    size = len(decisions.weight) // MINIBATCHES.minibatches
    return -(-int(jnp.sum(decisions.weight > 0)) // size)


def test_minibatches_with_nothing_to_learn_from_are_no_updates():
    """As against a fixed player, who takes half of the decisions."""
    *networks, params, decisions = leduc_decisions()
    first = jnp.arange(len(decisions.weight)) % 3 == 0
    decisions = decisions._replace(weight=decisions.weight * first)
    assert made_of(decisions) == 1
    _, learnt, metrics = updated(decisions, networks, params)
    assert metrics.skipped == 0
    for state in (learnt.policy_optimizer, learnt.value_optimizer):
        assert optax.tree.get(state, "count") == MINIBATCHES.epochs
    # Every epoch's only minibatch has all that is learnt from, in whatever order.
    once = decisions._replace(weight=jnp.ones_like(decisions.weight))
    known = np.flatnonzero(decisions.weight)
    once = jax.tree.map(lambda leaf: leaf[known], once)
    how = spec(epochs=2, entropy=0.1, reference_kl=0.1)
    expected = plain_update(*networks, how, params, params[0], once, 0.02)
    chex.assert_trees_all_close((learnt.policy, learnt.value), tuple(expected), atol=1e-4)


def test_decisions_without_weight_change_nothing():
    *networks, params, decisions = leduc_decisions()
    ignored = decisions.weight == 0
    assert ignored.sum() > 10

    def changed(leaf, other):
        return jnp.where(ignored.reshape(-1, *[1] * (leaf.ndim - 1)), other, leaf)

    reversed_rows = jax.tree.map(lambda leaf: leaf[::-1], decisions)
    others = jax.tree.map(changed, decisions, reversed_rows)._replace(
        advantage=changed(decisions.advantage, 1e6),
        value=changed(decisions.value, -1e6),
        log_probability=changed(decisions.log_probability, -80.0),
        weight=decisions.weight,
    )
    _, learnt, metrics = updated(decisions, networks, params)
    _, learnt_of_others, metrics_of_others = updated(others, networks, params)
    chex.assert_trees_all_close(learnt, learnt_of_others, rtol=1e-5, atol=1e-7)
    chex.assert_trees_all_close(metrics, metrics_of_others, rtol=1e-4)


def test_an_epoch_takes_every_decision_once():
    *networks, params, decisions = leduc_decisions()
    decisions = decisions._replace(weight=jnp.ones_like(decisions.weight))
    _, learnt, metrics = updated(decisions, networks, params, rate=0.0)
    chex.assert_trees_all_equal((learnt.policy, learnt.value), params)
    # Means over minibatches of one size are those over all decisions.
    errors = networks[1].apply(params[1], decisions.whole)[:, 0] - decisions.value
    assert metrics.value_loss == pytest.approx(float(jnp.mean(errors**2)), rel=1e-4)
    odds = decisions.legal * jnp.exp(networks[0].apply(params[0], decisions.packed))
    p = odds / jnp.maximum(odds.sum(axis=1, keepdims=True), 1e-9)
    entropy = -jnp.sum(p * jnp.log(jnp.where(p > 0, p, 1.0)), axis=1)
    assert metrics.entropy == pytest.approx(float(jnp.mean(entropy)), rel=1e-4)


def test_updates_that_are_not_finite_are_skipped():
    *networks, params, decisions = leduc_decisions()
    learns = decisions.weight > 0
    made = made_of(decisions)
    for field in ("advantage", "value"):
        # All updates of both epochs, and those of one minibatch.
        for where, skipped in ((learns, 2 * made), (learns & (jnp.cumsum(learns) == 1), 2)):
            values = jnp.where(where, jnp.nan, getattr(decisions, field))
            broken = decisions._replace(**{field: values})
            before, learnt, metrics = updated(broken, networks, params)
            assert metrics.skipped == skipped
            if skipped > 2:
                chex.assert_trees_all_equal(before, learnt)
                continue
            assert trainers.differ(before.policy, learnt.policy)
            assert trainers.differ(before.value, learnt.value)
            assert all(np.isfinite(leaf) for leaf in metrics)
            assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(learnt))
