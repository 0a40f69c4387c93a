import gzip
import json
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from absl import flags
from absl.testing import flagsaver

from configs import default, kuhn
from coorl_jax import config, evaluate, runtime
from coorl_jax.checkpoint import CheckpointStore
from coorl_jax.games.lost_cities import records
from coorl_jax.policy import make_network, make_value_network

FIELDS = {
    "iteration", "policy", "opponent", "rounds", "points_per_round", "points_per_round_se",
    "win_rate", "win_rate_se", "draw_rate", "draw_rate_se", "loss_rate", "loss_rate_se",
    "decisions_per_round", "elapsed_seconds",
}  # fmt: skip


def write_run(path, settings):
    """Write policies with new parameters, as a trainer does after iterations 1 and 2."""
    init = jax.jit(make_network(settings).init)
    with CheckpointStore(path / "policies") as store:
        for iteration in (1, 2):
            keys = jax.random.split(jax.random.key(iteration), 2)
            parameters = {"current": (init(keys[0]),), "average": (init(keys[1]),)}
            if settings.mixture.capacity:
                stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, -leaf]), parameters["current"])
                parameters["mixture"] = {"params": stacked, "weights": jnp.array([0.5, 0.5])}
            if settings.traversal.scheme == "critic":
                # Saved with the policies, and played by nobody.
                parameters["value"] = (make_value_network(settings).init(keys[0]),)
            store.save(iteration, parameters, {"config": config.to_dict(settings)})
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    values = default.get_config("smoke")
    values.game.update(colors=2, ranks=4, wagers=1, hand_size=3, max_discard_draws=3)
    values.network.update(width=8, depth=2)
    return write_run(tmp_path_factory.mktemp("lost"), config.from_config_dict(values))


@pytest.fixture(scope="module")
def kuhn_run(tmp_path_factory):
    settings = config.from_config_dict(kuhn.get_config())
    settings = config.override(settings, {"mixture.capacity": 2, "traversal.scheme": "critic"})
    return write_run(tmp_path_factory.mktemp("kuhn"), settings)


@pytest.fixture
def command(monkeypatch, capsys):
    """Run the command in this process and return what it prints."""
    monkeypatch.setattr(runtime, "configure", lambda: None)

    def call(*arguments):
        with flagsaver.flagsaver():
            flags.FLAGS(["evaluate", "--rounds=40", *map(str, arguments)])
            evaluate.main([])
        return capsys.readouterr().out

    return call


def test_real_command_writes_records_that_agree_with_the_engine(run, tmp_path):
    record = tmp_path / "games.jsonl.gz"
    result = subprocess.run(
        [
            sys.executable, "-m", "coorl_jax.evaluate", f"--checkpoint={run}", "--json",
            "--rounds=6", "--opponents=random,discard_only", f"--record={record}",
        ],
        capture_output=True, text=True, check=False,
        env=os.environ | {"JAX_PLATFORMS": "cpu", runtime.CACHE_VARIABLE: "off"},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(row["policy"], row["opponent"]) for row in rows] == [
        ("current", "random"),
        ("current", "discard_only"),
        ("average", "random"),
        ("average", "discard_only"),
    ]
    assert all(set(row) == FIELDS and row["rounds"] == 6 for row in rows)
    games = list(records.read_records(record))
    assert len(games) == 4 * 6
    assert games[0].deck == games[1].deck != games[2].deck
    assert list(records.replay(games)) == []
    # The recorded scores are those of the table.
    with gzip.open(record, "rt") as file:
        games = [json.loads(line) for line in file]
    points = []
    for n, game in enumerate(games[:6]):
        assert game["players"] == ["current", "random"][:: (1, -1)[n % 2]]
        mine, theirs = game["scores"][:: (1, -1)[n % 2]]
        points.append(mine - theirs)
    assert games[-1]["players"] == ["discard_only", "average"]
    assert rows[0]["points_per_round"] == pytest.approx(sum(points) / 6)


def test_table_is_plain_text_when_piped(command, run):
    out = command(f"--checkpoint={run}", "--opponents=random", "--policy=average")
    iteration, heading, row = out.strip().splitlines()
    assert iteration == f"{run}: policies of iteration 2"
    assert heading.split() == [
        "policy", "opponent", "rounds", "points", "per", "round", "wins", "%", "draws", "%",
        "losses", "%",
    ]  # fmt: skip
    assert row.split()[:3] == ["average", "random", "40"]
    assert out.isascii()


def test_one_step_or_the_latest(command, run):
    latest, second, first = (
        json.loads(command(f"--checkpoint={path}", "--json", "--opponents=random",
                           "--policy=current"))
        for path in (run, run / "policies" / "2", run / "policies" / "1")
    )  # fmt: skip
    assert latest["points_per_round"] == second["points_per_round"] != first["points_per_round"]


def test_several_agents_at_once_with_bots_and_agents_as_opponents(command, run):
    first, second = run / "policies" / "1", run / "policies" / "2"
    rows = [
        json.loads(line)
        for line in command(
            f"--checkpoint={first},{second}",
            "--policy=average",
            f"--opponents=discard_only,{second}:average,{second}:current:greedy",
            "--json",
        ).splitlines()
    ]
    assert [(row["iteration"], row["policy"]) for row in rows] == [
        (1, f"{first}:average")] * 3 + [(2, f"{second}:average")
    ] * 3  # fmt: skip
    assert rows[3]["opponent"] == "discard_only"
    # The second agent against itself.
    assert rows[4]["points_per_round"] == rows[4]["points_per_round_se"] == 0
    assert rows[1]["points_per_round"] != 0
    assert rows[5]["points_per_round"] != 0


def test_greedy_is_temperature_zero(command, run):
    arguments = [f"--checkpoint={run}", "--policy=average", "--json"]
    (row,) = (
        json.loads(line)
        for line in command(
            *arguments, "--temperature=0", f"--opponents={run}:average:greedy"
        ).splitlines()
    )
    assert row["points_per_round"] == row["points_per_round_se"] == 0
    (row,) = (
        json.loads(line)
        for line in command(*arguments, f"--opponents={run}:average:greedy").splitlines()
    )
    assert row["points_per_round"] != 0


def test_full_diagnostics_tell_how_they_play(command, run):
    arguments = [f"--checkpoint={run}", "--opponents=discard_only", "--policy=current"]
    row = json.loads(command(*arguments, "--diagnostics=full", "--json"))
    assert row["opponent_opened_colors"] == 0
    assert row["policy_entropy"] >= 0
    assert {"match_points", "match_win_rate", "points_p50", "fallback_rate"} <= set(row)
    out = command(*arguments, "--diagnostics=full")
    assert "current against discard_only" in out
    assert "opponent_opened_colors  " in out


def test_timings_tell_where_the_time_goes(command, run, kuhn_run):
    arguments = [f"--checkpoint={run}", "--opponents=discard_only", "--policy=current"]
    row = json.loads(command(*arguments, "--timings", "--json"))
    assert row["rounds_per_second"] > 0
    assert row["policy_share"] > 0
    assert row["opponent_share"] > 0
    out = command(*arguments, "--timings")
    assert out.splitlines()[-2].split() == [
        "policy", "opponent", "rounds", "a", "second", "policy", "%", "opponent", "%",
    ]  # fmt: skip
    row = json.loads(command(f"--checkpoint={kuhn_run}", "--policy=mixture", "--timings", "--json"))
    assert row["policy_share"] is None


def test_kuhn_meets_the_opponents_that_play_it(command, kuhn_run):
    rows = [json.loads(line) for line in command(f"--checkpoint={kuhn_run}", "--json").splitlines()]
    assert [row["opponent"] for row in rows] == ["random", "random"]


def test_a_mixture_that_was_kept_can_be_played(command, kuhn_run):
    out = command(f"--checkpoint={kuhn_run}", "--json", "--policy=mixture,current")
    mixture, current = (json.loads(line) for line in out.splitlines())
    assert (mixture["policy"], mixture["rounds"]) == ("mixture", 40)
    assert mixture["points_per_round"] != current["points_per_round"]
    assert mixture["points_per_round_se"] > 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "--checkpoint: must be given, a run directory"),
        (
            ["--checkpoint=nowhere"],
            "--checkpoint=nowhere: must be a run directory or one of its policies",
        ),
        (["--checkpoint={run}/policies/7"], "policies/7"),
        (["--checkpoint={run}", "--rounds=2"], "--rounds=2: must be even, since every deal is"),
        (["--checkpoint={run}", "--rounds=7"], "--rounds=7: must be even"),
        (["--checkpoint={run}", "--rounds=40000000"], "standard error, to 10000000; e.g. 4000"),
        (
            ["--checkpoint={run}", "--record=/proc/games"],
            "--record=/proc/games: must be a new file",
        ),
        (["--checkpoint={run}", "--temperature=-1"], "--temperature=-1.0: must be from 0 to 1e6"),
        (["--checkpoint={run},{run}"], "must be different; e.g. --checkpoint=runs/my-run"),
        (["--checkpoint={run},{run}/"], "must be different; e.g. --checkpoint=runs/my-run"),
        (["--checkpoint={run},{kuhn}"], "must play the same game by the same rules as"),
        (["--checkpoint={run}", "--seed=-1"], "--seed=-1: must be an integer from 0"),
        (["--checkpoint={run}", "--opponents=bob"], "--opponents=bob: must be a bot (random, "),
        (["--checkpoint={run}", "--policy=best"], "--policy=best: must be among current, av"),
        (["--checkpoint={run}", "--policy=mixture"], "--policy=mixture: must be among current"),
        (
            ["--checkpoint={run}", "--record=no/where.gz"],
            "--record=no/where.gz: must be a new f",
        ),
        (["--checkpoint={run}", "--record=/dev/null"], "--record=/dev/null: must be a new file"),
        (["--checkpoint={kuhn}", "--record=games"], "--record=games: must not be given for kuhn"),
        (["--checkpoint={kuhn}", "--opponents=discard_only"], "plays lost_cities only, not kuhn"),
    ],
)
def test_mistakes_are_one_sentence(command, run, kuhn_run, arguments, sentence):
    with pytest.raises(ValueError, match=r"^[^\n]+$") as error:
        command(*(argument.format(run=run, kuhn=kuhn_run) for argument in arguments))
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        ("--policy=", "--policy=: must be different names"),
        ("--opponents=random,random", "--opponents=random,random: must be different players"),
    ],
)
def test_names_are_given_and_different(command, run, argument, text):
    with pytest.raises(ValueError, match=text):
        command(f"--checkpoint={run}", argument)
