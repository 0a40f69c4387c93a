"""Whole states of Lost Cities that a player cannot tell from the real one.

N cards, H hand size, P packed bytes. A player does not know the order of the deck, nor the cards of
the opponent's hand that were never taken from a discard pile: `sample_state` deals these again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np

from coorl_jax.games.lost_cities import information
from coorl_jax.games.lost_cities.locations import DISCARD, EXPEDITION, HAND, KNOWN

if TYPE_CHECKING:
    from coorl_jax.games.lost_cities.rules import LostCities, State


def sample_state(game: LostCities, packed: jax.Array, key: jax.Array) -> State:
    """Draw a state with equal probability among all that look the same to the player to move.

    What the opponent's play tells about the opponent's hand is not taken into account.

    Args:
      game: the rules.
      packed: uint8[P], of the player to move, see `information.pack`.
      key: consumed.

    Returns:
      A state that packs to the same bytes. Of equal wagers it may name others, and the part of its
      deck that has been drawn is in an arbitrary order.
    """
    n, h = game.num_cards, game.hand_size
    cards = np.arange(n, dtype=np.uint8)
    known = packed[:n]
    phase, deck_left, barred, discard_draws_left, seat = packed[n + h : n + h + 5].astype(jnp.int32)
    own, opponent = seat.astype(jnp.uint8), (1 - seat).astype(jnp.uint8)

    # All that has been seen comes first, then the opponent's unknown cards, then the deck.
    unseen = known == information.UNSEEN
    order = jax.random.bits(key, (n,), jnp.uint32)
    # Half of the numbers are for unseen cards; ties, one pair in 2^31, keep the order of the cards.
    deck = jnp.argsort(jnp.where(unseen, order | np.uint32(1 << 31), np.uint32(0)), stable=True)
    hidden = h - jnp.sum(known == information.OPPONENT_KNOWN, dtype=jnp.int32)
    first = n - deck_left - hidden
    place = jnp.zeros(n, jnp.int32).at[deck].set(np.arange(n, dtype=np.int32))
    dealt = (place >= first) & (place < first + hidden)

    location = jnp.where(
        known >= information.PILE, known + (DISCARD - information.PILE), jnp.uint8(0)
    )
    for meaning, code in (
        (information.OWN, HAND + own),
        (information.OWN_KNOWN, KNOWN + own),
        (information.OPPONENT_KNOWN, KNOWN + opponent),
        (information.OWN_EXPEDITION, EXPEDITION + own),
        (information.OPPONENT_EXPEDITION, EXPEDITION + opponent),
    ):
        location = jnp.where(known == meaning, code, location)
    location = jnp.where(dealt, HAND + opponent, location)

    seats = np.arange(2, dtype=np.uint8)[:, None]
    held = (location[None] == HAND + seats) | (location[None] == KNOWN + seats)
    # A round from that deck, moved on to what is known.
    return game.from_deck(deck.astype(jnp.uint8))._replace(
        location=location,
        hands=jnp.sort(jnp.where(held, cards[None], jnp.uint8(n)), axis=1)[:, :h],
        deck_left=deck_left,
        phase=phase,
        mover=seat,
        barred=barred,
        discard_draws_left=discard_draws_left,
    )
