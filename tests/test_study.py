"""Studies: variants, the clock, the directory and resuming, the table and the picture."""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import subprocess
import sys
from typing import get_args, get_type_hints

import jax.numpy as jnp
import numpy as np
import pytest

from configs import default, kuhn, leduc, mini_lost_cities
from coorl_jax import config, plot, runtime, study, studydir, variants
from coorl_jax.evaluation import learning_curve as curves
from coorl_jax.evaluation import suite
from coorl_jax.games import registry, tree
from coorl_jax.settings import TraversalSettings

ROOT = pathlib.Path(__file__).resolve().parent.parent
TINY = {
    "network.width": 8,
    "network.depth": 1,
    "traversal.traversals": 16,
    "traversal.lanes": 8,
    "memory.advantage_capacity": 1000,
    "memory.strategy_capacity": 1000,
    "mixture.capacity": 16,
    "advantage.updates": 4,
    "advantage.batch_size": 16,
    "strategy.every": 1,
    "strategy.updates": 4,
    "strategy.batch_size": 16,
}


def settings(**overrides):
    return config.override(config.from_config_dict(kuhn.get_config()), TINY | overrides)


def points(ends, nash_convs, seed=0, variant="external"):
    """Return a run with these iterations and NashConvs."""
    return [
        {
            "variant": variant,
            "seed": seed,
            "iteration": iteration,
            "nodes": 100 * iteration,
            "seconds": 0.5 * iteration,
            "compile_seconds": 3.0,
            "nash_conv": {"average": nash_conv, "mixture": nash_conv, "current": 2 * nash_conv},
            "finished": iteration == ends[-1],
        }
        for iteration, nash_conv in zip(ends, nash_convs, strict=True)
    ]


def table(text):
    """Return the cells of the Markdown table in a text."""
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch):
    monkeypatch.setenv(runtime.CACHE_VARIABLE, "off")


@pytest.fixture
def canned(monkeypatch):
    """Replace training by a curve of four points; return the settings trained with."""
    trained = []

    def learning_curve(made, seconds, on_iteration):
        trained.append(made)
        for point in points((1, 2, 3, 4), (0.8, 0.4, 0.2, 0.1)):
            on_iteration(point["seconds"])
            fields = {name: point[name] for name in curves.Point._fields}
            yield curves.Point(**fields)

    monkeypatch.setattr(curves, "learning_curve", learning_curve)
    return trained


class TestVariants:
    def test_every_scheme_is_compared(self):
        schemes = get_args(get_type_hints(TraversalSettings)["scheme"])
        made = variants.schemes(settings())
        assert {made[name]["traversal.scheme"] for name in made} == {*schemes}
        assert next(iter(made)) == variants.REFERENCE

    @pytest.mark.parametrize("module", [kuhn, leduc, mini_lost_cities, default])
    def test_all_are_good_settings_and_alternatives_sample_externally(self, module):
        base = config.from_config_dict(
            default.get_config("smoke") if module is default else module.get_config()
        )
        alternatives = variants.alternatives(base)
        for overrides in (variants.schemes(base) | alternatives).values():
            config.override(base, overrides)
        assert {o["traversal.scheme"] for o in alternatives.values()} == {"external"}

    def test_published_deep_cfr_has_memory_for_all_its_samples(self):
        base = config.from_config_dict(leduc.get_config())
        published = config.override(base, variants.alternatives(base)["reservoir_scratch"])
        assert (published.advantage.cumulative, published.advantage.start) == (
            "reservoir",
            "scratch",
        )
        assert published.memory.advantage_capacity == base.memory.strategy_capacity

    def test_what_the_configuration_has_already_is_left_out(self, capsys):
        base = settings()
        names = study._parse_variants(base, None)
        assert names[0] == "external"
        assert "fallback_uniform" in names
        assert "bootstrapped" not in names
        assert "bootstrapped" in capsys.readouterr().out
        other = config.override(base, {"advantage.cumulative": "reservoir"})
        assert "bootstrapped" in study._parse_variants(other, None)


class TestLearningCurve:
    @pytest.mark.parametrize(("every", "due"), [(1, [1, 2, 3, 5, 8, 10]), (4, [1, 4, 8, 10])])
    def test_the_clock_counts_training_alone(self, monkeypatch, every, due):
        """A fake clock: 1 s an iteration, 7 s of compiling in the first, 100 s an evaluation."""
        now, compiling = [0.0], [0.0]

        class Trainer:
            game = None

            def __init__(self, settings):
                now[0] += 50

            def init(self):
                return jnp.int32(0)

            def run_stage(self, state):
                if state == 0:
                    now[0] += 7
                    compiling[0] += 7
                now[0] += 0.25
                return state + 1, {"traversal/nodes": 30.0} if state % 4 == 0 else {}

            def policies(self, state):
                return {}

        class CompileCounter:
            def __enter__(self):
                return self

            def __exit__(self, *exception):
                pass

            def take(self):
                taken, compiling[0] = compiling[0], 0.0
                return {"compile_seconds": taken, "compilations": 1}

        def nash_convs(game, policies):
            now[0] += 100
            compiling[0] += 20
            return {"average": 1.0}

        monkeypatch.setattr(curves.time, "perf_counter", lambda: now[0])
        monkeypatch.setattr(curves.runtime, "CompileCounter", CompileCounter)
        monkeypatch.setattr(curves.iteration_lib, "Trainer", Trainer)
        monkeypatch.setattr(curves.suite, "nash_convs", nash_convs)
        seen = []
        made = settings(**{"strategy.every": every})
        curve = list(curves.learning_curve(made, 10.0, seen.append))
        # Every factor of 1.5 where the average policy is new, and the last.
        assert [point.iteration for point in curve] == due
        assert [point.seconds for point in curve] == due
        assert [point.nodes for point in curve] == [30 * iteration for iteration in due]
        assert {point.compile_seconds for point in curve} == {7}
        assert [point.finished for point in curve] == [False] * (len(due) - 1) + [True]
        assert seen == [*range(1, 11)]


class TestStudy:
    def test_a_real_run_leaves_results_table_and_picture(self, tmp_path, capsys):
        study.study(
            settings(), tmp_path / "study", ["external"], seeds=[3], seconds=0.5, threshold=6.0
        )
        text = (tmp_path / "study" / "results.jsonl").read_text()
        lines = [json.loads(line) for line in text.splitlines()]
        due = [1, 2, 3, 5, 8, 12, 18, 27, 41, 62, 93, 140, 210, 315, 473, 710]
        assert [line["iteration"] for line in lines[:-1]] == due[: len(lines) - 1]
        assert [line["finished"] for line in lines] == [False] * (len(lines) - 1) + [True]
        for before, after in itertools.pairwise(lines):
            assert before["seconds"] < 0.5
            assert before["seconds"] < after["seconds"]
            assert before["nodes"] < after["nodes"]
        last = lines[-1]
        assert last["seconds"] >= 0.5
        assert last["compile_seconds"] > 0
        for line in lines:
            assert (line["variant"], line["seed"]) == ("external", 3)
            assert {*line["nash_conv"]} == {"current", "average", "mixture"}
            assert all(0 < value < 6 for value in line["nash_conv"].values())
        # The network fitted to the average is not the mixture itself.
        assert last["nash_conv"]["average"] != last["nash_conv"]["mixture"]
        picture = (tmp_path / "study" / "nash_conv.png").read_bytes()
        assert picture.startswith(b"\x89PNG\r\n")
        assert len(picture) > 20_000
        heading, _, row = table(capsys.readouterr().out)
        cells = dict(zip(heading, row, strict=True))
        assert cells["variant"] == "external"
        assert cells["iterations"] == f"{last['iteration']:,}"
        assert cells["nodes"] == f"{last['nodes']:,}"
        assert cells["NashConv average"] == f"{last['nash_conv']['average']:.4f}"
        assert cells["NashConv current"] == f"{last['nash_conv']['current']:.4f}"
        # A threshold that every policy meets is reached at once.
        assert cells["s to 6"] == f"{lines[0]['seconds']:.1f}"

    def test_goes_on_where_it_was_stopped(self, canned, tmp_path, capsys):
        names = ["external", "critic"]
        arguments = {"seeds": [0, 1], "seconds": 2.0}
        study.study(settings(), tmp_path, names, **arguments)
        assert [(s.seed, s.traversal.scheme) for s in canned] == [
            (seed, name) for seed in (0, 1) for name in names
        ]
        assert {s.mixture.capacity for s in canned} == {16}
        whole = (tmp_path / "results.jsonl").read_text()
        # A kill tears the fourth line of the third run.
        canned.clear()
        lines = whole.splitlines(keepends=True)
        (tmp_path / "results.jsonl").write_text("".join(lines[:11]) + lines[11][:30])
        study.study(settings(), tmp_path, names, **arguments)
        assert [(s.seed, s.traversal.scheme) for s in canned] == [(1, "external"), (1, "critic")]
        assert (tmp_path / "results.jsonl").read_text() == whole
        # All is there: the picture alone is drawn.
        canned.clear()
        (tmp_path / "nash_conv.png").unlink()
        capsys.readouterr()
        shown = study.study(settings(), tmp_path, ["critic"], **arguments)
        assert not canned
        assert {*shown} == {"critic"}
        assert len(shown["critic"]) == 2
        assert (tmp_path / "nash_conv.png").exists()
        assert "2 of 2 runs were finished before" in capsys.readouterr().out

    def test_other_settings_need_another_directory(self, canned, tmp_path):
        def go(made, seconds):
            study.study(made, tmp_path, ["external"], seeds=[0], seconds=seconds)

        go(settings(), 2.0)
        before = (tmp_path / "results.jsonl").read_text()
        # What has no effect may differ.
        go(settings(iterations=7, seed=5), 2.0)
        with pytest.raises(ValueError, match=r"a study with --seconds 2\.0, not 3\.0; choose ano"):
            go(settings(), 3.0)
        with pytest.raises(ValueError, match=r"with config\.network\.width 8, not 9; choose an"):
            go(settings(**{"network.width": 9}), 2.0)
        file = tmp_path / "study.json"
        file.write_text(file.read_text().replace('"traversal.scheme": "critic"', '"a": "b"'))
        with pytest.raises(ValueError, match=r"with variant critic \{'a': 'b'"):
            go(settings(), 2.0)
        file.write_text("{}")
        with pytest.raises(ValueError, match=r"study\.json: must be .* remove the directory, or"):
            go(settings(), 2.0)
        assert (tmp_path / "results.jsonl").read_text() == before

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            (lambda saved: saved | {"variants": []}, r"variants missing, or of another kind"),
            (lambda saved: saved | {"seconds": "2"}, r"seconds missing, or of another kind"),
            (lambda saved: [saved], r"seconds missing, or of another kind"),
            (lambda saved: saved | {"config": {"seed": 1}}, r"config\.\w+: missing from the conf"),
        ],
    )
    def test_a_damaged_record_is_one_sentence(self, tmp_path, change, reason):
        studydir.check_same(tmp_path, settings(), {}, 2.0)
        file = tmp_path / "study.json"
        file.write_text(json.dumps(change(json.loads(file.read_text()))))
        before = file.read_text()
        sentence = rf"^{file}: must be what [^;]* \({reason}[^;]*\); remove the directory, or give"
        with pytest.raises(ValueError, match=sentence):
            studydir.check_same(tmp_path, settings(), {}, 2.0)
        assert file.read_text() == before

    @pytest.mark.parametrize(
        ("number", "change", "reason"),
        [
            (1, {"nash_conv": 5}, r"nash_conv\.average is missing: must be a number"),
            (2, {"nash_conv": {"average": "1"}}, r"nash_conv\.average='1': must be a number"),
            (1, {"seed": []}, r"seed=\[\]: must be an integer from 0"),
            (1, {"variant": {}}, r"variant=\{\}: must be a word"),
            (2, {"iteration": 1}, r"iteration=1: must be a later one than before"),
            (3, {"seconds": 0}, r"seconds=0: must be a finite number above 0"),
            (3, {"finished": 1}, r"finished=1: must be one of True, False"),
        ],
    )
    def test_damaged_results_are_one_sentence(self, tmp_path, number, change, reason):
        lines = points((1, 2, 3), (0.8, 0.4, 0.2))
        lines[number - 1] |= change
        file = tmp_path / "results.jsonl"
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        before = file.read_text()
        with pytest.raises(
            ValueError, match=rf"^{file}:{number}: {reason}.*; remove the directory"
        ):
            studydir.finished(tmp_path)
        assert file.read_text() == before

    def test_training_may_start_with_no_time_but_compilation(self, tmp_path):
        lines = points((1, 2, 3), (0.8, 0.4, 0.2))
        lines[0]["seconds"] = 0.0
        (tmp_path / "results.jsonl").write_text("".join(json.dumps(n) + "\n" for n in lines))
        assert studydir.finished(tmp_path) == {("external", 0): lines}

    def test_a_directory_that_takes_no_files_is_refused_by_its_flag(self):
        with (
            pytest.raises(ValueError, match=r"^--directory=/proc: must be a directory that can be"),
            studydir.locked(pathlib.Path("/proc")),
        ):
            pass

    def test_it_tells_what_it_does_before_the_first_point(self, canned, tmp_path, capsys):
        study.study(settings(), tmp_path, ["external", "critic"], seeds=[0], seconds=2.0)
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == "enumerating kuhn_poker"
        for name in ("external", "critic"):
            first, second, *_ = (line for line in lines if line.startswith(f"{name}, seed 0: "))
            assert first == f"{name}, seed 0: compiling"
            assert second.startswith(f"{name}, seed 0: iteration 1, ")

    def test_variants_are_checked_before_any_is_trained(self, canned, tmp_path):
        made = settings(**{"traversal.scheme": "critic", "traversal.exploration": 0.0})
        sentence = r"^variant outcome: config\.traversal\.exploration=0\.0: must be above 0 with "
        with pytest.raises(ValueError, match=sentence):
            study.study(made, tmp_path, ["critic", "outcome"], seeds=[0], seconds=2.0)
        with pytest.raises(ValueError, match=r"^variant external: config\.traversal\.exploration"):
            study._parse_variants(made, None)
        assert not canned

    def test_a_game_with_too_many_histories_is_refused_by_their_number(self, monkeypatch):
        def enumerated(game):
            return tree.enumerate_game(game, max_histories=50)

        monkeypatch.setattr(suite, "enumerated", enumerated)
        sentence = r"^config\.game\.name=kuhn_poker: must have at most 50 histories for exact Nash"
        with pytest.raises(ValueError, match=sentence):
            study._enumerate(registry.make("kuhn_poker", {}))

    def test_two_studies_do_not_share_a_directory(self, canned, tmp_path):
        with (
            studydir.locked(tmp_path),
            pytest.raises(ValueError, match="another study is running there"),
        ):
            study.study(settings(), tmp_path, ["external"], seeds=[0], seconds=2.0)
        study.study(settings(), tmp_path, ["external"], seeds=[0], seconds=2.0)

    def test_matplotlib_is_asked_for_before_training(self, canned, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        with pytest.raises(ValueError, match=r"pip install 'coorl-jax\[plots\]'"):
            study.study(settings(), tmp_path, ["external"], seeds=[0], seconds=2.0)
        assert not canned

    def test_the_table_tells_means_errors_and_when_a_threshold_is_reached(self, capsys):
        shown = {
            "external": [
                points((1, 2, 4), (0.8, 0.4, 0.2), seed=0),
                points((1, 2, 6), (0.8, 0.6, 0.4), seed=1),
            ],
            "critic": [points((1, 2), (0.8, 0.7))],
        }
        study._print_table(shown, 0.5)
        _, _, external, critic = table(capsys.readouterr().out)
        # The 0.2 and 0.4 at the end are 0.3, with a standard error of 0.1; 0.5 is reached after
        # 1 s and 3 s.
        assert external == [
            "external", "2", "5", "500", "200", "0.3000 +- 0.1000", "0.3000 +- 0.1000",
            "0.6000 +- 0.2000", "3.0", "2.0",
        ]  # fmt: skip
        assert critic == [
            "critic", "1", "2", "200", "200", "0.7000", "0.7000", "1.4000", "3.0", "never",
        ]  # fmt: skip


class TestPlot:
    def test_seeds_meet_at_the_iterations_they_share_and_at_the_end(self):
        curve = plot.curve(
            [points((1, 2, 3, 4), (8, 4, 2, 1)), points((1, 2, 6), (2, 1, 0.25))], "average"
        )
        np.testing.assert_allclose(curve.nodes, [100, 200, 500])
        np.testing.assert_allclose(curve.seconds, [0.5, 1.0, 2.5])
        np.testing.assert_allclose(curve.nash_conv, [4, 2, 0.5])
        np.testing.assert_allclose(curve.lowest, [2, 1, 0.25])
        np.testing.assert_allclose(curve.highest, [8, 4, 1])

    def test_labels_keep_their_distance_and_stay_near(self):
        np.testing.assert_allclose(plot.spread(np.array([0.9, 0.1]), 0.1), [0.9, 0.1])
        # Three around 0.5 share it out, whatever their order; 0.9 is far enough.
        np.testing.assert_allclose(
            plot.spread(np.array([0.52, 0.9, 0.48, 0.5]), 0.1), [0.6, 0.9, 0.4, 0.5]
        )


def run(*arguments, cwd):
    return subprocess.run(
        [sys.executable, "-m", "coorl_jax.study", *arguments],
        cwd=cwd,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--variants=external,critics"], "--variants=critics: must be among external, robust"),
        (["--variants=critic,critic"], "--variants=critic,critic: must be different names"),
        (["--seeds=0,00"], "--seeds=0,00: must be different integers from 0"),
        (["--seeds=0,x"], "--seeds=0,x: must be different integers from 0"),
        (["--seconds=0"], "--seconds=0: must be a finite number above 0"),
        (
            ["--config=configs/default.py:smoke"],
            "config.game.name=lost_cities: must have at most 50,000 deals for exact NashConv; e.g. "
            "--config=configs/leduc.py",
        ),
        (["--config=configs/default.py:smoke", "--config.game.hand_size=40"], "config.game.hand_"),
    ],
)
def test_a_mistake_is_one_sentence(arguments, sentence, tmp_path):
    if not arguments[0].startswith("--config"):
        arguments = ["--config=configs/kuhn.py", *arguments]
    process = run(*arguments, cwd=tmp_path)
    assert process.returncode == 2, process.stderr
    (line,) = process.stderr.splitlines()
    assert line.startswith(f"study: {sentence}")
    assert not list(tmp_path.iterdir())
