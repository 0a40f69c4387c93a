"""The best policies of a run: which they are, and that neither kills nor damage lose them."""

from __future__ import annotations

import json
import random

import chex
import jax
import numpy as np
import pytest
import tiny_trainer

from configs import kuhn
from coorl_jax import checkpoint, config, training
from coorl_jax.best import BestPolicies
from coorl_jax.cfr import iteration as iteration_lib
from coorl_jax.checkpoint import CheckpointStore
from coorl_jax.evaluation import gate
from coorl_jax.policy import make_network, make_policies

OVERRIDES = {
    # With these, iterations 1, 5 and 7 are the best so far.
    "seed": 1,
    "gate.significance": 0.5,
    "iterations": 8,
    "network.width": 8,
    "evaluation.every": 1,
    "evaluation.pairs": 8,
    "evaluation.policies": ("average",),
    "evaluation.nash_conv": False,
    "gate.policy": "average",
    "gate.pairs": 100,
    "checkpoint.every": 1,
}


class KilledError(Exception):
    """Ends a run as a kill does: without its last checkpoint."""


@pytest.fixture(autouse=True)
def _tiny(monkeypatch):
    monkeypatch.setattr(iteration_lib, "Trainer", tiny_trainer.TinyTrainer)
    monkeypatch.setattr(tiny_trainer, "STAGE_SECONDS", 0.0)
    monkeypatch.setenv("COORL_JAX_CACHE_DIR", "off")


def settings(**overrides):
    return config.override(config.from_config_dict(kuhn.get_config()), OVERRIDES | overrides)


def metrics(run):
    """Return the metrics of training and of the tests, without what differs from run to run."""
    return [
        {
            name: value
            for name, value in json.loads(line).items()
            if name.startswith(("iteration", "sum/", "gate/")) and not name.endswith("seconds")
        }
        for line in (run / "metrics.jsonl").read_text().splitlines()
    ]


def best_iterations(run):
    return [line["gate/best_iteration"] for line in metrics(run)]


def kept(run):
    return checkpoint.restore_policies(run / "best", report=pytest.fail)


def test_policies_that_beat_the_best_take_their_place(tmp_path, capsys):
    made = settings()
    run = training.train(made, tmp_path / "run")
    network = make_network(made)

    def average(path, iteration):
        with CheckpointStore(run / path, read_only=True) as store:
            tree = store.restore(iteration).tree
        return make_policies(made, network, tree)["average"]

    first, *tested = metrics(run)
    assert (first["gate/accepted"], first["gate/best_iteration"]) == (1, 1)
    assert "gate/points_per_round" not in first
    best = 1
    for line in tested:
        iteration = line["iteration"]
        verdict = gate.challenge(
            network.game,
            average("policies", iteration),
            average("policies", best),
            100,
            0.5,
            gate.gate_key(1, iteration),
        )
        assert line["gate/points_per_round"] == verdict.points_per_round
        assert line["gate/points_per_round_se"] == verdict.points_per_round_se
        assert line["gate/accepted"] == verdict.accepted
        best = iteration if verdict.accepted else best
        assert line["gate/best_iteration"] == best
    assert best_iterations(run) == [1, 1, 1, 1, 5, 5, 7, 7]

    latest = kept(run)
    assert latest.step == best
    chex.assert_trees_all_equal(average("best", best), average("policies", best))
    (accepted,) = (line for line in tested if line["iteration"] == best)
    assert latest.extra["gate"] == {
        "policy": "average",
        "previous_iteration": 5,
        "points_per_round": accepted["gate/points_per_round"],
        "points_per_round_se": accepted["gate/points_per_round_se"],
    }
    assert config.from_dict(latest.extra["config"]) == made

    out = capsys.readouterr().out
    assert "\n  iteration 1 is now the best\n" in out
    assert f"points a round; iteration {best} stays the best\n" in out
    points = "{:+.2f} +- {:.2f} points a round".format(
        accepted["gate/points_per_round"], accepted["gate/points_per_round_se"]
    )
    assert f"against the best so far: {points}; iteration {best} is now the best\n" in out
    assert f"best: iteration {best}, {points} against the best before; to evaluate it:\n" in out
    assert f"coorl_jax.evaluate --checkpoint={run}/best\n" in out


def test_without_a_gate_there_is_no_best(tmp_path, capsys):
    run = training.train(settings(**{"gate.policy": "none", "iterations": 2}), tmp_path / "run")
    assert not (run / "best").exists()
    assert metrics(run)[-1].keys().isdisjoint({"gate/accepted", "gate/best_iteration"})
    assert "best" not in capsys.readouterr().out


def test_only_full_evaluations_hold_a_test(tmp_path):
    made = settings(**{"evaluation.every": 4, "light_evaluation.every": 1})
    run = training.train(made, tmp_path / "run")
    assert ["gate/accepted" in line for line in metrics(run)] == [1, 0, 0, 1, 0, 0, 0, 1]


@pytest.mark.parametrize("seed", range(3))
def test_kills_at_any_turn_or_write_leave_the_same_run(tmp_path, monkeypatch, seed):
    # Checkpoints after 1, 3, 6 and 8: the best ones are accepted in between.
    made = settings(**{"checkpoint.every": 3, "checkpoint.keep": 1})
    whole = training.train(made, tmp_path / "whole")
    killed = tmp_path / "killed"
    turn, save, rng = training.Training._turn, CheckpointStore.save, random.Random(seed)
    kills = []

    def perhaps_killed(kind, work):
        moment = rng.random()
        if moment < 0.03:
            kills.append(kind)
            raise KilledError
        work()
        if moment > 0.95:
            kills.append(kind)
            raise KilledError

    def perilous_turn(self, name, iteration, work):
        perhaps_killed(name, lambda: turn(self, name, iteration, work))

    def perilous_save(self, step, tree, extra):
        perhaps_killed("write", lambda: save(self, step, tree, extra))

    monkeypatch.setattr(training.Training, "_turn", perilous_turn)
    monkeypatch.setattr(CheckpointStore, "save", perilous_save)
    finished = False
    while not finished and len(kills) < 100:
        try:
            training.train(made, killed)
            finished = True
        except KilledError:
            pass
    assert finished
    assert len({*kills}) >= 3
    assert metrics(killed) == metrics(whole)
    assert kept(killed).step == kept(whole).step == 7
    chex.assert_trees_all_equal(kept(killed).tree, kept(whole).tree)
    assert kept(killed).extra == kept(whole).extra


def test_an_earlier_state_finds_its_own_best(tmp_path, capsys):
    whole = training.train(settings(), tmp_path / "whole")
    run = training.train(settings(iterations=7), tmp_path / "run")
    assert kept(run).step == 7
    state = len(iteration_lib.STAGES) * 7
    (run / "checkpoints" / str(state) / "tree" / "manifest.ocdbt").write_bytes(b"")
    training.train(settings(), run)
    assert "lost" not in capsys.readouterr().out
    assert metrics(run) == metrics(whole)


def test_where_the_best_is_damaged_the_one_before_stands_in(tmp_path, capsys):
    run = training.train(settings(iterations=7), tmp_path / "run")
    (run / "best" / "7" / "tree" / "manifest.ocdbt").write_bytes(b"")
    training.train(settings(), run)
    out = capsys.readouterr().out
    assert f"WARNING: {run}/best/7: the checkpoint is damaged" in out
    assert (
        f"WARNING: {run}/best: the best policies, those of iteration 7, are lost; those of "
        "iteration 5 stand in for them\n"
    ) in out
    line = metrics(run)[-1]
    assert line["gate/best_iteration"] == (8 if line["gate/accepted"] else 5)


def test_where_no_best_is_left_the_next_is_kept_without_a_test(tmp_path, capsys):
    run = training.train(settings(iterations=7), tmp_path / "run")
    (run / "best").rename(tmp_path / "moved")
    training.train(settings(), run)
    assert "are lost; the next ones are kept without a test\n" in capsys.readouterr().out
    assert metrics(run)[-1] == metrics(run)[-1] | {"gate/accepted": 1, "gate/best_iteration": 8}
    assert "gate/points_per_round" not in metrics(run)[-1]
    assert kept(run).step == 8


def test_another_policy_may_be_tested_from_now_on(tmp_path):
    run = training.train(settings(iterations=4), tmp_path / "run")
    assert kept(run).extra["gate"]["policy"] == "average"
    training.train(settings(iterations=5, **{"gate.policy": "current"}), run)
    # Of this trainer both are the same parameters, which mean something else.
    latest = kept(run)
    assert latest.step == metrics(run)[-1]["gate/best_iteration"]
    made, network = settings(), make_network(settings())
    current = [
        make_policies(made, network, checkpoint.restore_policies(path, report=pytest.fail).tree)[
            "current"
        ]
        for path in (run / "policies" / "5", run / "policies" / "1")
    ]
    verdict = gate.challenge(network.game, *current, 100, 0.5, gate.gate_key(1, 5))
    assert metrics(run)[-1]["gate/points_per_round"] == verdict.points_per_round


def test_kept_policies_do_not_share_memory_with_what_training_goes_on_with(tmp_path):
    made = settings()
    trainer = tiny_trainer.TinyTrainer(made)
    parameters = trainer.policy_parameters(trainer.init())
    best = BestPolicies(tmp_path / "best", made, trainer.network)
    best.challenge(1, parameters)
    expected = jax.tree.map(np.array, parameters)
    for leaf in jax.tree.leaves(parameters):
        leaf.delete()
    best.save()
    chex.assert_trees_all_equal(kept(tmp_path).tree, expected)


def test_policies_of_another_run_are_no_best_ones(tmp_path):
    own, other = settings(), settings(**{"network.width": 4})
    with CheckpointStore(tmp_path / "best") as store:
        for iteration, run in ((1, own), (2, other)):
            params = (make_network(run).init(jax.random.key(iteration)),)
            store.save(
                iteration,
                {"current": params, "average": params},
                {"config": config.to_dict(run)},
            )
    told = []
    best = BestPolicies(tmp_path / "best", own, make_network(own))
    best.restore(2, told.append)
    assert best.iteration == 1
    assert "these policies are of another run" in told[0]
    assert "those of iteration 1 stand in for them" in told[1]


def test_a_file_in_place_of_the_best_policies_is_named(tmp_path):
    (tmp_path / "best").write_text("")
    with pytest.raises(ValueError, match=r"best: must be the directory of a run's best policies"):
        BestPolicies(tmp_path / "best", settings(), make_network(settings()))
