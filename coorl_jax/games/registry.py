"""The games by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from coorl_jax.games.game import Game
from coorl_jax.games.kuhn_poker import KuhnPoker
from coorl_jax.games.leduc_poker import LeducPoker
from coorl_jax.games.lost_cities import LostCities

_GAMES = {"lost_cities": LostCities, "kuhn_poker": KuhnPoker, "leduc_poker": LeducPoker}


def make(name: str, rules: Mapping[str, Any]) -> Game:
    """Return the game of that name with the given rule parameters.

    Raises:
      ValueError: for an unknown name or parameter, or a value the game refuses.
    """
    if name not in _GAMES:
        raise ValueError(f"name={name!r}: must be one of {', '.join(_GAMES)}; e.g. lost_cities")
    game = _GAMES[name]
    known = [field.name for field in dataclasses.fields(game)]
    for field, value in rules.items():
        if field not in known:
            raise ValueError(
                f"{field}={value!r}: {name} has no such rule parameter; it has "
                f"{', '.join(known) or 'none'}"
            )
    return game(**rules)
