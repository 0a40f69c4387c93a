"""Lost Cities for two players."""

from coorl_jax.games.lost_cities.rules import LostCities, State

__all__ = ["LostCities", "State"]
