"""Fixed opponents by name, each a `Policy`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from coorl_jax.agents import heuristic
from coorl_jax.agents.uniform import Uniform
from coorl_jax.games.game import Game
from coorl_jax.games.lost_cities import LostCities
from coorl_jax.policy import Policy

_ANY_GAME: dict[str, Callable[[], Policy]] = {"random": Uniform}
_LOST_CITIES: dict[str, Callable[[LostCities], Policy]] = {
    "random": partial(heuristic.make, noise=1.0),
    "discard_only": partial(heuristic.make, passive=True),
    "heuristic_balanced": partial(heuristic.make, style="balanced"),
    "heuristic_aggressive": partial(heuristic.make, style="aggressive"),
    "heuristic_cautious": partial(heuristic.make, style="cautious"),
    "heuristic_noisy": partial(heuristic.make, style="balanced", noise=0.15),
}
_ALIASES = {
    "passive_discard": "discard_only",
    "safe_heuristic": "heuristic_balanced",
    "safe_heuristic_loose": "heuristic_aggressive",
    "safe_heuristic_strict": "heuristic_cautious",
    "noisy_safe": "heuristic_noisy",
}


def names(game: Game) -> tuple[str, ...]:
    """Return the names of the opponents that play a game."""
    return tuple(_LOST_CITIES if isinstance(game, LostCities) else _ANY_GAME)


def canonical(name: str) -> str:
    """Return the name of the opponent that an older name stands for; any other name as it is."""
    return _ALIASES.get(name, name)


def make(name: str, game: Game) -> Policy:
    """Return the opponent of that name, or older name, for a game.

    Raises:
      ValueError: for an unknown name, or an opponent that does not play this game.
    """
    known = canonical(name)
    if known not in _LOST_CITIES:
        raise ValueError(
            f"opponent {name!r}: must be one of {', '.join(_LOST_CITIES)}; e.g. random"
        )
    if isinstance(game, LostCities):
        return _LOST_CITIES[known](game)
    if known not in _ANY_GAME:
        raise ValueError(f"opponent {name!r}: plays lost_cities only, not {game.name}; e.g. random")
    return _ANY_GAME[known]()
