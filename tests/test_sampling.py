"""What the sampling schemes do at a node, and samples computed by hand."""

import math

import jax
import jax.numpy as jnp
import machine_runs as runs
import numpy as np
import pytest

from coorl_jax.cfr.lanes import decision_noise, draw_roots
from coorl_jax.cfr.machine import TraversalSpec
from coorl_jax.cfr.sampling import Baseline, Branch, Critic, External, Outcome, Robust
from coorl_jax.games.kuhn_poker import PASS, KuhnPoker
from coorl_jax.games.lost_cities import LostCities

KUHN = KuhnPoker()
TINY = LostCities(colors=2, ranks=2, wagers=0, hand_size=1, max_discard_draws=2)


def plan(scheme, own_decisions, branchings, target):
    arrays = (jnp.asarray(values, jnp.int32) for values in (own_decisions, branchings, target))
    return [np.asarray(field).tolist() for field in scheme.plan(*arrays)]


@pytest.mark.parametrize("scheme", [External(0.25, 2), Robust(0.25, 2, branching_actions=3)])
def test_external_and_robust_branch_at_the_first_nodes_of_a_path(scheme):
    branches, records, exploration = plan(scheme, [0, 1, 2, 3], [0, 1, 2, 2], [0] * 4)
    assert branches == [True, True, False, False]
    assert records == [True] * 4
    assert exploration == [0.25] * 4


@pytest.mark.parametrize("scheme", [Outcome(0.25), Baseline(0.25, 0.5), Critic(0.25, 0.5)])
def test_outcome_baseline_and_critic_sample_everywhere(scheme):
    branches, records, exploration = plan(scheme, [0, 1, 5], [0] * 3, [0] * 3)
    assert branches == [False] * 3
    assert records == [True] * 3
    assert exploration == [0.25] * 3


def test_branch_branches_at_its_target_and_explores_no_further():
    branches, records, exploration = plan(Branch(0.25), [0, 1, 2, 3], [0, 0, 0, 1], [2] * 4)
    assert branches == records == [False, False, True, False]
    assert exploration == [0.25, 0.25, 0.25, 0.0]


@pytest.mark.parametrize(
    ("scheme", "records", "branchings"),
    [
        (External(0.1, 3), TINY.max_player_decisions, 3),
        (External(0.1, 0), TINY.max_player_decisions, 0),
        (External(0.1, 1000), TINY.max_player_decisions, TINY.max_player_decisions),
        (Outcome(0.1), TINY.max_player_decisions, 0),
        (Branch(0.1), 1, 1),
        (Robust(0.1, 3, 2), TINY.max_player_decisions, 3),
        # The opponent's nodes wait on the stack as well.
        (Baseline(0.1, 0.9), TINY.max_decisions, 0),
        (Critic(0.1, 0.9), TINY.max_decisions, 0),
    ],
)
def test_stacks_are_as_deep_as_needed(scheme, records, branchings):
    assert scheme.max_records(TINY) == records
    assert scheme.max_branchings(TINY) == branchings


def test_schemes_are_static_arguments():
    assert hash(External(0.1, 2)) == hash(External(0.1, 2))
    assert Baseline(0.1, 0.5) != Critic(0.1, 0.5)
    assert External(0.1, 2) != External(0.1, 3)
    assert {Outcome(0.1), Outcome(0.1), Branch(0.1)} == {Outcome(0.1), Branch(0.1)}


def test_weights_of_sampled_actions_and_of_traces():
    probability, ratio = jnp.array([0.25, 1.0]), jnp.array([0.5, 4.0])
    for scheme in (External(0.1, 2), Robust(0.1, 2, 2), Outcome(0.1), Baseline(0.1, 0.5)):
        assert scheme.sampled_weight(probability).tolist() == [4.0, 1.0]
    assert Critic(0.1, 0.5).sampled_weight(probability).tolist() == [0.0, 0.0]
    for scheme in (Baseline(0.1, 0.5), Critic(0.1, 0.5)):
        assert scheme.trace_weight(ratio).tolist() == [0.25, 0.5]  # lambda min(1, sigma / q)


def branching(scheme, legal, noise):
    explored, weight = scheme.branching(jnp.asarray(legal), lambda: jnp.asarray(noise, jnp.float32))
    return np.asarray(explored), np.asarray(weight)


def test_all_schemes_but_robust_branch_into_every_legal_action():
    legal = [[True, False, True], [False, True, False]]
    for scheme in (External(0.1, 2), Branch(0.1)):
        explored, weight = branching(scheme, legal, np.zeros((2, 3)))
        assert explored.tolist() == legal
        assert weight.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(("count", "k"), [(4, 2), (5, 3), (6, 1), (3, 2)])
def test_robust_explores_every_set_of_k_actions_equally_often(count, k):
    repeats, actions = 20_000, 7
    legal = np.isin(np.arange(actions), np.random.default_rng(k).permutation(actions)[:count])
    noise = np.random.default_rng(0).random((repeats, actions), np.float32)
    scheme = Robust(0.1, 2, branching_actions=k)
    explored, weight = branching(scheme, np.tile(legal, (repeats, 1)), noise)
    assert not explored[:, ~legal].any()
    assert (weight == np.float32(count / k)).all()  # the inverse of an action's probability
    sets, counts = np.unique(explored, axis=0, return_counts=True)
    assert len(sets) == math.comb(count, k)
    assert (sets.sum(axis=1) == k).all()
    chi_square = np.sum((counts - repeats / len(sets)) ** 2 / (repeats / len(sets)))
    assert abs(chi_square - (len(sets) - 1)) < 4 * np.sqrt(2 * (len(sets) - 1))


def test_robust_explores_all_actions_if_there_are_no_more_than_k():
    legal = [[True, False, True, True], [False, False, True, False], [True, True, False, False]]
    explored, weight = branching(Robust(0.1, 2, branching_actions=3), legal, np.ones((3, 4)) / 2)
    assert explored.tolist() == legal
    assert weight.tolist() == [1.0, 1.0, 1.0]


def test_robust_explores_no_more_than_k_actions_of_equal_noise():
    explored, weight = branching(Robust(0.1, 2, 2), [[True, False, True, True]], np.zeros((1, 4)))
    assert explored.tolist() == [[True, False, True, False]]
    assert weight.tolist() == [1.5]


def test_a_lane_without_legal_actions_explores_none():
    explored, weight = branching(Robust(0.1, 2, 2), [[False] * 3], np.zeros((1, 3)))
    assert not explored.any()
    assert np.isfinite(weight).all()


def test_targets_of_branch_cover_all_decisions_evenly_and_ascend():
    strata = (jnp.arange(8000, dtype=jnp.float32) + 0.5) / 8000
    targets = np.asarray(jax.vmap(lambda u: Branch(0.1).target(TINY, u))(strata))
    assert (np.diff(targets) >= 0).all()
    counts = np.bincount(targets)
    assert counts.tolist() == [8000 // TINY.max_player_decisions] * TINY.max_player_decisions


def test_the_last_stratum_stays_in_range():
    # (i + u) / n is rounded to float32 and can come out as 1.
    assert int(Branch(0.1).target(TINY, jnp.float32(1.0))) == TINY.max_player_decisions - 1


@pytest.fixture(scope="module")
def roots():
    return jax.device_get(draw_roots(TINY, Branch(0.1), jnp.arange(4001) % 2, jax.random.key(7)))


def test_both_traversers_get_every_target_equally_often(roots):
    for traverser in range(2):
        targets = roots.target[traverser::2]
        counts = np.bincount(targets, minlength=TINY.max_player_decisions)
        assert np.ptp(counts) <= 2
        assert (np.diff(targets) >= 0).all()


def test_a_traversal_is_dealt_the_same_however_many_there_are(roots):
    fewer = jax.device_get(draw_roots(TINY, Outcome(0.1), jnp.arange(7) % 2, jax.random.key(7)))
    np.testing.assert_array_equal(fewer.noise_key, roots.noise_key[:7])
    np.testing.assert_array_equal(fewer.state.deck, roots.state.deck[:7])


def test_deals_are_uniform(roots):
    _, counts = np.unique(roots.state.deck, axis=0, return_counts=True)
    assert len(counts) == 24
    expected = 4001 / 24
    chi_square = np.sum((counts - expected) ** 2 / expected)
    assert abs(chi_square - 23) < 4 * np.sqrt(2 * 23)


def test_decision_noise_is_uniform_and_independent(roots):
    depths = jnp.arange(8)
    each_depth = jax.vmap(decision_noise, in_axes=(None, 0))
    noise = np.asarray(jax.vmap(each_depth, in_axes=(0, None))(roots.noise_key, depths))
    assert noise.shape == (4001, 8)
    assert ((noise >= 0) & (noise < 1)).all()
    ranked = np.sort(noise.ravel())
    distance = np.abs(ranked - (np.arange(noise.size) + 0.5) / noise.size).max()
    assert distance < 1.95 / np.sqrt(noise.size)  # Kolmogorov-Smirnov at 0.1 %
    correlation = np.corrcoef(noise, rowvar=False) - np.eye(8)
    assert np.abs(correlation).max() < 4 / np.sqrt(len(noise))
    # Nor do deals and noise go together: the first card dealt says nothing about the noise.
    card_correlation = np.corrcoef(roots.state.deck[:, 0], noise, rowvar=False)[0, 1:]
    assert np.abs(card_correlation).max() < 4 / np.sqrt(len(noise))


# Player 1 holds card 0 and player 0 has passed; sigma = (1/4, 3/4) everywhere. Passing loses 1.
# A bet wins 1 if player 0 folds and loses 2 if it is called; player 0 has the higher card.
#
# All actions explored: u = (-1, 1), sum_b sigma(b) u(b) = 1/2; or u = (-1, -2), -7/4.
EXPLORED = {(-1.5, 0.5), (0.75, -0.25)}
# One sampled from q = 1/2 uniform + 1/2 sigma = (3/8, 5/8):
# passed u = (-8/3, 0), sum -2/3; bet and folded u = (0, 8/5), 6/5; called u = (0, -16/5), -12/5.
SAMPLED = {(-2.0, 0.6667), (-1.2, 0.4), (2.4, -0.8)}


#
# One at random, w = 2: passed u = (-2, 0), sum -1/2; bet and folded u = (0, 2), 3/2; called
# u = (0, -4), -3.
ROBUST = {(-1.5, 0.5), (3.0, -1.0)}
# A value network that says 1 to whoever moves: before it is answered a bet is worth -1, so that
# Q = (-1, -1). The answers end the round: they are worth (1, -2) exactly, -5/4 in the mean.
# Passed u = Q; bet u = (-1, -1 + 8/5 (-5/4 + 1)) = (-1, -7/5), sum -13/10.
BASELINE = {(0.0, 0.0), (0.3, -0.1)}
CRITIC = {(0.0, 0.0)}
ONES = runs.Values(runs.ConstantNetwork((1.0,)), ())


@pytest.mark.parametrize(
    ("scheme", "expected"),
    [
        (External(0.5, 1), EXPLORED),
        (Outcome(0.5), SAMPLED),
        (Robust(0.5, 1, branching_actions=1), ROBUST),
        (Baseline(0.5, 0.5), BASELINE),
        (Critic(0.5, 0.5), CRITIC),
    ],
    ids=["external", "outcome", "robust", "baseline", "critic"],
)
def test_samples_computed_by_hand(scheme, expected):
    network = runs.ConstantNetwork((0.5, 1.5))
    spec = TraversalSpec(1024, 64, 2, "argmax", utility_scale=1.0)
    values = ONES if scheme.reads_values else None
    result = runs.run_machine(KUHN, network, scheme, spec, values=values)
    state = KUHN.step(KUHN.init(jax.random.key(0)), jnp.int32(PASS))
    state = state._replace(cards=jnp.array([1, 0], jnp.int32))
    here = np.asarray(KUHN.information_state(state, jnp.int32(1)))
    advantage, strategy = result.advantage[0], result.strategy[0]
    rows = (advantage.packed == here).all(axis=1)
    targets = advantage.target[rows].astype(np.float64).round(4)
    assert set(map(tuple, targets.tolist())) == expected
    assert (strategy.target == np.float32([0.25, 0.75])).all()
    assert (advantage.iteration == runs.ITERATION).all()
    assert advantage.legal.all()
