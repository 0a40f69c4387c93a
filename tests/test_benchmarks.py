import dataclasses
import itertools
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from trainers import OUTCOME_ON_KUHN as KUHN
from trainers import SETTINGS, kuhn_settings, lost_cities_settings

from configs import default
from coorl_jax import config
from coorl_jax.benchmarks import (
    evaluation,
    fit,
    forward,
    iteration,
    resident,
    scaling,
    traversal,
)
from coorl_jax.benchmarks.timing import Effort, Spread, Timing, interleave, spread
from coorl_jax.cfr import reservoir
from coorl_jax.cfr.fit import fit_spec, loss_value
from coorl_jax.games.kuhn_poker import KuhnPoker
from coorl_jax.networks import NetworkSpec
from coorl_jax.policy import make_network, make_value_network

KEY = jax.random.key(0)
ONCE = Effort(repeats=1)
TINY = NetworkSpec("mlp", width=8, depth=1)


@pytest.fixture(scope="module", autouse=True)
def _quick_compilation():
    """Unoptimised code compiles much faster, and there is little to run."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


# Timing.


class Clock:
    """A clock that calls move on, and a log of the calls."""

    def __init__(self):
        self.now, self.calls = 0.0, []

    def __call__(self):
        return self.now

    def candidate(self, name, seconds):
        seconds = iter(seconds)

        def call():
            self.calls.append(name)
            self.now += next(seconds)

        return call


def test_candidates_take_turns_and_ratios_are_those_of_rounds():
    clock = Clock()
    candidates = {
        "a": clock.candidate("a", [99, 1, 4, 9]),
        "b": clock.candidate("b", [99, 1, 8, 3]),
    }
    times = interleave(candidates, Effort(3), clock)
    assert clock.calls == ["a", "b"] * 4
    assert times["a"] == Timing((1, 4, 9))
    # Ratios 1, 1/2 and 3; the medians' would be 4/3.
    assert times["a"].over(times["b"]) == 1
    assert times["b"].over(times["a"]) == 1
    assert times["a"].per(2, unit=0.5) == Spread(4, 1, 9, 3)
    assert times["b"].rate(24) == Spread(8, 3, 24, 3)


def test_no_round_begins_after_the_budget_but_two_always_do():
    for budget, rounds in ((0.0, 2), (5.0, 2), (7.0, 3), (60.0, 4)):
        clock = Clock()
        candidates = {name: clock.candidate(name, [50, 1, 1, 1, 1, 1]) for name in "abc"}
        times = interleave(candidates, Effort(4, budget), clock)
        assert {len(timing.seconds) for timing in times.values()} == {rounds}


def test_short_calls_are_repeated_within_a_timing():
    clock = Clock()
    # 20 milliseconds have room for six calls of 1/256 s.
    durations = [7.0, 2**-8, *[2**-9] * 6, *[2**-7] * 6]
    times = interleave({"short": clock.candidate("short", durations)}, Effort(2), clock)
    assert len(clock.calls) == 1 + 1 + 6 + 6
    assert times["short"].seconds == (2**-9, 2**-7)


# What is worked on.


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (make_network, KUHN),
        (make_value_network, KUHN),
        (make_network, lost_cities_settings()),
        pytest.param(make_value_network, lost_cities_settings(), marks=pytest.mark.slow),
    ],
    ids=["mlp", "value mlp", "cards", "value cards"],
)
def test_a_resident_network_is_the_network_without_its_features(make, settings):
    network = make(settings)
    params = resident.parameters(network, KEY)
    batches = resident.batches(network, 5, 2, KEY)
    assert batches[0].shape == (5, network.input_size)
    assert (batches[0] != batches[1]).any()
    bare, features = resident.without_features(network), resident.features(network, batches[0])
    expected = forward.call(network, params, batches[0])
    np.testing.assert_allclose(forward.call(bare, params, features), expected, atol=1e-5)
    np.testing.assert_allclose(
        forward.passes(network, params, batches),
        expected + forward.call(network, params, batches[1]),
        atol=1e-5,
    )


def test_positions_are_early_and_late_decisions():
    game = KuhnPoker()
    states = resident.positions(game, 1500, KEY)
    assert not jax.vmap(game.is_terminal)(states).any()
    packed = np.asarray(resident.packed(make_network(KUHN), states))
    # Three cards; nothing has happened, or player 0 has passed or bet.
    assert len(np.unique(packed, axis=0)) == 3 * 3
    np.testing.assert_array_equal(packed[1024:], packed[:476])


def test_full_memories_hold_samples_of_decisions():
    network = make_network(KUHN)
    memory = resident.full_memory(network, 300, "bfloat16", KEY)
    assert int(reservoir.size(memory)) == 300
    drawn = reservoir.sample(memory, KEY, 50)
    assert drawn.target.dtype == jnp.bfloat16
    np.testing.assert_array_equal(drawn.target.sum(axis=1), 1)
    assert (drawn.iteration == 1).all()


def test_inserting_keeps_the_memory_and_sets_what_it_has_seen():
    network = make_network(KUHN)
    rows = resident.sample_batch(network, 4, jnp.float32, KEY)
    counting = resident.Inserting(resident.empty_memory(network, 20, "float32"), rows, 3)
    counting(), counting()
    assert reservoir.num_seen(counting.memory) == 24
    full = resident.Inserting(resident.empty_memory(network, 20, "float32"), rows, 3, seen=40)
    full(), full()
    assert reservoir.num_seen(full.memory) == 52


# Benchmarks.


def test_forward_times_every_network_precision_and_batch():
    rows = list(
        forward.measure(
            KuhnPoker(), ONCE, KEY, {"a": TINY, "b": TINY}, ("float32", "bfloat16"), (1, 4)
        )
    )
    names = [(row.network, row.precision, row.batch) for row in rows]
    assert names == [
        (name, precision, batch)
        for name in "ab"
        for precision in ("float32", "bfloat16")
        for batch in (1, 4)
    ]
    for row in rows:
        assert row.microseconds.repeats == 1
        assert row.microseconds_per_state.median == row.microseconds.median / row.batch > 0
        assert row.bare_microseconds_per_state.median * row.batch == row.bare_microseconds.median


@pytest.mark.parametrize("scheme", ["critic", pytest.param("outcome", marks=pytest.mark.slow)])
def test_traversal_shares_make_the_whole(scheme):
    (row,) = traversal.measure(KUHN, ONCE, KEY, (scheme,), (4,))
    assert (row.scheme, row.lanes, row.traversals) == (scheme, 4, 4 * traversal.PER_LANE[scheme])
    shares = [getattr(row, f"{part}_share") for part in ("network", "game", "insert", "stack")]
    assert sum(shares) == pytest.approx(1)
    assert row.game_share > 0 < row.insert_share
    assert 0.5 < row.occupancy <= 1
    assert row.nodes == pytest.approx(row.occupancy * row.passes * 4 / row.machines)
    assert row.ratio_to_bare == pytest.approx(
        row.nodes_per_second.median / row.bare_per_second.median
    )


def test_other_schemes_have_the_best_lanes_of_the_first(monkeypatch):
    asked = []

    def measure_one(settings, scheme, lanes, effort, key):
        asked.append((scheme, lanes))
        rates = spread([{2: 5.0, 4: 9.0, 8: 7.0}[lanes]])
        fields = dict.fromkeys([f.name for f in dataclasses.fields(traversal.Traversal)], 0)
        return traversal.Traversal(**(fields | {"lanes": lanes, "nodes_per_second": rates}))

    monkeypatch.setattr(traversal, "measure_one", measure_one)
    list(traversal.measure(KUHN, ONCE, KEY, ("branch", "robust", "critic"), (2, 4, 8)))
    assert asked == [("branch", 2), ("branch", 4), ("branch", 8), ("robust", 4), ("critic", 4)]


def test_free_networks_depend_on_all_that_they_read():
    game = make_network(lost_cities_settings()).game
    packed = jnp.zeros((1, game.packed_size), jnp.uint8)
    each = jnp.concatenate([packed, jnp.eye(game.packed_size, dtype=jnp.uint8)])
    outputs = np.asarray(traversal.FreeNetwork(game, TINY).apply((), each))
    assert outputs.shape == (game.packed_size + 1, game.num_actions)
    assert len(np.unique(outputs, axis=0)) == len(outputs)
    assert -1 <= outputs.min() < -0.9
    assert 0.9 < outputs.max() <= 1
    value = traversal.FreeValueNetwork(game, TINY).apply((), each)
    assert value.shape == (game.packed_size + 1, 1)


def test_the_rules_alone_make_as_many_decisions():
    game = make_network(lost_cities_settings()).game
    start = jax.vmap(game.init)(jax.random.split(KEY, 8))
    for decisions in (0, 1, 3):
        states, _ = traversal.rules_alone(game, None, start, jnp.int32(decisions), KEY)
        # A round's first decisions are to play a card and to draw one, in turns.
        assert (states.mover == decisions // 2 % 2).all()
        assert (states.phase == decisions % 2).all()


def test_fit_times_both_losses_beside_bare_steps():
    rows = list(fit.measure(KUHN, ONCE, KEY))
    assert [(row.network, row.loss, row.batch, row.updates) for row in rows] == [
        ("advantage", "squared_error", 16, 4),
        ("strategy", "cross_entropy", 16, 4),
    ]
    for row in rows:
        assert row.ratio == pytest.approx(row.milliseconds.median / row.bare_milliseconds.median)
        assert min(row.gather_milliseconds.median, row.features_milliseconds.median) > 0


def test_gathers_draw_whole_batches():
    network = make_network(KUHN)
    full = resident.full_memory(network, 50, jnp.float32, KEY)
    found = fit.gathers(full, 16, 3, KEY)
    expected = reservoir.sample(full, jax.random.split(KEY, 3)[-1], 16)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_bare_steps_are_steps_of_adam():
    network = make_network(KUHN)
    settings = dataclasses.replace(KUHN.strategy, updates=3)
    found = fit.bare_steps(network, settings, "cross_entropy", KEY)()
    params, optimizer = resident.parameters(network, KEY), optax.adam(1e-3)
    opt_state = optimizer.init(params)
    batch = resident.sample_batch(network, 16, jnp.float32, KEY)

    @jax.jit
    def step(params, opt_state):
        gradient = jax.grad(loss_value, argnums=3)(
            network, fit_spec(settings).exponent, "cross_entropy", params, batch, jnp.int32(1)
        )
        changes, opt_state = optimizer.update(gradient, opt_state, params)
        return optax.apply_updates(params, changes), opt_state

    for _ in range(3):
        params, opt_state = step(params, opt_state)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), found, params)


def test_evaluation_times_every_bot_and_all_of_them():
    rows = list(evaluation.measure(kuhn_settings(**{"network.per_player": True}), ONCE, KEY))
    assert [(row.opponent, row.rounds) for row in rows] == [("random", 8), ("all", 8)]
    for row in rows:
        assert row.rounds_per_second.median * row.seconds.median == pytest.approx(8)


def test_iteration_times_the_stages_and_says_what_is_overhead(monkeypatch):
    ticks = itertools.count()
    # Whatever is timed takes a second.
    monkeypatch.setattr(iteration, "time", types.SimpleNamespace(perf_counter=ticks.__next__))
    settings = config.override(KUHN, {"network.per_player": True})
    work = {"network.per_player": True, "advantage.updates": 4}
    monkeypatch.setattr(iteration, "PREDECESSOR_WORK", work)
    *stages, overhead = iteration.measure(settings, ONCE, KEY)
    assert [(row.stage, row.predecessor_seconds) for row in stages] == list(
        iteration.PREDECESSOR.items()
    )
    # The stage that fits values is no row, but part of the iteration.
    assert [row.seconds.median for row in stages] == [1, 1, 1, 4]
    assert overhead.updates == 2 * (4 + 4)
    assert overhead.bare_per_second == forward.PASSES * settings.traversal.lanes
    # Two networks' bare steps of either fit, each a second.
    assert overhead.bare_step_milliseconds == 1000 * (2 + 2) / overhead.updates
    floor = overhead.nodes / overhead.bare_per_second + 2 + 2
    assert overhead.floor_seconds == pytest.approx(floor)
    assert overhead.overhead == pytest.approx(1 - floor / 4)


def test_the_predecessor_is_compared_with_the_same_work_alone(monkeypatch):
    class Trainer(iteration.Trainer):
        """Only its times are looked at."""

        def init(self):
            return 0

        def run_stage(self, state):
            return state + 1, dict.fromkeys(
                ("traversal/nodes", "traversal/lane_occupancy", "loss/advantage", "loss/strategy"),
                1.0,
            )

    monkeypatch.setattr(iteration, "Trainer", Trainer)
    monkeypatch.setattr(forward, "bare_passes", lambda *arguments: lambda: None)
    monkeypatch.setattr(fit, "bare_steps", lambda *arguments: lambda: None)
    monkeypatch.setattr(iteration.resident, "parameters", lambda *arguments: None)
    preset = config.from_config_dict(default.get_config("predecessor"))
    for overrides, seconds in (
        ({"seed": 1}, list(iteration.PREDECESSOR.values())),
        ({"traversal.traversals": 64}, [None] * 4),
        ({"strategy.updates": 32}, [None] * 4),
    ):
        *stages, _ = iteration.measure(config.override(preset, overrides), ONCE, KEY)
        assert [row.predecessor_seconds for row in stages] == seconds


def test_iteration_needs_a_scheme_whose_floor_is_known():
    with pytest.raises(ValueError, match=r"^config\.traversal\.scheme='critic': must read no .*e$"):
        iteration.check(SETTINGS["critic"])


def test_scaling_goes_by_lanes_networks_and_memories(monkeypatch):
    monkeypatch.setattr(scaling, "_BATCH", 8)
    rows = list(scaling.measure(KUHN, ONCE, KEY, (2,), {"other": TINY}, (100, 200)))
    speeds, memories = rows[:2], rows[2:]
    assert [(row.network, row.lanes) for row in speeds] == [("8x2", 2), ("other", 2)]
    assert all(row.nodes > 0 and row.ratio_to_bare > 0 for row in speeds)
    assert [(row.state, row.capacity) for row in memories] == [
        ("filling", 100),
        ("filling", 200),
        ("full", 100),
        ("full", 200),
    ]
    assert all(row.insert_ratio > 0 < row.draw_ratio for row in memories)


def test_no_more_lanes_once_they_take_longer_than_the_budget(monkeypatch):
    monkeypatch.setattr(scaling, "_speed", lambda settings, name, network, lanes, *rest: lanes)
    monkeypatch.setattr(scaling, "_memories", lambda *arguments: ())
    for budget, lanes in ((0.0, [2]), (60.0, [2, 4, 8])):
        assert list(scaling.measure(KUHN, Effort(1, budget), KEY, (2, 4, 8), {}, ())) == lanes
