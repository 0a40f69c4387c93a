"""The rule-based players of Lost Cities: open strong colours, deny the opponent, race the deck.

All share one set of rules and differ in thresholds (`Style`) and in how often they play at random.
Two simpler players are the same program, so that an evaluation against all of them compiles once:
one that always plays at random, and one that only discards.
B batch, A actions, C colours, H hand size; in what follows the batch is the last axis (`table.py`).
"""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp

from coorl_jax.agents.doubles import (
    Double,
    constant,
    integers,
    last_best,
    product,
    scaled,
    where,
)
from coorl_jax.agents.table import (
    Cards,
    Style,
    Table,
    faces_of,
    hand_cards,
    late,
    middle_rank,
    midway,
    my_interest,
    outlook,
    plan,
    see,
    top_cards,
    value_to_me,
    value_to_them,
)
from coorl_jax.cfr.regret_matching import uniform_policy
from coorl_jax.games.lost_cities import LostCities, information
from coorl_jax.games.lost_cities.rules import CARD_PHASE


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RuleBot:
    """Plays by rules, and with probability `noise` at each decision at random instead.

    The rules of a `passive` one are to discard the first card and to draw from the deck.
    """

    game: LostCities = dataclasses.field(metadata={"static": True})
    style: Style
    noise: jax.Array  # float32, 0 to 1
    passive: jax.Array  # bool

    def action_probabilities(self, packed: jax.Array, legal: jax.Array) -> jax.Array:
        """Return float32[B, A] from uint8[B, P] and bool[B, A]; all zero after the round's end."""
        game = self.game
        goes_on = packed[:, game.num_cards + game.hand_size + 1] > 0
        in_card_phase = jax.vmap(partial(information.phase, game))(packed) == CARD_PHASE
        thinks = goes_on & ~self.passive & (self.noise < 1)
        discard_first = jnp.full(goes_on.shape, 1, jnp.int32)
        draw_deck = jnp.full(goes_on.shape, 2 * game.hand_size, jnp.int32)
        # In a match all rounds of a batch are in the same phase: the other one is not computed.
        card_action = jax.lax.cond(
            jnp.any(in_card_phase & thinks),
            lambda: _card_action(game, self.style, see(game, packed)),
            lambda: discard_first,
        )
        draw_action = jax.lax.cond(
            jnp.any(~in_card_phase & thinks),
            lambda: _draw_action(game, self.style, see(game, packed), legal),
            lambda: draw_deck,
        )
        action = jnp.where(in_card_phase, card_action, draw_action)
        legal = legal & goes_on[:, None]
        chosen = jax.nn.one_hot(action, game.num_actions, dtype=jnp.float32) * legal
        return self.noise * uniform_policy(legal) + (1 - self.noise) * chosen


@dataclasses.dataclass(frozen=True)
class _Shares:
    """A style for any rules."""

    open_sum: float  # of the sum of all faces of a colour, wanted to open it
    open_count: float  # of the hand size, wanted as numbers to open
    wager_sum: float  # of the sum wanted to open, wanted before a wager
    wager_count: float  # of the hand size, wanted as numbers before a wager
    last_open: float  # of the deck, at or under which no colour is opened


_STYLES = {
    "balanced": _Shares(0.50, 0.40, 1.15, 0.34, 0.20),
    "aggressive": _Shares(0.42, 0.30, 1.00, 0.25, 0.12),
    "cautious": _Shares(0.62, 0.50, 1.35, 0.45, 0.30),
}


def make(
    game: LostCities,
    style: Literal["balanced", "aggressive", "cautious"] = "balanced",
    noise: float = 0.0,
    passive: bool = False,
) -> RuleBot:
    """Return a player.

    Args:
      game: the rules of the game.
      style: when it dares to open a colour.
      noise: probability of playing at random at a decision.
      passive: whether it only discards its first card and draws from the deck, whatever its style.
    """
    shares = _STYLES[style]
    even = -game.expedition_penalty
    target = min(0.8 * even, shares.open_sum * int(faces_of(game).sum()))
    # Sums of faces are integers: they reach a fraction where they reach the next integer.
    thresholds = Style(
        open_count=_clamp(round(game.hand_size * shares.open_count), game.hand_size),
        open_sum=math.ceil(target),
        thin_sum=math.ceil(0.65 * target),
        rich_sum=math.ceil(max(even, 1.4 * target)),
        forced_sum=math.ceil(0.5 * target),
        wager_count=_clamp(round(game.hand_size * shares.wager_count), game.hand_size),
        wager_sum=math.ceil(target * shares.wager_sum),
        last_open=max(1, round(game.num_cards * shares.last_open)),
    )
    return RuleBot(game, Style(*map(jnp.int32, thresholds)), jnp.float32(noise), jnp.bool_(passive))


def _clamp(count: int, most: int) -> int:
    return min(max(count, 1), most)


def _card_action(game: LostCities, style: Style, table: Table) -> jax.Array:
    """Return the action of the card phase, int32[B]."""
    cards = hand_cards(game, table)
    held = table.slot_color >= 0
    quarter_plan = plan(game, style, table, cards)
    # What comes later in this list outranks all that comes before.
    value, valid, discards = _discards(game, cards), held, jnp.int32(1)
    for play_value, playable in (
        _first_numbers(game, style, table, cards, quarter_plan),
        _numbers(game, style, table, cards, quarter_plan),
        _wagers(game, style, table, cards),
    ):
        plays = jnp.any(playable & held, axis=0, keepdims=True)
        value = where(plays, play_value, value)
        valid = jnp.where(plays, playable & held, valid)
        discards = jnp.where(plays[0], 0, discards)
    return 2 * last_best(value, valid) + discards


def _wagers(game: LostCities, style: Style, table: Table, cards: Cards) -> tuple[Double, jax.Array]:
    """Return what playing each wager promises, and which may be played."""
    colors = cards.colors
    n, s = colors.numbers, colors.number_sum
    valid = (
        cards.is_wager
        & cards.fits_me
        & (n >= style.wager_count)
        & (s >= style.wager_sum)
        & (table.deck_left > style.last_open)
    )
    # The other wagers of the colour are not counted among the cards that may follow.
    value = integers(s + 2 * n) + outlook(game, colors.mine.length + 1, n)
    return value - _late_cost(game, table), valid


def _numbers(
    game: LostCities, style: Style, table: Table, cards: Cards, quarter_plan: Double
) -> tuple[Double, jax.Array]:
    """Return what playing each number promises, and which may be played."""
    colors, face, n, s = cards.colors, cards.face, cards.numbers, cards.number_sum
    started = colors.mine.length > 0
    deck = table.deck_left
    hope = outlook(game, colors.mine.length + 1, colors.fitting - 1)

    haste = where(deck <= midway(game), scaled(0.8, face), 0)
    haste = where(deck <= late(game), integers(2 * face), haste)
    goes_on = integers(7 + (game.min_rank + game.ranks) - face) + haste
    goes_on -= jnp.where(colors.mine.total + s < style.open_sum, 6, 0)
    goes_on = goes_on + 3 * colors.mine.wagers + hope

    opens = scaled(0.5, 2 * s + 4 * n + 3 * colors.hand_wagers) + 4 * quarter_plan
    opens = opens + game.expedition_penalty + jnp.maximum(0, middle_rank(game) - cards.rank)
    opens = opens + hope - _late_cost(game, table)

    may_open = (deck > style.last_open) & (quarter_plan > 0)
    return where(started, goes_on, opens), ~cards.is_wager & cards.fits_me & (started | may_open)


def _first_numbers(
    game: LostCities, style: Style, table: Table, cards: Cards, quarter_plan: Double
) -> tuple[Double, jax.Array]:
    """Return the same for the number that opens a first colour, unless the colour is hopeless."""
    n, s = cards.colors.numbers, cards.colors.number_sum
    promising = (quarter_plan > 0) | (n >= 2) | (s >= style.forced_sum)
    promising |= table.deck_left <= midway(game)
    value = 4 * quarter_plan + scaled(0.2, s) + (game.min_rank + game.ranks - cards.face)
    return value, ~cards.is_wager & (table.opened == 0) & promising


def _discards(game: LostCities, cards: Cards) -> Double:
    """Return how well each card can be spared."""
    fits_me = cards.fits_me
    value = -value_to_me(game, cards) - value_to_them(game, cards)
    value += jnp.where(fits_me, 0, 20)
    value += jnp.where(cards.fits_them, 0, 6)
    return value - jnp.where(cards.is_wager & fits_me, 4, 0)


def _late_cost(game: LostCities, table: Table) -> jax.Array:
    deck = table.deck_left
    return jnp.where(deck <= late(game), 15, jnp.where(deck <= midway(game), 8, 0))


def _draw_action(game: LostCities, style: Style, table: Table, legal: jax.Array) -> jax.Array:
    """Return the action of the draw phase, int32[B], among bool[B, A]."""
    deck = table.deck_left
    pace = jnp.where(deck > midway(game), 8, jnp.where(deck > late(game), 4, -4))
    of_deck = scaled(0.25, pace + jnp.where(table.lead > 0, 3, -5))
    of_piles = _piles(game, style, table)
    # The last one of equal values is taken: the deck comes last.
    values = jax.tree.map(lambda *parts: jnp.concatenate(parts), of_piles, of_deck)
    draw = 2 * game.hand_size
    piles = legal[:, draw + 1 :].T
    best = last_best(values, jnp.concatenate([piles, jnp.ones_like(piles[:1])]))
    return jnp.where(best == game.colors, draw, draw + 1 + best)


def _piles(game: LostCities, style: Style, table: Table) -> Double:
    """Return what the card on top of each pile is worth, [C, B]."""
    cards = top_cards(game, table)
    colors, opened = cards.colors, table.opened
    started = colors.mine.length > 0
    to_them = value_to_them(game, cards)
    interest = my_interest(game, colors)
    support = _support(game, style, table, cards)
    base = product(0.4, to_them) + where(table.lead <= 0, constant(1.5), 0)
    crowd = jnp.where(opened >= 4, 20, jnp.where(opened == 3, 10, 0))
    base -= jnp.where(started, 0, crowd)
    # One colour more is too many, unless it is good or hurts, or much has to be risked.
    too_many = ~started & (opened >= 4) & ~(support >= 6) & ~(to_them >= 10) & (table.lead > -15)

    weak = (colors.numbers < style.wager_count) | (colors.number_sum < style.wager_sum)
    backed = where(too_many, integers(-8), base + support - constant(0.5))
    wager = where(~started & weak, backed, base + 6 + interest)
    wager = where(colors.mine.highest > 0, base - 2, wager)

    fitting = base + cards.face + product(0.7, interest)
    fitting += where(started, integers(5), support)
    number = where(cards.fits_me, fitting, base - 2)
    number = number + outlook(game, colors.mine.length, colors.fitting + 1)
    number = where(too_many, integers(-8), number)
    return where(cards.is_wager, wager, number)


def _support(game: LostCities, style: Style, table: Table, cards: Cards) -> Double:
    """Return how well the hand supports opening with the card on top of each pile, [C, B]."""
    opened, n, wagers = table.opened, cards.numbers, cards.colors.hand_wagers
    solid = (n + 1 >= style.open_count) & (cards.number_sum + cards.face >= style.open_sum)
    solid &= (cards.high > 0) | (cards.rank >= middle_rank(game))
    some = (opened <= 2) & ((n > 0) | (wagers > 0))
    value = scaled(0.8, n) + wagers
    value += where(cards.rank <= middle_rank(game), constant(1.5), 0)
    value += where(solid, integers(4), where(some, constant(1.5), 0))
    quarter_plan = plan(game, style, table, cards)
    good = where(quarter_plan > 0, quarter_plan, 0)
    return value + where(opened <= 2, quarter_plan, where(opened == 3, product(0.4, good), 0))
