"""Means of sampled advantages against exact values, in games written out in full.

I information states, A actions. A sample of a traverser's information state is drawn at one of its
histories, h with probability proportional to chance(h) * (reach of the opponent by sigma) * (reach
of the traverser by what the scheme does). If the player remembers all it did (perfect recall), the
last factor is the same for all histories of an information state and the mean of the samples is the
exact advantage of `coorl_jax.games.tree`.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import numpy as np
import plain_traversal as plain
import pytest

from coorl_jax.cfr.machine import TraversalSpec
from coorl_jax.cfr.regret_matching import regret_matching
from coorl_jax.cfr.sampling import Branch, External, Outcome
from coorl_jax.games import tree as trees
from coorl_jax.games.kuhn_poker import KuhnPoker
from coorl_jax.games.lost_cities import LostCities

KUHN = KuhnPoker()
# Perfect recall: with this few cards the state tells in which order the own ones were played.
TINY = LostCities(colors=2, ranks=2, wagers=0, hand_size=1, max_discard_draws=2)
# One information state in seven forgets something that the player did or saw earlier; the means
# are nevertheless those of the exact advantages.
FORGETFUL = LostCities(colors=2, ranks=3, wagers=0, hand_size=2, max_discard_draws=1)

EXPLORATION = 0.5
SCALE = 4.0
SPEC = {
    KUHN: TraversalSpec(8192, 64, 2, "uniform", SCALE),
    TINY: TraversalSpec(1 << 18, 4096, 4, "argmax", SCALE),
    FORGETFUL: TraversalSpec(1 << 18, 4096, 4, "argmax", SCALE),
}
FEW = 100  # samples, below which their spread says too little about the error of the mean

ONE_BRANCHING = External(EXPLORATION, 1)
EXTERNAL = External(EXPLORATION, 1000)
OUTCOME = Outcome(EXPLORATION)
BRANCH = Branch(EXPLORATION)
SCHEMES = [ONE_BRANCHING, EXTERNAL, OUTCOME, BRANCH]
SCHEME_IDS = ["external1", "external", "outcome", "branch"]


class Solved(NamedTuple):
    tree: trees.Tree
    sigma: np.ndarray  # float64[I, A]
    advantage: np.ndarray  # float64[I, A], in units of the utility scale
    reach: np.ndarray  # float64[I], counterfactual


@functools.cache
def solved(game) -> Solved:
    tree = trees.enumerate_game(game)
    network = plain.HashNetwork(game)
    (params,) = plain.make_params(network, (1,))

    @jax.jit
    def policy(packed, legal):
        return regret_matching(network.apply(params, packed), legal, SPEC[game].fallback)[0]

    exact = trees.advantages(tree, policy)
    sigma = trees.evaluate_policy(tree, policy)
    return Solved(tree, sigma, exact.advantage / SCALE, exact.reach)


class Expected(NamedTuple):
    advantage: np.ndarray  # float64[I, A], mean of an advantage sample
    advantage_samples: np.ndarray  # float64[I], for one traversal
    strategy_samples: np.ndarray  # float64[I], for one traversal


def expected_samples(game, scheme) -> Expected:
    """Compute what a scheme gives, from its text: sum over all histories of all walks."""
    tree, sigma, _, _ = solved(game)
    states, actions = tree.legal.shape
    values = history_values(tree, sigma)
    advantage, base = np.zeros(states * actions), np.zeros(states)
    advantage_samples, strategy_samples = np.zeros(states), np.zeros(states)
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
                base += np.bincount(state[inner], (given * sign * values[depth])[inner], states)
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
    difference = (advantage.reshape(states, actions) - base[:, None]) / SCALE
    seen = (advantage_samples > 0)[:, None] & tree.legal
    advantage = np.divide(
        difference, advantage_samples[:, None], out=np.zeros_like(difference), where=seen
    )
    return Expected(advantage, advantage_samples, strategy_samples)


def history_values(tree, sigma):
    """Return the points of player 0 expected from every history, by level."""
    values = [level.returns.copy() for level in tree.levels]
    for depth in reversed(range(len(values) - 1)):
        state, child = tree.levels[depth].information_state, tree.levels[depth + 1]
        below = sigma[state[child.parent], child.action] * values[depth + 1]
        values[depth] += np.bincount(child.parent, below, len(values[depth]))
    return values


def walks(game, scheme, legal, sigma):
    """List the traverser's plans: (probability, policy of its n-th decision, does it record).

    A decision that branches counts every action as taken. `branch` here is the main walk, the one
    that gives strategy samples: at the branching it goes on with the action drawn.
    """
    q = EXPLORATION * legal / legal.sum(axis=1, keepdims=True) + (1 - EXPLORATION) * sigma

    def always(n):
        return np.ones_like(n, bool)

    match scheme:
        case External(max_branching_nodes=most):
            return [(1.0, lambda n, i, a: np.where(n < most, 1.0, q[i, a]), always)]
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


def locate(tree, packed) -> np.ndarray:
    """Return the information states, int64[n], of uint8[n, P]."""
    weights = np.random.default_rng(0).integers(1 << 63, size=packed.shape[1], dtype=np.uint64)
    numbers = tree.packed.astype(np.uint64) @ weights
    order = np.argsort(numbers)
    place = np.searchsorted(numbers[order], packed.astype(np.uint64) @ weights)
    states = order[np.minimum(place, len(order) - 1)]
    assert (tree.packed[states] == packed).all()
    return states


class Verdict(NamedTuple):
    """How far sample means are from what they should be."""

    judged: np.ndarray  # bool[I], enough samples
    z: np.ndarray  # float64[I, A], in standard errors; 0 where all samples are right to 1e-5
    pooled: float  # chi-square of one z of each information state, standardised

    @property
    def accepts(self) -> bool:
        return bool(np.abs(self.z).max() < 4 and self.pooled < 4)


def judge(tree, samples: plain.Samples, expected) -> Verdict:
    """Compare the mean of each information state's samples with the expected advantages."""
    states, actions = tree.legal.shape
    state = locate(tree, samples.packed)
    assert (samples.legal == tree.legal[state]).all()
    error = samples.target.astype(np.float64) - expected[state]

    def total(rows):
        return np.stack([np.bincount(state, rows[:, a], states) for a in range(actions)], axis=1)

    count = np.bincount(state, minlength=states)
    judged = count >= FEW
    n = np.maximum(count, 2)[:, None]
    mean = total(error) / n
    variance = np.maximum(total(error**2) / n - mean**2, 0) * n / (n - 1)
    constant = variance < 1e-10  # rounding of equal samples
    z = mean / np.sqrt(np.where(constant, 1, variance) / n)
    z = np.where(constant, np.where(np.abs(mean) < 1e-5, 0, np.inf), z)
    z = np.where(judged[:, None], z, 0)
    # The advantages of one information state determine one another: count one of them.
    first = np.take_along_axis(z, np.argmax(z != 0, axis=1)[:, None], axis=1)[:, 0]
    squares = first[first != 0] ** 2
    pooled = (squares.sum() - len(squares)) / np.sqrt(2 * max(len(squares), 1))
    return Verdict(judged, z, float(pooled))


@functools.cache
def machine_samples(game, scheme) -> tuple[plain.Samples, plain.Samples, int]:
    """Return advantage samples, strategy samples, and of how many traversals."""
    if game == KUHN:
        options = {"capacity": 1 << 14, "quick": True}
        keys = 8
    else:
        options = {"capacity": 1 << 21, "quick": False}
        keys = 4 if isinstance(scheme, Branch) else 1  # few of its nodes give samples
    network = plain.HashNetwork(game)
    runs = [
        plain.run_machine(game, network, scheme, SPEC[game], key=key, **options)
        for key in range(keys)
    ]
    joined = (
        plain.Samples(*map(np.concatenate, zip(*samples, strict=True)))
        for samples in zip(*(run.advantage + run.strategy for run in runs), strict=True)
    )
    return *joined, len(runs) * SPEC[game].traversals


@pytest.mark.parametrize("game", [KUHN, TINY, FORGETFUL], ids=["kuhn", "tiny", "forgetful"])
def test_the_policy_is_neither_uniform_nor_deterministic(game):
    tree, sigma, _, reach = solved(game)
    reached = (reach > 0) & (tree.legal.sum(axis=1) > 1)
    uniform = tree.legal / tree.legal.sum(axis=1, keepdims=True)
    assert np.abs(sigma - uniform)[reached].max(axis=1).mean() > 0.15
    assert ((sigma > 0).sum(axis=1) > 1)[reached].mean() > 0.5


@pytest.mark.parametrize("game", [KUHN, TINY, FORGETFUL], ids=["kuhn", "tiny", "forgetful"])
@pytest.mark.parametrize("scheme", SCHEMES, ids=SCHEME_IDS)
def test_the_text_of_a_scheme_gives_the_exact_advantages(game, scheme):
    exact, expected = solved(game), expected_samples(game, scheme)
    np.testing.assert_allclose(expected.advantage, exact.advantage, atol=1e-12)
    np.testing.assert_array_equal(expected.advantage_samples > 0, exact.reach > 0)


@pytest.mark.parametrize("game", [KUHN, TINY], ids=["kuhn", "tiny"])
@pytest.mark.parametrize("scheme", SCHEMES, ids=SCHEME_IDS)
def test_samples_of_the_machine_have_the_right_means(game, scheme):
    tree, sigma, exact, reach = solved(game)
    advantage, strategy, traversals = machine_samples(game, scheme)
    expected = expected_samples(game, scheme)

    verdict = judge(tree, advantage, exact)
    assert verdict.accepts, (np.abs(verdict.z).max(), verdict.pooled)
    skipped = (reach > 0) & ~verdict.judged
    assert skipped.mean() < 0.05
    assert expected.advantage_samples[skipped].sum() < 0.001 * expected.advantage_samples.sum()
    states = locate(tree, advantage.packed)
    check_counts(np.bincount(states, minlength=len(reach)), traversals * expected.advantage_samples)

    states = locate(tree, strategy.packed)
    np.testing.assert_allclose(strategy.target, sigma[states], rtol=0, atol=1e-6)
    check_counts(np.bincount(states, minlength=len(reach)), traversals * expected.strategy_samples)


def check_counts(counts, expected):
    """A traversal gives a sample of an information state or none: counts are nearly Poisson."""
    assert (counts[expected == 0] == 0).all()
    many = expected > 20
    z = (counts - expected)[many] / np.sqrt(expected[many])
    assert np.abs(z).max() < 4
    assert (np.sum(z**2) - len(z)) / np.sqrt(2 * len(z)) < 4


class ZeroForUnsampled(plain.PlainTraversal):
    """A fault of the predecessor: only the action that was sampled gets an advantage."""

    def advantages(self, utility, sigma, explored):
        everywhere = super().advantages(utility, sigma, explored)
        return np.where(np.isin(np.arange(len(sigma)), explored), everywhere, 0.0)


class ExploresForTheOpponent(plain.PlainTraversal):
    """Another one: the opponent explores as well, and its weights are not corrected for it."""

    def opponent_policy(self, at):
        return (at.sigma + at.legal / at.legal.sum()) / 2


@pytest.mark.parametrize(
    ("traversal", "accepted"),
    [(plain.PlainTraversal, True), (ZeroForUnsampled, False), (ExploresForTheOpponent, False)],
)
def test_the_criterion_finds_a_wrong_estimator(traversal, accepted):
    spec = dataclasses.replace(SPEC[KUHN], traversals=20_000)
    result = traversal(KUHN, plain.HashNetwork(KUHN), OUTCOME, spec).run()
    verdict = judge(solved(KUHN).tree, result.advantage[0], solved(KUHN).advantage)
    assert verdict.judged.sum() >= 11
    assert verdict.accepts == accepted
