"""What the sampling schemes do at a node, and samples computed by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import plain_traversal as plain
import pytest

from coorl_jax.cfr.lanes import decision_noise, draw_roots
from coorl_jax.cfr.machine import TraversalSpec
from coorl_jax.cfr.sampling import Branch, External, Outcome
from coorl_jax.games.kuhn_poker import PASS, KuhnPoker
from coorl_jax.games.lost_cities import LostCities

KUHN = KuhnPoker()
TINY = LostCities(colors=2, ranks=2, wagers=0, hand_size=1, max_discard_draws=2)


def plan(scheme, own_decisions, branchings, target):
    arrays = (jnp.asarray(values, jnp.int32) for values in (own_decisions, branchings, target))
    return [np.asarray(field).tolist() for field in scheme.plan(*arrays)]


def test_external_branches_at_the_first_nodes_of_a_path():
    branches, records, exploration = plan(External(0.25, 2), [0, 1, 2, 3], [0, 1, 2, 2], [0] * 4)
    assert branches == [True, True, False, False]
    assert records == [True] * 4
    assert exploration == [0.25] * 4


def test_outcome_samples_everywhere():
    branches, records, exploration = plan(Outcome(0.25), [0, 1, 5], [0] * 3, [0] * 3)
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
    ],
)
def test_stacks_are_as_deep_as_needed(scheme, records, branchings):
    assert scheme.max_records(TINY) == records
    assert scheme.max_branchings(TINY) == branchings


def test_schemes_are_static_arguments():
    assert hash(External(0.1, 2)) == hash(External(0.1, 2))
    assert External(0.1, 2) != External(0.1, 3)
    assert {Outcome(0.1), Outcome(0.1), Branch(0.1)} == {Outcome(0.1), Branch(0.1)}


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
    return jax.device_get(draw_roots(TINY, Branch(0.1), 4001, jax.random.key(7)))


def test_both_traversers_get_every_target_equally_often(roots):
    for traverser in range(2):
        targets = roots.target[traverser::2]
        counts = np.bincount(targets, minlength=TINY.max_player_decisions)
        assert np.ptp(counts) <= 2
        assert (np.diff(targets) >= 0).all()


def test_a_traversal_is_dealt_the_same_however_many_there_are(roots):
    fewer = jax.device_get(draw_roots(TINY, Outcome(0.1), 7, jax.random.key(7)))
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


@pytest.mark.parametrize(
    ("scheme", "expected"),
    [(External(0.5, 1), EXPLORED), (Outcome(0.5), SAMPLED)],
    ids=["external", "outcome"],
)
def test_samples_computed_by_hand(scheme, expected):
    network = plain.ConstantNetwork((0.5, 1.5))
    spec = TraversalSpec(1024, 64, 2, "argmax", utility_scale=1.0)
    result = plain.run_machine(KUHN, network, scheme, spec)
    state = KUHN.step(KUHN.init(jax.random.key(0)), jnp.int32(PASS))
    state = state._replace(cards=jnp.array([1, 0], jnp.int32))
    here = np.asarray(KUHN.information_state(state, jnp.int32(1)))
    advantage, strategy = result.advantage[0], result.strategy[0]
    rows = (advantage.packed == here).all(axis=1)
    targets = advantage.target[rows].astype(np.float64).round(4)
    assert set(map(tuple, targets.tolist())) == expected
    assert (strategy.target == np.float32([0.25, 0.75])).all()
    assert (advantage.iteration == plain.ITERATION).all()
    assert advantage.legal.all()
