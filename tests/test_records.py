"""Reading, replaying and writing recorded games; the replay command."""

from __future__ import annotations

import copy
import gzip
import json
import os
import pathlib
import subprocess
import sys

import game_checks
import numpy as np
import pytest

from coorl_jax import replay as command
from coorl_jax.games.lost_cities import LostCities, records

DATA = pathlib.Path(__file__).parent / "data"
ROOT = DATA.parent.parent
SMALL = DATA / "games_random_2c4r1h3.jsonl.gz"
POSITIONS = DATA / "bot_decisions_3c5r1h4.jsonl.gz"


def load(path):
    return [json.loads(line) for line in gzip.open(path, "rt")]


def save(path, entries):
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


def disagreements(path):
    return list(records.replay(records.read_records(path)))


def found(path):
    """Return (game, decision, field) of every disagreement."""
    return [(each.game, each.decision, each.field) for each in disagreements(path)]


# Corrupted records: each change is reported, and nothing else is.


def change_step(field, value):
    def corrupt(entry):
        entry["steps"][4][field] = value

    return corrupt


def change(field, value):
    def corrupt(entry):
        entry[field] = value

    return corrupt


@pytest.mark.parametrize(
    ("corrupt", "decision", "field"),
    [
        (change_step("player", 1), 4, "player"),
        (change_step("player", None), 4, "player"),
        (change_step("phase", "draw"), 4, "phase"),
        (change_step("legal", [0, 1, 2, 3, 4]), 4, "legal"),
        (change_step("legal", [1, 0, 2, 3, 4, 5]), 4, "legal"),
        (change_step("legal", []), 4, "legal"),
        (change_step("action", 6), 4, "action"),
        (change_step("action", -1), 4, "action"),
        (change_step("action", 10**12), 4, "action"),
        (change("deck_left", 1), 12, "deck_left"),
        (change("scores", [-40, -17]), 12, "scores"),
        (change("expedition_scores", [[-17, 0], [0, -40]]), 12, "expedition_scores"),
        (change("expeditions", [[[2], []], [[], [0]]]), 12, "expeditions"),
        (change("expeditions", [[[2], []], [[0]]]), 12, "expeditions"),
        (change("terminal", False), 12, "terminal"),
        (change("truncated", True), 12, "truncated"),
        (change("n_steps", 13), 12, "n_steps"),
    ],
)
def test_a_corrupted_game_is_reported(tmp_path, corrupt, decision, field):
    entries = load(SMALL)[:3]
    assert len(entries[0]["steps"]) == 12
    corrupt(entries[0])
    assert found(save(tmp_path / "games.jsonl", entries)) == [(0, decision, field)]


def test_each_corrupted_game_is_named(tmp_path):
    entries = load(SMALL)
    entries[7]["scores"][1] += 1
    entries[30]["steps"][0]["player"] = 1
    path = save(tmp_path / "games.jsonl", entries)
    assert [(each.line, each.game, each.field) for each in disagreements(path)] == [
        (8, entries[7]["game"], "scores"),
        (31, entries[30]["game"], "player"),
    ]
    first = disagreements(path)[0]
    assert first.recorded == entries[7]["scores"]
    assert first.engine == [entries[7]["scores"][0], entries[7]["scores"][1] - 1]
    end = len(entries[7]["steps"])
    assert str(first).startswith(f"line 8, game {first.game}, decision {end}, scores: recorded ")


def test_other_rules_are_noticed(tmp_path):
    for name, value, fields in (
        ("expedition_penalty", -10, {"scores", "expedition_scores"}),
        ("bonus_threshold", 2, {"scores", "expedition_scores"}),
        ("max_discard_draws", 0, {"legal", "action"}),
    ):
        entries = load(SMALL)
        for entry in entries:
            entry["config"][name] = value
        assert {field for _, _, field in found(save(tmp_path / "games.jsonl", entries))} == fields


def test_a_game_cut_short_and_one_that_goes_on(tmp_path):
    entries = load(SMALL)[:2]
    last = entries[0]["steps"].pop()
    entries[1]["steps"].append({**last, "player": 0})
    path = save(tmp_path / "games.jsonl", entries)
    assert {(each.line, each.field) for each in disagreements(path)} == {
        *((1, field) for field in ("terminal", "truncated", "deck_left", "n_steps")),
        (2, "terminal"),
    }


def test_a_truncated_game_agrees(tmp_path):
    whole = load(SMALL)[0]
    game = LostCities(colors=2, ranks=4, wagers=1, hand_size=3, max_discard_draws=None)
    taken = [step["action"] for step in whole["steps"]][:5]
    path = tmp_path / "games.jsonl"
    records.write_games(path, game, np.array([whole["deck"]]), np.array([taken]), np.array([5]))
    (entry,) = [json.loads(line) for line in path.read_text().splitlines()]
    assert (entry["terminal"], entry["truncated"], entry["n_steps"]) == (False, True, 5)
    assert entry["steps"] == whole["steps"][:5]
    assert disagreements(path) == []


@pytest.mark.parametrize(
    ("corrupt", "field"),
    [
        (lambda entry: entry.update(player=1 - entry["player"]), "player"),
        (lambda entry: entry.update(phase="draw"), "phase"),
        (lambda entry: entry["bot_actions"].update(discard_only=9), "bot_actions.discard_only"),
    ],
)
def test_a_corrupted_position_is_reported(tmp_path, corrupt, field):
    entries = load(POSITIONS)[:3]
    assert entries[0]["phase"] == "card"
    corrupt(entries[0])
    path = save(tmp_path / "positions.jsonl", entries)
    assert found(path) == [(0, len(entries[0]["prefix"]), field)]


def test_what_a_bot_does_there_is_compared(tmp_path):
    entries = load(POSITIONS)[:3]
    rules = []

    def plays(bot, game, packed, legal):
        rules.append(game)
        assert packed.shape == (3, game.packed_size)
        assert packed[:, game.num_cards + game.hand_size].tolist() == [
            ("card", "draw").index(entry["phase"]) for entry in entries
        ]
        recorded = [entry["bot_actions"][bot] for entry in entries]
        # The second position is contradicted for one bot, by another legal action or by none.
        mask = np.eye(game.num_actions, dtype=bool)[recorded]
        if bot == "heuristic_cautious":
            mask[1] = legal[1] & ~mask[1]
        return mask

    path = save(tmp_path / "positions.jsonl", entries)
    (found,) = records.replay(records.read_records(path), plays)
    assert len(rules) == len(entries[0]["bot_actions"])
    recorded = entries[1]["bot_actions"]["heuristic_cautious"]
    assert found[1:5] == (
        entries[1]["game"],
        len(entries[1]["prefix"]),
        "bot_actions.heuristic_cautious",
        recorded,
    )
    assert recorded not in found.engine
    assert str(found).endswith(f"recorded {recorded}, heuristic_cautious plays {found.engine}")


def test_no_bot_is_asked_after_the_end(tmp_path):
    whole = load(SMALL)[0]
    entry = {key: whole[key] for key in ("config", "deck")} | {
        "prefix": [step["action"] for step in whole["steps"]],
        "player": 0,
        "phase": "card",
        "bot_actions": {"discard_only": 1},
    }
    path = save(tmp_path / "positions.jsonl", [entry])

    def plays(*_):
        raise AssertionError

    assert [found.field for found in records.replay(records.read_records(path), plays)] == [
        "terminal"
    ]


def test_an_illegal_prefix_is_reported_once(tmp_path):
    entries = load(POSITIONS)[:3]
    entries[0]["prefix"][1] = 9
    assert found(save(tmp_path / "positions.jsonl", entries)) == [(0, 1, "action")]


# Files that hold no records: one sentence with file and line.


def one_line(entry_or_text):
    text = entry_or_text if isinstance(entry_or_text, str) else json.dumps(entry_or_text)
    good = json.dumps(load(SMALL)[0])
    return f"{good}\n{text}\n".encode()


def without(key):
    entry = load(SMALL)[0]
    del entry[key]
    return entry


def edited(**values):
    return load(SMALL)[0] | values


def config(**values):
    entry = load(SMALL)[0]
    return entry | {"config": entry["config"] | values}


def step_without(key):
    entry = copy.deepcopy(load(SMALL)[0])
    del entry["steps"][2][key]
    return entry


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (one_line("{"), "line 2: must be one JSON object"),
        (one_line("[1]"), "line 2: must be one JSON object"),
        (one_line(without("config")), 'line 2: lacks the key "config"'),
        (one_line(without("deck")), 'line 2: lacks the key "deck"'),
        (one_line(without("steps")), 'line 2: lacks the key "steps"'),
        (one_line(without("scores")), 'line 2: lacks the key "scores"'),
        (one_line(step_without("legal")), 'line 2, step 2: lacks the key "legal"'),
        (one_line(edited(steps={})), 'line 2: the value of "steps" must be a list'),
        (one_line(edited(steps=[3])), "line 2, step 0: must be an object"),
        (one_line(edited(deck=list(range(9)))), "line 2: deck must be a permutation of the 10"),
        (one_line(edited(deck=[0, *range(9)])), "line 2: deck must be a permutation of the 10"),
        (one_line(edited(deck=["a"] * 10)), "line 2: deck must be a permutation of the 10"),
        (one_line(config(n_colours=2)), "line 2: config has the unknown parameter 'n_colours'"),
        (one_line(edited(config={"n_colors": 2})), 'line 2: config lacks the key "n_ranks"'),
        (one_line(config(hand_size=5)), "line 2: config: hand_size=5"),
        (one_line(config(n_colors="2")), "line 2: config: colors='2'"),
        (one_line(edited(prefix=[0.5], player=0, phase="card", bot_actions={})), "line 2: every"),
        (b"", "must hold at least one record"),
        (b"\n\n", "must hold at least one record"),
        (b"\xff\xfe\x00", "line 1: must be UTF-8"),
        (b"\x1f\x8b rubbish", "line 1: the gzip data are damaged"),
        (SMALL.read_bytes()[:-700], "the gzip data are damaged or cut short"),
        (SMALL.read_bytes()[:-4] + b"1234", "the gzip data are damaged or cut short"),
    ],
)
def test_bad_files_end_in_one_sentence(tmp_path, content, message):
    path = tmp_path / "games.jsonl"
    path.write_bytes(content)
    with pytest.raises(records.RecordError) as caught:
        list(records.read_records(path))
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["missing.jsonl", "."])
def test_unreadable_files_end_in_one_sentence(tmp_path, name):
    with pytest.raises(records.RecordError, match="cannot be read"):
        list(records.read_records(tmp_path / name))


# Writing.


def test_recorded_games_are_written_as_they_were_read(tmp_path):
    entries = load(SMALL)
    game = LostCities(colors=2, ranks=4, wagers=1, hand_size=3, max_discard_draws=None)
    taken = [[step["action"] for step in entry["steps"]] for entry in entries]
    lengths = np.array([len(each) for each in taken])
    actions = np.full((len(taken), lengths.max() + 3), 99)
    for row, each in zip(actions, taken, strict=True):
        row[: len(each)] = each
    path = tmp_path / "games.jsonl"
    records.write_games(
        path, game, np.array([entry["deck"] for entry in entries]), actions, lengths
    )
    written = [json.loads(line) for line in path.read_text().splitlines()]
    for number, (entry, copied) in enumerate(zip(entries, written, strict=True)):
        assert copied.pop("config") == entry.pop("config") | {"max_discard_draws": None}
        del entry["set"]
        assert copied == entry | {"game": number}


@pytest.mark.parametrize("name", ["games.jsonl", "games.jsonl.gz"])
def test_own_games_agree(tmp_path, name):
    game = LostCities(colors=3, ranks=4, wagers=2, hand_size=3, max_discard_draws=5)
    rounds = game_checks.random_rounds(game)
    lengths = (~rounds.terminal).sum(axis=1)
    path = tmp_path / name
    records.write_games(path, game, rounds.states.deck[:, 0], rounds.actions, lengths)
    assert (path.read_bytes()[:2] == b"\x1f\x8b") == name.endswith(".gz")
    read = list(records.read_records(path))
    assert [record.rules for record in read] == [game] * len(lengths)
    assert list(records.replay(read)) == []
    assert len({tuple(record.actions) for record in read}) == len(read)


def test_equal_games_make_equal_files(tmp_path):
    game = LostCities(colors=2, ranks=4, wagers=1, hand_size=3)
    for name in ("a.gz", "b.gz"):
        records.write_games(
            tmp_path / name, game, np.arange(10)[None], np.array([[1, 6]]), np.array([2])
        )
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()


def test_illegal_games_are_not_written(tmp_path):
    game = LostCities(colors=2, ranks=4, wagers=1, hand_size=3)
    with pytest.raises(ValueError, match="decision 1, action 7: must be one of the legal"):
        records.write_games(
            tmp_path / "games.jsonl", game, np.arange(10)[None], np.array([[1, 7]]), np.array([2])
        )


def test_unwritable_files_end_in_one_sentence(tmp_path):
    game = LostCities(colors=2, ranks=4, wagers=1, hand_size=3)
    with pytest.raises(records.RecordError, match="cannot be written"):
        records.write_games(
            tmp_path / "no" / "g.gz", game, np.arange(10)[None], np.array([[1]]), np.array([1])
        )


# The command.


def test_command_names_the_first_disagreements_and_counts_the_rest(tmp_path, capsys):
    entries = load(SMALL)
    for entry in entries:
        entry["scores"] = [7, 7]
    path = save(tmp_path / "games.jsonl", entries)
    with pytest.raises(SystemExit) as caught:
        command.main([str(SMALL), str(path)])
    assert caught.value.code == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{SMALL}: 50 records, 508 decisions: all agree"
    assert lines[1].startswith(f"{path}: line 1, game 0, decision 12, scores: recorded [7, 7], ")
    assert lines[20].startswith(f"{path}: line 20, ")
    assert lines[21] == f"{path}: 30 more disagreements, not shown"
    assert lines[22] == f"{path}: 50 records, 508 decisions: 50 disagreements"
    assert len(lines) == 23


def test_command_checks_the_actions_of_bots(tmp_path, capsys):
    entries = load(POSITIONS)[:40]
    at, entry = next(
        (at, entry)
        for at, entry in enumerate(entries)
        if entry["phase"] == "card" and entry["bot_actions"]["discard_only"] != 3
    )
    actions = entry["bot_actions"]
    actions["discard_only"] = 3  # legal, but it discards the first card
    # Older names; and chance, of which any legal action may come.
    actions["safe_heuristic"] = actions.pop("heuristic_balanced")
    actions |= {"heuristic_noisy": 5, "random": 7}
    path = save(tmp_path / "positions.jsonl", entries)
    with pytest.raises(SystemExit):
        command.main([str(path)])
    decisions = sum(len(entry["prefix"]) for entry in entries)
    assert capsys.readouterr().out.splitlines() == [
        f"{path}: line {at + 1}, game {entry['game']}, decision {len(entry['prefix'])}, "
        "bot_actions.discard_only: recorded 3, discard_only plays [1]",
        f"{path}: 40 records, {decisions} decisions, 162 decisions of bots: 1 disagreements",
    ]


def test_command_names_an_unknown_bot(tmp_path):
    entries = load(POSITIONS)[:2]
    entries[1]["bot_actions"]["bob"] = 1
    path = save(tmp_path / "positions.jsonl", entries)
    with pytest.raises(records.RecordError) as caught:
        command.main([str(path)])
    assert str(caught.value).startswith(
        f"{path}, line 2: bot_actions has the unknown bot 'bob'; must be one of random, "
        "discard_only, heuristic_balanced, "
    )


def run_command(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "coorl_jax.replay", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        check=False,
    )


def test_command_exit_codes(tmp_path):
    done = run_command(SMALL)
    assert (done.returncode, done.stderr) == (0, "")
    entries = load(SMALL)[:1]
    entries[0]["deck_left"] = 5
    assert run_command(save(tmp_path / "games.jsonl", entries)).returncode == 1
    for arguments in ((), (tmp_path / "missing.jsonl",), ("--unknown", SMALL)):
        refused = run_command(*arguments)
        assert refused.returncode == 2
        assert len(refused.stderr.splitlines()) == 1
        assert refused.stdout == ""
