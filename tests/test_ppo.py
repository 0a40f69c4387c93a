"""What PPO learns on Kuhn poker, whose best responses are exact; its iterations, runs, mistakes."""

from __future__ import annotations

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
import pytest
import trainers
from policies import fixed
from ppo_play import kuhn_tree, plan_of
from ppo_settings import STEPS, ppo_settings

from configs import default
from coorl_jax import config, trained_agent, training
from coorl_jax.agents.uniform import Uniform
from coorl_jax.cfr.iteration import Trainer
from coorl_jax.checkpoint import CheckpointStore
from coorl_jax.evaluation import suite
from coorl_jax.games import sequence_form
from coorl_jax.games.game import TURNS
from coorl_jax.policy import make_value_network
from coorl_jax.ppo import trainer as trainer_lib
from coorl_jax.ppo import update as updates
from coorl_jax.ppo.trainer import PpoTrainer
from coorl_jax.runtime import CompileCounter

ROOT = pathlib.Path(__file__).resolve().parent.parent


# Learning.


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
            state.learnt.policy, state.learnt.value, trainer.settings.ppo
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
