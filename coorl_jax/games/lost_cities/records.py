"""Recorded rounds of Lost Cities: read them, replay them, write them.

A file holds one JSON object a line, gzipped or not. Every object has `config` (the rule
parameters) and `deck` (card ids in draw order), and is one of

* a game: `steps`, one `{player, phase, legal, action}` a decision, and the state they end in:
  `terminal`, `truncated` (recording stopped before the end), `deck_left`, `scores`,
  `expedition_scores[player][colour]`, `expeditions[player][colour]` as ranks in order (0 for a
  wager);
* a position: `prefix`, the actions so far, `player` and `phase` to decide, and `bot_actions`, what
  each of some bots does there, by name.

Replay takes a line apart into the actions and a list of expectations, each about one decision,
and compares these with what the engine says when it plays the actions (`trace.py`).
"""

from __future__ import annotations

import dataclasses
import gzip
import io
import itertools
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np

from coorl_jax.games.lost_cities.rules import LostCities
from coorl_jax.games.lost_cities.trace import Trace, field_value, trace_games

# Name of a rule parameter in a file -> field of LostCities.
_RULES = {
    "n_colors": "colors",
    "n_ranks": "ranks",
    "min_rank": "min_rank",
    "n_handshakes": "wagers",
    "hand_size": "hand_size",
    "expedition_penalty": "expedition_penalty",
    "bonus_threshold": "bonus_threshold",
    "bonus_amount": "bonus_amount",
    "max_discard_draws": "max_discard_draws",
}
# Absent in files from engines that know no stall limit.
_OPTIONAL_RULE = "max_discard_draws"

_OUTCOME = ("terminal", "truncated", "deck_left", "expedition_scores", "scores", "expeditions")
_BOT = "bot_actions."  # begins the field of an expectation about a bot
_BATCH = 512  # records replayed at once
_GZIP_MAGIC = b"\x1f\x8b"

Plays: TypeAlias = Callable[[str, LostCities, np.ndarray, np.ndarray], np.ndarray]
"""What a bot may do: its name, the rules, uint8[B, P] and the legal bool[B, A] to bool[B, A]."""


class RecordError(ValueError):
    """A file that holds no readable records; the message is one sentence with file and line."""


class Expectation(NamedTuple):
    """What a record says about the state before one decision."""

    decision: int  # how many actions precede it
    field: str
    value: Any


@dataclasses.dataclass(frozen=True)
class Record:
    """One line of a file.

    Attributes:
      line: its line number, from 1.
      game: its number in the file, `game` of the record or else the line's index.
      rules: the rule parameters.
      deck: card ids in draw order.
      actions: action numbers, not yet known to be legal.
      expectations: what the record says, by ascending decision.
    """

    line: int
    game: int
    rules: LostCities
    deck: list[int]
    actions: list[int]
    expectations: list[Expectation]

    @property
    def bots(self) -> list[str]:
        """Names of the bots whose actions the record tells."""
        fields = (field for _, field, _ in self.expectations)
        return [field.removeprefix(_BOT) for field in fields if field.startswith(_BOT)]


class Disagreement(NamedTuple):
    """A value that the engine contradicts. Instead of an action, `engine` lists all that agree."""

    line: int
    game: int
    decision: int
    field: str
    recorded: Any
    engine: Any

    def __str__(self) -> str:
        """Describe the disagreement in one line."""
        rule = "engine has"
        if self.field == "action":
            rule = "legal actions are"
        elif self.field.startswith(_BOT):
            rule = f"{self.field.removeprefix(_BOT)} plays"
        return (
            f"line {self.line}, game {self.game}, decision {self.decision}, {self.field}: "
            f"recorded {json.dumps(self.recorded)}, {rule} {json.dumps(self.engine)}"
        )


def read_records(path: str | os.PathLike[str]) -> Iterator[Record]:
    """Read a file of records, gzipped or not, line by line.

    Args:
      path: the file.

    Yields:
      The records in order.

    Raises:
      RecordError: for a file that cannot be read, is damaged, holds no record, or holds a line
        that is none.
    """
    number = 0
    found = False
    try:
        with open(path, "rb") as raw:
            zipped = raw.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
            raw.seek(0)
            binary = gzip.GzipFile(fileobj=raw) if zipped else raw
            for number, line in enumerate(io.TextIOWrapper(binary, encoding="utf-8"), 1):
                if line.strip():
                    yield _parse(line, f"{path}, line {number}", number)
                    found = True
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise RecordError(
            f"{path}, line {number + 1}: the gzip data are damaged or cut short here ({error}); "
            "copy or record the file again"
        ) from error
    except UnicodeDecodeError as error:
        raise RecordError(
            f"{path}, line {number + 1}: must be UTF-8 text ({error.reason}); "
            "e.g. games.jsonl or games.jsonl.gz"
        ) from error
    except OSError as error:
        raise RecordError(
            f"{path}: cannot be read ({error.strerror or error}); give a file of recorded games, "
            "e.g. games.jsonl.gz"
        ) from error
    if not found:
        raise RecordError(f"{path}: must hold at least one record, one JSON object a line")


def replay(records: Iterable[Record], plays: Plays | None = None) -> Iterator[Disagreement]:
    """Play records on the engine and find everything they say that the engine contradicts.

    What follows an illegal action, or an action after the engine's end of the round, is not
    compared: it is about a state that the engine never reaches.

    Args:
      records: of any rule parameters; each new combination compiles once, for seconds.
      plays: what the bots do; if not given, their actions have only to be legal.

    Yields:
      The disagreements, in order within one rule set.
    """
    records = iter(records)
    while batch := list(itertools.islice(records, _BATCH)):
        for rules in dict.fromkeys(record.rules for record in batch):
            group = [record for record in batch if record.rules == rules]
            traces = trace_games(
                rules,
                np.array([record.deck for record in group], np.uint8),
                [record.actions for record in group],
            )
            bots = _bot_actions(rules, group, traces, plays) if plays else [{}] * len(group)
            for i, record in enumerate(group):
                trace = jax.tree.map(lambda leaf, i=i: leaf[i], traces)
                yield from _compare(record, trace, bots[i])


def write_games(
    path: str | os.PathLike[str],
    game: LostCities,
    decks: np.ndarray | jax.Array,
    actions: np.ndarray | jax.Array,
    lengths: np.ndarray | jax.Array,
    players: Sequence[tuple[str, str]] | None = None,
) -> None:
    """Write rounds as game records, gzipped when the name ends in ".gz".

    Args:
      path: the file; replaced if it exists.
      game: the rules they were played by.
      decks: uint8[G, N], card ids in draw order.
      actions: int32[G, T], padded with anything after each game's length.
      lengths: int32[G], decisions of each game.
      players: for each game who sat in seat 0 and in seat 1; left out of the file if not given.

    Raises:
      ValueError: for an action that the rules forbid; the file then holds the games before it.
      RecordError: if the file cannot be written.
    """
    decks, actions = np.asarray(decks), np.asarray(actions)
    lists = [row[:n].tolist() for row, n in zip(actions, np.asarray(lengths), strict=True)]
    config = {name: getattr(game, field) for name, field in _RULES.items()}
    try:
        with open(path, "wb") as raw:
            # No time stamp: equal games make equal files.
            zipped = os.fspath(path).endswith(".gz")
            binary = gzip.GzipFile(fileobj=raw, mode="wb", filename="", mtime=0) if zipped else raw
            with io.TextIOWrapper(binary, encoding="utf-8", newline="\n") as text:
                for start in range(0, len(lists), _BATCH):
                    part = slice(start, start + _BATCH)
                    traces = trace_games(game, decks[part], lists[part])
                    for i, taken in enumerate(lists[part]):
                        trace = jax.tree.map(lambda leaf, i=i: leaf[i], traces)
                        header = {
                            "game": start + i,
                            "config": config,
                            "deck": decks[start + i].tolist(),
                        }
                        if players is not None:
                            header["players"] = list(players[start + i])
                        entry = header | _describe(game, trace, taken)
                        text.write(json.dumps(entry, separators=(",", ":")) + "\n")
    except OSError as error:
        raise RecordError(
            f"{path}: cannot be written ({error.strerror or error}); give a file in a writable "
            "folder, e.g. games.jsonl.gz"
        ) from error


def _bot_actions(
    rules: LostCities, group: list[Record], traces: Trace, plays: Plays
) -> list[dict[str, list[int]]]:
    """Return for each record what each of its bots may do at the end, unless the round is over."""
    ends = np.array([len(record.actions) for record in group])
    over = traces.terminal[np.arange(len(group)), ends]
    actions: list[dict[str, list[int]]] = [{} for _ in group]
    for bot in dict.fromkeys(bot for record in group for bot in record.bots):
        rows = [i for i, record in enumerate(group) if bot in record.bots and not over[i]]
        if rows:
            possible = plays(bot, rules, traces.packed[rows], traces.legal[rows, ends[rows]])
            for i, row in zip(rows, possible, strict=True):
                actions[i][_BOT + bot] = np.flatnonzero(row).tolist()
    return actions


def _compare(record: Record, trace: Trace, bots: dict[str, list[int]]) -> Iterator[Disagreement]:
    """Yield where a record disagrees with the trace of its actions and with what the bots do."""
    for decision, field, recorded in record.expectations:
        if trace.terminal[decision] and decision < len(record.actions):
            yield Disagreement(record.line, record.game, decision, "terminal", False, True)
            return
        engine = bots[field] if field in bots else field_value(record.rules, trace, field, decision)
        agrees = recorded in engine if _is_action(field) else recorded == engine
        if not agrees:
            yield Disagreement(record.line, record.game, decision, field, recorded, engine)
            if field == "action":
                return


def _is_action(field: str) -> bool:
    """Tell whether a field holds an action, one of several rather than equal."""
    return field == "action" or field.startswith(_BOT)


def _describe(game: LostCities, trace: Trace, actions: list[int]) -> dict[str, Any]:
    """Return the record of one game's trace, but for its rules and deck."""
    steps: list[dict[str, Any]] = []
    for decision, action in enumerate(actions):
        step = {
            field: field_value(game, trace, field, decision)
            for field in ("player", "phase", "legal")
        }
        if action not in step["legal"]:
            raise ValueError(
                f"decision {decision}, action {action}: must be one of the legal actions "
                f"{step['legal']}"
            )
        steps.append(step | {"action": action})
    end = len(actions)
    outcome = {field: field_value(game, trace, field, end) for field in ("n_steps", *_OUTCOME)}
    return {"steps": steps} | outcome


def _parse(line: str, where: str, number: int) -> Record:
    """Return the record of one line; `where` begins the messages."""
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise RecordError(
            f"{where}: must be one JSON object, but at column {error.colno}: {error.msg}"
        ) from error
    except (ValueError, RecursionError) as error:
        # Numbers of thousands of digits, brackets thousands deep.
        raise RecordError(f"{where}: must be one JSON object, but: {error}") from error
    if not isinstance(entry, dict):
        raise RecordError(f'{where}: must be one JSON object; e.g. {{"config": ...}}')
    rules = _parse_rules(_get(entry, "config", dict, where), where)
    deck = _get(entry, "deck", list, where)
    if not all(map(_is_int, deck)) or sorted(deck) != list(range(rules.num_cards)):
        raise RecordError(
            f"{where}: deck must be a permutation of the {rules.num_cards} card ids from 0 to "
            f"{rules.num_cards - 1}"
        )
    parse_body = _parse_position if "prefix" in entry else _parse_game
    actions, expectations = parse_body(entry, where)
    if not all(map(_is_int, actions)):
        raise RecordError(f"{where}: every action must be an integer; e.g. 16")
    return Record(number, entry.get("game", number - 1), rules, deck, actions, expectations)


def _parse_rules(config: dict[str, Any], where: str) -> LostCities:
    for name in config:
        if name not in _RULES:
            raise RecordError(
                f"{where}: config has the unknown parameter {name!r}; it may have "
                f"{', '.join(_RULES)}"
            )
    for name in _RULES:
        if name not in config and name != _OPTIONAL_RULE:
            raise RecordError(f'{where}: config lacks the key "{name}"')
    fields: dict[str, Any] = {field: config.get(name) for name, field in _RULES.items()}
    try:
        return LostCities(**fields)
    except ValueError as error:
        raise RecordError(f"{where}: config: {error}") from error


def _parse_game(entry: dict[str, Any], where: str) -> tuple[list[int], list[Expectation]]:
    actions: list[int] = []
    expectations: list[Expectation] = []
    for decision, step in enumerate(_get(entry, "steps", list, where)):
        at = f"{where}, step {decision}"
        if not isinstance(step, dict):
            raise RecordError(f"{at}: must be an object of player, phase, legal and action")
        for field in ("player", "phase", "legal", "action"):
            expectations.append(Expectation(decision, field, _get(step, field, object, at)))
        actions.append(step["action"])
    end = len(actions)
    expectations += [
        Expectation(end, field, _get(entry, field, object, where)) for field in _OUTCOME
    ]
    if "n_steps" in entry:
        expectations.append(Expectation(end, "n_steps", entry["n_steps"]))
    return actions, expectations


def _parse_position(entry: dict[str, Any], where: str) -> tuple[list[int], list[Expectation]]:
    actions = _get(entry, "prefix", list, where)
    end = len(actions)
    # The record does not show the decisions on the way, but the prefix claims them legal.
    expectations = [Expectation(i, "action", action) for i, action in enumerate(actions)]
    expectations.append(Expectation(end, "terminal", False))
    for field in ("player", "phase"):
        expectations.append(Expectation(end, field, _get(entry, field, object, where)))
    for bot, action in _get(entry, "bot_actions", dict, where).items():
        expectations.append(Expectation(end, _BOT + bot, action))
    return actions, expectations


def _get(entry: dict[str, Any], key: str, kind: type, where: str) -> Any:
    """Return a required value of the given type."""
    if key not in entry:
        raise RecordError(f'{where}: lacks the key "{key}"')
    if not isinstance(entry[key], kind):
        names = {dict: "an object", list: "a list"}
        raise RecordError(f'{where}: the value of "{key}" must be {names[kind]}')
    return entry[key]


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
