"""Fixed opponents by name, each a `Policy`."""

from __future__ import annotations

from collections.abc import Callable

from coorl_jax.agents.discard_only import DiscardOnly
from coorl_jax.agents.uniform import Uniform
from coorl_jax.games.game import Game
from coorl_jax.games.lost_cities import LostCities
from coorl_jax.policy import Policy

_ANY_GAME: dict[str, Callable[[], Policy]] = {"random": Uniform}
_LOST_CITIES: dict[str, Callable[[LostCities], Policy]] = {"discard_only": DiscardOnly}


def names(game: Game) -> tuple[str, ...]:
    """Return the names of the opponents that play a game."""
    return (*_ANY_GAME, *(_LOST_CITIES if isinstance(game, LostCities) else ()))


def make(name: str, game: Game) -> Policy:
    """Return the opponent of that name for a game.

    Raises:
      ValueError: for an unknown name, or an opponent that does not play this game.
    """
    if name in _ANY_GAME:
        return _ANY_GAME[name]()
    if name not in _LOST_CITIES:
        raise ValueError(
            f"opponent {name!r}: must be one of {', '.join([*_ANY_GAME, *_LOST_CITIES])}; "
            "e.g. random"
        )
    if not isinstance(game, LostCities):
        raise ValueError(f"opponent {name!r}: plays lost_cities only, not {game.name}; e.g. random")
    return _LOST_CITIES[name](game)
