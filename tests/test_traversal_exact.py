"""Samples against exact values, in games written out in full.

I information states, A actions. A sample of a traverser's information state is drawn at one of its
histories, h with probability proportional to chance(h) * (reach of the opponent by sigma) * (reach
of the traverser by what the scheme does). If the player remembers all it did (perfect recall), the
last factor is the same for all histories of an information state and the mean of the samples is the
exact advantage of `coorl_jax.games.tree`.

A value network with a table of exact values makes the schemes that read one nearly noiseless; with
errors in the table, `baseline` must still be right in the mean, and `critic` wrong by just these.
"""

import dataclasses
import functools
from typing import NamedTuple

import exact_values as exact
import machine_runs as runs
import numpy as np
import pytest
from sample_means import FEW, Index, check_counts, distance_to_nearest, judge, locate, moments

from coorl_jax.cfr.machine import TraversalSpec
from coorl_jax.cfr.sampling import Baseline, Branch, Critic, External, Outcome, Robust
from coorl_jax.games.kuhn_poker import KuhnPoker
from coorl_jax.games.leduc_poker import LeducPoker
from coorl_jax.games.lost_cities import LostCities

KUHN = KuhnPoker()
LEDUC = LeducPoker()
# Perfect recall: with this few cards the state tells in which order the own ones were played.
TINY = LostCities(colors=2, ranks=2, wagers=0, hand_size=1, max_discard_draws=2)
# The rules of configs/mini_lost_cities.py. Some information states forget what the player did or
# saw earlier; the means are nevertheless those of the exact advantages.
MINI = LostCities(
    colors=2,
    ranks=3,
    min_rank=1,
    wagers=0,
    hand_size=1,
    expedition_penalty=-4,
    bonus_threshold=2,
    bonus_amount=4,
    max_discard_draws=2,
)
GAMES = {"kuhn": KUHN, "tiny": TINY, "leduc": LEDUC, "mini": MINI}

EXPLORATION = 0.5
SCALE = 4.0
SPEC = {
    KUHN: TraversalSpec(8192, 64, 2, "uniform", SCALE),
    TINY: TraversalSpec(1 << 17, 4096, 4, "argmax", SCALE),
    LEDUC: TraversalSpec(1 << 15, 2048, 4, "argmax", SCALE),
    MINI: TraversalSpec(1 << 16, 4096, 4, "argmax", SCALE),
}


class Case(NamedTuple):
    """A scheme, and the errors of its value network in standard deviations of the values."""

    scheme: External | Outcome | Branch
    bias: float = 0.0
    noise: float = 0.0


WRONG = {"bias": 0.5, "noise": 1.0}
CASES = {
    "external1": Case(External(EXPLORATION, 1)),
    "external": Case(External(EXPLORATION, 1000)),
    "robust1": Case(Robust(EXPLORATION, 1, branching_actions=2)),
    "robust": Case(Robust(EXPLORATION, 1000, branching_actions=2)),
    "outcome": Case(Outcome(EXPLORATION)),
    "branch": Case(Branch(EXPLORATION)),
    "baseline": Case(Baseline(EXPLORATION, trace_decay=0.7)),
    "baseline_wrong": Case(Baseline(EXPLORATION, trace_decay=0.7), **WRONG),
    "critic": Case(Critic(EXPLORATION, trace_decay=0.7)),
    "critic_wrong": Case(Critic(EXPLORATION, trace_decay=0.7), **WRONG),
}
BOUNDED = ("external1", "robust1")
# What a sample of the value network's is in the mean, if its own errors do not come in.
RETURNS = Case(Baseline(0.0, trace_decay=1.0), **WRONG)


def case_of(game, name) -> Case:
    case = CASES[name]
    if game == KUHN and isinstance(case.scheme, Robust):  # two actions: both would be external
        return case._replace(scheme=dataclasses.replace(case.scheme, branching_actions=1))
    return case


def values_of(game, case):
    if not case.scheme.reads_values:
        return None
    return exact.table_values(game, SPEC[game], case.bias, case.noise)


def results(game, case, keys):
    """Yield what so many calls of the machine give; of a small game they are remembered."""
    run, options = runs.run_once, {"capacity": 1 << 21, "quick": False}
    if game in (KUHN, LEDUC):
        options = {"capacity": 1 << 19, "quick": True}
    if game == KUHN:
        # The very programs of test_traversal.py: compiled once.
        run, options = runs.run_machine, {}
    network, values = runs.HashNetwork(game), values_of(game, case)
    for key in range(keys):
        yield run(game, network, case.scheme, SPEC[game], key=key, values=values, **options)


def whole_index(game) -> Index:
    packed = exact.whole_states(game, SPEC[game]).packed
    return Index(packed, np.ones((len(packed), 1), bool))


@pytest.mark.parametrize("game", ["kuhn", "tiny", "leduc"])
def test_the_policy_is_neither_uniform_nor_deterministic(game):
    tree, sigma, _, reach, _ = exact.solved(GAMES[game], SPEC[GAMES[game]])
    reached = (reach > 0) & (tree.legal.sum(axis=1) > 1)
    uniform = tree.legal / tree.legal.sum(axis=1, keepdims=True)
    assert np.abs(sigma - uniform)[reached].max(axis=1).mean() > 0.15
    assert ((sigma > 0).sum(axis=1) > 1)[reached].mean() > 0.5


@pytest.mark.parametrize(
    "game", ["kuhn", "tiny", "leduc", pytest.param("mini", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", CASES)
def test_the_text_of_a_scheme_gives_the_exact_advantages(game, name):
    """All but those of a critic that errs, which are wrong by what it says."""
    game, case = GAMES[game], case_of(GAMES[game], name)
    known = exact.solved(game, SPEC[game])
    expected = exact.expected_samples(game, SPEC[game], case.scheme, case.bias, case.noise)
    np.testing.assert_array_equal(expected.advantage_samples > 0, known.reach > 0)
    if name == "critic_wrong":
        error = np.abs(expected.advantage - known.advantage)[known.reach > 0]
        assert error.max(axis=1).mean() > 0.1 * known.advantage.std()
    else:
        np.testing.assert_allclose(expected.advantage, known.advantage, atol=1e-10)


# The least share of the samples that must be of states judged, and how many calls are made.
@pytest.mark.parametrize(
    ("game", "keys", "share", "name"),
    [
        *(("kuhn", 8, 0.999, name) for name in CASES),
        *(("leduc", 2, 0.5, name) for name in ("outcome", "baseline")),
        *(
            pytest.param("leduc", 2, 0.5, name, marks=pytest.mark.slow)
            for name in CASES
            if name not in ("outcome", "baseline")
        ),
    ],
)
def test_samples_of_the_machine_have_the_right_means(game, keys, share, name):
    check_samples(GAMES[game], case_of(GAMES[game], name), keys, share)


@pytest.mark.parametrize("name", [pytest.param("external1", marks=pytest.mark.slow), "outcome"])
def test_samples_of_lost_cities_have_the_right_means(name):
    check_samples(TINY, CASES[name], keys=2, share=0.999)


@pytest.mark.slow  # a minute each
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("game", ["kuhn", "tiny", "leduc", "mini"])
def test_a_million_samples_have_the_right_means(game, name):
    game, case = GAMES[game], case_of(GAMES[game], name)
    expected = exact.expected_samples(game, SPEC[game], case.scheme)
    # Of the 48,030 information states of mini Lost Cities some thousand are met often, and one
    # mean in 16,000 may well be more than four standard errors away: those are judged that have
    # so many samples that their means are nearly normal.
    many, share, few = (4e6, 0.2, 1000) if game == MINI else (1.1e6, 0.98, FEW)
    calls = int(np.ceil(many / (SPEC[game].traversals * expected.advantage_samples.sum())))
    check_samples(game, case, calls, share, few)


def check_samples(game, case, keys, share, few=FEW):
    """Check numbers, means and, where there is no noise, single samples."""
    spec = SPEC[game]
    tree, sigma, advantages, reach, _ = exact.solved(game, spec)
    errors = {"bias": case.bias, "noise": case.noise}
    expected = exact.expected_samples(game, spec, case.scheme, **errors)
    if not isinstance(case.scheme, Critic) or case.noise == 0:
        expected = expected._replace(advantage=advantages)
    wholes = exact.whole_states(game, spec)
    sums, counts = [], np.zeros((2, len(reach)))
    visits = np.zeros(len(wholes.packed))
    for result in results(game, case, keys):
        advantage, strategy = result.advantage[0], result.strategy[0]
        sums.append(moments(tree, advantage, expected.advantage))
        counts[0] += sums[-1].count
        states = locate(tree, strategy.packed)
        counts[1] += np.bincount(states, minlength=len(reach))
        np.testing.assert_allclose(strategy.target, sigma[states], rtol=0, atol=1e-6)
        if case.scheme.reads_values:
            visits += check_values(game, case, result.value[0])
            check_noiseless(game, case, advantage)
    total = functools.reduce(lambda a, b: a + b, sums)
    verdict = judge(total, few)
    print(f"{total.count.sum():,} samples: {verdict}")
    assert verdict.accepts, str(verdict)
    judged = expected.advantage_samples[verdict.judged].sum()
    assert judged > share * expected.advantage_samples.sum()
    traversals = keys * spec.traversals
    check_counts(counts[0], traversals * expected.advantage_samples)
    check_counts(counts[1], traversals * expected.strategy_samples)
    if case.scheme.reads_values:
        check_counts(visits, traversals * expected.value_samples)


def check_noiseless(game, case, samples):
    """A critic's samples are what its values say of one history of the information state.

    So are those with an exact baseline, where chance has nothing left to decide.
    """
    possible = exact.history_advantages(game, SPEC[game], case.bias, case.noise)
    states = locate(exact.solved(game, SPEC[game]).tree, samples.packed)
    noiseless = np.ones(len(states), bool)
    if not isinstance(case.scheme, Critic):
        noiseless = possible.settled[states]
        assert case.noise > 0 or noiseless.mean() > 0.2
    distance = distance_to_nearest(
        states[noiseless], samples.target[noiseless], possible.state, possible.advantage
    )
    atol = 1e-5 if isinstance(case.scheme, Critic) else 1e-4
    assert np.max(distance, initial=0) < atol


def check_values(game, case, samples) -> np.ndarray:
    """Exact values come back where chance has nothing left to decide; return the visits."""
    index = whole_index(game)
    states = locate(index, samples.packed)
    if case.noise == 0:
        settled = settled_wholes(game)[states]
        assert settled.mean() > 0.2
        error = samples.target[:, 0] - exact.whole_states(game, SPEC[game]).value[states]
        assert np.abs(error[settled]).max() < 1e-4
    return np.bincount(states, minlength=len(index.packed))


@functools.cache
def settled_wholes(game) -> np.ndarray:
    """Return bool[S], the whole states of whose histories chance has nothing left to decide."""
    wholes, below = exact.whole_states(game, SPEC[game]), exact.successors(game, SPEC[game])
    settled = np.ones(len(wholes.packed), bool)
    for number, utility, mean, certain in zip(wholes.numbers, *below, strict=True):
        inner = number >= 0
        agrees = certain & (np.abs(utility - mean) < 1e-9)
        settled[number[inner & ~agrees]] = False
    return settled


@pytest.mark.parametrize("decay", [0.0, 0.7, 1.0])
def test_exact_values_give_exact_values_back(decay):
    """Whatever lambda, and in every state of a game in which chance does nothing after the deal."""
    case = Case(Critic(EXPLORATION, decay))
    assert settled_wholes(KUHN).all()
    for result in results(KUHN, case, keys=1):
        check_values(KUHN, case, result.value[0])


@pytest.mark.parametrize(
    ("game", "keys"),
    [("kuhn", 8), ("leduc", 3), pytest.param("mini", 40, marks=pytest.mark.slow)],
)
def test_returns_teach_a_wrong_value_network_the_exact_values(game, keys):
    """With lambda = 1 and no exploration the samples' means do not depend on the network."""
    game = GAMES[game]
    index, value = whole_index(game), exact.whole_states(game, SPEC[game]).value[:, None]
    total = functools.reduce(
        lambda a, b: a + b,
        (moments(index, result.value[0], value) for result in results(game, RETURNS, keys)),
    )
    verdict = judge(total, 1000 if game == MINI else FEW)
    print(f"{total.count.sum():,} samples: {verdict}")
    assert verdict.accepts, str(verdict)
    assert verdict.judged.sum() >= (12 if game == KUHN else 200)
    assert total.variance[verdict.judged].max() > 0.02


def test_a_decent_baseline_takes_most_of_the_noise_away():
    """Mean variance given the information state, over the visits of either scheme alike."""
    spread = {}
    tree, _, advantages, _, _ = exact.solved(LEDUC, SPEC[LEDUC])
    for name, case in {
        "outcome": CASES["outcome"],
        "decent": CASES["baseline"]._replace(noise=0.1),
        "exact": CASES["baseline"],
    }.items():
        total = functools.reduce(
            lambda a, b: a + b,
            (moments(tree, r.advantage[0], advantages) for r in results(LEDUC, case, keys=2)),
        )
        weight = total.count[:, None] * tree.legal
        spread[name] = np.sum(weight * total.variance) / np.sum(weight)
    print(spread)
    assert spread["decent"] < 0.3 * spread["outcome"]
    assert spread["exact"] < spread["decent"]
