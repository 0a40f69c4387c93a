import json
import os
import pathlib
import subprocess

import jax
import pytest
from trainers import OUTCOME_ON_KUHN as KUHN
from trainers import SETTINGS

from coorl_jax import config
from coorl_jax.benchmarks import compilation, listener, memory
from coorl_jax.cfr.iteration import Trainer

ROOT = pathlib.Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("settings", [SETTINGS["critic"], SETTINGS["mlp"]], ids=["critic", "mlp"])
def test_memory_bytes_are_those_of_the_memories(settings):
    trainer = Trainer(settings)
    memories = jax.eval_shape(trainer.init).memories
    rows = jax.tree.leaves([memory.rows for kind in memories for memory in kind])
    assert trainer.memory_bytes() == sum(leaf.size * leaf.dtype.itemsize for leaf in rows)


def test_peaks_are_compared_with_what_a_run_prints(monkeypatch):
    def run(command, *, input, **others):
        assert command[1:] == ["-m", "coorl_jax.benchmarks.memory", "3"]
        assert config.from_dict(json.loads(input)) == KUHN
        took = {"where": "host", "bare": 2e6, "peak": 7e6, "printed": 4e6}
        return subprocess.CompletedProcess(command, 0, json.dumps(took))

    monkeypatch.setattr(subprocess, "run", run)
    assert list(memory.measure(KUHN, 3)) == [memory.Peak("host", 3, 4.0, 2.0, 7.0, 1.75, 1.25)]


def test_the_peak_on_linux_is_that_of_the_process_itself(monkeypatch, tmp_path):
    status = tmp_path / "status"
    status.write_text("VmPeak:\t 900 kB\nVmHWM:\t  123 kB\nVmRSS:\t 100 kB\n")
    monkeypatch.setattr(memory, "_STATUS", status)
    assert memory._peak() == ("host", 123 * 1024)


def test_listener_tells_programs_from_functions_within_them():
    found = listener.Listener()
    for event, name, seconds in [
        (listener.TRACE, "inner", 1.0),
        (listener.TRACE, "outer", 3.0),
        (listener.LOWER, "jit(outer)", 0.5),
        ("/jax/another", "jit(outer)", 9.0),
        (listener.COMPILE, "jit(outer)", 2.0),
        (listener.COMPILE, "jit(outer)", 4.0),
    ]:
        found.on_event(event, seconds, fun_name=name)
    assert found.programs == [
        {"program": "outer", "trace": 3.0, "lower": 0.5, "compile": 2.0},
        {"program": "outer", "trace": 0.0, "lower": 0.0, "compile": 4.0},
    ]


FAKE_COMMAND = """
import json, pathlib, sys, time
import jax
import jax.numpy as jnp
workdir = pathlib.Path(sys.argv[2].removeprefix("--workdir="))
config = pathlib.Path(sys.argv[1].removeprefix("--config=")).with_suffix(".json")
assert json.loads(config.read_text())["iterations"] == 2
workdir.mkdir()
@jax.jit
def double(x):
    return 2 * x
double(jnp.arange(3)), double(jnp.arange(4))
line = {"iteration_seconds": 0.25, "compile_seconds": 1.5, "compilations": 7}
lines = [line | {"iteration": 1}, line | {"iteration": 2, "compilations": 0}]
(workdir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\\n" for line in lines))
print("iteration 1/2; ...", flush=True)
time.sleep(0.2)
"""


def test_compile_starts_the_command_and_counts_its_programs(monkeypatch, tmp_path):
    (tmp_path / "fake_command.py").write_text(FAKE_COMMAND)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    monkeypatch.setattr(compilation, "COMMAND", "fake_command")
    first, cached, *programs = compilation.measure(KUHN)
    assert [first.start, cached.start] == ["first", "cached"]
    assert (first.compilations, first.compile_seconds, first.compilations_later) == (7, 1.5, 0)
    assert first.seconds - first.seconds_to_second_iteration >= 0.2
    assert first.seconds_to_second_iteration - first.seconds_to_first_iteration == 0.25
    (double,) = (row for row in programs if row.program == "double")
    assert double.compilations == 2
    assert min(double.trace_seconds, double.lower_seconds, double.compile_seconds) > 0
    # Two shapes, each with a parameter, a constant and a product at least.
    assert 4 <= double.instructions < 50


def test_compile_says_why_the_command_failed(monkeypatch, tmp_path):
    (tmp_path / "fake_command.py").write_text("raise OSError('no such luck')")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    monkeypatch.setattr(compilation, "COMMAND", "fake_command")
    with pytest.raises(RuntimeError, match="no such luck"):
        next(compilation.measure(KUHN))
