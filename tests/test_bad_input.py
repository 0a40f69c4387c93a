"""Mistakes on the real command line: one sentence, exit code 2, nothing harmed."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
SMOKE = "--config=configs/default.py:smoke"
KUHN = "--config=configs/kuhn.py"


TRAIN = ("-m", "coorl_jax.train")
TINY = (str(ROOT / "tests" / "tiny_trainer.py"),)


def run(arguments, cwd, program=TRAIN):
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *program, *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def assert_refused(process, *texts):
    assert process.returncode == 2, process.stderr
    (sentence,) = process.stderr.splitlines()
    assert sentence.startswith(("train: ", "tiny_trainer: "))
    assert "Traceback" not in process.stdout
    for text in texts:
        assert text in sentence


def contents(path):
    return {
        entry.relative_to(path): entry.read_bytes() if entry.is_file() else None
        for entry in path.rglob("*")
    }


CONFIG_FILES = {
    "syntax.py": "x = 1 +",
    "nothing.py": "def get_config():\n    return None\n",
    "incomplete.py": (
        "from configs import default\n"
        "def get_config():\n"
        "    config = default.get_config('smoke')\n"
        "    del config.memory\n"
        "    return config\n"
    ),
    "extra.py": (
        "from configs import default\n"
        "def get_config():\n"
        "    config = default.get_config('smoke')\n"
        "    config.traversal.lane = 3\n"
        "    return config\n"
    ),
}


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        ([SMOKE, "--config.traversal.lane=3"], ["config.traversal.lane: no such", "lanes?"]),
        ([SMOKE, "--config.lanes=3"], ["did you mean config.traversal.lanes?"]),
        ([SMOKE, "--config.traversal=3"], ["config.traversal: no such field"]),
        ([SMOKE, "--config.traversal.lanes=1e6"], ["lanes='1e6': must be an integer", "4096"]),
        ([SMOKE, "--config.traversal.lanes=0"], ["lanes=0: must be an integer from 1"]),
        ([SMOKE, "--config.traversal.lanes"], ["--config.traversal.lanes", "--name=value"]),
        ([SMOKE, "--config.memory.advantage_capacity=-1"], ["advantage_capacity=-1: must be"]),
        ([SMOKE, "--config.utility_scale=fifty"], ["utility_scale='fifty': must be", "e.g. 50"]),
        (
            [SMOKE, "--config.network.residual=perhaps"],
            ["residual='perhaps': must be one of True, False"],
        ),
        ([SMOKE, "--config.network.kind=resnet"], ["kind='resnet': must be one of cards, mlp"]),
        (
            [SMOKE, "--config.traversal.scheme=escher"],
            ["scheme='escher': must be one of branch, outcome, external, robust, baseline, critic"],
        ),
        ([KUHN, "--config.network.per_player=False"], ["per_player=False: must be True with al"]),
        ([SMOKE, "--config.game.colours=3"], ["config.game.colours: ", "no such rule"]),
        ([SMOKE, "--config.game.colors=x"], ["config.game.colors='x': must be an integer"]),
        (["--config=missing.py"], ["--config=missing.py: must be an existing", "default.py:smoke"]),
        (["--config"], ["--config=: must be an existing configuration file"]),
        (["--config=configs/default.py:tiny"], ["preset 'tiny': must be one of smoke, cpu"]),
        (["--config=configs/kuhn.py:smoke"], ["kuhn.py:smoke: cannot be used"]),
        (["--config=syntax.py"], ["--config=syntax.py: cannot be used: SyntaxError"]),
        (["--config=nothing.py"], ["nothing.py: must return a ConfigDict"]),
        (["--config=incomplete.py"], ["config.memory: missing"]),
        (["--config=extra.py"], ["config.traversal.lane=3: no such field", "lanes?"]),
        ([SMOKE, "--wrokdir=x"], ["--wrokdir: no such flag; did you mean --workdir?"]),
        ([SMOKE, "--verbosity=loud"], ["verbosity"]),
        ([SMOKE, "smoke"], ["'smoke': not understood; flags are written --name=value"]),
    ],
)
def test_command_line_is_refused_before_anything_is_made(tmp_path, arguments, texts):
    for name, text in CONFIG_FILES.items():
        (tmp_path / name).write_text(text)
    before = contents(tmp_path)
    assert_refused(run(arguments, tmp_path), *texts)
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        ([SMOKE, "--config.game.hand_size=40"], ["config.game.hand_size=40: "]),
        ([SMOKE, "--config.game.max_discard_draws=None"], ["config.game.max_discard_draws=None"]),
        ([SMOKE, "--config.game.name=chess"], ["config.game.name='chess': must be one of"]),
        ([KUHN, "--config.network.kind=cards"], ["config.network.kind=", "kuhn_poker"]),
        (
            [SMOKE, "--config.evaluation.opponents=gandalf"],
            ["config.evaluation.opponents: "],
        ),
        ([KUHN, "--config.evaluation.opponents=discard_only"], ["discard_only", "lost_cities"]),
    ],
)
def test_what_the_game_cannot_do_is_refused_before_anything_is_made(tmp_path, arguments, texts):
    assert_refused(run(arguments, tmp_path), *texts)
    assert not list(tmp_path.iterdir())


def test_directories_that_are_no_runs_are_refused_untouched(tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "thesis.tex").write_text("years of work")
    before = contents(tmp_path)
    assert_refused(run([KUHN, "--workdir=work"], tmp_path), "--workdir=work: ", "thesis.tex")
    assert_refused(run([KUHN, "--workdir=work/thesis.tex"], tmp_path), "must be a directory")
    assert_refused(run([KUHN, "--workdir=work/thesis.tex/run"], tmp_path), "can be written")
    assert contents(tmp_path) == before


def test_runs_are_resumed_as_they_are_or_refused_untouched(tmp_path):
    def resume(*arguments):
        return run(["--workdir=run", *arguments], tmp_path, program=TINY)

    assert resume(KUHN, "--config.iterations=1").returncode == 0
    before = contents(tmp_path)

    assert_refused(resume(SMOKE), "config.game.name is 'lost_cities', was 'kuhn_poker'")
    assert_refused(resume("--config.seed=5"), "config.seed is 5, was 0", "--workdir=run")
    assert contents(tmp_path) == before

    checkpoint = tmp_path / "run" / "checkpoints" / "4"
    (checkpoint / "tree" / "_METADATA").write_text("{")
    damaged = contents(tmp_path)
    assert_refused(resume(), "holds no whole checkpoint (damaged: [4])")
    assert contents(tmp_path) == damaged

    (tmp_path / "run" / "config.json").write_text("{")
    assert_refused(resume(), "run/config.json: must be the configuration")


def test_help_is_short_and_no_mistake(tmp_path):
    process = run(["--help"], tmp_path)
    assert process.returncode == 0
    assert "python -m coorl_jax.train --config=" in process.stdout
    assert "--workdir: run directory" in process.stdout
    assert len(process.stdout.splitlines()) < 25


def test_overrides_may_come_before_the_file(tmp_path):
    process = run(["--config.traversal.lanes=0", SMOKE], tmp_path)
    assert_refused(process, "config.traversal.lanes=0: must be")
