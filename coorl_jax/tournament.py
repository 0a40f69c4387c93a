"""Rate bots and trained agents in a round robin.

    python -m coorl_jax.tournament --players=heuristic_balanced,runs/a,runs/b:current:greedy

Every two players meet on the same deals, each deal played twice with seats swapped. A player is the
name of a bot or a trained agent, PATH[:POLICY][:greedy|:temperature=T][:search=K]: a run directory
or one of its policies, and POLICY current, average (if none is given) or mixture.

Prints Bradley-Terry ratings on Elo's scale with 95 % intervals, the points a round that each wins
of each other, and circles of players who beat each other in turn. With --output=DIR it leaves there

    tournament.json  all of it, as --json prints it
    payoff.png       points a round of row against column (extra `plots`)
"""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import json
import math
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import rich.box
import rich.console
import rich.markup
import rich.progress
import rich.table
from absl import flags

from coorl_jax import agents, commandline, common_flags, plot, runtime, trained_agent
from coorl_jax.common_flags import JSON, SEED
from coorl_jax.evaluation import suite
from coorl_jax.evaluation.match import play
from coorl_jax.evaluation.rating import Tournament, bonferroni
from coorl_jax.games.game import Game
from coorl_jax.games.lost_cities import LostCities
from coorl_jax.metrics import replace_text
from coorl_jax.policy import AnyPolicy

flags.adopt_module_key_flags(common_flags)
_PLAYERS = flags.DEFINE_list(
    "players", None, "at least two players; if not given, all bots of lost_cities"
)
_ROUNDS = flags.DEFINE_integer(
    "rounds",
    2000,
    "rounds of a match, two for every deal",
    allow_override=True,  # `evaluate`, of which tests load both, has a flag of this name, too
)
_MAX_DISCARD_DRAWS = flags.DEFINE_integer(
    "max_discard_draws",
    None,
    "draws from discard piles allowed in a round of lost_cities; if not given, what trained agents "
    "were trained with, or 60",
)
_OUTPUT = flags.DEFINE_string("output", None, "new or empty directory for the results")

_PIPED_WIDTH = 10_000  # columns: a line a player, however many meet


def main(argv: list[str]) -> None:
    """Hold a tournament by the flags."""
    del argv
    common_flags.check_seed()
    pairs = common_flags.check_rounds(_ROUNDS.value)
    specs = agents.names(LostCities()) if _PLAYERS.value is None else _PLAYERS.value
    if len(specs) < 2:
        raise ValueError(
            f"--players={','.join(specs)}: must be at least two, separated by commas; "
            "e.g. random,discard_only"
        )
    output = None if _OUTPUT.value is None else Path(_OUTPUT.value)
    if output is not None:
        plot.require()
    runtime.configure()
    game, policies = trained_agent.players(specs, "--players", _rules())
    if output is not None:
        _prepare(output)

    start = time.perf_counter()
    tournament = hold(game, policies, pairs, SEED.value)
    result = summary(game, list(policies), tournament, SEED.value)
    result["seconds"] = time.perf_counter() - start
    try:
        # Files first: nobody may read standard output any more.
        if output is not None:
            _write(output, result)
    finally:
        # The disk may be full.
        if JSON.value:
            print(json.dumps(result), flush=True)
        else:
            _print_text(result)


def _rules() -> LostCities | None:
    """Return the rules that the flags ask for, if they do."""
    limit = _MAX_DISCARD_DRAWS.value
    if limit is None:
        return None
    try:
        return LostCities(max_discard_draws=limit)
    except ValueError:
        raise ValueError(
            f"--max_discard_draws={limit}: must be an integer from 0 to 254; e.g. 60"
        ) from None


def hold(game: Game, policies: Mapping[str, AnyPolicy], pairs: int, seed: int) -> Tournament:
    """Play every pairing on the same decks, and tell on standard error how it gets on.

    Args:
      game: the rules.
      policies: by the player's name, at least two.
      pairs: deals per match, each played twice with seats swapped.
      seed: of decks and action noise.

    Returns:
      The matches, players numbered in the order of the policies.
    """
    key = suite.evaluation_key(seed)
    pairings = list(itertools.combinations(enumerate(policies.items()), 2))
    matches = {}
    with _Progress(len(pairings)) as progress:
        for (i, (a, policy_a)), (j, (b, policy_b)) in pairings:
            progress.begin(f"{a} against {b}")
            matches[i, j] = play(game, policy_a, policy_b, pairs, key)
            progress.end(*matches[i, j].points_per_round)
    return Tournament(matches)


def summary(game: Game, names: Sequence[str], tournament: Tournament, seed: int) -> dict[str, Any]:
    """Return a tournament's numbers, players in the order given, as JSON can hold them.

    Args:
      game: the rules.
      names: of the n players.
      tournament: their matches.
      seed: of the intervals.

    Returns:
      `game`, its `rules`, `players`, `rounds` per match, `seed`; by player `ratings`, `intervals`
      (95 %) and, against the mean opponent, `points_per_round` and `win_rate`; of row against
      column `payoff` (points per round) and `win_rates`, None where a player would meet itself;
      standard errors as `..._se`; `z`, by how many of them one must win to beat another, and
      `intransitive_triples`, names of players of whom each beats the next and the last the first.
    """
    ratings = tournament.ratings(seed)
    result: dict[str, Any] = {
        "game": game.name,
        "rules": dataclasses.asdict(game) if dataclasses.is_dataclass(game) else {},
        "players": list(names),
        "rounds": next(iter(tournament.matches.values())).rounds,
        "seed": seed,
        "ratings": ratings.rating.tolist(),
        "intervals": np.stack([ratings.low, ratings.high], axis=1).tolist(),
    }
    for name, (mean, error) in {
        "points_per_round": tournament.points_against_field(),
        "win_rate": tournament.win_rate_against_field(),
    }.items():
        result |= {name: mean.tolist(), f"{name}_se": error.tolist()}
    for name, (mean, error) in {
        "payoff": tournament.payoff(),
        "win_rates": tournament.win_rates(),
    }.items():
        result |= {name: _off_diagonal(mean), f"{name}_se": _off_diagonal(error)}
    circles = tournament.intransitive_triples()
    return result | {
        "z": bonferroni(len(tournament.matches)),
        "intransitive_triples": [[names[player] for player in circle] for circle in circles],
    }


class _Progress:
    """Tells on standard error which match is played: a bar on a terminal, or lines."""

    def __init__(self, matches: int) -> None:
        self._matches = matches
        self._done = 0
        self._playing = ""
        self._start = time.perf_counter()
        self._bar = rich.progress.Progress(
            "{task.description}", rich.progress.BarColumn(), "{task.fields[left]}",
            console=rich.console.Console(stderr=True),
            disable=not sys.stderr.isatty(),
            transient=True,
        )  # fmt: skip
        self._task = self._bar.add_task("", total=matches, left="")

    def __enter__(self) -> _Progress:
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def begin(self, match: str) -> None:
        """Tell that a match begins."""
        self._playing = f"match {self._done + 1}/{self._matches}: {match}"
        self._bar.update(self._task, description=rich.markup.escape(self._playing))

    def end(self, points: float, error: float) -> None:
        """Tell that the match is over, its points per round and their standard error."""
        self._done += 1
        pace = (time.perf_counter() - self._start) / self._done
        left = datetime.timedelta(seconds=round(pace * (self._matches - self._done)))
        self._bar.update(self._task, completed=self._done, left=f"{left} left")
        if self._bar.disable:
            print(
                f"{self._playing}: {points:+.2f} +- {error:.2f} points a round; {left} left",
                file=sys.stderr,
                flush=True,
            )


def _prepare(output: Path) -> None:
    """Create the directory for the results, or refuse it."""
    rule = f"--output={output}: must be a new or empty directory that can be written"
    example = "e.g. tournaments/first"
    try:
        output.mkdir(parents=True, exist_ok=True)
        if any(output.iterdir()):
            raise ValueError(f"{rule}, but there are files in it; {example}")
        with tempfile.TemporaryFile(dir=output):
            pass
    except OSError as error:
        raise ValueError(f"{rule} ({error.strerror}); {example}") from error


def _write(output: Path, result: Mapping[str, Any]) -> None:
    """Write the picture, then the numbers."""
    order, payoff, errors = _by_rating(result)
    names = [result["players"][player] for player in order]
    try:
        plot.payoff_heat_map(output / "payoff.png", names, payoff, errors, _decimals(payoff))
        replace_text(output / "tournament.json", json.dumps(result) + "\n")
    except OSError as error:
        raise ValueError(
            f"--output={output}: the results cannot be written ({error.strerror}); make room or "
            "give another directory, e.g. tournaments/first"
        ) from error


def _print_text(result: Mapping[str, Any]) -> None:
    """Print the players by rating, the points of each against each, and circles."""
    order, payoff, errors = _by_rating(result)
    decimals = _decimals(payoff)
    ratings = _table("rating", "95 % interval", "points a round", "wins %")
    matrix = _table(*(str(number) for number in range(1, len(order) + 1)))
    for row, player in enumerate(order):
        label = str(row + 1), rich.markup.escape(result["players"][player])
        low, high = result["intervals"][player]
        points, points_error = (result[f"points_per_round{end}"][player] for end in ("", "_se"))
        wins, wins_error = (100 * result[f"win_rate{end}"][player] for end in ("", "_se"))
        ratings.add_row(
            *label,
            f"{result['ratings'][player]:+.0f}",
            f"{low:+.0f} to {high:+.0f}",
            f"{points:+.2f} +- {points_error:.2f}",
            f"{wins:.1f} +- {wins_error:.1f}",
        )
        cells = [f"{points:+.{decimals}f}" for points in payoff[row]]
        cells[row] = ""
        matrix.add_row(*label, *cells)

    console = rich.console.Console(highlight=False)
    # Only names give way where a terminal is narrow; beyond that its lines are too short.
    numbers = len(order) * (len(f"{np.max(np.abs(payoff)):+.{decimals}f}") + 2)
    console.width = max(console.width, 20 + numbers) if sys.stdout.isatty() else _PIPED_WIDTH
    console.print(ratings)
    console.print(
        f"\npoints a round of row against column, {result['rounds']:,} rounds, standard errors up "
        f"to {np.max(errors):.{decimals}f}"
    )
    console.print(matrix)
    rule = f"each by more than {result['z']:.2f} standard errors"
    for circle in result["intransitive_triples"]:
        beats = " beats ".join([*circle, circle[0]])
        console.print(f"\nintransitive triple: {beats}, {rule}", markup=False)
    if len(order) > 2 and not result["intransitive_triples"]:
        console.print(f"\nno intransitive triple (three who beat each other in turn, {rule})")


def _table(*headings: str) -> rich.table.Table:
    """Return an empty table of numbers by player, with lines on a terminal only."""
    box = rich.box.SIMPLE if sys.stdout.isatty() else None
    # The box has a column of its own between two others.
    table = rich.table.Table(box=box, padding=(0, 1 if box else 2, 0, 0))
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("player", overflow="fold")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _by_rating(result: Mapping[str, Any]) -> tuple[list[int], np.ndarray, np.ndarray]:
    """Return the players, best first, and in their order payoff and errors, diagonals zero."""
    order = sorted(range(len(result["players"])), key=lambda player: -result["ratings"][player])
    payoff, errors = (
        np.nan_to_num(np.array(result[name], np.float64))[np.ix_(order, order)]
        for name in ("payoff", "payoff_se")
    )
    return order, payoff, errors


def _decimals(payoff: np.ndarray) -> int:
    """Return the digits after the point with which the largest number has three, one at least."""
    highest = float(np.max(np.abs(payoff)))
    return max(1, 2 - math.floor(math.log10(highest))) if highest else 1


def _off_diagonal(matrix: np.ndarray) -> list[list[float | None]]:
    """Return the rows of a matrix, None on the diagonal."""
    return [
        [None if row == column else number for column, number in enumerate(numbers)]
        for row, numbers in enumerate(matrix.tolist())
    ]


if __name__ == "__main__":
    commandline.run(main)
