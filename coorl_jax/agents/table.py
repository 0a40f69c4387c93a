"""What a rule-based player of Lost Cities sees, and what cards are worth to it.

It sees what is public and its own hand. B batch, C colours, H slots of the hand, R ranks; a wager
has rank 0 and face 0. Everything is int32 with the batch as its last axis, which is what vector
instructions run along; figures of the whole state have a first axis of 1.

The values are sums of decimal fractions in the order in which they are written: equal sums decide
some actions, and so does the rounding of unequal order, see `doubles.py`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from coorl_jax.agents.doubles import Array, Double, constant, product, scaled, where
from coorl_jax.games.lost_cities import LostCities, information

_NO_COLOR = -1
_FIELD = 8  # bits of a small count next to others in one integer


class Style(NamedTuple):
    """When a player dares to open a colour; int32 scalars, sums are of faces."""

    open_count: Array | int  # numbers wanted to open a colour
    open_sum: Array | int  # their sum
    thin_sum: Array | int  # sum that is enough while few colours are open
    rich_sum: Array | int  # sum wanted to open a colour more than is wise
    forced_sum: Array | int  # sum that is enough for the first colour
    wager_count: Array | int  # numbers wanted before a wager
    wager_sum: Array | int  # their sum
    last_open: Array | int  # cards in the deck at or under which no colour is opened


class Colors(NamedTuple):
    """Figures of colours, [C, B]; or of the colours of cards, [X, B]."""

    length: jax.Array  # cards in my expedition
    wagers: jax.Array  # in my expedition
    total: jax.Array  # sum of faces in my expedition
    highest: jax.Array  # rank of the highest number in my expedition, 0 for none
    their_highest: jax.Array  # in the opponent's
    numbers: jax.Array  # in my hand that fit my expedition
    number_sum: jax.Array  # of their faces
    hand_wagers: jax.Array  # in my hand
    interest: Double  # mine
    their_interest: Double  # a quarter of it


class Table(NamedTuple):
    """A batch of states as the player to move sees them."""

    slot_color: jax.Array  # [H, B], _NO_COLOR for an empty slot
    slot_rank: jax.Array  # [H, B]
    top_rank: jax.Array  # [C, B], of the card on top of each pile; anything for an empty pile
    colors: Colors
    opened: jax.Array  # [1, B], colours that I have opened
    deck_left: jax.Array  # [1, B]
    lead: jax.Array  # [1, B], my score less the opponent's if the round ended now


class Cards(NamedTuple):
    """Cards to value, [X, B]: those of the hand, or those on top of the piles."""

    rank: jax.Array
    face: jax.Array
    colors: Colors
    numbers: jax.Array  # in my hand, of the colour and of this rank or above
    number_sum: jax.Array  # of their faces
    high: jax.Array  # how many of them have the middle rank or above

    @property
    def is_wager(self) -> jax.Array:
        """Where the card is a wager, bool."""
        return self.rank == 0

    @property
    def fits_me(self) -> jax.Array:
        """Where I could play the card, bool."""
        return _fits(self.rank, self.colors.highest)

    @property
    def fits_them(self) -> jax.Array:
        """Where the opponent could, bool."""
        return _fits(self.rank, self.colors.their_highest)


# The rules as numbers.


def faces_of(game: LostCities) -> np.ndarray:
    """Return int32[R + 1]."""
    ranks = np.arange(game.ranks + 1)
    return np.where(ranks == 0, 0, game.min_rank + ranks - 1).astype(np.int32)


def middle_rank(game: LostCities) -> int:
    """Return the rank from which on a number is high."""
    return (game.ranks + 1) // 2


def late(game: LostCities) -> int:
    """Return the cards in the deck at or under which it is late."""
    return max(1, round(game.num_cards * 0.20))


def midway(game: LostCities) -> int:
    """Return the cards in the deck at or under which half the round is over."""
    return max(late(game) + 1, round(game.num_cards * 0.35))


def _face(game: LostCities, rank: jax.Array) -> jax.Array:
    return jnp.where(rank == 0, 0, rank + (game.min_rank - 1))


def _fits(rank: Array, highest: jax.Array) -> jax.Array:
    return jnp.where(rank == 0, highest == 0, rank > highest)


# What the player sees.


def see(game: LostCities, packed: jax.Array) -> Table:
    """Return what uint8[B, P] shows."""
    packed = packed.T
    n, h = game.num_cards, game.hand_size
    cards = packed[:n].reshape(game.colors, game.suit_size, -1)
    slots = packed[n : n + h].astype(jnp.int32)
    kinds = information.num_kinds(game)
    slot_color = jnp.where(slots == information.EMPTY, _NO_COLOR, slots // kinds)
    slot_rank = slots % kinds

    rank = np.maximum(np.arange(game.suit_size) - game.wagers + 1, 0).astype(np.int32)[:, None]
    code = jnp.max(cards, axis=1)
    is_top = cards == code[:, None]
    top_rank = jnp.max(jnp.where(is_top, rank, 0), axis=1)
    has_top = code >= information.PILE

    length, wagers, total, highest, my_score = _expeditions(
        game, cards == information.OWN_EXPEDITION, rank
    )
    their_length, their_wagers, their_total, their_highest, their_score = _expeditions(
        game, cards == information.OPPONENT_EXPEDITION, rank
    )
    color = np.arange(game.colors, dtype=np.int32)[:, None]
    numbers, number_sum, _ = _run(game, slot_color, slot_rank, color, highest + 1)
    hand_wagers = _count((slot_color == color[:, None]) & (slot_rank == 0))
    fitting = numbers + jnp.where(highest == 0, hand_wagers, 0)
    interest = (
        scaled(0.25, jnp.where(length > 0, 20, 0) + 8 * wagers + total)
        + scaled(1.2, numbers)
        + scaled(1.5, fitting - numbers)
        + scaled(0.15, number_sum)
        + outlook(game, length, fitting, weight=0.05)
    )
    # By quarters: for integers times it no bits to the right are needed, see `value_to_them`.
    their_face = _face(game, their_highest)
    top_interest = where(
        top_rank == 0,
        constant(0.25 * 1.5),
        scaled(0.25 * 0.1, _face(game, top_rank)) + constant(0.25),
    )
    their_interest = (
        scaled(0.0625, jnp.where(their_length > 0, 20, 0) + 8 * their_wagers + their_total)
        + scaled(0.25 * 0.4, their_face)
        + where(has_top & _fits(top_rank, their_highest), top_interest, 0)
    )
    if _bonus_possible(game):
        near = their_length + 1 >= game.bonus_threshold
        their_interest += where(near, constant(0.25 * (0.2 * game.bonus_amount)), 0)
    return Table(
        slot_color=slot_color,
        slot_rank=slot_rank,
        top_rank=top_rank,
        colors=Colors(
            length,
            wagers,
            total,
            highest,
            their_highest,
            numbers,
            number_sum,
            hand_wagers,
            interest,
            their_interest,
        ),
        opened=_count(length > 0)[None],
        deck_left=packed[n + h + 1][None].astype(jnp.int32),
        lead=(my_score - their_score)[None],
    )


def hand_cards(game: LostCities, table: Table) -> Cards:
    """Return the cards of the hand by slot, [H, B]; an empty slot's have no meaning."""
    color = np.arange(game.colors, dtype=np.int32)[None, :, None]
    is_color = table.slot_color[:, None] == color
    colors = jax.tree.map(
        lambda figure: jnp.sum(jnp.where(is_color, figure[None], 0), axis=1), table.colors
    )
    return _cards(game, table, table.slot_color, table.slot_rank, colors)


def top_cards(game: LostCities, table: Table) -> Cards:
    """Return the cards on top of the piles, [C, B]; an empty pile's have no meaning."""
    color = np.arange(game.colors, dtype=np.int32)[:, None]
    return _cards(game, table, color, table.top_rank, table.colors)


def _cards(game: LostCities, table: Table, color: Array, rank: jax.Array, colors: Colors) -> Cards:
    run = _run(game, table.slot_color, table.slot_rank, color, rank)
    return Cards(rank, _face(game, rank), colors, *run)


def _count(condition: jax.Array) -> jax.Array:
    """Return how many are true along the last axis but one."""
    return jnp.sum(condition, axis=-2, dtype=jnp.int32)


def _expeditions(game: LostCities, held: jax.Array, rank: np.ndarray) -> tuple[jax.Array, ...]:
    """Return length, wagers, sum of faces, highest rank of bool[C, K, B]; and the score, [B]."""
    # Three sums at once, in fields of one integer.
    face = faces_of(game)[rank]
    fields = jnp.sum(
        jnp.where(held, 1 | (rank == 0) << _FIELD | face << 2 * _FIELD, 0), axis=1, dtype=jnp.int32
    )
    length, wagers, total = _unpack(fields)
    highest = jnp.max(jnp.where(held, rank, 0), axis=1)
    bonus = jnp.where(length >= game.bonus_threshold, game.bonus_amount, 0)
    points = (total + game.expedition_penalty) * (1 + wagers) + bonus
    score = jnp.sum(jnp.where(length > 0, points, 0), axis=0)
    return length, wagers, total, highest, score


def _run(
    game: LostCities, slot_color: jax.Array, slot_rank: jax.Array, color: Array, rank: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return how many numbers of the hand have colours [X, 1 or B] and ranks [X, B] or above.

    Returns:
      Their number, the sum of their faces, and how many have the middle rank or above.
    """
    high = (slot_rank >= middle_rank(game)).astype(jnp.int32)
    fields = 1 | high << _FIELD | _face(game, slot_rank) << 2 * _FIELD
    fields = jnp.where(slot_rank > 0, fields, 0)
    belongs = (slot_color[None] == color[:, None]) & (slot_rank[None] >= rank[:, None])
    numbers, high, total = _unpack(jnp.sum(jnp.where(belongs, fields[None], 0), axis=1))
    return numbers, total, high


def _unpack(fields: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    mask = (1 << _FIELD) - 1
    return fields & mask, fields >> _FIELD & mask, fields >> 2 * _FIELD


# What cards are worth.


def _bonus_possible(game: LostCities) -> bool:
    return game.suit_size >= game.bonus_threshold


def outlook(
    game: LostCities, length: jax.Array, coming: jax.Array, weight: float = 1.0
) -> Double | int:
    """Return the weighted hope for a colour's bonus.

    Args:
      game: the rules.
      length: cards in the expedition.
      coming: cards that may follow.
      weight: of the result.
    """
    if not _bonus_possible(game):
        return 0
    need = game.bonus_threshold - length
    hope = where(coming >= need, constant(weight * (0.4 * game.bonus_amount)), 0)
    return where(need <= 0, constant(weight * game.bonus_amount), hope)


def plan(game: LostCities, style: Style, table: Table, cards: Cards) -> Double:
    """Return a quarter of what opening a colour with each card promises, 0 for nothing."""
    n, s, g = cards.numbers, cards.number_sum, cards.high
    opened, deck = table.opened, table.deck_left
    full = math.ceil(0.85 * int(faces_of(game).sum()))
    solid = (opened <= 3) & (n >= style.open_count) & (s >= style.open_sum)
    solid &= (g > 0) | (s >= full)
    thin = (opened <= 2) & (n >= 2) & (s >= style.thin_sum) & (g > 0)
    rich = (opened != 3) & (n > style.open_count) & (s >= style.rich_sum)
    rich &= (g >= 2) & (deck > midway(game))
    quick = (opened <= 2) & (deck <= midway(game)) & (n >= 1) & (cards.face >= 8)

    def choose(of_solid: float, of_thin: float, of_rich: float, of_quick: float) -> Double:
        factor = where(quick, constant(0.25 * of_quick), 0)
        factor = where(rich, constant(0.25 * of_rich), factor)
        factor = where(thin, constant(0.25 * of_thin), factor)
        return where(solid, constant(0.25 * of_solid), factor)

    of_rich = rich & ~solid & ~thin
    of_quick = quick & ~solid & ~thin & ~rich
    value = choose(6, 3, 10, 1.5) + jnp.where(of_quick, cards.face, s) * choose(
        0.25, 0.18, 0.3, 0.2
    )
    value += n * choose(0.8, 0.7, 1, 0)
    value += jnp.where(of_rich, g, cards.colors.hand_wagers) * choose(0.5, 0.4, 0.7, 0)
    cost = jnp.where(opened <= 1, 0, jnp.where(opened == 2, 6, jnp.where(opened == 3, 14, 28)))
    return where(solid | thin | rich | quick, value - scaled(0.25, cost), 0)


def value_to_me(game: LostCities, cards: Cards) -> Double:
    """Return what each card is worth in my hand."""
    interest = cards.colors.interest
    number = scaled(0.8, cards.face) + interest
    number += jnp.where(cards.colors.length > 0, 4, 0)
    number += jnp.where(cards.colors.length > 0, 3, 0)
    number += jnp.where((interest >= 6) & (cards.rank <= middle_rank(game)), 5, 0)
    return where(cards.fits_me, where(cards.is_wager, product(1.2, interest) + 7, number), 0)


def value_to_them(cards: Cards) -> Double:
    """Return what each card is worth to the opponent."""
    interest = cards.colors.their_interest
    wager = 6 * interest + 8
    number = cards.face * (interest + constant(0.4))
    return where(cards.fits_them, where(cards.is_wager, wager, number), 0)
