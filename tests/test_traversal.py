"""The lockstep machine gives what a plain recursion gives, whatever its lanes."""

import dataclasses

import chex
import jax
import machine_runs as runs
import pytest
from plain_traversal import PlainTraversal

from coorl_jax.cfr.descent import widths
from coorl_jax.cfr.machine import TraversalSpec
from coorl_jax.cfr.sampling import Baseline, Branch, Critic, External, Outcome, Robust
from coorl_jax.games.kuhn_poker import KuhnPoker
from coorl_jax.games.lost_cities import LostCities
from coorl_jax.networks import Network, NetworkSpec, ValueNetwork

KUHN = KuhnPoker()
TINY = LostCities(colors=2, ranks=2, wagers=1, hand_size=1, max_discard_draws=2)

UNBOUNDED = 1000
EXTERNAL = {n: External(exploration=0.4, max_branching_nodes=n) for n in (0, 1, 2, UNBOUNDED)}
OUTCOME = Outcome(exploration=0.4)
BRANCH = Branch(exploration=0.4)
ROBUST = Robust(exploration=0.4, max_branching_nodes=2, branching_actions=2)
BASELINE = Baseline(exploration=0.4, trace_decay=0.7)
CRITIC = Critic(exploration=0.4, trace_decay=0.7)

HASH_VALUES = runs.hash_values()


def scheme_name(value):
    if isinstance(value, External):
        return f"{type(value).__name__.lower()}{value.max_branching_nodes}"
    return type(value).__name__.lower() if isinstance(value, Outcome | Branch) else None


def spec(traversals, lanes, pops_per_pass=2, fallback="argmax"):
    return TraversalSpec(traversals, lanes, pops_per_pass, fallback, utility_scale=4.0)


def check_counts(result, traversals):
    statistics = result.statistics
    assert statistics.started == statistics.finished == traversals
    assert statistics.advantage_samples == sum(len(rows.packed) for rows in result.advantage)
    assert statistics.strategy_samples == sum(len(rows.packed) for rows in result.strategy)
    assert statistics.value_samples == sum(len(rows.packed) for rows in result.value)


def check_equal(machine, expected, rtol=1e-5, atol=1e-6):
    for kind in ("advantage", "strategy", "value"):
        left, right = getattr(machine, kind), getattr(expected, kind)
        for left_rows, right_rows in zip(left, right, strict=True):
            runs.assert_same_samples(left_rows, right_rows, rtol, atol)
    assert machine.statistics.nodes == expected.statistics.nodes
    assert machine.statistics.fallbacks == expected.statistics.fallbacks


def values_of(scheme):
    return HASH_VALUES if scheme.reads_values else None


def check_against_reference(game, network, scheme, the_spec, seeds=(1,), values=None):
    values = values or values_of(scheme)
    result = runs.run_machine(game, network, scheme, the_spec, seeds, values=values)
    check_equal(result, PlainTraversal(game, network, scheme, the_spec, seeds, values).run())
    check_counts(result, the_spec.traversals)
    assert len(result.value) == scheme.reads_values
    assert len(result.strategy[0].packed) > 0
    return result


@pytest.mark.parametrize(
    "scheme",
    [
        External(0.5, 1),
        External(0.5, UNBOUNDED),
        Robust(0.5, UNBOUNDED, branching_actions=1),
        Outcome(0.5),
        Branch(0.5),
    ],
    ids=scheme_name,
)
def test_kuhn_poker_equals_the_reference(scheme):
    # The very programs of test_traversal_exact.py: compiled once.
    the_spec = spec(8192, lanes=64, fallback="uniform")
    result = check_against_reference(KUHN, runs.HashNetwork(KUHN), scheme, the_spec)
    assert len(result.advantage[0].packed) > 4000
    assert result.statistics.fallbacks > 0


@pytest.mark.parametrize(
    ("scheme", "seeds"),
    [(EXTERNAL[0], (1,)), (EXTERNAL[1], (1,)), (EXTERNAL[UNBOUNDED], (1, 2))],
    ids=scheme_name,
)
def test_external_sampling_of_lost_cities_equals_the_reference(scheme, seeds):
    network = runs.HashNetwork(TINY)
    result = check_against_reference(TINY, network, scheme, spec(101, lanes=9), seeds)
    assert len(result.advantage[0].packed) > 50


@pytest.mark.parametrize(
    "scheme",
    [
        pytest.param(EXTERNAL[2], marks=pytest.mark.slow),
        ROBUST,
        OUTCOME,
        BRANCH,
        BASELINE,
        pytest.param(CRITIC, marks=pytest.mark.slow),
    ],
    ids=scheme_name,
)
def test_samples_depend_neither_on_the_lanes_nor_on_the_pops_of_a_pass(scheme):
    network, seeds = runs.HashNetwork(TINY), (1, 2)
    seven = check_against_reference(TINY, network, scheme, spec(101, lanes=7), seeds)
    assert seven.statistics.fallbacks > 0
    seat = -2  # of the packed bytes
    for player in range(2):
        for memory in (seven.advantage[player], seven.strategy[player]):
            assert len(memory.packed) > 10
            assert (memory.packed[:, seat] == player).all()
    for lanes, pops in ((1, 1), (64, 8)):
        other_spec = spec(101, lanes, pops_per_pass=pops)
        other = runs.run_machine(TINY, network, scheme, other_spec, seeds, values=values_of(scheme))
        check_counts(other, 101)
        check_equal(other, seven, rtol=0, atol=0)


@pytest.mark.parametrize("scheme", [BRANCH, BASELINE], ids=scheme_name)
def test_samples_of_real_networks_equal_the_reference(scheme):
    network_spec = NetworkSpec("mlp", width=16, depth=2)
    network, value_network = Network(TINY, network_spec), ValueNetwork(TINY, network_spec)
    values = runs.Values(value_network, value_network.init(jax.random.key(3)))
    the_spec = spec(101, lanes=64)
    values = values if scheme.reads_values else None
    check_against_reference(TINY, network, scheme, the_spec, values=values)


def test_the_values_that_a_scheme_reads_are_asked_for():
    network, the_spec = runs.HashNetwork(KUHN), spec(1, lanes=4)
    for scheme, values in ((OUTCOME, HASH_VALUES), (BASELINE, None)):
        with pytest.raises(ValueError, match="must be a network if the scheme reads values"):
            runs.run_once(KUHN, network, scheme, the_spec, values=values)


def test_a_single_traversal_is_started_and_finished():
    check_against_reference(KUHN, runs.HashNetwork(KUHN), EXTERNAL[1], spec(1, lanes=4))


def test_another_key_gives_other_samples():
    network, seeds = runs.HashNetwork(TINY), (1, 2)
    first, second = (
        runs.run_machine(TINY, network, OUTCOME, spec(101, lanes=7), seeds, key) for key in (0, 1)
    )
    assert first.statistics.nodes != second.statistics.nodes


@pytest.mark.parametrize(("scheme", "machines"), [(BRANCH, 3), (BASELINE, 2)], ids=scheme_name)
def test_machines_side_by_side_give_the_samples_of_one(scheme, machines):
    network, seeds, values = runs.HashNetwork(TINY), (1, 2), values_of(scheme)
    one = runs.run_machine(TINY, network, scheme, spec(101, lanes=7), seeds, values=values)
    several = dataclasses.replace(spec(101, lanes=4), machines=machines)
    found = [runs.run_once(TINY, network, scheme, several, seeds, values=values) for _ in range(2)]
    for result in found:
        check_counts(result, 101)
        check_equal(result, one, rtol=1e-6, atol=1e-5)  # compiled with other options
    # As it is kept, in order.
    chex.assert_trees_all_equal(*found)


def test_a_machine_may_have_nothing_to_do():
    few = dataclasses.replace(spec(2, lanes=4), machines=3)
    check_against_reference(KUHN, runs.HashNetwork(KUHN), EXTERNAL[1], few)


def test_the_few_lanes_of_the_tail_are_evaluated_in_narrow_batches():
    network, lanes = runs.HashNetwork(TINY), 128
    assert widths(lanes) == [128, 64, 32]
    assert widths(31) == [31]
    result = check_against_reference(TINY, network, OUTCOME, spec(150, lanes), (1, 2))
    statistics = result.statistics
    assert statistics.nodes <= statistics.evaluated < 0.9 * statistics.passes * lanes


def occupancy(result, lanes):
    return result.statistics.nodes / (result.statistics.passes * lanes)


def test_lanes_stay_occupied():
    lanes = 64
    result = runs.run_machine(TINY, runs.HashNetwork(TINY), BRANCH, spec(16 * lanes, lanes))
    check_counts(result, 16 * lanes)
    assert 0.85 <= occupancy(result, lanes) <= 1


@pytest.mark.slow  # a million nodes
def test_lanes_stay_occupied_in_full_lost_cities():
    game, lanes = LostCities(), 64
    result = runs.run_machine(
        game,
        runs.HashNetwork(game),
        Branch(exploration=0.1),
        spec(16 * lanes, lanes, pops_per_pass=4),
        capacity=1 << 19,
        quick=False,
    )
    check_counts(result, 16 * lanes)
    assert 0.90 <= occupancy(result, lanes) <= 1
