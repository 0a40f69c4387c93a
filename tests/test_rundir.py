"""A run directory belongs to one trainer and one configuration, and nothing else is touched."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from configs import default, kuhn
from coorl_jax import config, rundir

SETTINGS = config.from_config_dict(default.get_config("smoke"))


def contents(path):
    return {
        entry.relative_to(path): entry.read_bytes() if entry.is_file() else None
        for entry in path.rglob("*")
    }


def test_new_run_records_its_settings(tmp_path):
    path = tmp_path / "runs" / "a"
    with rundir.open_run(path, SETTINGS):
        assert rundir.saved_settings(path) == SETTINGS


def test_new_paths_are_dated_named_and_not_taken(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = rundir.new_path("kuhn")
    assert first.match("runs/????-??-??_??????_kuhn")
    monkeypatch.setattr(rundir, "_now", lambda: first.name.removesuffix("_kuhn"))
    first.mkdir(parents=True)
    assert rundir.new_path("kuhn").name == f"{first.name}_2"


def test_missing_and_empty_directories_are_new(tmp_path):
    assert rundir.saved_settings(tmp_path / "missing") is None
    assert rundir.saved_settings(tmp_path) is None
    # What a run that was killed as it started has left.
    (tmp_path / "lock").touch()
    (tmp_path / ".config.json.tmp").touch()
    assert rundir.saved_settings(tmp_path) is None


def test_what_may_change_is_recorded_on_resume(tmp_path):
    with rundir.open_run(tmp_path, SETTINGS):
        pass
    longer = config.override(SETTINGS, {"iterations": 99, "evaluation.pairs": 5})
    with rundir.open_run(tmp_path, longer):
        assert rundir.saved_settings(tmp_path) == longer


def train_a_little(path):
    with rundir.open_run(path, SETTINGS) as run:
        run.metrics.write_text('{"iteration": 1}\n')


def test_other_settings_are_refused_by_field_with_both_values(tmp_path):
    train_a_little(tmp_path)
    before = contents(tmp_path)
    other = config.override(SETTINGS, {"iterations": 99, "seed": 5, "network.width": 7})
    with pytest.raises(ValueError, match=r"--workdir=") as error:
        rundir.open_run(tmp_path, other)
    assert "config.seed is 5, was 0" in str(error.value)
    assert "config.network.width is 7, was 64" in str(error.value)
    assert "iterations" not in str(error.value)
    assert contents(tmp_path) == before


def test_other_settings_are_taken_where_nothing_was_trained(tmp_path):
    other = config.override(SETTINGS, {"network.width": 7})
    with rundir.open_run(tmp_path, SETTINGS) as run:
        run.metrics.touch()
        run.checkpoints.mkdir()
    with rundir.open_run(tmp_path, other):
        assert rundir.saved_settings(tmp_path) == other
    (run.checkpoints / "2").mkdir()
    with pytest.raises(ValueError, match=r"config\.network\.width is 64, was 7"):
        rundir.check_resume(tmp_path, SETTINGS)


def test_run_of_another_game_is_refused(tmp_path):
    train_a_little(tmp_path)
    other = config.from_config_dict(kuhn.get_config())
    with pytest.raises(ValueError, match=r"config\.game\.name is 'kuhn_poker', was 'lost_cities'"):
        rundir.check_resume(tmp_path, other)


def test_directory_of_something_else_is_refused_untouched(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ValueError, match=r"it holds thesis\.tex and no config\.json"):
        rundir.open_run(tmp_path, SETTINGS)
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


def test_file_is_refused(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(ValueError, match="must be a directory"):
            rundir.open_run(path, SETTINGS)


@pytest.mark.parametrize("text", ["", "{", "[]", "3"])
def test_damaged_configuration_is_refused_untouched(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=r"config\.json: must be the configuration that a run"):
        rundir.open_run(tmp_path, SETTINGS)
    assert contents(tmp_path) == before


def test_configuration_of_another_version_is_refused_untouched(tmp_path):
    older = config.to_dict(SETTINGS)
    del older["traversal"]["alternating"]
    other = config.to_dict(SETTINGS) | {"matmul_precision": "highest"}
    for values, reason in (
        (older, "config.traversal.alternating: missing from the configuration"),
        (other, "config.matmul_precision='highest': no such field"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(values))
        before = contents(tmp_path)
        with pytest.raises(ValueError, match=r"^--workdir=.*: was written by another v") as error:
            rundir.open_run(tmp_path, SETTINGS)
        assert str(error.value).endswith(
            f"({reason}); use the version that wrote it, or start a new run"
        )
        assert contents(tmp_path) == before


def test_second_trainer_is_refused_until_the_first_ends(tmp_path):
    with (
        rundir.open_run(tmp_path, SETTINGS),
        pytest.raises(ValueError, match="another trainer is running there"),
    ):
        rundir.open_run(tmp_path, SETTINGS)
    with rundir.open_run(tmp_path, SETTINGS):
        pass


def test_lock_dies_with_its_process(tmp_path):
    program = (
        "import pathlib, sys, time\n"
        "from coorl_jax import config, rundir\n"
        "from configs import default\n"
        "settings = config.from_config_dict(default.get_config('smoke'))\n"
        "run = rundir.open_run(pathlib.Path(sys.argv[1]), settings)\n"
        "print('locked', flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(ValueError, match="another trainer is running there"):
            rundir.open_run(tmp_path, SETTINGS)
        other.send_signal(signal.SIGKILL)
    with rundir.open_run(tmp_path, SETTINGS):
        pass
