"""The metrics file survives kills, resumes and numbers that JSON cannot hold."""

from __future__ import annotations

import json
import math
import sys

import pytest

from coorl_jax import metrics


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


def write(path, iterations):
    with metrics.MetricsWriter(path) as writer:
        for iteration in iterations:
            writer.write(iteration, {"loss/advantage": iteration / 2})


def test_one_object_a_line_flushed_at_once(path):
    with metrics.MetricsWriter(path) as writer:
        writer.write(1, {"loss/advantage": 0.5, "compilations": 3})
        assert path.read_text() == '{"iteration": 1, "loss/advantage": 0.5, "compilations": 3}\n'


def test_appends_to_what_is_there(path):
    write(path, [1])
    write(path, [2])
    assert [line["iteration"] for line in metrics.read(path)] == [1, 2]


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_non_finite_numbers_become_null(path, number):
    with metrics.MetricsWriter(path) as writer:
        writer.write(1, {"loss/advantage": number})
    assert metrics.read(path) == [{"iteration": 1, "loss/advantage": None}]


def test_torn_last_line_is_left_out(path):
    write(path, [1, 2])
    path.write_text(path.read_text() + '{"iteration": 3, "lo')
    assert [line["iteration"] for line in metrics.read(path)] == [1, 2]


@pytest.mark.parametrize("damage", ["{]", "3", "{}", '{"iteration": null}'])
def test_damaged_line_is_named(path, damage):
    path.write_text(f'{{"iteration": 1}}\n{damage}\n{{"iteration": 3}}\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl:2: must be a JSON object"):
        metrics.read(path)


def test_truncate_drops_later_and_torn_lines_and_goes_on(path):
    write(path, [1, 2, 3])
    path.write_text(path.read_text() + '{"iteration": 4')
    with metrics.MetricsWriter(path) as writer:
        assert writer.truncate_after(2) == 2
        writer.write(3, {"loss/advantage": 9.0})
    assert [line["loss/advantage"] for line in metrics.read(path)] == [0.5, 1.0, 9.0]
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_truncate_of_an_empty_file(path):
    with metrics.MetricsWriter(path) as writer:
        assert writer.truncate_after(5) == 0


def test_replace_text_leaves_the_old_text_when_the_new_cannot_be_written(path):
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        metrics.replace_text(path, "new \ud800")
    assert path.read_text() == "old"


def test_tensorboard_gets_every_number(tmp_path, path):
    directory = tmp_path / "tensorboard"
    with metrics.MetricsWriter(path, tensorboard_directory=directory) as writer:
        writer.write(1, {"loss/advantage": 0.5})
    (events,) = directory.iterdir()
    assert b"loss/advantage" in events.read_bytes()


def test_missing_tensorboard_names_the_extra(tmp_path, path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ValueError, match=r"config\.log\.tensorboard=True: .*\[tensorboard\]"):
        metrics.MetricsWriter(path, tensorboard_directory=tmp_path / "tensorboard")
    assert not path.exists()


def test_timed_adds_up():
    measured = {"fit_seconds": 1.0}
    with metrics.timed(measured, "fit_seconds"):
        pass
    assert 1.0 < measured["fit_seconds"] < 2.0
    assert json.dumps(measured)
