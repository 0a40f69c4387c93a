"""Measure how strong an agent is.

    python -m coorl_jax.evaluate --checkpoint=runs/my-run

Plays deals against fixed opponents, each deal twice with seats swapped, and prints points per
round and win rate with standard errors: for the policy of the current iteration and for the
average policy, which is the one that learns towards equilibrium. If the run keeps the policies of
its iterations, --policies=mixture is the average without the error of a network fitted to it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import rich.box
import rich.console
import rich.table
from absl import flags

from coorl_jax import agents, commandline, runtime, trained_agent
from coorl_jax import policy as policy_lib
from coorl_jax.evaluation import suite
from coorl_jax.evaluation.match import MatchResult
from coorl_jax.games.game import Game
from coorl_jax.games.lost_cities import LostCities, records
from coorl_jax.trained_agent import JSON, SEED

flags.adopt_module_key_flags(trained_agent)
_PAIRS = flags.DEFINE_integer("pairs", 2000, "deals per match, each played twice")
_OPPONENTS = flags.DEFINE_list(
    "opponents", None, "opponents, e.g. random,discard_only; if not given, all that play the game"
)
_POLICIES = flags.DEFINE_list("policies", "current,average", "policies of the agent; mixture, too")
_RECORD = flags.DEFINE_string(
    "record", None, "file to write all rounds to, in the order of the table; e.g. games.jsonl.gz"
)


def main(argv: list[str]) -> None:
    """Evaluate by the flags."""
    del argv
    path = trained_agent.checked_path()
    if _PAIRS.value < 2:
        raise ValueError(
            f"--pairs={_PAIRS.value}: must be at least 2 for a standard error; e.g. 2000"
        )
    runtime.configure()
    for flag, names in (("policies", _POLICIES.value), ("opponents", _OPPONENTS.value)):
        if names is not None and (not names or len(set(names)) < len(names)):
            raise ValueError(
                f"--{flag}={','.join(names)}: must be different names, separated by commas, and at "
                f"least one; e.g. {'average' if flag == 'policies' else 'random'}"
            )
    game, policies, iteration = load(path)
    for name in _POLICIES.value:
        if name not in policies:
            raise ValueError(
                f"--policies={name}: must be among {', '.join(policies)}; e.g. average"
            )
    opponents = agents.names(game) if _OPPONENTS.value is None else _OPPONENTS.value
    try:
        for opponent in opponents:
            agents.make(opponent, game)
    except ValueError as error:
        raise ValueError(f"--opponents: {error}") from error
    record = None if _RECORD.value is None else Path(_RECORD.value)
    if record is not None:
        _check_record(record, game)

    results = suite.matches(
        game,
        {name: policies[name] for name in _POLICIES.value},
        opponents,
        _PAIRS.value,
        SEED.value,
        record=record is not None,
    )
    rows, played = [], []
    waiting = rich.console.Console(stderr=True)
    if not JSON.value:
        print(f"policies of iteration {iteration}", flush=True)
    with waiting.status("compiling and playing the first match"):
        for row, result in results:
            rows.append({"iteration": iteration} | row)
            played.append(result)
            if JSON.value:
                print(json.dumps(rows[-1]), flush=True)
    if not JSON.value:
        _print_table(rows)
    if record is not None and isinstance(game, LostCities):
        write_rounds(record, game, rows, played)


def load(path: Path) -> tuple[Game, dict[str, policy_lib.AnyPolicy], int]:
    """Load the policies of a run, without its trainer.

    Args:
      path: run directory, or one of its policies.

    Returns:
      The game they play, the policies by name, and the iteration after which they were saved.

    Raises:
      ValueError: where there are none that are whole, or another version of the package saved
        them.
    """
    settings, restored = trained_agent.restore(path)
    network = policy_lib.make_network(settings)
    policies = policy_lib.make_policies(settings, network, restored.tree)
    return network.game, policies, restored.step


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
    records.write_games(
        path,
        game,
        decks=np.concatenate([np.repeat(match.recording.starts.deck, 2, axis=0) for match in played]),
        actions=np.concatenate([np.concatenate(match.recording.actions) for match in played]),
        lengths=np.concatenate([np.ravel(match.decisions) for match in played]),
        players=[
            seats
            for (policy, opponent), match in zip(names, played, strict=True)
            for _ in range(match.rounds // 2)
            for seats in ((policy, opponent), (opponent, policy))
        ],
    )


def _check_record(path: Path, game: Game) -> None:
    """Refuse a file for records before anything is played."""
    if not isinstance(game, LostCities):
        raise ValueError(
            f"--record={path}: must not be given for {game.name}; only lost_cities has records"
        )
    if path.exists() or not path.parent.is_dir():
        raise ValueError(
            f"--record={path}: must be a new file in an existing directory; e.g. games.jsonl.gz"
        )


def _print_table(rows: Iterable[dict[str, Any]]) -> None:
    """Print the matches, with lines and colours on a terminal only."""
    console = rich.console.Console(width=None if sys.stdout.isatty() else 120)
    box = rich.box.SIMPLE if console.is_terminal else None
    table = rich.table.Table(box=box, padding=(0, 2, 0, 0))
    table.add_column("policy")
    table.add_column("opponent")
    for heading in ("rounds", "points per round", "wins %", "draws %", "decisions"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            row["policy"],
            row["opponent"],
            str(row["rounds"]),
            f"{row['points_per_round']:+.2f} +- {row['points_per_round_se']:.2f}",
            f"{100 * row['win_rate']:.1f} +- {100 * row['win_rate_se']:.1f}",
            f"{100 * row['draw_rate']:.1f}",
            f"{row['decisions_per_round']:.1f}",
        )
    console.print(table)


if __name__ == "__main__":
    commandline.run(main)
