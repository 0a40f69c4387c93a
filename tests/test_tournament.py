import dataclasses
import errno
import itertools
import json
import os
import re
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver

from coorl_jax import agents, plot, runtime, tournament, trained_agent
from coorl_jax.evaluation.match import MatchResult
from coorl_jax.games.kuhn_poker import BET, KuhnPoker
from coorl_jax.games.lost_cities import LostCities

FIELDS = {
    "game", "rules", "players", "rounds", "seed", "ratings", "intervals", "points_per_round",
    "points_per_round_se", "win_rate", "win_rate_se", "payoff", "payoff_se", "win_rates",
    "win_rates_se", "z", "intransitive_triples", "seconds",
}  # fmt: skip


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Bettor:
    """A player of Kuhn poker who bets or calls with the same probability on all cards."""

    probability: jax.Array

    def action_probabilities(self, packed, legal):
        bets = jnp.arange(legal.shape[1])[None] == BET
        return jnp.where(bets, self.probability, 1 - self.probability) * legal


@pytest.fixture
def command(monkeypatch, capsys):
    """Run the command in this process, players being bettors with a probability for a name."""

    def players(specs, flag, rules):
        assert flag == "--players"
        return KuhnPoker(), {spec: Bettor(jnp.float32(spec)) for spec in specs}

    monkeypatch.setattr(runtime, "configure", lambda *args: None)
    monkeypatch.setattr(trained_agent, "players", players)

    def call(*arguments):
        with flagsaver.flagsaver():
            flags.FLAGS(["tournament", "--rounds=100", *map(str, arguments)])
            tournament.main([])
        return capsys.readouterr()

    return call


def result(command, *arguments):
    return json.loads(command("--json", *arguments).out)


@pytest.fixture
def canned(monkeypatch):
    """Replace play by matches whose points are a function of the two policies' probabilities."""

    def replace(points):
        def play(game, a, b, pairs, key):
            values = np.full((pairs, 2), points(float(a.probability), float(b.probability)))
            values += np.arange(pairs)[:, None] % 2
            return MatchResult(values, np.full((pairs, 2), 4))

        monkeypatch.setattr(tournament, "play", play)

    return replace


def around(a, b):
    """Points of players 0, 1 and 2, each of whom beats the next."""
    return 3.0 if (b - a) % 3 == 1 else -4.0


def test_real_command(tmp_path):
    output = tmp_path / "new" / "directory"
    process = subprocess.run(
        [
            sys.executable, "-m", "coorl_jax.tournament", "--players=random,discard_only", "--json",
            "--rounds=20", "--seed=3", "--max_discard_draws=254", f"--output={output}",
        ],
        capture_output=True, text=True, check=False,
        env=os.environ | {"JAX_PLATFORMS": "cpu", runtime.CACHE_VARIABLE: "off"},
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    (line,) = process.stdout.splitlines()
    found = json.loads(line)
    assert set(found) == FIELDS
    assert (found["game"], found["players"]) == ("lost_cities", ["random", "discard_only"])
    assert found["rules"]["max_discard_draws"] == 254
    assert (found["rounds"], found["seed"]) == (20, 3)
    assert found["points_per_round"][0] == found["payoff"][0][1] < -20
    assert found["ratings"][0] < found["ratings"][1]
    (progress,) = process.stderr.splitlines()
    assert re.fullmatch(
        r"match 1/1: random against discard_only: -\d+\.\d\d \+- \d+\.\d\d points a round; "
        r"0:00:00 left",
        progress,
    )
    assert progress.split()[5] == f"{found['payoff'][0][1]:+.2f}"
    assert {path.name for path in output.iterdir()} == {"tournament.json", "payoff.png"}
    assert json.loads((output / "tournament.json").read_text()) == found
    assert (output / "payoff.png").read_bytes().startswith(b"\x89PNG\r\n")


def test_all_bots_meet_if_none_are_named(command, monkeypatch):
    asked = []

    def players(specs, flag, rules):
        assert rules is None
        asked.extend(specs)
        raise ValueError("enough")

    monkeypatch.setattr(trained_agent, "players", players)
    with pytest.raises(ValueError, match="enough"):
        command()
    assert asked == [*agents.names(LostCities())]


def test_text_has_the_numbers_of_the_json_sorted_by_rating(command):
    players = "--players=0.1,0.9,0.5"
    found = result(command, players)
    text = command(players).out
    order = sorted(range(3), key=lambda player: -found["ratings"][player])
    assert order != [0, 1, 2]
    ratings, matrix, triples = text.strip().split("\n\n")
    assert triples == (
        "no intransitive triple (three who beat each other in turn, each by more than 2.39 "
        "standard errors)"
    )
    heading, *rows = ratings.splitlines()
    assert re.split(r"\s\s+", heading.strip()) == [
        "player", "rating", "95 % interval", "points a round", "wins %",
    ]  # fmt: skip
    for number, (row, player) in enumerate(zip(rows, order, strict=True), start=1):
        low, high = found["intervals"][player]
        assert re.split(r"\s\s+", row.strip()) == [
            str(number),
            found["players"][player],
            f"{found['ratings'][player]:+.0f}",
            f"{low:+.0f} to {high:+.0f}",
            f"{found['points_per_round'][player]:+.2f} +- "
            f"{found['points_per_round_se'][player]:.2f}",
            f"{100 * found['win_rate'][player]:.1f} +- {100 * found['win_rate_se'][player]:.1f}",
        ]
    caption, heading, *rows = matrix.splitlines()
    error = max(max(filter(None, row)) for row in found["payoff_se"])
    # Three digits of the largest number.
    highest = max(max(filter(None, row)) for row in found["payoff"])
    decimals = 3 if highest < 1 else 2
    assert caption == (
        "points a round of row against column, 100 rounds, standard errors up to "
        f"{error:.{decimals}f}"
    )
    assert heading.split() == ["player", "1", "2", "3"]
    for number, (row, player) in enumerate(zip(rows, order, strict=True), start=1):
        points = [found["payoff"][player][other] for other in order if other != player]
        assert row.split() == [
            str(number),
            found["players"][player],
            *(f"{value:+.{decimals}f}" for value in points),
        ]
        # Nothing where a player would meet itself.
        assert row.endswith(" " * 6) == (number == 3)
    assert text.isascii()


def test_the_order_of_the_players_only_permutes_the_numbers(command):
    found = result(command, "--players=0.1,0.9,0.5")
    other = result(command, "--players=0.5,0.1,0.9")
    order = [2, 0, 1]
    for name in ("payoff", "payoff_se", "win_rates", "win_rates_se"):
        assert other[name] == [[found[name][row][column] for column in order] for row in order]
    for name in ("ratings", "intervals", "points_per_round", "win_rate", "points_per_round_se"):
        np.testing.assert_allclose(other[name], [found[name][row] for row in order], atol=1e-8)
    for row, column in itertools.permutations(range(3), 2):
        assert found["payoff"][row][column] == -found["payoff"][column][row] != 0
    assert [found["payoff"][n][n] for n in range(3)] == [None] * 3


def test_seed_and_rounds_decide_the_deals(command):
    players = "--players=0.1,0.9"
    first, again, seed, rounds = (
        result(command, players, *arguments)
        for arguments in ([], [], ["--seed=1"], ["--rounds=102"])
    )
    assert first["payoff"] == again["payoff"]
    assert first["intervals"] == again["intervals"]
    assert seed["payoff"] != first["payoff"] != rounds["payoff"]
    assert (first["rounds"], rounds["rounds"]) == (100, 102)


def test_circles_are_named_by_text_and_json(command, canned):
    canned(around)
    arguments = ["--players=0,1,2"]
    found = result(command, *arguments)
    assert found["intransitive_triples"] == [["0", "1", "2"]]
    out, err = command(*arguments)
    assert out.endswith(
        "\nintransitive triple: 0 beats 1 beats 2 beats 0, each by more than 2.39 standard errors\n"
    )
    assert [line.split(";")[0] for line in err.splitlines()] == [
        "match 1/3: 0 against 1: +3.50 +- 0.07 points a round",
        "match 2/3: 0 against 2: -3.50 +- 0.07 points a round",
        "match 3/3: 1 against 2: +3.50 +- 0.07 points a round",
    ]


def test_two_players_make_no_triple(command):
    assert "triple" not in command("--players=0.1,0.9").out


def test_picture_has_the_numbers_of_the_table(command, canned, monkeypatch, tmp_path):
    from matplotlib.figure import Figure

    drawn = []
    save = Figure.savefig

    def savefig(figure, *args, **kwargs):
        axes = figure.axes[0]
        drawn.append(
            {
                "cells": {tuple(text.xy[::-1]): text.get_text() for text in axes.texts},
                "rows": [label.get_text() for label in axes.get_yticklabels()],
                "colors": axes.images[0].get_array(),
            }
        )
        save(figure, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", savefig)
    canned(lambda a, b: 10.0 * (a - b))
    found = result(command, "--players=1,2,0", f"--output={tmp_path}")
    (picture,) = drawn
    assert picture["rows"] == ["2  1", "1  2", "0  3"]
    assert picture["cells"] == {
        (0, 1): "+9.5\n±0.1", (0, 2): "+20.5\n±0.1", (1, 2): "+10.5\n±0.1",
        (1, 0): "-9.5\n±0.1", (2, 0): "-20.5\n±0.1", (2, 1): "-10.5\n±0.1",
    }  # fmt: skip
    np.testing.assert_allclose(picture["colors"][0], [0, 9.5, 20.5])
    assert found["players"] == ["1", "2", "0"]


def test_an_interrupt_leaves_nothing_half_written(command, canned, tmp_path):
    def interrupted(a, b):
        if a == 1:
            raise KeyboardInterrupt
        return 1.0

    canned(interrupted)
    with pytest.raises(KeyboardInterrupt):
        command("--players=0,1,2", f"--output={tmp_path / 'results'}")
    assert list((tmp_path / "results").iterdir()) == []


def test_results_that_cannot_be_written_are_printed(command, canned, capsys, monkeypatch, tmp_path):
    def full(path, text):
        raise OSError(errno.ENOSPC, "No space left on device")

    canned(lambda a, b: 1.0)
    monkeypatch.setattr(tournament, "replace_text", full)
    with pytest.raises(ValueError, match=r"^--output=.*: the results cannot be written \(No space"):
        command("--players=0,1", "--json", f"--output={tmp_path / 'results'}")
    assert set(json.loads(capsys.readouterr().out)) == FIELDS


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--players="], "--players=: must be at least two"),
        (["--players=0.5"], "--players=0.5: must be at least two, separated by commas"),
        (["--rounds=2"], "--rounds=2: must be even"),
        (["--rounds=7"], "--rounds=7: must be even"),
        (["--max_discard_draws=300"], "--max_discard_draws=300: must be an integer from 0 to 254"),
        (["--seed=-1"], "--seed=-1: must be an integer from 0"),
        (["--output={full}"], "{full}: must be a new or empty directory that can be written, but"),
        (["--output={full}/file"], "file: must be a new or empty directory"),
        (["--output={full}/file/new"], "new: must be a new or empty directory"),
    ],
)
def test_mistakes_are_one_sentence_before_anything_is_played(
    command, canned, tmp_path, arguments, sentence
):
    def refuse(a, b):
        raise AssertionError("played")

    canned(refuse)
    (tmp_path / "file").write_text("kept")
    arguments = [argument.format(full=tmp_path) for argument in arguments]
    with pytest.raises(ValueError, match=r"^[^\n]+; e\.g\. [^\n]+$") as error:
        command("--players=0.5,0.6", *arguments)
    assert sentence.format(full=tmp_path) in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_wrong_players_are_refused_before_a_directory_is_made(command, monkeypatch, tmp_path):
    monkeypatch.undo()
    monkeypatch.setattr(runtime, "configure", lambda *args: None)
    for specs, text in (
        ("random,random", "must be different players"),
        ("random,bob", "--players=bob: must be a bot"),
    ):
        with pytest.raises(ValueError, match=text):
            command(f"--players={specs}", f"--output={tmp_path / 'results'}")
    assert list(tmp_path.iterdir()) == []


def test_matplotlib_is_needed_for_the_picture_only(command, canned, monkeypatch, tmp_path):
    canned(around)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ValueError, match=r"pip install 'coorl-jax\[plots\]'"):
        command("--players=0,1,2", f"--output={tmp_path / 'results'}")
    assert list(tmp_path.iterdir()) == []
    assert "intransitive triple" in command("--players=0,1,2").out


def test_players_of_the_same_strength_are_drawn_too(tmp_path):
    zeros = np.zeros((2, 2))
    plot.payoff_heat_map(tmp_path / "payoff.png", ["a", "b"], zeros, zeros, 1)
    assert (tmp_path / "payoff.png").read_bytes().startswith(b"\x89PNG\r\n")
    assert len(list(tmp_path.iterdir())) == 1


def test_interrupt_while_a_match_is_played_ends_at_once():
    process = subprocess.Popen(
        [
            sys.executable, "-m", "coorl_jax.tournament", "--rounds=20000",
            "--players=random,discard_only,safe_heuristic",
        ],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"JAX_PLATFORMS": "cpu", runtime.CACHE_VARIABLE: "off"},
        # A shell lets what it starts in the background ignore interrupts, and so their children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert process.stderr is not None
    assert process.stderr.readline().startswith("match 1/3: random against discard_only:")
    for _ in range(20):
        # A library's callback may swallow one.
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=1)
            break
        except subprocess.TimeoutExpired:
            continue
    out, err = process.communicate(timeout=60)
    # Python would die of SIGSEGV, if it waited for the program of XLA to end.
    assert (process.returncode, out, err) == (130, "", "tournament: interrupted\n")
