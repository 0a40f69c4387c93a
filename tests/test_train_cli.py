"""The training loop and its command line: stopping, killing, resuming, telling."""

from __future__ import annotations

import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time

import chex
import jax
import pytest
import rich.console

from configs import default, kuhn
from coorl_jax import config, training
from coorl_jax import progress as progress_lib
from coorl_jax.cfr import iteration as iteration_lib
from coorl_jax.checkpoint import CheckpointStore

ROOT = pathlib.Path(__file__).resolve().parent.parent
ENVIRONMENT = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
OVERRIDES = {
    "iterations": 4,
    "network.width": 8,
    "traversal.traversals": 16,
    "traversal.lanes": 8,
    "memory.advantage_capacity": 1000,
    "memory.strategy_capacity": 1000,
    "memory.value_capacity": 1000,
    "advantage.updates": 4,
    "advantage.batch_size": 16,
    "strategy.updates": 4,
    "strategy.batch_size": 16,
    "strategy.every": 1,
    "value.updates": 4,
    "value.batch_size": 16,
    "evaluation.every": 2,
    "evaluation.pairs": 8,
    "checkpoint.every": 1,
}


def settings(**overrides):
    base = config.from_config_dict(kuhn.get_config())
    return config.override(base, OVERRIDES | overrides)


def metrics(run):
    """Return the metrics lines without what differs from run to run."""
    varying = re.compile("seconds|per_second|compil")
    return [
        {name: value for name, value in json.loads(line).items() if not varying.search(name)}
        for line in (run / "metrics.jsonl").read_text().splitlines()
    ]


def best(run):
    """Return the iteration of the best policies."""
    with CheckpointStore(run / "best", read_only=True) as store:
        return store.steps()[-1]


def last_state(run, trainer):
    with CheckpointStore(run / "checkpoints", read_only=True) as store:
        return store.restore(store.steps()[-1], trainer.init()).tree


@pytest.fixture
def tiny(monkeypatch):
    import tiny_trainer

    monkeypatch.setattr(iteration_lib, "Trainer", tiny_trainer.TinyTrainer)
    monkeypatch.setattr(tiny_trainer, "STAGE_SECONDS", 0.0)
    return tiny_trainer.TinyTrainer


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch):
    monkeypatch.setenv("COORL_JAX_CACHE_DIR", "off")


class TestLoop:
    def test_lines_checkpoints_and_policies(self, tiny, tmp_path, capsys):
        run = training.train(settings(iterations=5, **{"checkpoint.every": 3}), tmp_path / "run")
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert [line["iteration"] for line in lines] == [1, 2, 3, 4, 5]
        # After the first, every second and the last iteration; every third.
        assert ["evaluation_seconds" in line for line in lines] == [True, True, False, True, True]
        assert ["checkpoint_seconds" in line for line in lines] == [True, False, True, False, True]
        for line in lines:
            assert line["iteration_seconds"] >= line.get("checkpoint_seconds", 0.0)
            assert {"traversal_seconds", "strategy_train_seconds", "compile_seconds"} <= {*line}
        assert "eval/random/average/points_per_round" in lines[-1]
        assert 0 < lines[-1]["eval/nash_conv/average"] < 6
        assert sorted(p.name for p in (run / "policies").iterdir()) == ["1", "3", "5"]
        assert sorted(p.name for p in (run / "checkpoints").iterdir()) == ["12", "20"]
        out = capsys.readouterr().out
        assert f"python -m coorl_jax.evaluate --checkpoint={run}" in out
        assert f"python -m coorl_jax.train --workdir={run} --config.iterations=10" in out
        assert len(re.findall(r"average against random: [+-]\d", out)) == 5

    def test_nothing_compiles_after_the_second_iteration(self, tiny, tmp_path):
        jax.clear_caches()
        gate = {"gate.policy": "average", "gate.pairs": 100}
        run = training.train(settings(iterations=6, **gate), tmp_path / "run")
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert lines[0]["compilations"] > 0
        assert [line["compilations"] for line in lines[2:]] == [0, 0, 0, 0]
        assert lines[-1]["compile_seconds"] == 0.0

    def test_nash_conv_of_a_large_game_is_refused(self, tmp_path):
        made = config.from_config_dict(default.get_config("smoke"))
        made = config.override(made, {"evaluation.nash_conv": True})
        with pytest.raises(
            ValueError, match=r"config\.evaluation\.nash_conv=True: .*too many to enumerate"
        ):
            training.train(made, tmp_path / "run")
        assert not (tmp_path / "run").exists()

    def test_evaluation_can_be_switched_off(self, tiny, tmp_path):
        run = training.train(settings(**{"evaluation.every": 0}), tmp_path / "run")
        assert "eval/" not in (run / "metrics.jsonl").read_text()

    @pytest.mark.parametrize("seed", [0, 1])
    def test_stops_after_any_turns_leave_the_same_run(self, tiny, tmp_path, monkeypatch, seed):
        gate = {"gate.policy": "average", "gate.pairs": 100}
        made = settings(**{"checkpoint.every": 2, "light_evaluation.every": 1} | gate)
        whole = training.train(made, tmp_path / "whole")
        stopped = tmp_path / "stopped"
        turn, rng, stops = training.Training._turn, random.Random(seed), []

        def perhaps_stop_after_turn(self, name, iteration, work):
            turn(self, name, iteration, work)
            if rng.random() < 0.5:
                stops.append((iteration, name))
                os.kill(os.getpid(), signal.SIGTERM)

        monkeypatch.setattr(training.Training, "_turn", perhaps_stop_after_turn)
        while len(stops) < 50 and (not stopped.exists() or len(metrics(stopped)) < 4):
            training.train(made, stopped)
        assert len({name for _, name in stops}) >= 4
        assert metrics(stopped) == metrics(whole)
        assert best(stopped) == best(whole)
        trainer = tiny(made)
        chex.assert_trees_all_equal(last_state(stopped, trainer), last_state(whole, trainer))

    def test_longer_run_goes_on_from_the_shorter(self, tiny, tmp_path):
        short = settings(iterations=2)
        training.train(short, tmp_path / "run")
        run = training.train(config.override(short, {"iterations": 4}), tmp_path / "run")
        whole = training.train(settings(iterations=4), tmp_path / "whole")
        assert metrics(run) == metrics(whole)

    def test_finished_run_stays_as_it_is(self, tiny, tmp_path):
        run = training.train(settings(), tmp_path / "run")
        before = (run / "metrics.jsonl").read_text()
        training.train(settings(), run)
        assert (run / "metrics.jsonl").read_text() == before

    def test_damaged_latest_checkpoint_costs_only_what_came_after(self, tiny, tmp_path, capsys):
        whole = training.train(settings(), tmp_path / "whole")
        run = training.train(settings(iterations=3), tmp_path / "run")
        (run / "checkpoints" / "12" / "tree" / "manifest.ocdbt").write_bytes(b"")
        training.train(settings(), run)
        assert "WARNING: " in capsys.readouterr().out
        assert metrics(run) == metrics(whole)

    def test_missing_checkpoints_are_refused_and_nothing_lost(self, tiny, tmp_path):
        run = training.train(settings(), tmp_path / "run")
        before = (run / "metrics.jsonl").read_text()
        for step in (run / "checkpoints").iterdir():
            step.rename(tmp_path / step.name)
        with pytest.raises(ValueError, match="holds no whole checkpoint"):
            training.train(settings(), run)
        assert (run / "metrics.jsonl").read_text() == before

    def test_checkpoint_of_another_network_is_refused(self, tiny, tmp_path):
        run = training.train(settings(), tmp_path / "run")
        other = training.train(settings(**{"network.width": 16}), tmp_path / "other")
        (run / "checkpoints").rename(tmp_path / "mine")
        (other / "checkpoints").rename(run / "checkpoints")
        with pytest.raises(ValueError, match=r"params/0/.*bias is float32\[16\] in the checkpoint"):
            training.train(settings(), run)

    def test_second_interrupt_stops_at_once(self, tiny, tmp_path, monkeypatch):
        def interrupt_twice(self):
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

        before = signal.getsignal(signal.SIGINT)
        monkeypatch.setattr(training.Training, "_run_stage", interrupt_twice)
        with pytest.raises(KeyboardInterrupt):
            training.train(settings(), tmp_path / "run")
        # Not necessarily Python's own: a shell's background processes ignore the signal.
        assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("scheme", [pytest.param("external", marks=pytest.mark.slow), "critic"])
def test_real_trainer_resumes_bit_for_bit(tmp_path, scheme):
    """4 iterations = 2 + restart + 2, memories, optimisers and metrics included."""
    made = settings(iterations=4, **{"traversal.scheme": scheme})
    whole = training.train(made, tmp_path / "whole")
    training.train(config.override(made, {"iterations": 2}), tmp_path / "run")
    run = training.train(made, tmp_path / "run")
    trainer = iteration_lib.Trainer(made)
    chex.assert_trees_all_equal(last_state(run, trainer), last_state(whole, trainer))
    assert metrics(run) == metrics(whole)
    assert ("loss/value" in metrics(run)[-1]) == (scheme == "critic")


def start(run, *arguments):
    """Start the command with the tiny trainer in a process of its own."""
    overrides = {
        **{"iterations": 12, "checkpoint.every": 1},
        **{"evaluation.every": 4, "evaluation.policies": "average"},
        **{"gate.policy": "average", "gate.pairs": 100},
    }
    command = [
        *(sys.executable, str(ROOT / "tests" / "tiny_trainer.py"), f"--workdir={run}"),
        "--config=configs/kuhn.py",
        *(f"--config.{name}={value}" for name, value in (OVERRIDES | overrides).items()),
        *arguments,
    ]
    return subprocess.Popen(
        command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def wait_for_line(process, start_of_line):
    for line in process.stdout:
        if line.startswith(start_of_line):
            return
    raise AssertionError(f"the process ended without a line {start_of_line!r}")


def test_ten_kills_at_random_moments_leave_the_same_run(tmp_path):
    reference, run = tmp_path / "reference", tmp_path / "run"
    with start(reference) as process:
        assert process.wait() == 0
    rng = random.Random(1)
    for _ in range(10):
        with start(run) as process:
            wait_for_line(process, "memory")
            # Before the first iteration, which compiles, or during the next ones, of which a
            # checkpoint takes most of the time.
            for _ in range(rng.randrange(5)):
                process.stdout.readline()
            time.sleep(rng.uniform(0.0, 0.4))
            process.kill()
            assert "WARNING" not in process.stdout.read()
    with start(run) as process:
        assert "finished 12 iterations" in process.stdout.read()
    assert process.returncode == 0
    assert metrics(run) == metrics(reference)
    assert best(run) == best(reference)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_stop_with_a_checkpoint_and_exit_code_0(tmp_path, number):
    run = tmp_path / "run"
    with start(run, "--config.iterations=100000") as process:
        wait_for_line(process, "iteration 2/")
        process.send_signal(number)
        out = process.stdout.read()
    assert process.returncode == 0
    assert f"{number.name}: stopping" in out
    done = int(re.search(r"stopped after (\d+) of 100000 iterations", out)[1])
    assert f"python -m coorl_jax.train --workdir={run}" in out
    with CheckpointStore(run / "checkpoints", read_only=True) as store:
        assert store.steps()[-1] // len(iteration_lib.STAGES) == done


def test_interrupt_leaves_a_checkpoint_although_nobody_reads_the_output_any_more(tmp_path):
    """At Ctrl-C the `tee` of `train | tee log` is gone before the run has stopped."""
    run = tmp_path / "run"
    process = start(run, "--config.iterations=100000", "--config.checkpoint.every=50000")
    wait_for_line(process, "iteration 2/")
    process.stdout.close()
    process.send_signal(signal.SIGINT)
    assert process.wait() == 0
    with CheckpointStore(run / "checkpoints", read_only=True) as store:
        assert store.steps()[-1] >= 2 * len(iteration_lib.STAGES)


def test_request_to_stop_counts_while_jax_is_being_loaded(tmp_path):
    run = tmp_path / "run"
    program = (
        "import os, signal, sys; from coorl_jax import training; from coorl_jax.signals import "
        "StopRequest; enter = StopRequest.__enter__\n"
        "def enter_and_interrupt(self):\n"
        "    assert 'jax' not in sys.modules\n"
        "    enter(self); os.kill(os.getpid(), signal.SIGINT); return self\n"
        "StopRequest.__enter__ = enter_and_interrupt\n"
        "from configs import kuhn; from coorl_jax import config; import pathlib\n"
        "training.train(config.from_config_dict(kuhn.get_config()), pathlib.Path(sys.argv[1]))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, run],
        env=ENVIRONMENT, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "stopped after 0 of" in result.stdout


NUMBERS = {
    "iteration_seconds": 3.21,
    # Not to be expected again in the time left.
    "compile_seconds": 1.21,
    "traversal_seconds": 2.0,
    "advantage_train_seconds": 0.6,
    "traversal/nodes_per_second": 51234.5,
    "traversal/lane_occupancy": 0.957,
    "loss/advantage": 0.0123456,
    "eval/random/average/points_per_round": 12.345,
    "eval/random/average/points_per_round_se": 0.5,
    "eval/random/average/win_rate": 0.842,
    "eval/random/average/win_rate_se": 0.01,
    "eval/nash_conv/average": 0.0314159,
    "gate_seconds": 0.1,
    "gate/accepted": 0.0,
    "gate/best_iteration": 7,
    "gate/points_per_round": -0.25,
    "gate/points_per_round_se": 1.0,
}


class TestTelling:
    def test_plain_lines(self, capsys):
        with progress_lib.Progress(11) as progress:
            progress.iteration(1, NUMBERS)
        assert capsys.readouterr().out == (
            "iteration 1/11; 3.2 s (traversal 2.0, advantage 0.6, gate 0.1); 51,234 nodes/s, "
            "occupancy 0.96; loss advantage 0.01235; 0:00:20 left\n"
            "  average against random: +12.35 +- 0.50 points a round, wins 84.2 +- 1.0 %\n"
            "  average: NashConv 0.0314 points\n"
            "  against the best so far: -0.25 +- 1.00 points a round; iteration 7 stays the best\n"
        )

    def test_terminal_panel(self):
        progress = progress_lib.LiveProgress(11)
        progress.stage(2, "traverse")
        progress.iteration(1, NUMBERS)
        console = rich.console.Console(width=120)
        with console.capture() as capture:
            console.print(progress._panel())
        shown = capture.get()
        for text in (
            "1/11",
            "0:00:20 left",
            "traverse of iteration 2",
            "51,234 nodes/s",
            "+12.35",
            "iteration 7 stays",
        ):
            assert text in shown
