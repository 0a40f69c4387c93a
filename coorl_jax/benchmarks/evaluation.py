"""Evaluation: rounds a second against each opponent, and of all together."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial
from typing import ClassVar

import jax

from coorl_jax import agents
from coorl_jax.benchmarks import resident
from coorl_jax.benchmarks.timing import Effort, Spread, interleave
from coorl_jax.evaluation import suite
from coorl_jax.evaluation.match import play
from coorl_jax.games.game import NUM_PLAYERS
from coorl_jax.policy import make_network, make_policies
from coorl_jax.settings import Settings

SUITE = "all"


@dataclasses.dataclass(frozen=True)
class Match:
    """A match of an untrained average policy, or of "all" the matches in a row.

    What of it is the network's is told by `python -m coorl_jax.evaluate --timings`.
    """

    table: ClassVar[str] = "evaluate"

    opponent: str
    rounds: int
    seconds: Spread
    rounds_per_second: Spread


def measure(settings: Settings, effort: Effort, key: jax.Array) -> Iterator[Match]:
    """Time matches against every bot that plays the game, then all of them in a row.

    Args:
      settings: of the game, the network and the deals of a match.
      effort: of the comparison.
      key: consumed.
    """
    network = make_network(settings)
    game, pairs = network.game, settings.evaluation.pairs
    params = tuple(
        resident.parameters(network, jax.random.fold_in(key, seat))
        for seat in range(NUM_PLAYERS if settings.network.per_player else 1)
    )
    policies = make_policies(settings, network, {"current": params, "average": params})
    average = {"average": policies["average"]}
    opponents = {name: agents.make(name, game) for name in agents.names(game)}
    times = interleave(
        {
            name: partial(play, game, average["average"], opponent, pairs, key)
            for name, opponent in opponents.items()
        }
        | {SUITE: partial(suite.evaluate, game, average, opponents, pairs, seed=0)},
        effort,
    )
    rounds = NUM_PLAYERS * pairs
    for name, timing in times.items():
        played = rounds * len(opponents) if name == SUITE else rounds
        yield Match(name, played, timing.per(1), timing.rate(played))
