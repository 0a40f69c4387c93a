"""Measure how strong trained agents are.

    python -m coorl_jax.evaluate --checkpoint=runs/my-run

Plays deals against opponents, each deal twice with seats swapped, and prints points per round and
the shares of rounds won, drawn and lost with standard errors: for the policy of the current
iteration and for the average policy, which is the one that learns towards equilibrium. If the run
keeps the policies of its iterations, --policy=mixture is the average without the error of a network
fitted to it. Opponents are the bots that play the game, or any trained agents, given as
PATH[:POLICY][:greedy|:temperature=T][:search=K].
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import rich.box
import rich.console
import rich.markup
import rich.table
from absl import flags

from coorl_jax import (
    agents,
    checkpoint_flag,
    commandline,
    common_flags,
    runtime,
    trained_agent,
)
from coorl_jax.common_flags import JSON, SEED
from coorl_jax.evaluation import suite, timing
from coorl_jax.evaluation.match import MatchResult
from coorl_jax.games.game import Game
from coorl_jax.games.lost_cities import LostCities, records
from coorl_jax.policy import AnyPolicy
from coorl_jax.trained_agent import TrainedAgent

flags.adopt_module_key_flags(checkpoint_flag)
flags.adopt_module_key_flags(common_flags)
_ROUNDS = flags.DEFINE_integer("rounds", 4000, "rounds of a match, two for every deal")
_OPPONENTS = flags.DEFINE_list(
    "opponents",
    None,
    "bots or trained agents, e.g. random,runs/other:average; if not given, all bots of the game",
)
_POLICY = flags.DEFINE_list("policy", "current,average", "policies of the agents; mixture, too")
_TEMPERATURE = flags.DEFINE_float(
    "temperature", 1.0, "of the policies: 1 as learnt, less is greedier, 0 takes the likeliest"
)
_DIAGNOSTICS = flags.DEFINE_enum(
    "diagnostics", "light", get_args(suite.Diagnostics), "full also tells how they play"
)
_TIMINGS = flags.DEFINE_boolean(
    "timings", False, "play every match once more, and tell where its time goes"
)
_RECORD = flags.DEFINE_string(
    "record", None, "file to write all rounds to, in the order of the table; e.g. games.jsonl.gz"
)


def main(argv: list[str]) -> None:
    """Evaluate by the flags."""
    del argv
    paths = checkpoint_flag.checked_paths()
    common_flags.check_seed()
    pairs = common_flags.check_rounds(_ROUNDS.value)
    if not 0.0 <= _TEMPERATURE.value <= 1e6:
        raise ValueError(f"--temperature={_TEMPERATURE.value}: must be from 0 to 1e6; e.g. 0.5")
    if not _POLICY.value or len(set(_POLICY.value)) < len(_POLICY.value):
        raise ValueError(
            f"--policy={','.join(_POLICY.value)}: must be different names, separated by commas, "
            "and at least one; e.g. average"
        )
    runtime.configure()
    loaded = [trained_agent.load(path) for path in paths]
    for agent in loaded[1:]:
        if agent.game != loaded[0].game:
            raise ValueError(
                f"--checkpoint={agent.path}: must play the same game by the same rules as "
                f"{paths[0]}, {loaded[0].game}, but plays {agent.game}; "
                f"e.g. --checkpoint={paths[0]}"
            )
    game = loaded[0].game
    policies = {
        name: policy for agent in loaded for name, policy in _policies(agent, len(loaded) > 1)
    }
    opponents = agents.names(game) if _OPPONENTS.value is None else _OPPONENTS.value
    _, opponents = trained_agent.players(opponents, "--opponents", game)
    record = None if _RECORD.value is None else Path(_RECORD.value)
    if record is not None:
        _check_record(record, game)

    iterations = dict(
        zip(policies, [agent.iteration for agent in loaded for _ in _POLICY.value], strict=True)
    )
    if not JSON.value:
        for agent in loaded:
            print(f"{agent.path}: policies of iteration {agent.iteration}", flush=True)
    rows, played = [], []
    results = suite.matches(
        game,
        policies,
        opponents,
        pairs,
        SEED.value,
        cast(suite.Diagnostics, _DIAGNOSTICS.value),
        record=record is not None,
    )
    waiting = rich.console.Console(stderr=True)
    with waiting.status("compiling and playing the first match") as status:
        for row, result in results:
            if _TIMINGS.value:
                key = suite.evaluation_key(SEED.value)
                players = policies[row["policy"]], opponents[row["opponent"]]
                row |= timing.measure(game, *players, pairs, key)._asdict()
            rows.append({"iteration": iterations[row["policy"]]} | row)
            if record is not None:
                played.append(result)
            if JSON.value:
                print(json.dumps(rows[-1]), flush=True)
            status.update(f"{len(rows)} of {len(policies) * len(opponents)} matches played")
    if not JSON.value:
        _print_table(rows)
        if _TIMINGS.value:
            _print_timings(rows)
        if _DIAGNOSTICS.value == "full":
            _print_diagnostics(rows)
    if record is not None and isinstance(game, LostCities):
        write_rounds(record, game, rows, played)


def _policies(agent: TrainedAgent, several: bool) -> Iterable[tuple[str, AnyPolicy]]:
    """Yield the policies of an agent that the flags ask for, with their names in the table."""
    for name in _POLICY.value:
        if name not in agent.policies:
            raise ValueError(
                f"--policy={name}: must be among {', '.join(agent.policies)} of {agent.path}; "
                "e.g. average"
            )
        policy = trained_agent.with_temperature(agent.policies[name], _TEMPERATURE.value)
        yield f"{agent.path}:{name}" if several else name, policy


def write_rounds(
    path: Path, game: LostCities, rows: Sequence[dict[str, Any]], played: Sequence[MatchResult]
) -> None:
    """Write the rounds of matches, one after the other, both rounds of a deal together.

    Args:
      path: the file, gzipped if its name ends in .gz.
      game: the rules.
      rows: of the matches, for the names of who played.
      played: the matches, recorded.
    """
    names = [(row["policy"], row["opponent"]) for row in rows]
    # Under its name only when it is whole.
    partial = path.with_name(f".partial-{path.name}")
    try:
        records.write_games(
            partial,
            game,
            decks=np.concatenate(
                [np.repeat(match.recorded.starts.deck, 2, axis=0) for match in played]
            ),
            actions=np.concatenate([np.concatenate(match.recorded.actions) for match in played]),
            lengths=np.concatenate([np.ravel(match.decisions) for match in played]),
            players=[
                seats
                for (policy, opponent), match in zip(names, played, strict=True)
                for _ in range(match.rounds // 2)
                for seats in ((policy, opponent), (opponent, policy))
            ],
        )
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _check_record(path: Path, game: Game) -> None:
    """Refuse a file for records before anything is played."""
    if not isinstance(game, LostCities):
        raise ValueError(
            f"--record={path}: must not be given for {game.name}; only lost_cities has records"
        )
    rule = f"--record={path}: must be a new file in an existing directory"
    if path.exists() or not path.parent.is_dir():
        raise ValueError(f"{rule}; e.g. games.jsonl.gz")
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise ValueError(
            f"{rule} that can be written ({error.strerror}); e.g. games.jsonl.gz"
        ) from error


_PIPED_WIDTH = 10_000  # columns
_LABELS = ("iteration", "policy", "opponent", "rounds", "elapsed_seconds")


def _table(*headings: str) -> tuple[rich.console.Console, rich.table.Table]:
    """Return a table of numbers, with lines and colours on a terminal only."""
    # A line for each match, however long the names are, where no terminal has a width.
    console = rich.console.Console(
        width=None if sys.stdout.isatty() else _PIPED_WIDTH, highlight=False
    )
    box = rich.box.SIMPLE if console.is_terminal else None
    table = rich.table.Table(box=box, padding=(0, 2, 0, 0))
    for column, heading in enumerate(headings):
        number = column > 1
        table.add_column(
            heading, justify="right" if number else "left", no_wrap=number, overflow="fold"
        )
    return console, table


def _print_table(rows: Iterable[dict[str, Any]]) -> None:
    """Print the matches, one a line."""
    console, table = _table(
        "policy", "opponent", "rounds", "points per round", "wins %", "draws %", "losses %"
    )
    for row in rows:
        table.add_row(
            *(rich.markup.escape(row[role]) for role in ("policy", "opponent")),
            str(row["rounds"]),
            f"{row['points_per_round']:+.2f} +- {row['points_per_round_se']:.2f}",
            *(
                f"{100 * row[f'{name}_rate']:.1f} +- {100 * row[f'{name}_rate_se']:.1f}"
                for name in ("win", "draw", "loss")
            ),
        )
    console.print(table)


def _print_timings(rows: Iterable[dict[str, Any]]) -> None:
    """Print how fast the matches were played, without compilation."""
    console, table = _table("policy", "opponent", "rounds a second", "policy %", "opponent %")
    for row in rows:
        shares = (row[f"{role}_share"] for role in ("policy", "opponent"))
        table.add_row(
            *(rich.markup.escape(row[role]) for role in ("policy", "opponent")),
            f"{row['rounds_per_second']:.0f}",
            *("" if share is None else f"{100 * share:.0f}" for share in shares),
        )
    console.print(table)


def _print_diagnostics(rows: Sequence[dict[str, Any]]) -> None:
    """Print everything else that is known of the matches, one number a line."""
    shown = (
        _LABELS
        + timing.Timing._fields
        + tuple(
            f"{name}{suffix}"
            for name in ("points_per_round", "win_rate", "draw_rate", "loss_rate")
            for suffix in ("", "_se")
        )
    )
    for row in rows:
        console, table = _table(
            rich.markup.escape(f"{row['policy']} against {row['opponent']}"), "", ""
        )
        for name, value in row.items():
            if name not in shown:
                table.add_row(name, "", f"{value:.4g}")
        console.print(table)


if __name__ == "__main__":
    commandline.run(main)
