"""The passive player of Lost Cities: it never opens an expedition, and so scores 0."""

from __future__ import annotations

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp

from coorl_jax.games.lost_cities import LostCities, information
from coorl_jax.games.lost_cities.rules import DRAW_PHASE


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DiscardOnly:
    """Discards the first card of its hand and draws from the deck."""

    game: LostCities = dataclasses.field(metadata={"static": True})

    def action_probabilities(self, packed: jax.Array, legal: jax.Array) -> jax.Array:
        """Return float32[B, A] from uint8[B, P] and bool[B, A]."""
        discard_first, draw_deck = 1, 2 * self.game.hand_size
        draws = jax.vmap(partial(information.phase, self.game))(packed) == DRAW_PHASE
        action = jnp.where(draws, draw_deck, discard_first)
        return jax.nn.one_hot(action, self.game.num_actions, dtype=jnp.float32) * legal
