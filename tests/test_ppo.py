"""PPO: advantages against a plain recursion, rounds against plain play, updates against a plain
gradient step, and what it learns on Kuhn poker, whose best responses are exact.

L lanes, T decisions of a segment, A actions.
"""

from __future__ import annotations

import functools
import json
import os
import pathlib
import re
import subprocess
import sys

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import trainers
from policies import fixed

from configs import default, kuhn, mini_lost_cities
from coorl_jax import config, trained_agent, training
from coorl_jax.agents.uniform import Uniform
from coorl_jax.cfr.iteration import Trainer
from coorl_jax.checkpoint import CheckpointStore
from coorl_jax.evaluation import exploitability, suite
from coorl_jax.games import registry, sequence_form
from coorl_jax.games import tree as trees
from coorl_jax.games.game import TURNS
from coorl_jax.games.kuhn_poker import KuhnPoker
from coorl_jax.games.leduc_poker import LeducPoker
from coorl_jax.networks import Network, NetworkSpec, ValueNetwork
from coorl_jax.policy import MixturePolicy, NetworkPolicy, PolicySpec, make_value_network
from coorl_jax.ppo import rollout
from coorl_jax.ppo import trainer as trainer_lib
from coorl_jax.ppo import update as updates
from coorl_jax.ppo.advantages import estimate
from coorl_jax.ppo.trainer import PpoTrainer
from coorl_jax.runtime import CompileCounter

ROOT = pathlib.Path(__file__).resolve().parent.parent
MINI_RULES = config.from_config_dict(mini_lost_cities.get_config()).game
GAMES = {
    "kuhn": KuhnPoker(),
    "leduc": LeducPoker(),
    "mini_lost_cities": registry.make(MINI_RULES.name, dict(MINI_RULES.rules)),
}
SCALE = 2.0  # points per unit of utility
SEED = 3
# Kuhn poker with many lanes tells what rounds are worth; only some of them are played again.
PLAYED = {"kuhn": (64, 501), "leduc": (40, 7), "mini_lost_cities": (24, 7)}
SHAPE = NetworkSpec("mlp", 8, 2)
SMALL = {
    "algorithm": "ppo",
    "iterations": 4,
    "network.width": 8,
    "network.depth": 2,
    "network.per_player": False,
    "traversal.alternating": False,
    "ppo.lanes": 6,
    "ppo.decisions": 8,
    "ppo.minibatches": 4,
    "evaluation.every": 2,
    "evaluation.pairs": 8,
    "checkpoint.every": 1,
}


def ppo_settings(**overrides):
    return config.override(config.from_config_dict(kuhn.get_config()), SMALL | overrides)


def random_params(network, seed):
    """Return parameters whose outputs differ much from state to state, unlike those of `init`."""
    leaves, structure = jax.tree.flatten(network.init(jax.random.key(seed)))
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    drawn = [0.7 * jax.random.normal(k, leaf.shape) for k, leaf in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, drawn)


# Advantages.


def random_rounds(rng, decisions, lanes):
    """Return the arguments of `estimate` but the last, of rounds as lanes play them.

    Players are drawn at every decision, so that they may move twice. What has no meaning, such as
    the utility where no round ends, is noise.
    """
    shape = (decisions, lanes)
    value, utility = rng.normal(size=shape), rng.normal(size=shape)
    player = rng.integers(2, size=shape)
    is_learner, ends = rng.random(shape) < 0.6, rng.random(shape) < 0.2
    for lane in range(lanes):
        waits = 0  # for a new round, after the last one has ended
        for t in range(decisions):
            if waits:
                is_learner[t, lane] = ends[t, lane] = False
                waits -= 1
            elif ends[t, lane]:
                waits = int(rng.integers(3))
    after = rng.normal(size=lanes), rng.random(lanes) < 0.5
    floats = [np.float32(x) for x in (value, utility, after[0])]
    return (floats[0], player.astype(np.int32), is_learner, ends, *floats[1:], after[1])


def plain_estimates(
    value, player, is_learner, ends, utility, value_after, after_is_learner, trace_decay
):
    """Follow the docstring of `estimate` from decision to decision, one lane at a time."""
    decisions, lanes = value.shape
    advantage, known = np.zeros(value.shape), np.zeros(value.shape, bool)

    def to_first(t, lane):
        return value[t, lane] * (1 if player[t, lane] == 0 else -1)

    for lane in range(lanes):
        to_player_0 = {}  # the advantages, in the view of player 0
        for t in reversed(np.flatnonzero(is_learner[:, lane]).tolist()):
            # What comes next: the round's end, or the learner's next decision.
            for u in range(t, decisions):
                if u > t and is_learner[u, lane]:
                    following = to_first(u, lane), to_player_0[u]
                    break
                if ends[u, lane]:
                    following = utility[u, lane], 0.0
                    break
            else:
                following = (value_after[lane], 0.0) if after_is_learner[lane] else None
            to_player_0[t] = 0.0
            if following is not None:
                gain = following[0] - to_first(t, lane)
                to_player_0[t] = gain + trace_decay * following[1]
                advantage[t, lane] = to_player_0[t] * (1 if player[t, lane] == 0 else -1)
                known[t, lane] = True
    return advantage, known


@pytest.mark.parametrize("trace_decay", [0.0, 0.5, 1.0])
def test_advantages_are_those_of_a_plain_recursion(trace_decay):
    rounds = random_rounds(np.random.default_rng(0), 13, 60)
    _, player, is_learner, ends, *_ = rounds
    # The cases there are: a player who moves twice, an end on the opponent's decision.
    assert np.any(is_learner[1:] & is_learner[:-1] & (player[1:] == player[:-1]) & ~ends[:-1])
    assert np.any(ends & ~is_learner)
    found = jax.jit(estimate)(*rounds, trace_decay)
    advantage, known = plain_estimates(*rounds, trace_decay)
    assert np.any(is_learner & ~known)  # Nor is a tail always known.
    np.testing.assert_array_equal(found.is_known, known)
    np.testing.assert_allclose(np.where(known, found.advantage, 0), advantage, atol=1e-5)
    np.testing.assert_allclose(
        np.where(known, found.value, 0), np.where(known, rounds[0] + advantage, 0), atol=1e-5
    )
    assert np.all(np.isfinite(found.advantage) & np.isfinite(found.value))


def test_without_decay_the_value_is_the_utility_that_the_round_ends_with():
    rounds = random_rounds(np.random.default_rng(1), 13, 60)
    value, player, is_learner, ends, utility, *_ = rounds
    found = estimate(*rounds, 1.0)
    checked = 0
    for t, lane in zip(*np.nonzero(is_learner), strict=True):
        end = next((u for u in range(t, len(ends)) if ends[u, lane]), None)
        if end is not None:
            expected = utility[end, lane] * (1 if player[t, lane] == 0 else -1)
            assert found.advantage[t, lane] + value[t, lane] == pytest.approx(expected, abs=1e-5)
            assert found.value[t, lane] == pytest.approx(expected, abs=1e-5)
            checked += 1
    assert checked > 100


# Rounds.

OPPONENTS = {
    "kuhn": fixed(3.0, 1.0),
    "leduc": fixed(0.0, 1.0, 3.0),  # never folds
    "mini_lost_cities": fixed(0.0, 1.0, 3.0, 0.0, 2.0),
    "mixture": MixturePolicy(
        Network(GAMES["leduc"], SHAPE),
        PolicySpec("strategy"),
        (
            jax.tree.map(
                lambda *leaves: jnp.stack(leaves),
                *(random_params(Network(GAMES["leduc"], SHAPE), seed) for seed in (10, 11, 12)),
            ),
        ),
        jnp.array([1.0, 0.0, 2.0]),
    ),
}


@functools.cache
def play(game, decisions, lanes=7, opponent=None, segments=1):
    """Return the network's policy, the segments' decisions [T, ...] in a row, and the lanes."""
    network = Network(game, SHAPE)
    policy = NetworkPolicy(network, PolicySpec("strategy"), (random_params(network, 1),))
    key = jax.random.key(SEED)
    round_lanes = rollout.begin(game, lanes, key)
    given = []
    for _ in range(segments):
        round_lanes, segment = _collect(
            game,
            network,
            policy.params[0],
            OPPONENTS.get(opponent),
            round_lanes,
            decisions,
            SCALE,
            key,
        )
        given.append(jax.device_get(segment))
    return policy, jax.tree.map(lambda *leaves: np.concatenate(leaves), *given), round_lanes


_collect = jax.jit(
    rollout.collect, static_argnames=("game", "network", "decisions", "utility_scale")
)


@functools.partial(jax.jit, static_argnums=0)
def _view(game, state):
    player = game.player(state)
    return {
        "packed": game.information_state(state, player),
        "whole": game.whole_state(state),
        "legal": game.legal_actions(state),
        "player": player,
        "is_over": game.is_terminal(state),
        "points": game.returns(state)[0],
    }


_step = jax.jit(lambda game, state, action: game.step(state, action), static_argnums=0)
_deal = jax.jit(
    # The stream of a round is below (key, lane, number of the round), that of its deal below that.
    lambda game, key, lane, number: game.init(
        jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(key, lane), number), 0)
    ),
    static_argnums=0,
)


def assert_is_plain_play(game, segment):
    """Play the first decisions of some lanes again, each from its own deals."""
    for lane in range(min(7, segment.action.shape[1])):
        number = 0
        state = _deal(game, jax.random.key(SEED), lane, number)
        for t in range(min(24, len(segment.action))):
            view = jax.device_get(_view(game, state))
            if t % TURNS == 0 and view["is_over"]:
                number += 1
                state = _deal(game, jax.random.key(SEED), lane, number)
                view = jax.device_get(_view(game, state))
            row = jax.tree.map(lambda leaf, t=t, lane=lane: leaf[t, lane], segment)
            if view["is_over"]:
                assert not np.any([row.is_learner, row.ends, row.legal.any()])
                assert row.log_probability == 0
                continue
            for name in ("packed", "whole", "legal", "player"):
                np.testing.assert_array_equal(getattr(row, name), view[name])
            assert view["legal"][row.action]
            state = _step(game, state, row.action)
            view = jax.device_get(_view(game, state))
            assert row.ends == view["is_over"]
            if row.ends:
                assert row.utility == pytest.approx(view["points"] / SCALE)
        assert number > 0


def probabilities_of(policy, segment):
    """Return float32[T, L], those of the actions that were taken."""
    shape = segment.action.shape
    packed = segment.packed.reshape(-1, segment.packed.shape[-1])
    legal = segment.legal.reshape(-1, segment.legal.shape[-1])
    found = np.asarray(exploitability.as_policy_fn(policy)(packed, legal))
    return found[np.arange(len(found)), segment.action.reshape(-1)].reshape(shape)


def assert_drawn_from(policy, segment, decides):
    """Check the probabilities of the actions taken at some decisions, bool[T, L]."""
    probability = probabilities_of(policy, segment)[decides]
    assert probability.min() > 0
    np.testing.assert_allclose(np.exp(segment.log_probability)[decides], probability, rtol=1e-4)


@pytest.mark.parametrize("name", GAMES)
def test_self_play_is_plain_play(name):
    policy, segment, _ = play(GAMES[name], *PLAYED[name])
    assert_is_plain_play(GAMES[name], segment)
    goes_on = segment.legal.any(axis=-1)
    np.testing.assert_array_equal(segment.is_learner, goes_on)
    assert_drawn_from(policy, segment, goes_on)
    assert np.ptp(np.exp(segment.log_probability)[goes_on]) > 0.5


def test_rounds_go_on_from_segment_to_segment():
    game = GAMES["mini_lost_cities"]
    _, parts, round_lanes = play(game, 8, segments=3)
    _, whole, rollers_of_whole = play(game, *PLAYED["mini_lost_cities"])
    assert not np.all(parts.ends[4:8].any(axis=0))  # A border cuts some rounds.
    chex.assert_trees_all_close(parts, whole, rtol=1e-5)
    chex.assert_trees_all_equal(round_lanes, rollers_of_whole)


@pytest.mark.parametrize("name", GAMES)
def test_a_fixed_player_takes_the_other_seat(name):
    game, opponent = GAMES[name], OPPONENTS[name]
    policy, segment, _ = play(game, *PLAYED[name], opponent=name)
    assert_is_plain_play(game, segment)
    goes_on = segment.legal.any(axis=-1)
    # The learner sits in seat 0 of even lanes and in seat 1 of odd ones.
    seats = np.broadcast_to(np.arange(segment.action.shape[1]) % 2, goes_on.shape)
    np.testing.assert_array_equal(segment.is_learner, goes_on & (segment.player == seats))
    theirs = goes_on & ~segment.is_learner
    assert_drawn_from(policy, segment, segment.is_learner)
    assert_drawn_from(opponent, segment, theirs)
    if name == "leduc":  # Lanes get out of step: more than half may wait for one player.
        assert max(segment.is_learner.sum(axis=1)) > 4
        assert max(theirs.sum(axis=1)) > 4


def rounds_of(segment, lane):
    """Return the decisions of each round of a lane, in a row; the last may not have ended."""
    ends = np.flatnonzero(segment.ends[:, lane])
    goes_on = np.flatnonzero(segment.legal[:, lane].any(axis=-1))
    return [part for part in np.split(goes_on, np.searchsorted(goes_on, ends) + 1) if len(part)]


def test_a_mixture_draws_a_member_for_each_round_and_keeps_it():
    mixture, lanes = OPPONENTS["mixture"], 41
    # Two segments, whose border cuts rounds.
    _, segment, _ = play(GAMES["leduc"], 12, lanes, "mixture", segments=2)
    by_member = np.stack([probabilities_of(mixture.member(n), segment) for n in range(3)])
    fits = np.abs(by_member - np.exp(segment.log_probability)[None]) < 1e-4
    drawn = []
    for lane in range(lanes):
        for decisions in rounds_of(segment, lane):
            theirs = decisions[~segment.is_learner[decisions, lane]]
            (members,) = np.nonzero(fits[:, theirs, lane].all(axis=1))
            assert len(members) > 0
            if len(members) == 1 and len(theirs) > 1:
                drawn.append(members[0])
    counts = np.bincount(drawn, minlength=3)
    assert counts[1] == 0
    assert 0.15 < counts[0] / len(drawn) < 0.5
    assert len(drawn) > 60


@pytest.mark.parametrize("opponent", [None, "kuhn"], ids=["itself", "fixed"])
def test_rounds_are_worth_what_they_are_exactly(opponent):
    """So actions are drawn from the policies, and deals and actions independently."""
    policy, segment, _ = play(GAMES["kuhn"], *PLAYED["kuhn"], opponent=opponent)
    plans = [plan_of(policy, seat) for seat in (0, 1)]
    other = plans
    if opponent is not None:
        other = [plan_of(OPPONENTS[opponent], seat) for seat in (0, 1)]
    for learner in (0, 1):
        seats = [plans[0], other[1]] if learner == 0 else [other[0], plans[1]]
        exact = sequence_form.expected_value(kuhn_tree().sequence_form, seats)
        mine = slice(learner, None, 2)
        points = SCALE * segment.utility[:, mine][segment.ends[:, mine]]
        error = points.std() / np.sqrt(len(points))
        assert len(points) == 16 * (251 - learner)
        assert abs(points.mean() - exact) < 3.5 * error
    # As often as the policy says, in every information state.
    goes_on = segment.legal.any(axis=-1)
    _, state = np.unique(segment.packed[goes_on], axis=0, return_inverse=True)
    probability = np.exp(segment.log_probability)[goes_on]
    first = np.where(segment.action[goes_on] == 0, probability, 1 - probability)
    passed = np.bincount(state, segment.action[goes_on] == 0)
    spread = np.sqrt(np.bincount(state, first * (1 - first))) + 1e-9
    assert np.all(np.abs(passed - np.bincount(state, first)) / spread < 4)


# Updates.


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
    return updates.UpdateSpec(**fields | changes)


_update = jax.jit(updates.update, static_argnames=("network", "value_network", "spec"))


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


# Learning.


@functools.cache
def kuhn_tree():
    return trees.enumerate_game(KuhnPoker())


def plan_of(policy, seat):
    """Return how likely a policy makes each of a seat's sequences in Kuhn poker."""
    probabilities = trees.evaluate_policy(kuhn_tree(), exploitability.as_policy_fn(policy))
    return sequence_form.realization_plan(kuhn_tree().sequence_form.decisions[seat], probabilities)


def exact_values(policy, opponent):
    """Return what a policy wins against another, and what a best response would: mean of seats."""
    form, legal = kuhn_tree().sequence_form, kuhn_tree().legal
    mine, theirs = ([plan_of(p, seat) for seat in (0, 1)] for p in (policy, opponent))
    first = sequence_form.expected_value(form, [mine[0], theirs[1]])
    second = -sequence_form.expected_value(form, [theirs[0], mine[1]])
    best = [sequence_form.best_response_value(form, legal, s, theirs[1 - s]) for s in (0, 1)]
    return (first + second) / 2, sum(best) / 2


def learn(trainer, iterations):
    state = trainer.init()
    for _ in range(iterations):
        state, metrics = trainer.run_stage(state)
    return state, metrics


LEARNING = {
    "network.width": 32,
    "ppo.lanes": 128,
    "ppo.decisions": 16,
    "ppo.minibatches": 8,
}
# Strategies go round in circles without either: the entropy keeps them mixed, and a reference that
# follows in steps draws them in.
SELF_PLAY = LEARNING | {
    "ppo.entropy": 0.1,
    "ppo.reference_kl": 0.3,
    "ppo.reference_every": 20,
    "ppo.average_decay": 0.99,
}


@pytest.mark.parametrize(
    ("iterations", "bound"), [(100, 0.2), pytest.param(600, 0.04, marks=pytest.mark.slow)]
)
def test_self_play_comes_near_an_equilibrium(iterations, bound):
    trainer = PpoTrainer(ppo_settings(**SELF_PLAY))
    state, _ = learn(trainer, iterations)
    found = suite.nash_convs(trainer.game, trainer.policies(state) | {"random": Uniform()})
    assert found["random"] == pytest.approx(0.917, abs=1e-3)
    assert found["average"] < bound


@pytest.mark.parametrize(
    "opponent", [fixed(1.0, 1.0), fixed(3.0, 1.0), fixed(1.0, 3.0)], ids=["random", "shy", "bold"]
)
def test_it_answers_a_fixed_player_nearly_as_well_as_can_be(opponent):
    trainer = PpoTrainer(ppo_settings(**LEARNING | {"ppo.learning_rate": 3e-3}), opponent)
    state, metrics = learn(trainer, 100)
    policies = trainer.policies(state)
    for name in ("current", "average"):
        value, best = exact_values(policies[name], opponent)
        assert 0.98 * best < value <= best + 1e-6
    # About 680 rounds, whose points have a standard deviation of 1.5 at most.
    assert metrics["ppo/points_per_round"] == pytest.approx(best, abs=5 * 1.5 / 680**0.5)
    assert best > 0.3


@pytest.mark.slow
def test_it_answers_a_trained_policy_nearly_as_well_as_can_be():
    """One that is near an equilibrium: what there is to win takes many decisions to tell from luck.

    With a quarter of the lanes and the usual entropy it stays at 87 % of the best response.
    """
    trainer = PpoTrainer(ppo_settings(**SELF_PLAY))
    state, _ = learn(trainer, 40)
    opponent = trainer.policies(state)["average"]
    settings = ppo_settings(**LEARNING | {"ppo.lanes": 512, "ppo.entropy": 0.05, "seed": 1})
    responder = PpoTrainer(settings, opponent)
    state, _ = learn(responder, 300)
    value, best = exact_values(responder.policies(state)["average"], opponent)
    assert best > 0.03
    assert 0.97 * best < value <= best + 1e-6


# Iterations.


STEPS = {
    "ppo.epochs": 1,
    "ppo.minibatches": 1,
    "ppo.decay_iterations": 3,
    "ppo.reference_kl": 0.1,
    "ppo.reference_every": 2,
    "ppo.average_decay": 0.7,
}


def test_the_rate_falls_the_average_moves_and_the_reference_follows_in_steps():
    trainer = PpoTrainer(ppo_settings(**STEPS))
    state = trainer.init()
    chex.assert_trees_all_equal(state.average, state.reference, state.learnt.policy)
    average, reference = jax.device_get((state.average, state.reference))
    # Of 1, 2, 3 and 4 iterations: the mean of all, as long as it keeps less.
    for iteration, kept in enumerate([0, 1 / 2, 2 / 3, 0.7], start=1):
        assert trainer.position(state) == (iteration - 1, 0)
        # With a new optimiser, Adam's update is the rate times the sign of the gradient.
        learnt = updates.with_optimizers(
            state.learnt.policy, state.learnt.value, updates.UpdateSpec(1, 1, 1.0, 0.2, 0.0, 0.0)
        )
        before = jax.device_get(state.learnt.policy)
        state, _ = trainer.run_stage(state._replace(learnt=learnt))
        moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), state.learnt.policy, before)
        rate = 1e-3 / (1 + (iteration - 1) / 3)
        assert max(jax.tree.leaves(moved)) == pytest.approx(rate, rel=1e-2)
        average = jax.tree.map(
            lambda old, new, kept=kept: kept * old + (1 - kept) * new, average, state.learnt.policy
        )
        if iteration % 2 == 0:
            reference = jax.device_get(state.learnt.policy)
        chex.assert_trees_all_close(state.average, average, rtol=1e-5, atol=1e-7)
        chex.assert_trees_all_equal(state.reference, reference)


@pytest.mark.parametrize("opponent", [None, Uniform()], ids=["itself", "random"])
def test_nothing_is_compiled_after_the_first_iteration(opponent):
    trainer = PpoTrainer(ppo_settings(**STEPS), opponent)
    with CompileCounter() as counter:
        state, _ = trainer.run_stage(trainer.init())
        counter.take()
        for _ in range(3):
            state, metrics = trainer.run_stage(state)
        assert counter.take()["compilations"] == 0
    slots = 6 * 8
    assert metrics["traversal/nodes"] <= slots
    assert metrics["traversal/lane_occupancy"] == metrics["traversal/nodes"] / slots
    assert metrics["ppo/rounds"] == slots // TURNS  # A round of Kuhn poker is shorter than a turn.
    assert (metrics["ppo/decisions"] == metrics["traversal/nodes"]) == (opponent is None)


def test_every_iteration_shuffles_anew_and_goes_on_with_the_same_rounds(monkeypatch):
    given = {"_collect": [], "_improve": []}

    def spied(function, keys):
        def spy(*args):
            keys.append(tuple(jax.random.key_data(args[-1]).tolist()))
            return function(*args)

        return spy

    for name, keys in given.items():
        monkeypatch.setattr(trainer_lib, name, spied(getattr(trainer_lib, name), keys))
    learn(PpoTrainer(ppo_settings(**STEPS)), 3)
    assert len({*given["_collect"]}) == 1
    assert len({*given["_improve"]}) == 3
    assert not {*given["_collect"]} & {*given["_improve"]}


def test_diverged_networks_end_the_run():
    trainer = PpoTrainer(ppo_settings(**STEPS))
    state = trainer.init()
    broken = jax.tree.map(lambda leaf: leaf * jnp.nan, state.learnt.policy)
    state = state._replace(learnt=state.learnt._replace(policy=broken))
    with pytest.raises(ValueError, match=r"^config\.ppo\.learning_rate=0\.001: must be .* e\.g"):
        trainer.run_stage(state)


# Runs.


def metrics_of(run):
    """Return the metrics lines without what differs from run to run."""
    varying = re.compile("seconds|per_second|compil")
    return [
        {name: value for name, value in json.loads(line).items() if not varying.search(name)}
        for line in (run / "metrics.jsonl").read_text().splitlines()
    ]


def last_state(run, trainer):
    with CheckpointStore(run / "checkpoints", read_only=True) as store:
        return store.restore(store.steps()[-1], trainer.init()).tree


@pytest.mark.parametrize("opponent", [pytest.param("itself", marks=pytest.mark.slow), "random"])
def test_a_run_is_recorded_and_resumes_bit_for_bit(tmp_path, opponent):
    made = ppo_settings(
        **{
            **STEPS,
            "ppo.opponent": opponent,
            "ppo.reference_every": 3,
            "checkpoint.every": 100,
            "evaluation.opponents": ("random",) if opponent == "itself" else ("opponent",),
            "evaluation.policies": ("current", "average"),
        }
    )
    whole = training.train(made, tmp_path / "whole")
    training.train(config.override(made, {"iterations": 2}), tmp_path / "run")
    run = training.train(made, tmp_path / "run")
    trainer = PpoTrainer(made)
    state = last_state(run, trainer)
    chex.assert_trees_all_equal(state, last_state(whole, trainer))
    assert trainers.differ(state.reference, state.learnt.policy)
    lines = metrics_of(run)
    assert lines == metrics_of(whole)
    assert [line["iteration"] for line in lines] == [1, 2, 3, 4]
    met = "random" if opponent == "itself" else "opponent"
    for policy in ("current", "average"):
        assert f"eval/{met}/{policy}/points_per_round" in lines[-1]
        assert 0 < lines[-1][f"eval/nash_conv/{policy}"] < 6
    for name in ("policy", "value"):
        assert f"loss/{name}" in lines[-1]
    assert lines[-1]["precision/nonfinite_steps"] == 0
    assert sorted(p.name for p in (run / "policies").iterdir()) == ["1", "2", "4"]
    # What was saved plays as what was learnt: logits, also those of `current`.
    agent = trained_agent.load(run)
    assert agent.iteration == 4
    for name, policy in trainer.policies(state).items():
        chex.assert_trees_all_equal(
            agent.policies[name].action_probabilities(kuhn_tree().packed, kuhn_tree().legal),
            policy.action_probabilities(kuhn_tree().packed, kuhn_tree().legal),
        )
    _, restored = trained_agent.restore(run)
    chex.assert_trees_all_equal(restored.tree["value"][0], state.learnt.value)


def save_agent(path, settings, parameters):
    with CheckpointStore(path / "policies") as store:
        store.save(7, parameters, {"config": config.to_dict(settings)})


@pytest.fixture(scope="module")
def cfr_run(tmp_path_factory):
    """Return what a run of Deep CFR with a value network leaves for play."""
    made, path = trainers.SETTINGS["baseline"], tmp_path_factory.mktemp("cfr") / "run"
    trainer = Trainer(made)
    save_agent(path, made, trainer.policy_parameters(trainer.init()))
    return path


def test_a_run_begins_with_the_average_policy_and_values_of_an_agent(cfr_run):
    made = ppo_settings(**STEPS | {"ppo.start": str(cfr_run)})
    learner = training._learner(made, None, starts=True)
    state = learner.init()
    agent = trained_agent.load(cfr_run)
    _, restored = trained_agent.restore(cfr_run)
    (average,), (value,) = restored.tree["average"], restored.tree["value"]
    assert trainers.differ(average, restored.tree["current"][0])
    for params in (state.learnt.policy, state.average, state.reference):
        chex.assert_trees_all_equal(params, average)
    chex.assert_trees_all_equal(state.learnt.value, value)
    for policy in learner.policies(state).values():
        chex.assert_trees_all_close(
            policy.action_probabilities(kuhn_tree().packed, kuhn_tree().legal),
            agent.policies["average"].action_probabilities(kuhn_tree().packed, kuhn_tree().legal),
        )


def test_an_agent_without_values_leaves_them_new(cfr_run, tmp_path):
    settings, restored = trained_agent.restore(cfr_run)
    kept = {name: restored.tree[name] for name in ("current", "average")}
    save_agent(tmp_path / "run", settings, kept)
    learner = training._learner(
        ppo_settings(**{"ppo.start": str(tmp_path / "run")}), None, starts=True
    )
    state, scratch = learner.init(), PpoTrainer(ppo_settings()).init()
    chex.assert_trees_all_equal(state.learnt.policy, restored.tree["average"][0])
    chex.assert_trees_all_equal(state.learnt.value, scratch.learnt.value)


def test_the_preset_exploit_goes_with_the_shipped_agent():
    """It meets and begins with the agent that the package ships, which has its networks."""
    made = config.from_config_dict(default.get_config("exploit"))
    opponent = training._opponent(made)
    learner = training._learner(made, opponent, starts=True)
    shipped = trained_agent.load(pathlib.Path("pretrained")).policies
    chex.assert_trees_all_equal(opponent.params, shipped["current"].params)
    chex.assert_trees_all_equal((learner._start.policy,), shipped["average"].params)
    for network, params in (
        (learner.network, learner._start.policy),
        (make_value_network(made), learner._start.value),
    ):
        expected = jax.eval_shape(network.init, jax.random.key(0))
        chex.assert_trees_all_equal_shapes_and_dtypes(params, expected)


# Mistakes.


@pytest.mark.parametrize("preset", ["ppo", "exploit"])
def test_presets_are_valid_and_recorded(preset):
    made = config.from_config_dict(default.get_config(preset))
    assert (made.preset, made.algorithm) == (preset, "ppo")
    assert config.from_dict(json.loads(json.dumps(config.to_dict(made)))) == made


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        ({"ppo.decisions": 6}, r"config\.ppo\.decisions=6: must be a multiple of 4; e\.g\. 32"),
        (
            {"ppo.minibatches": 7},
            r"config\.ppo\.minibatches=7: must divide .* lanes \* decisions = 48; e\.g\. 8",
        ),
        (
            {"network.per_player": True},
            r"config\.network\.per_player=True: must be False with config\.algorithm=ppo.*; e\.g",
        ),
        (
            {"mixture.capacity": 3},
            r"config\.mixture\.capacity=3: must be 0 with config\.algorithm=ppo.*; e\.g\. 0",
        ),
        (
            {"evaluation.opponents": ("random", "opponent")},
            r"config\.evaluation\.opponents: must have no 'opponent' without .*; e\.g\. --c",
        ),
        (
            {"light_evaluation.opponents": ("opponent",), "algorithm": "cfr"},
            r"config\.light_evaluation\.opponents: must have no 'opponent' without .*; e\.g\. --c",
        ),
        # `opponent` is whom ppo meets, not whom cfr would.
        (
            {
                "evaluation.opponents": ("opponent",),
                "ppo.opponent": "random",
                "algorithm": "cfr",
            },
            r"config\.evaluation\.opponents: must have no 'opponent' without .*; e\.g\. --c",
        ),
        ({"algorithm": "dqn"}, r"config\.algorithm='dqn': must be one of cfr, ppo; e\.g\. cfr"),
        ({"ppo.lanes": 1}, r"config\.ppo\.lanes=1: must be an integer from 2"),
        ({"ppo.trace_decay": 1.5}, r"config\.ppo\.trace_decay=1\.5: must be a number from 0 to 1;"),
        (
            {"ppo.opponent": "random,other"},
            r"config\.ppo\.opponent='random,other': must be a name .* without commas; e\.g\. pret",
        ),
        (
            {"ppo.start": ""},
            r"config\.ppo\.start='': must be a name or a path .*; e\.g\. pretrained",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_refused(overrides, sentence):
    with pytest.raises(config.ConfigError) as error:
        ppo_settings(**overrides)
    assert re.match(sentence, str(error.value))
    assert "\n" not in str(error.value)


def test_an_evaluation_may_meet_the_opponent_of_the_run():
    both = {"evaluation.opponents": ("random", "opponent"), "ppo.opponent": "random"}
    assert ppo_settings(**both).evaluation.opponents == ("random", "opponent")


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (
            {"ppo.opponent": "nobody"},
            r"--config\.ppo\.opponent=nobody: must be a bot .* or a trained agent .*; e\.g",
        ),
        (
            {"ppo.opponent": "pretrained"},
            r"--config\.ppo\.opponent=pretrained: must play the same game .*; e\.g",
        ),
        ({"ppo.opponent": "discard_only"}, r"--config\.ppo\.opponent.*plays lost_cities only"),
        (
            {"ppo.start": "nowhere"},
            r"--config\.ppo\.start=nowhere: must be a run directory .*; e\.g",
        ),
        (
            {"ppo.start": "pretrained"},
            r"--config\.ppo\.start=pretrained: must be an agent with the same game and networks, ",
        ),
        (
            {"ppo.start": "CFR", "network.width": 16},
            r"--config\.ppo\.start=\S*run: must be an agent with the same game and networks, but "
            r"has config\.network\.width=8, not 16; e\.g\. --config\.ppo\.start=scratch$",
        ),
        (
            {"ppo.start": "CFR", "utility_scale": 3.0},
            r"--config\.ppo\.start=\S*run: must be .* config\.utility_scale=1\.0, not 3\.0; e\.g",
        ),
    ],
)
def test_players_and_starts_that_are_not_there_are_refused(overrides, sentence, cfr_run, tmp_path):
    if overrides.get("ppo.start") == "CFR":
        overrides = overrides | {"ppo.start": str(cfr_run)}
    with pytest.raises(ValueError, match=f"^{sentence}") as error:
        training.train(ppo_settings(**overrides), tmp_path / "run")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_a_missing_opponent_is_a_mistake_of_the_command_line(tmp_path):
    process = subprocess.run(
        [
            *(sys.executable, "-m", "coorl_jax.train", "--config=configs/default.py:ppo"),
            "--config.ppo.opponent=runs/nobody",
        ],
        cwd=tmp_path,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert process.returncode == 2, process.stderr
    (sentence,) = process.stderr.splitlines()
    assert sentence.startswith("train: --config.ppo.opponent=runs/nobody: must be a bot")
    assert "e.g. " in sentence
    assert not list(tmp_path.iterdir())
