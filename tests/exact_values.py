"""Exact values of whole states, and what a scheme gives in the mean, by enumeration.

I information states, S whole states, A actions; n histories in a level of the tree, a history being
a deal, with the order of the deck, and the actions so far. Utilities are in units of the utility
scale. A value network does not know the order of the deck, so its value of a whole state is at best
the mean over the deals that agree with it.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import machine_runs as runs
import numpy as np

from coorl_jax.cfr.machine import TraversalSpec
from coorl_jax.cfr.regret_matching import regret_matching
from coorl_jax.cfr.sampling import Branch, Critic, External, Outcome, Robust
from coorl_jax.games import tree as trees


class Solved(NamedTuple):
    """A game and the policy of its stand-in network, exactly."""

    tree: trees.Tree
    sigma: np.ndarray  # float64[I, A]
    advantage: np.ndarray  # float64[I, A]
    reach: np.ndarray  # float64[I], counterfactual
    values: list[np.ndarray]  # by level float64[n], the utility to player 0


class WholeStates(NamedTuple):
    """The whole states of a tree's histories, ends of rounds left out."""

    packed: np.ndarray  # uint8[S, W]
    numbers: list[np.ndarray]  # by level int64[n], row of `packed`; -1 at the end of a round
    value: np.ndarray  # float64[S], to the player to move


@functools.cache
def solved(game, spec: TraversalSpec) -> Solved:
    tree = trees.enumerate_game(game)
    network = runs.HashNetwork(game)
    (params,) = runs.make_params(network, (1,))

    @jax.jit
    def policy(packed, legal):
        return regret_matching(network.apply(params, packed), legal, spec.fallback)[0]

    exact = trees.advantages(tree, policy)
    sigma = trees.evaluate_policy(tree, policy)
    values = [level.returns / spec.utility_scale for level in tree.levels]
    for depth in reversed(range(len(values) - 1)):
        values[depth] += expectation(tree, sigma, depth, values[depth + 1])
    return Solved(tree, sigma, exact.advantage / spec.utility_scale, exact.reach, values)


def expectation(tree, sigma, depth, below):
    """Return the expectation over the next action of a quantity of the histories below a level."""
    state, child = tree.levels[depth].information_state, tree.levels[depth + 1]
    weighted = sigma[state[child.parent], child.action] * below
    return np.bincount(child.parent, weighted, len(state))


@functools.cache
def whole_states(game, spec: TraversalSpec) -> WholeStates:
    tree, _, _, _, values = solved(game, spec)
    states = jax.device_get(game.enumerate_deals()[0])
    packed, inner = [], [level.information_state >= 0 for level in tree.levels]
    for depth, level in enumerate(tree.levels):
        if depth:
            states = jax.tree.map(lambda leaf, level=level: leaf[level.parent], states)
            states = _in_chunks(_step, game, (states, level.action.astype(np.int32)))
        packed.append(_in_chunks(_whole, game, states)[inner[depth]])
    first, numbers = trees._unique_rows(np.concatenate(packed))
    unique = np.concatenate(packed)[first]
    ends = np.cumsum([0, *map(np.sum, inner)])
    by_level = [np.full(len(rows), -1) for rows in inner]
    total, chance = np.zeros(len(unique)), np.zeros(len(unique))
    for depth, level in enumerate(tree.levels):
        number = by_level[depth][inner[depth]] = numbers[ends[depth] : ends[depth + 1]]
        weight = level.chance[inner[depth]]
        to_mover = ((1.0 - 2.0 * level.player) * values[depth])[inner[depth]]
        total += np.bincount(number, weight * to_mover, len(unique))
        chance += np.bincount(number, weight, len(unique))
    return WholeStates(unique, by_level, total / chance)


@functools.partial(jax.jit, static_argnums=0)
def _step(game, steps):
    return jax.vmap(game.step)(*steps)


@functools.partial(jax.jit, static_argnums=0)
def _whole(game, states):
    return jax.vmap(game.whole_state)(states)


def _in_chunks(function, game, batch, size=1 << 13):
    """Apply a batch function to any number of rows, compiled once."""
    n = len(jax.tree.leaves(batch)[0])
    parts = []
    for start in range(0, n, size):
        rows = np.minimum(np.arange(start, start + size), n - 1)
        part = function(game, jax.tree.map(lambda leaf, rows=rows: leaf[rows], batch))
        parts.append(jax.device_get(part))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves)[:n], *parts)


@dataclasses.dataclass(frozen=True)
class TableNetwork:
    """A stand-in for a value network: a table of values; NaN for states that are not in it."""

    whole_size: int

    def apply(self, params, packed):
        multipliers, keys, values = params
        key = jnp.sum(packed.astype(jnp.uint32) * multipliers[None], axis=1, dtype=jnp.uint32)
        place = jnp.minimum(jnp.searchsorted(keys, key), len(keys) - 1)
        return jnp.where(keys[place] == key, values[place], jnp.nan)[:, None]


@functools.cache
def _keys(game, spec: TraversalSpec) -> tuple[np.ndarray, np.ndarray]:
    """Return uint32[W] and uint32[S]: multipliers that give all whole states different sums."""
    packed = whole_states(game, spec).packed.astype(np.uint32)
    for seed in range(1000):
        multipliers = np.random.default_rng(seed).integers(1 << 32, size=packed.shape[1])
        multipliers = multipliers.astype(np.uint32)
        keys = packed @ multipliers
        if len(np.unique(keys)) == len(keys):
            return multipliers, keys
    raise AssertionError("no multipliers without a collision")


@functools.cache
def table_values(game, spec: TraversalSpec, bias=0.0, noise=0.0) -> runs.Values:
    """Return the exact values, or those with errors, in standard deviations of the values."""
    table = erring_table(game, spec, bias, noise)
    multipliers, keys = _keys(game, spec)
    order = np.argsort(keys)
    params = (multipliers, keys[order], table[order].astype(np.float32))
    network = TableNetwork(game.whole_size)
    return runs.Values(network, jax.tree.map(jnp.asarray, params))


def erring_table(game, spec, bias: float, noise: float) -> np.ndarray:
    """Return float64[S]."""
    exact = whole_states(game, spec).value
    errors = bias + noise * np.random.default_rng(0).standard_normal(len(exact))
    return exact + exact.std() * errors


class Successors(NamedTuple):
    """What a value network's table says of the successors of histories, and at best can say.

    Where chance has something left to decide, a history's value lies within what the deals that
    agree with its whole state are worth: `settled` histories are those with nothing left.
    """

    utility: list[np.ndarray]  # by level float64[n], of the history itself, to player 0
    mean: list[np.ndarray]  # by level float64[n], sum_a sigma(a) Q(h, a), to player 0
    settled: list[np.ndarray]  # by level bool[n], the table agrees with itself below the history


@functools.lru_cache(maxsize=4)
def successors(game, spec: TraversalSpec, bias=0.0, noise=0.0) -> Successors:
    tree, sigma = solved(game, spec)[:2]
    wholes, table = whole_states(game, spec), erring_table(game, spec, bias, noise)
    utility, mean, settled = [], [], []
    for depth, level in enumerate(tree.levels):
        value = (1.0 - 2.0 * level.player) * table[wholes.numbers[depth]]
        end = level.information_state < 0
        utility.append(np.where(end, level.returns / spec.utility_scale, value))
        mean.append(utility[-1])
        settled.append(np.ones(len(end), bool))
    for depth in reversed(range(len(utility) - 1)):
        child = tree.levels[depth + 1]
        inner = tree.levels[depth].information_state >= 0
        below = expectation(tree, sigma, depth, utility[depth + 1])
        mean[depth] = np.where(inner, below, utility[depth])
        agrees = np.abs(mean[depth + 1] - utility[depth + 1]) < 1e-9
        wrong = ~(agrees & settled[depth + 1])
        settled[depth] = np.bincount(child.parent, wrong, len(inner)) == 0
    return Successors(utility, mean, settled)


class HistoryAdvantages(NamedTuple):
    """Q(h, a) - sum_b sigma(b) Q(h, b) of the n histories, each vector of a state named once."""

    state: np.ndarray  # int64[n]
    advantage: np.ndarray  # float64[n, A]
    settled: np.ndarray  # bool[I], all histories of the information state


@functools.lru_cache(maxsize=4)
def history_advantages(game, spec: TraversalSpec, bias=0.0, noise=0.0) -> HistoryAdvantages:
    tree = solved(game, spec).tree
    below = successors(game, spec, bias, noise)
    states, actions = tree.legal.shape
    settled = np.ones(states, bool)
    rows = []
    for depth in range(len(tree.levels) - 1):
        level, child = tree.levels[depth], tree.levels[depth + 1]
        advantage = np.zeros((len(level.player), actions))
        gain = below.utility[depth + 1] - below.mean[depth][child.parent]
        advantage[child.parent, child.action] = (1.0 - 2.0 * level.player[child.parent]) * gain
        inner = level.information_state >= 0
        state = level.information_state[inner]
        settled[state[~below.settled[depth][inner]]] = False
        # Rounded, so that equal vectors are one; + 0 makes -0 the same as 0.
        rounded = np.round(advantage[inner], 9) + 0.0
        rows.append(np.unique(np.column_stack([state, rounded]), axis=0))
    unique = np.unique(np.concatenate(rows), axis=0)
    return HistoryAdvantages(unique[:, 0].astype(np.int64), unique[:, 1:], settled)


class Expected(NamedTuple):
    advantage: np.ndarray  # float64[I, A], mean of an advantage sample
    advantage_samples: np.ndarray  # float64[I], for one traversal
    strategy_samples: np.ndarray  # float64[I], for one traversal
    value_samples: np.ndarray  # float64[S], for one traversal of a scheme that gives them


def expected_samples(game, spec: TraversalSpec, scheme, bias=0.0, noise=0.0) -> Expected:
    """Compute what a scheme gives, from its text: sum over all histories of all walks.

    `critic` takes the values of successors from the table with the errors given; every other
    scheme's are those of the game.
    """
    tree, sigma, _, _, values = solved(game, spec)
    means = values
    if isinstance(scheme, Critic):
        values, means, _ = successors(game, spec, bias, noise)
    wholes = whole_states(game, spec)
    states, actions = tree.legal.shape
    advantage, base = np.zeros(states * actions), np.zeros(states)
    advantage_samples, strategy_samples = np.zeros(states), np.zeros(states)
    value_samples = np.zeros(len(wholes.packed))
    for traverser in range(2):
        sign = 1.0 - 2.0 * traverser
        for probability, own_policy, records in walks(game, scheme, tree.legal, sigma):
            weight = tree.levels[0].chance * probability / 2  # of the visits to a history
            decisions = np.zeros(len(weight), int)  # of the traverser, before the history
            for depth, level in enumerate(tree.levels):
                state, inner = level.information_state, level.information_state >= 0
                own = inner & (level.player == traverser)
                given = np.where(own & records(decisions), weight, 0.0)
                other = np.where(inner & ~own, weight, 0.0)
                advantage_samples += np.bincount(state[inner], given[inner], states)
                strategy_samples += np.bincount(state[inner], other[inner], states)
                value_samples += np.bincount(
                    wholes.numbers[depth][inner], weight[inner], len(value_samples)
                )
                base += np.bincount(state[inner], (given * sign * means[depth])[inner], states)
                if depth + 1 == len(tree.levels):
                    break
                child = tree.levels[depth + 1]
                up, taken = child.parent, child.action
                gain = given[up] * sign * values[depth + 1]
                advantage += np.bincount(state[up] * actions + taken, gain, len(advantage))
                policy = np.where(
                    own[up],
                    own_policy(decisions[up], state[up], taken),
                    sigma[state[up], taken],
                )
                weight, decisions = weight[up] * policy, decisions[up] + own[up]
    difference = advantage.reshape(states, actions) - base[:, None]
    seen = (advantage_samples > 0)[:, None] & tree.legal
    advantage = np.divide(
        difference, advantage_samples[:, None], out=np.zeros_like(difference), where=seen
    )
    return Expected(advantage, advantage_samples, strategy_samples, value_samples)


def walks(game, scheme, legal, sigma):
    """List the traverser's plans: (probability, policy of its n-th decision, does it record).

    A decision that branches counts every action it explores as taken. `branch` here is the main
    walk, the one that gives strategy samples: at the branching it goes on with the action drawn.
    """
    count = legal.sum(axis=1, keepdims=True)
    q = scheme.exploration * legal / count + (1 - scheme.exploration) * sigma

    def always(n):
        return np.ones_like(n, bool)

    match scheme:
        case External(max_branching_nodes=most):
            explored = np.ones(len(legal))
            if isinstance(scheme, Robust):
                explored = np.minimum(scheme.branching_actions / count[:, 0], 1.0)
            return [(1.0, lambda n, i, a: np.where(n < most, explored[i], q[i, a]), always)]
        case Outcome():
            return [(1.0, lambda n, i, a: q[i, a], always)]
        case Branch():
            number = game.max_player_decisions
            return [
                (
                    1 / number,
                    lambda n, i, a, target=target: np.where(n <= target, q[i, a], sigma[i, a]),
                    lambda n, target=target: n == target,
                )
                for target in range(number)
            ]
    raise AssertionError(scheme)
