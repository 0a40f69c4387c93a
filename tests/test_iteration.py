"""One iteration of Deep CFR: its stages, its state, its numbers."""

from __future__ import annotations

import json
import re

import chex
import jax
import numpy as np
import pytest
from trainers import (
    READS_VALUES,
    SETTINGS,
    advance,
    differ,
    every_settings,
    kuhn_settings,
    lost_cities_settings,
    rows_of,
    run,
    seats_of,
    several_settings,
)

from configs import default
from coorl_jax import config, trained_agent, training
from coorl_jax.agents.uniform import Uniform
from coorl_jax.cfr import iteration as iteration_lib
from coorl_jax.cfr import reservoir
from coorl_jax.cfr.iteration import STAGES, Trainer
from coorl_jax.cfr.samples import unpack_legal
from coorl_jax.evaluation import suite
from coorl_jax.games import tree as trees
from coorl_jax.games.kuhn_poker import KuhnPoker
from coorl_jax.runtime import CACHE_VARIABLE, CompileCounter

# Stages and state.


@several_settings
def test_a_stage_advances_the_position_and_changes_its_own_part_only(settings):
    trainer = Trainer(settings)
    state = trainer.init()
    positions, changes = [trainer.position(state)], []
    for _ in STAGES:
        before = jax.device_get(state)
        state, _ = trainer.run_stage(state)
        positions.append(trainer.position(state))
        changes.append(
            {
                part
                for part in ("advantage", "strategy", "value", "memories", "mixture")
                if differ(getattr(before, part), getattr(state, part))
            }
        )
    assert positions == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0)]
    kept = {"mixture"} if settings.mixture.capacity else set()
    values = {"value"} if settings.traversal.scheme in READS_VALUES else set()
    assert changes == [{"memories"} | kept, values, {"advantage"}, {"strategy"}]


@several_settings
def test_the_seed_decides_every_bit(settings):
    state, lines = run(settings, 2)
    again, lines_again = run(settings, 2)
    chex.assert_trees_all_equal(state, again)
    measured = re.compile("seconds|per_second")
    for line, line_again in zip(lines, lines_again, strict=True):
        assert {k: v for k, v in line.items() if not measured.search(k)} == {
            k: v for k, v in line_again.items() if not measured.search(k)
        }
    other, _ = run(config.override(settings, {"seed": 1}), 2)
    values = ["value"] if settings.traversal.scheme in READS_VALUES else []
    for part in ("advantage", "strategy", "memories", *values):
        assert differ(getattr(state, part), getattr(other, part))


@every_settings
def test_the_state_between_two_stages_is_all_there_is(settings):
    whole, _ = run(settings, 2)
    state = Trainer(settings).init()
    for _ in range(2 * len(STAGES)):
        # A new trainer, given what a checkpoint would hold.
        state, _ = Trainer(settings).run_stage(jax.device_put(jax.device_get(state)))
    chex.assert_trees_all_equal(whole, state)


@several_settings
def test_evaluation_does_not_change_training(settings):
    alone, _ = run(settings, 2)
    trainer = Trainer(settings)
    state = trainer.init()
    for _ in range(2):
        state, _ = advance(trainer, state)
        suite.evaluate(
            trainer.game, trainer.policies(state), {"uniform": Uniform()}, 4, settings.seed
        )
    chex.assert_trees_all_equal(alone, state)


# Memories.


def test_memories_hold_the_samples_of_all_iterations_up_to_their_capacity():
    settings = SETTINGS["kuhn"]
    state, lines = run(settings, 6)
    given = {"advantage": 0, "strategy": 0}
    capacity = {"advantage": 200, "strategy": 1000}
    for line in lines:
        assert line["traversal/traversals"] == 2 * settings.traversal.traversals
        for kind in given:
            given[kind] += line[f"traversal/{kind}_samples"]
            assert line[f"memory/{kind}"] == min(given[kind], capacity[kind])
        # External sampling of 16 rounds for either player: player 1 decides once, player 0 once or
        # twice; as opponents, player 0 once or twice and player 1 after either of two actions.
        assert 32 <= line["traversal/advantage_samples"] <= 48
        assert 48 <= line["traversal/strategy_samples"] <= 64
    assert given["advantage"] > 200
    for kind in given:
        memories = getattr(state.memories, kind)
        assert reservoir.num_seen(memories[0]) == given[kind]
        rows = rows_of(memories[0])
        assert set(np.asarray(rows.iteration).tolist()) == {1, 2, 3, 4, 5, 6}
        assert set(np.asarray(rows.packed[:, 2]).tolist()) == {0, 1}


@pytest.mark.parametrize("settings", [SETTINGS["kuhn"], SETTINGS["cards"]], ids=["kuhn", "cards"])
def test_strategy_samples_are_the_policy_of_the_current_advantage_network(settings):
    trainer = Trainer(settings)
    state, _ = advance(trainer, trainer.init())
    current = trainer.policies(state)["current"]
    state, _ = trainer.run_stage(state)
    rows = rows_of(state.memories.strategy[0])
    second = np.asarray(rows.iteration) == 2
    assert 0 < second.sum() < len(second)
    legal = unpack_legal(rows.legal, trainer.game.num_actions)
    sigma = np.asarray(jax.jit(current.action_probabilities)(rows.packed, legal))
    target = np.asarray(rows.target)
    np.testing.assert_allclose(target[second], sigma[second], atol=1e-5)
    assert np.abs(target[~second] - sigma[~second]).max() > 0.1


def test_advantages_are_in_units_of_the_utility_scale():
    state, _ = run(SETTINGS["cards"], 1)
    # An expedition is worth -40 to -2 points, so two players' two differ by 80 at most; the
    # advantage of an action is a difference of two such numbers. The unit is 50 points.
    largest = np.abs(rows_of(state.memories.advantage[0]).target).max()
    assert 5 / 50 < largest <= 160 / 50


def test_per_player_keeps_a_network_and_memories_for_each_seat():
    trainer = Trainer(SETTINGS["mlp"])
    state, (first, second) = advance(trainer, trainer.init(), 2)
    for fitted in (state.advantage, state.strategy):
        assert len(fitted.params) == len(fitted.opt_state) == 2
        assert differ(*fitted.params)
    for kind in ("advantage", "strategy"):
        memories = getattr(state.memories, kind)
        assert len(memories) == 2
        sizes = [int(reservoir.size(memory)) for memory in memories]
        assert min(sizes) > 0
        assert second[f"memory/{kind}"] == sum(sizes) > first[f"memory/{kind}"]
        for seat, memory in enumerate(memories):
            assert set(seats_of(trainer, memory)) == {seat}
    shared = Trainer(SETTINGS["cards"]).init()
    memories = (shared.memories.advantage, shared.memories.strategy)
    assert [len(part) for part in (shared.advantage.params, *memories)] == [1, 1, 1]


def test_full_lost_cities_takes_few_bytes_and_the_report_says_how_many():
    settings = config.from_config_dict(default.get_config("deep_cfr"))
    trainer = Trainer(settings)
    # 60 cards, 8 slots and 6 numbers; 22 legal bits, 22 bfloat16 targets and the iteration.
    assert trainer.game.packed_size == 74 <= 80
    assert trainer.memory_report() == (
        "information state 74 bytes, sample 125 bytes, memories 2,000,000 samples = 250.0 MB"
    )
    small = {"memory.advantage_capacity": 1000, "memory.strategy_capacity": 3000}
    for per_player, slots in ((False, 4000), (True, 8000)):
        trainer = Trainer(config.override(settings, small | {"network.per_player": per_player}))
        memories = jax.eval_shape(trainer.init).memories
        rows = jax.tree.leaves([memory.rows for kind in memories for memory in kind])
        stored = sum(leaf.size * leaf.dtype.itemsize for leaf in rows)
        assert stored == 125 * slots <= 128 * slots
        assert f"{slots:,} samples = {125 * slots / 1e6:.1f} MB" in trainer.memory_report()


# Fits.


@pytest.mark.parametrize(
    ("network", "start", "settings"),
    [
        ("advantage", "scratch", kuhn_settings(**{"advantage.start": "scratch"})),
        ("advantage", "warm", kuhn_settings(**{"advantage.start": "warm"})),
        ("strategy", "scratch", kuhn_settings(**{"strategy.start": "scratch"})),
        ("strategy", "warm", kuhn_settings(**{"strategy.start": "warm"})),
        ("value", "scratch", SETTINGS["baseline"]),
        ("value", "warm", SETTINGS["critic"]),
    ],
)
def test_a_fit_from_scratch_forgets_the_former_parameters(network, start, settings):
    trainer = Trainer(settings)
    state = trainer.init()
    for _ in range(1 + STAGES.index(f"fit_{network}")):
        before = state
        state, _ = trainer.run_stage(state)
    fitted = getattr(before, network)
    moved = fitted._replace(params=jax.tree.map(lambda leaf: 3 * leaf + 1, fitted.params))
    # The memories are those the traversal returned, which no fit donates.
    other, _ = trainer.run_stage(before._replace(**{network: moved}))
    depends = differ(getattr(state, network).params, getattr(other, network).params)
    assert depends == (start == "warm")


def test_strategy_every_says_when_the_average_policy_is_fitted():
    trainer = Trainer(kuhn_settings(**{"strategy.every": 3}))
    state, fitted_in = trainer.init(), []
    for iteration in range(1, 7):
        before = state.strategy
        state, (line,) = advance(trainer, state)
        assert ("loss/strategy" in line) == differ(before, state.strategy)
        assert "strategy_train_seconds" in line
        if "loss/strategy" in line:
            fitted_in.append(iteration)
    assert fitted_in == [1, 3, 6]


def test_policies_are_those_of_the_state():
    trainer = Trainer(SETTINGS["kuhn"])
    state, _ = advance(trainer, trainer.init())
    parameters, policies = trainer.policy_parameters(state), trainer.policies(state)
    for name, fitted in (("current", state.advantage), ("average", state.strategy)):
        chex.assert_trees_all_equal(parameters[name], fitted.params)
        chex.assert_trees_all_equal(policies[name].params, fitted.params)
    tree = trees.enumerate_game(KuhnPoker())
    logits = trainer.network.apply(state.strategy.params[0], tree.packed)
    average = policies["average"].action_probabilities(tree.packed, tree.legal)
    np.testing.assert_allclose(average, jax.nn.softmax(logits), rtol=1e-5)


# Metrics and compilations.


def test_a_run_has_the_metrics_by_their_names(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, "off")
    settings = kuhn_settings(
        **{
            "iterations": 3,
            "evaluation.every": 1,
            "checkpoint.every": 1,
            "evaluation.pairs": 5,
            "evaluation.policies": ("current", "average", "mixture"),
            "mixture.capacity": 4,
            "gate.policy": "mixture",
            "gate.pairs": 1000,
        }
    )
    run_path = training.train(settings, tmp_path / "run")
    lines = [json.loads(line) for line in (run_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["iteration"] for line in lines] == [1, 2, 3]
    evaluations = {
        f"eval/random/{policy}/{metric}"
        for policy in ("current", "average", "mixture")
        for metric in ("points_per_round", "points_per_round_se", "win_rate", "win_rate_se")
    }
    for policy in ("current", "average", "mixture"):
        evaluations |= {f"eval/nash_conv/{policy}", f"eval/exploitability/{policy}"}
    for line in lines:
        assert line.keys() >= evaluations | {
            *("iteration_seconds", "traversal_seconds", "advantage_train_seconds"),
            *("strategy_train_seconds", "evaluation_seconds", "checkpoint_seconds"),
            *("compile_seconds", "compilations"),
            *("traversal/nodes", "traversal/nodes_per_second", "traversal/lane_occupancy"),
            *("traversal/fallback_rate", "memory/advantage", "memory/strategy"),
            *("loss/advantage", "loss/strategy"),
            "precision/nonfinite_steps",
        }
        assert all(isinstance(value, int | float) for value in line.values())
        assert line["eval/nash_conv/mixture"] == 2 * line["eval/exploitability/mixture"] > 0
        nodes, passes = line["traversal/nodes"], line["traversal/passes"]
        # Two machines share the 8 lanes.
        assert line["traversal/lane_occupancy"] == pytest.approx(nodes / (4 * passes))
        assert line["traversal/nodes_per_second"] == pytest.approx(
            nodes / line["traversal_seconds"]
        )
        assert 0 < line["traversal/lane_occupancy"] <= 1
        assert 0 <= line["traversal/fallback_rate"] < 1
        assert line["precision/nonfinite_steps"] == 0
    assert lines[0]["compilations"] > 0  # At least a match of this many pairs.
    assert lines[2]["compilations"] == 0
    # What was saved plays as what was trained: iterations 1 to 3 with weights t, and a free slot.
    agent = trained_agent.load(run_path)
    assert agent.iteration == 3
    weights = agent.policies["mixture"].weights
    np.testing.assert_allclose(weights, [1 / 6, 2 / 6, 3 / 6, 0], rtol=1e-6)
    for policy, value in suite.nash_convs(KuhnPoker(), agent.policies).items():
        assert lines[2][f"eval/nash_conv/{policy}"] == pytest.approx(value, rel=1e-6)
    # The mixtures were tested against each other, and the best was kept as it was.
    assert ["gate/points_per_round" in line for line in lines] == [False, True, True]
    best = trained_agent.load(run_path / "best")
    assert best.iteration == lines[2]["gate/best_iteration"]
    same = trained_agent.load(run_path / "policies" / str(best.iteration))
    chex.assert_trees_all_equal(best.policies, same.policies)


@every_settings
def test_nothing_is_compiled_after_the_second_iteration(settings):
    trainer = Trainer(settings)
    opponents = {"random": Uniform()}
    state = trainer.init()
    with CompileCounter() as counter:
        for iteration in range(1, 5):
            state, _ = advance(trainer, state)
            suite.evaluate(trainer.game, trainer.policies(state), opponents, 4, settings.seed)
            if iteration <= 2:
                counter.take()
        assert counter.take()["compilations"] == 0
        jax.jit(lambda x: x + 1)(0)
        assert counter.take()["compilations"] == 1


# Faults and mistakes.


@pytest.mark.parametrize("field", ["started", "finished"])
def test_a_lost_traversal_is_a_fault(monkeypatch, field):
    def lossy(*args):
        memories, statistics = traverse(*args)
        return memories, statistics._replace(**{field: getattr(statistics, field) - 1})

    traverse = iteration_lib.traverse
    monkeypatch.setattr(iteration_lib, "traverse", lossy)
    trainer = Trainer(SETTINGS["kuhn"])
    with pytest.raises(RuntimeError, match=r"31 .* of 32: .* lost some"):
        trainer.run_stage(trainer.init())


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (kuhn_settings(**{"network.kind": "cards"}), r"config\.network\.kind=cards: kuhn_poker"),
        (lost_cities_settings(**{"game.hand_size": 4}), r"config\.game\.hand_size=4: the deck"),
        (
            lost_cities_settings(**{"game.max_discard_draws": None}),
            r"config\.game\.max_discard_draws=None: ",
        ),
    ],
)
def test_settings_that_cannot_be_trained_are_refused(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        Trainer(settings)
