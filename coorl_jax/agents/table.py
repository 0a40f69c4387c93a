"""What a rule-based player of Lost Cities sees, and what cards are worth to it.

It sees what is public and its own hand. B batch, C colours, H slots of the hand, R ranks; a wager
has rank 0 and face 0. Everything is int32 with the batch as its last axis, which is what vector
instructions run along; figures of the whole state have a first axis of 1.

The values are sums of decimal fractions, added in the order in which they are written: some actions
are decided by sums that are equal, or would be if doubles did not round; see `doubles.py`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from coorl_jax.agents.doubles import Array, Double, constant, product, scaled, where
from coorl_jax.games.lost_cities import LostCities, information

_NONE = -1
_FIELD = 8  # bits: counts of cards are at most 60


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


class Expeditions(NamedTuple):
    """One player's expeditions, [C, B]; or those of the colours of cards, [X, B]."""

    length: jax.Array  # cards
    wagers: jax.Array
    total: jax.Array  # of faces
    highest: jax.Array  # rank of the highest number, 0 for none


class Colors(NamedTuple):
    """Figures of colours, [C, B]; or of the colours of cards, [X, B]."""

    mine: Expeditions
    theirs: Expeditions
    top_rank: jax.Array  # of the card on top of the pile, _NONE for no card
    hand_wagers: jax.Array  # in my hand
    numbers: jax.Array  # in my hand that fit my expedition
    number_sum: jax.Array  # of their faces

    @property
    def fitting(self) -> jax.Array:
        """Cards in my hand that fit my expedition."""
        return self.numbers + jnp.where(self.mine.highest == 0, self.hand_wagers, 0)


class Table(NamedTuple):
    """A batch of states as the player to move sees them."""

    slot_color: jax.Array  # [H, B], _NONE for an empty slot
    slot_rank: jax.Array  # [H, B]
    colors: Colors  # [C, B]
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
        return _fits(self.rank, self.colors.mine.highest)

    @property
    def fits_them(self) -> jax.Array:
        """Where the opponent could, bool."""
        return _fits(self.rank, self.colors.theirs.highest)


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
    slot_color = jnp.where(slots == information.EMPTY, _NONE, slots // kinds)
    slot_rank = slots % kinds

    rank = np.maximum(np.arange(game.suit_size) - game.wagers + 1, 0).astype(np.int32)
    rank = rank[None, :, None]
    code = jnp.max(cards, axis=1)
    top_rank = jnp.max(jnp.where(cards == code[:, None], rank, 0), axis=1)
    top_rank = jnp.where(code >= information.PILE, top_rank, _NONE)
    mine, my_score = _expeditions(game, cards == information.OWN_EXPEDITION, rank)
    theirs, their_score = _expeditions(game, cards == information.OPPONENT_EXPEDITION, rank)
    color = np.arange(game.colors, dtype=np.int32)[:, None]
    numbers, number_sum, _ = _run(game, slot_color, slot_rank, color, mine.highest + 1)
    hand_wagers = _count((slot_color[None] == color[:, None]) & (slot_rank == 0)[None])
    return Table(
        slot_color=slot_color,
        slot_rank=slot_rank,
        colors=Colors(mine, theirs, top_rank, hand_wagers, numbers, number_sum),
        opened=_count(mine.length > 0)[None],
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
    return _cards(game, table, color, table.colors.top_rank, table.colors)


def _cards(game: LostCities, table: Table, color: Array, rank: jax.Array, colors: Colors) -> Cards:
    run = _run(game, table.slot_color, table.slot_rank, color, rank)
    return Cards(rank, _face(game, rank), colors, *run)


def _count(condition: jax.Array) -> jax.Array:
    """Return how many are true along the last axis but one."""
    return jnp.sum(condition, axis=-2, dtype=jnp.int32)


def _expeditions(
    game: LostCities, held: jax.Array, rank: np.ndarray
) -> tuple[Expeditions, jax.Array]:
    """Return the expeditions that hold bool[C, K, B], and their score, [B]."""
    fields = _pack(1, (rank == 0).astype(np.int32), faces_of(game)[rank])
    length, wagers, total = _sums(jnp.where(held, fields, 0))
    highest = jnp.max(jnp.where(held, rank, 0), axis=1)
    bonus = jnp.where(length >= game.bonus_threshold, game.bonus_amount, 0)
    points = (total + game.expedition_penalty) * (1 + wagers) + bonus
    score = jnp.sum(jnp.where(length > 0, points, 0), axis=0)
    return Expeditions(length, wagers, total, highest), score


def _run(
    game: LostCities, slot_color: jax.Array, slot_rank: jax.Array, color: Array, rank: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return how many numbers of the hand have colours [X, 1 or B] and ranks [X, B] or above.

    Returns:
      Their number, the sum of their faces, and how many have the middle rank or above.
    """
    high = (slot_rank >= middle_rank(game)).astype(jnp.int32)
    fields = jnp.where(slot_rank > 0, _pack(1, high, _face(game, slot_rank)), 0)
    belongs = (slot_color[None] == color[:, None]) & (slot_rank[None] >= rank[:, None])
    numbers, high, total = _sums(jnp.where(belongs, fields[None], 0))
    return numbers, total, high


def _pack(first: Array | int, second: Array, third: Array) -> Array:
    """Return three figures in fields of one integer: their sums are then one sum."""
    return first | second << _FIELD | third << 2 * _FIELD


def _sums(fields: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the three sums along the last axis but one."""
    fields = jnp.sum(fields, axis=-2, dtype=jnp.int32)
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
    strong = (opened <= 3) & (n >= style.open_count) & (s >= style.open_sum)
    strong &= (g > 0) | (s >= full)
    thin = (opened <= 2) & (n >= 2) & (s >= style.thin_sum) & (g > 0) & ~strong
    rich = (opened != 3) & (n > style.open_count) & (s >= style.rich_sum) & (g >= 2)
    rich &= (deck > midway(game)) & ~strong & ~thin
    quick = (opened <= 2) & (deck <= midway(game)) & (n >= 1) & (cards.face >= 8)
    quick &= ~strong & ~thin

    def factor(if_strong: float, if_thin: float, if_rich: float, if_quick: float) -> Double:
        chosen = where(quick, constant(0.25 * if_quick), 0)
        chosen = where(rich, constant(0.25 * if_rich), chosen)
        chosen = where(thin, constant(0.25 * if_thin), chosen)
        return where(strong, constant(0.25 * if_strong), chosen)

    value = factor(6, 3, 10, 1.5)
    value += jnp.where(quick, cards.face, s) * factor(0.25, 0.18, 0.3, 0.2)
    value += n * factor(0.8, 0.7, 1, 0)
    value += jnp.where(rich, g, cards.colors.hand_wagers) * factor(0.5, 0.4, 0.7, 0)
    cost = jnp.where(opened <= 1, 0, jnp.where(opened == 2, 6, jnp.where(opened == 3, 14, 28)))
    return where(strong | thin | rich | quick, value - scaled(0.25, cost), 0)


def my_interest(game: LostCities, colors: Colors) -> Double:
    """Return how much I want cards of each colour."""
    mine, wagers = colors.mine, colors.fitting - colors.numbers
    return (
        scaled(0.25, jnp.where(mine.length > 0, 20, 0) + 8 * mine.wagers + mine.total)
        + scaled(1.2, colors.numbers)
        + scaled(1.5, wagers)
        + scaled(0.15, colors.number_sum)
        + outlook(game, mine.length, colors.fitting, weight=0.05)
    )


def their_interest(game: LostCities, colors: Colors) -> Double:
    """Return a quarter of how much the opponent seems to want cards of each colour."""
    theirs, top = colors.theirs, colors.top_rank
    number_on_top = scaled(0.25 * 0.1, _face(game, top)) + constant(0.25)
    on_top = where(top == 0, constant(0.25 * 1.5), number_on_top)
    started = jnp.where(theirs.length > 0, 20, 0)
    interest = (
        scaled(0.25 * 0.25, started + 8 * theirs.wagers + theirs.total)
        + scaled(0.25 * 0.4, _face(game, theirs.highest))
        + where(_fits(top, theirs.highest), on_top, 0)
    )
    if not _bonus_possible(game):
        return interest
    near = theirs.length + 1 >= game.bonus_threshold
    return interest + where(near, constant(0.25 * (0.2 * game.bonus_amount)), 0)


def value_to_me(game: LostCities, cards: Cards) -> Double:
    """Return what each card is worth in my hand."""
    interest = my_interest(game, cards.colors)
    started = cards.colors.mine.length > 0
    number = scaled(0.8, cards.face) + interest
    number = number + jnp.where(started, 4, 0) + jnp.where(started, 3, 0)
    number += jnp.where((interest >= 6) & (cards.rank <= middle_rank(game)), 5, 0)
    return where(cards.fits_me, where(cards.is_wager, product(1.2, interest) + 7, number), 0)


def value_to_them(game: LostCities, cards: Cards) -> Double:
    """Return what each card is worth to the opponent."""
    # By quarters, and then times integers: see `Double`.
    interest = their_interest(game, cards.colors)
    wager = 6 * interest + 8
    number = cards.face * (interest + constant(0.4))
    return where(cards.fits_them, where(cards.is_wager, wager, number), 0)
