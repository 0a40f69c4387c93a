"""Every policy against every opponent, as rows of numbers."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from coorl_jax import agents
from coorl_jax.evaluation import exploitability
from coorl_jax.evaluation.match import MatchResult, play
from coorl_jax.games import tree as trees
from coorl_jax.games.game import EnumerableGame, Game
from coorl_jax.policy import AnyPolicy, MixturePolicy

# Stream of random numbers below the seed; training uses another one (cfr/iteration.py).
_EVALUATION = 1


def evaluate(
    game: Game,
    policies: Mapping[str, AnyPolicy],
    opponents: Iterable[str],
    pairs: int,
    seed: int,
) -> list[dict[str, Any]]:
    """Play every policy against every opponent; see `matches`.

    Returns:
      One row a match: `policy`, `opponent`, `rounds`, `points_per_round`, `points_per_round_se`,
      `win_rate`, `win_rate_se`, `draw_rate`, `decisions_per_round`, `elapsed_seconds`.
    """
    return [row for row, _ in matches(game, policies, opponents, pairs, seed)]


def matches(
    game: Game,
    policies: Mapping[str, AnyPolicy],
    opponents: Iterable[str],
    pairs: int,
    seed: int,
    *,
    record: bool = False,
) -> Iterator[tuple[dict[str, Any], MatchResult]]:
    """Play every policy against every opponent, all on the same decks.

    Args:
      game: the rules.
      policies: by name.
      opponents: names of agents.
      pairs: deals per match, each played twice with seats swapped.
      seed: of decks and action noise, which are never those of training.
      record: whether the results keep decks and actions.

    Yields:
      A row, as `evaluate` gives them, and the match itself.

    Raises:
      ValueError: for an opponent that is unknown or does not play this game, before any match.
    """
    key = jax.random.fold_in(jax.random.key(seed), _EVALUATION)
    agents_by_name = {name: agents.make(name, game) for name in opponents}
    for policy_name, policy in policies.items():
        for opponent_name, opponent in agents_by_name.items():
            started = time.perf_counter()
            result = play(game, policy, opponent, pairs, key, record=record)
            points, points_error = result.points_per_round
            wins, wins_error = result.win_rate
            row = {
                "policy": policy_name,
                "opponent": opponent_name,
                "rounds": result.rounds,
                "points_per_round": points,
                "points_per_round_se": points_error,
                "win_rate": wins,
                "win_rate_se": wins_error,
                "draw_rate": result.draw_rate,
                "decisions_per_round": result.decisions_per_round,
                "elapsed_seconds": time.perf_counter() - started,
            }
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
