import json
import pathlib
import subprocess
import sys

import pytest
from absl import flags
from absl.testing import flagsaver
from trainers import OUTCOME_ON_KUHN as KUHN

from configs import default, kuhn
from coorl_jax import bench, commandline, config, runtime
from coorl_jax.benchmarks import forward
from coorl_jax.benchmarks.timing import spread
from coorl_jax.cfr.iteration import Trainer

ROOT = pathlib.Path(__file__).resolve().parent.parent


@pytest.fixture
def command(monkeypatch, capsys):
    """Run the command in this process, with made-up measurements, and return what it prints."""
    monkeypatch.setattr(runtime, "configure", lambda: None)
    monkeypatch.setattr(bench, "settings_of", lambda name: KUHN)

    def measure(game, effort, key, batches=(1, 4)):
        assert effort.repeats == 3
        for batch in batches:
            ours = spread([200.0 * batch, 150.0, 1234.56])
            yield forward.Call("a<b>[c]", "float32", batch, ours, ours, ours, spread([0.01234]))

    monkeypatch.setattr(forward, "measure", measure)
    monkeypatch.setitem(bench._QUICK_SIZES, "forward", {"batches": (2,)})

    def call(*arguments):
        with flagsaver.flagsaver():
            argv = flags.FLAGS(["bench", "--repeats=3", *arguments])
            bench.main(argv[1:])
        return capsys.readouterr().out

    return call


def test_table_is_plain_text_when_piped(command):
    lines = command("forward").splitlines()
    assert lines[0].startswith("device ")
    assert all(f"{name} " in lines[0] for name in ("cores", "python", "jax", "jaxlib", "optax"))
    assert lines[0].endswith("; repeats 3; quick False")
    assert lines[1:3] == ["", "forward"]
    assert lines[3].split()[:4] == ["network", "precision", "batch", "microseconds"]
    assert [line.split()[:5] for line in lines[4:]] == [
        ["a<b>[c]", "float32", "1", "200.0", "(150.0-1,235;"],
        ["a<b>[c]", "float32", "4", "800.0", "(150.0-1,235;"],
    ]
    assert lines[4].split()[-2:] == ["(0.0123-0.0123;", "1)"]
    assert "".join(lines).isascii()


def test_json_is_one_object_with_everything(command):
    (line,) = command("forward", "--json", "--quick", "forward").splitlines()
    found = json.loads(line)
    assert {*found} == {
        *(
            "device",
            "cores",
            "python",
            "jax",
            "jaxlib",
            "flax",
            "optax",
            "repeats",
            "quick",
            "benchmarks",
        )
    }
    (row,) = found["benchmarks"]["forward"]["forward"]
    assert row["batch"] == 2
    assert row["microseconds"] == {
        "median": 400.0,
        "minimum": 150.0,
        "maximum": 1234.56,
        "repeats": 3,
    }


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "BENCHMARK: must be given, one or more of forward, traversal, fit, evaluate, iter"),
        (["forward", "speed"], "speed: must be one of forward, .*, compile; e.g. traversal"),
        (["fit", "--repeats=0"], "--repeats=0: must be an integer from 1 to 1000; e.g. 5"),
        (["fit", "--lanes=64,few"], "--lanes=64,few: must be integers from 1 to 1048576"),
        (["fit", "--lanes="], "--lanes=: must be integers"),
        (["fit", "--schemes=outcome,all"], "--schemes=outcome,all: must be some of outcome, "),
        (["fit", "--seed=-1"], "--seed=-1: must be an integer from 0"),
    ],
)
def test_mistakes_are_one_sentence(command, arguments, sentence):
    with pytest.raises(ValueError, match=rf"^{sentence}[^\n]*$"):
        command(*arguments)


def test_presets_take_the_overrides_of_the_command_line(monkeypatch):
    monkeypatch.setattr(commandline, "config_overrides", lambda: {"traversal.lanes": 5})
    settings = config.from_config_dict(default.get_config("smoke"))
    expected = config.override(settings, {"traversal.lanes": 5})
    assert commandline.preset_settings("smoke") == expected


def real_command(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "coorl_jax.bench", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_real_command_measures_the_memory_of_a_process():
    sizes = {"advantage.updates": 2, "strategy.updates": 2, "traversal.traversals": 8}
    capacities = {"memory.advantage_capacity": 1000, "memory.strategy_capacity": 3000}
    result = real_command(
        *("memory", "--json", "--repeats=1", "--config=configs/kuhn.py"),
        *(f"--config.{name}={value}" for name, value in (sizes | capacities).items()),
    )
    assert result.returncode == 0, result.stderr
    (row,) = json.loads(result.stdout)["benchmarks"]["memory"]["memory"]
    assert (row["where"], row["iterations"]) == ("host", 1)
    trainer = Trainer(
        config.override(config.from_config_dict(kuhn.get_config()), sizes | capacities)
    )
    assert row["printed_megabytes"] == trainer.memory_bytes() / 1e6
    assert 50 < row["bare_megabytes"] < row["peak_megabytes"] < 2000
    assert row["ratio"] == pytest.approx(row["peak_megabytes"] / row["printed_megabytes"])


def test_real_command_refuses_in_one_sentence():
    result = real_command("speed")
    assert result.returncode == 2
    (sentence,) = result.stderr.splitlines()
    assert sentence.startswith("bench: speed: must be one of forward, traversal, fit, ")
