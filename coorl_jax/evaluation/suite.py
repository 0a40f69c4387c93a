"""Every policy against every opponent, as rows of numbers."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from coorl_jax.evaluation import exploitability
from coorl_jax.evaluation.diagnostics import diagnose, matches_of_three
from coorl_jax.evaluation.match import MatchResult, play
from coorl_jax.games import tree as trees
from coorl_jax.games.game import EnumerableGame, Game
from coorl_jax.games.lost_cities import LostCities
from coorl_jax.policy import AnyPolicy, MixturePolicy

Diagnostics = Literal["light", "full"]
"""How much a row says: who wins by how much, or also how they play."""

# Stream of random numbers below the seed; training uses another one (cfr/iteration.py), and so
# does the test by which the best policy is kept (evaluation/gate.py).
_EVALUATION = 1
_MATCH_PAIRS = 6  # the fewest that make two independent matches of three rounds


def evaluation_key(seed: int) -> jax.Array:
    """Return the key of decks and action noise for a seed, never those of training."""
    return jax.random.fold_in(jax.random.key(seed), _EVALUATION)


def evaluate(
    game: Game,
    policies: Mapping[str, AnyPolicy],
    opponents: Mapping[str, AnyPolicy],
    pairs: int,
    seed: int,
    diagnostics: Diagnostics = "light",
) -> list[dict[str, Any]]:
    """Play every policy against every opponent and return one row a match; see `matches`."""
    return [row for row, _ in matches(game, policies, opponents, pairs, seed, diagnostics)]


def matches(
    game: Game,
    policies: Mapping[str, AnyPolicy],
    opponents: Mapping[str, AnyPolicy],
    pairs: int,
    seed: int,
    diagnostics: Diagnostics = "light",
    *,
    record: bool = False,
) -> Iterator[tuple[dict[str, Any], MatchResult]]:
    """Play every policy against every opponent, all on the same decks.

    Args:
      game: the rules.
      policies: by name.
      opponents: by name.
      pairs: deals per match, each played twice with seats swapped.
      seed: of decks and action noise, which are never those of training.
      diagnostics: "full" adds what `diagnostics.diagnose` tells about play in Lost Cities.
      record: whether the results keep decks and actions.

    Yields:
      The match and its row: `policy`, `opponent`, `rounds`; `points_per_round`, `win_rate`,
      `draw_rate` and `loss_rate`, each also with its standard error as `..._se`;
      `decisions_per_round`; what `diagnostics.matches_of_three` tells, if there are two such
      matches at least; `elapsed_seconds`, with those of compiling where a program is new.
    """
    key = evaluation_key(seed)
    for policy_name, policy in policies.items():
        for opponent_name, opponent in opponents.items():
            started = time.perf_counter()
            result = play(
                game, policy, opponent, pairs, key, record=record or diagnostics == "full"
            )
            row: dict[str, Any] = {
                "policy": policy_name,
                "opponent": opponent_name,
                "rounds": result.rounds,
            }
            for name in ("points_per_round", "win_rate", "draw_rate", "loss_rate"):
                row[name], row[f"{name}_se"] = getattr(result, name)
            row["decisions_per_round"] = result.decisions_per_round
            if pairs >= _MATCH_PAIRS * result.group:
                row |= matches_of_three(result.points, result.group)
            if diagnostics == "full" and isinstance(game, LostCities):
                row |= diagnose(game, result)
            row["elapsed_seconds"] = time.perf_counter() - started
            yield row, result


def nash_convs(game: Game, policies: Mapping[str, AnyPolicy]) -> dict[str, float]:
    """Return the NashConv of every policy, in points a round.

    Raises:
      ValueError: for a game that is too large to enumerate.
    """
    tree = enumerated(game)
    return {name: _nash_conv(tree, policy).nash_conv for name, policy in policies.items()}


def _nash_conv(tree: trees.Tree, policy: AnyPolicy) -> exploitability.NashConv:
    if not isinstance(policy, MixturePolicy):
        return exploitability.nash_conv(tree, exploitability.as_policy_fn(policy))
    weights = np.asarray(policy.weights)
    drawn = np.flatnonzero(weights)
    probabilities = (
        np.asarray(_member_probabilities(policy, jnp.int32(n), tree.packed, tree.legal))
        for n in drawn
    )
    return exploitability.nash_conv_of_mixture(tree, probabilities, weights[drawn])


@jax.jit
def _member_probabilities(
    mixture: MixturePolicy, index: jax.Array, packed: jax.Array, legal: jax.Array
) -> jax.Array:
    return mixture.member(index).action_probabilities(packed, legal)


@functools.lru_cache(maxsize=1)
def enumerated(game: Game) -> trees.Tree:
    """Return the game's tree, enumerated once.

    Raises:
      ValueError: for a game that is too large to enumerate.
    """
    if not isinstance(game, EnumerableGame):
        raise ValueError(f"{game.name} cannot be enumerated; e.g. kuhn_poker can")
    return trees.enumerate_game(game)
