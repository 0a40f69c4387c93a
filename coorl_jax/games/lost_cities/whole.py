"""What both Lost Cities players know together: what a value network reads.

A whole state is the packed information state of the player to move (information.py), except that
the cards of the opponent's hand which that player has not seen are marked. Only the order of the
deck is missing, which nobody knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from coorl_jax.games.game import CardView
from coorl_jax.games.lost_cities import information

if TYPE_CHECKING:
    from coorl_jax.games.lost_cities.rules import LostCities, State

OPPONENT_HIDDEN = 255  # in the opponent's hand, and the player to move does not know


def pack(game: LostCities, state: State) -> jax.Array:
    """Return uint8[P], what both players know, as the player to move would write it."""
    return information.pack(game, state, state.mover, OPPONENT_HIDDEN)


def num_features(game: LostCities) -> int:
    """Return G, the length of `flat_features`."""
    return information.num_features(game) + game.num_cards


def flat_features(game: LostCities, whole: jax.Array) -> jax.Array:
    """Return float32[G]: those of the information state, then the opponent's hidden cards."""
    packed, hidden = _split(game, whole)
    features = information.flat_features(game, packed)
    return jnp.concatenate([features, hidden.reshape(-1)])


def card_view(game: LostCities, whole: jax.Array) -> CardView:
    """Return that of the information state, with the opponent's hidden cards as K more bits."""
    packed, hidden = _split(game, whole)
    view = information.card_view(game, packed)
    return view._replace(suits=jnp.concatenate([view.suits, hidden], axis=1))


def _split(game: LostCities, whole: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the mover's information state and float32[C, K], the opponent's hidden cards."""
    is_card = jnp.arange(whole.shape[0]) < game.num_cards
    hidden = is_card & (whole == OPPONENT_HIDDEN)
    packed = jnp.where(hidden, jnp.uint8(information.UNSEEN), whole)
    planes = hidden[: game.num_cards].reshape(game.colors, game.suit_size)
    return packed, information.counted(game, planes).astype(jnp.float32)
