"""The rule-based players of Lost Cities: open on strong colours, deny the opponent, race the deck.

All share one set of rules and differ in thresholds (`Style`) and in how often they play at random.
They decide from public facts and their own hand. B batch, C colours, R ranks, H hand size; arrays
over kinds of card, [C, R + 1], have the wager at 0 and the number of rank r at r.

The rules weigh cards with decimal fractions, and equal sums decide some actions, so all sums are
integers in units small enough for every coefficient:

| quantity | unit | because of |
|---|---|---|
| bonus outlook | 1/5 | 0.4 of the bonus |
| own interest | 1/100 | 0.25, 1.2, 0.15; 0.05 of 1/5 |
| opponent's interest | 1/20 | 0.25, 0.4, 0.1, 0.2 |
| value to me | 1/500 | 1.2 of 1/100, 0.8 |
| value to the opponent | 1/80 | 0.25 and 1.5 of 1/20, 0.4 |
| plan, value of a play | 1/100 | 0.25, 0.18, 0.8; 1/5 |
| value of a discard | 1/2000 | 1/500 and 1/80 |
| support, value of a draw | 1/2000 | 0.4 of 1/80; 0.7, 0.25 and 0.1 of 1/100 |

Under no rules do they reach a tenth of what int32 holds. What is compared with a fraction is an
integer, so that comparing it with the fraction rounded up is the same.
"""

from __future__ import annotations

import dataclasses
import math
from functools import partial
from typing import Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from coorl_jax.cfr.regret_matching import uniform_policy
from coorl_jax.games.lost_cities import LostCities, information
from coorl_jax.games.lost_cities.rules import CARD_PHASE

Array: TypeAlias = jax.Array | np.ndarray

_NEVER = -(2**30)  # below the value of any action


class Style(NamedTuple):
    """When a player dares to open a colour; int32 scalars; sums are of faces."""

    open_count: jax.Array | int  # numbers wanted to open a colour
    open_sum: jax.Array | int  # their sum
    thin_sum: jax.Array | int  # sum that is enough while few colours are open
    rich_sum: jax.Array | int  # sum wanted to open a colour more than is wise
    forced_sum: jax.Array | int  # sum that is enough for the first colour
    wager_count: jax.Array | int  # numbers wanted before a wager
    wager_sum: jax.Array | int  # their sum
    last_open: jax.Array | int  # cards in the deck at or under which no colour is opened


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Heuristic:
    """Plays by rules, and with probability `noise` at each decision at random instead."""

    game: LostCities = dataclasses.field(metadata={"static": True})
    style: Style
    noise: jax.Array  # float32, 0 to 1

    def action_probabilities(self, packed: jax.Array, legal: jax.Array) -> jax.Array:
        """Return float32[B, A] from uint8[B, P] and bool[B, A]; all zero after the round's end."""
        game, draws = self.game, 2 * self.game.hand_size
        phase = jax.vmap(partial(information.phase, game))(packed)
        goes_on = packed[:, game.num_cards + game.hand_size + 1] > 0
        in_card_phase = (phase == CARD_PHASE) & goes_on
        in_draw_phase = (phase != CARD_PHASE) & goes_on
        none = jnp.zeros_like(phase)
        # In a match all rounds of a batch are in the same phase: the other one is not computed.
        card_action = jax.lax.cond(
            jnp.any(in_card_phase),
            lambda: jax.vmap(partial(_card_action, game, self.style))(packed),
            lambda: none,
        )
        draw_action = jax.lax.cond(
            jnp.any(in_draw_phase),
            lambda: (
                draws + jax.vmap(partial(_draw, game, self.style))(packed, legal[:, draws + 1 :])
            ),
            lambda: none,
        )
        action = jnp.where(in_card_phase, card_action, draw_action)
        legal = legal & goes_on[:, None]
        chosen = (action[:, None] == np.arange(game.num_actions, dtype=np.int32)) & legal
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
    game: LostCities, style: Literal["balanced", "aggressive", "cautious"], noise: float = 0.0
) -> Heuristic:
    """Return a player of a style, who plays at random with probability `noise` at each decision."""
    shares = _STYLES[style]
    even = -game.expedition_penalty
    target = min(0.8 * even, shares.open_sum * _full_sum(game))
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
    return Heuristic(game, Style(*map(jnp.int32, thresholds)), jnp.float32(noise))


def _clamp(count: int, most: int) -> int:
    return min(max(count, 1), most)


# The rules as numbers.


def _faces(game: LostCities) -> np.ndarray:
    """Return int32[1, R + 1]."""
    ranks = np.arange(game.ranks + 1, dtype=np.int32)[None]
    return np.where(ranks == 0, 0, game.min_rank + ranks - 1).astype(np.int32)


def _full_sum(game: LostCities) -> int:
    return int(_faces(game).sum())


def _late(game: LostCities) -> int:
    """Return the cards in the deck at or under which it is late."""
    return max(1, round(game.num_cards * 0.20))


def _midway(game: LostCities) -> int:
    """Return the cards in the deck at or under which half the game is over."""
    return max(_late(game) + 1, round(game.num_cards * 0.35))


def _middle_rank(game: LostCities) -> int:
    return (game.ranks + 1) // 2


# What a player sees.


class _Expeditions(NamedTuple):
    """One player's, int32[C]."""

    length: jax.Array
    wagers: jax.Array
    total: jax.Array  # of faces
    highest: jax.Array  # rank of the highest number, 0 for none
    fits: jax.Array  # bool[C, R + 1], cards that could be added


class _Table(NamedTuple):
    """The packed bytes, taken apart."""

    hand: jax.Array  # int32[C, R + 1], cards of each kind
    mine: _Expeditions
    theirs: _Expeditions
    top: jax.Array  # int32[C], kind of the card on top of the pile
    has_top: jax.Array  # bool[C]
    opened: jax.Array  # int32, colours that I have opened
    deck_left: jax.Array  # int32
    lead: jax.Array  # int32, my score less the opponent's if the round ended now


def _by_kind(game: LostCities, cards: jax.Array) -> jax.Array:
    """Return int32[C, R + 1], how many of each kind, from bool[C, K]."""
    wagers = jnp.sum(cards[:, : game.wagers], axis=1, keepdims=True, dtype=jnp.int32)
    return jnp.concatenate([wagers, cards[:, game.wagers :].astype(jnp.int32)], axis=1)


def _ranks(game: LostCities) -> np.ndarray:
    """Return int32[1, R + 1]: 0 for a wager, 1 ... R."""
    return np.arange(game.ranks + 1, dtype=np.int32)[None]


def _expeditions(game: LostCities, cards: jax.Array) -> tuple[_Expeditions, jax.Array]:
    """Return the expeditions that hold bool[C, K], and their score."""
    held = _by_kind(game, cards)
    length, wagers = jnp.sum(held, axis=1), held[:, 0]
    total = jnp.sum(held * _faces(game), axis=1)
    highest = jnp.max(held[:, 1:] * _ranks(game)[:, 1:], axis=1)
    fits = jnp.where(_ranks(game) == 0, highest[:, None] == 0, _ranks(game) > highest[:, None])
    bonus = jnp.where(length >= game.bonus_threshold, game.bonus_amount, 0)
    points = (total + game.expedition_penalty) * (1 + wagers) + bonus
    score = jnp.sum(jnp.where(length > 0, points, 0))
    return _Expeditions(length, wagers, total, highest, fits), score


def _see(game: LostCities, packed: jax.Array) -> _Table:
    cards = packed[: game.num_cards].reshape(game.colors, game.suit_size)
    own = (cards == information.OWN) | (cards == information.OWN_KNOWN)
    mine, my_score = _expeditions(game, cards == information.OWN_EXPEDITION)
    theirs, their_score = _expeditions(game, cards == information.OPPONENT_EXPEDITION)
    code = jnp.max(cards, axis=1)
    has_top = code >= information.PILE
    kinds = np.maximum(np.arange(game.suit_size) - game.wagers + 1, 0).astype(np.int32)
    top = jnp.max(jnp.where(cards == code[:, None], kinds[None], 0), axis=1)
    return _Table(
        hand=_by_kind(game, own),
        mine=mine,
        theirs=theirs,
        top=top,
        has_top=has_top,
        opened=jnp.sum(mine.length > 0, dtype=jnp.int32),
        deck_left=packed[game.num_cards + game.hand_size + 1].astype(jnp.int32),
        lead=my_score - their_score,
    )


# What both phases weigh.


class _Run(NamedTuple):
    """Numbers in the hand from some rank on, int32[C, ...]."""

    cards: jax.Array
    total: jax.Array  # of faces
    high: jax.Array  # how many of the middle rank or above


def _run(game: LostCities, hand: jax.Array, counts: Array) -> _Run:
    """Return the run of the cards that bool[C, ..., R + 1] chooses from int32[C, ..., R + 1]."""
    chosen = jnp.where(counts, hand, 0)
    shape = (1,) * (chosen.ndim - 1) + (-1,)
    faces, ranks = _faces(game).reshape(shape), _ranks(game).reshape(shape)
    return _Run(
        jnp.sum(jnp.where(ranks > 0, chosen, 0), axis=-1),
        jnp.sum(chosen * faces, axis=-1),
        jnp.sum(jnp.where(ranks >= _middle_rank(game), chosen, 0), axis=-1),
    )


def _outlook(
    game: LostCities, table: _Table, fitting: jax.Array, extra: int, committed: int
) -> jax.Array:
    """Return the bonus outlook in 1/5, int32[C], from the fitting cards that remain, int32[C]."""
    if game.suit_size < game.bonus_threshold:
        return jnp.zeros_like(fitting)
    need = game.bonus_threshold - committed - table.mine.length
    bonus = game.bonus_amount
    return jnp.where(need <= 0, 5 * bonus, jnp.where(fitting + extra >= need, 2 * bonus, 0))


def _crowding(opened: jax.Array) -> jax.Array:
    """Return the cost of one more colour, points."""
    return jnp.where(opened <= 1, 0, jnp.where(opened == 2, 6, jnp.where(opened == 3, 14, 28)))


def _plan(
    game: LostCities,
    style: Style,
    table: _Table,
    run: _Run,
    wagers: jax.Array,
    face: Array,
) -> jax.Array:
    """Return the value of opening a colour with a card, in 1/100.

    Args:
      game: the rules.
      style: the thresholds.
      table: what the player sees.
      run: of the card.
      wagers: in the hand, of its colour.
      face: of the card, 0 for a wager.
    """
    n, s, g = run
    opened, deck = table.opened, table.deck_left
    midway = _midway(game)
    full = math.ceil(0.85 * _full_sum(game))
    strong = (n >= style.open_count) & (s >= style.open_sum) & ((g > 0) | (s >= full))
    thin = (n >= 2) & (s >= style.thin_sum) & (g > 0)
    rich = (n > style.open_count) & (s >= style.rich_sum) & (g >= 2) & (deck > midway)
    quick = (n >= 1) & (face >= 8) & (deck <= midway)
    cost = 100 * _crowding(opened)
    none = jnp.zeros_like(n)
    return jnp.select(
        [
            strong & (opened <= 3),
            thin & (opened <= 2),
            none + opened == 3,
            rich,
            quick & (opened <= 3),
        ],
        [
            600 + 25 * s + 80 * n + 50 * wagers - cost,
            300 + 18 * s + 70 * n + 40 * wagers - cost,
            none,
            1000 + 30 * s + 100 * n + 70 * g - cost,
            none + 150 + 20 * face - cost,
        ],
        none,
    )


def _own_interest(game: LostCities, table: _Table) -> jax.Array:
    """Return how much I want cards of each colour, in 1/100, int32[C]."""
    mine = table.mine
    fitting = jnp.where(mine.fits, table.hand, 0)
    count = jnp.sum(fitting, axis=1)
    total = jnp.sum(fitting * _faces(game), axis=1)
    wagers = fitting[:, 0]
    return (
        jnp.where(mine.length > 0, 500, 0)
        + 200 * mine.wagers
        + 25 * mine.total
        + 120 * (count - wagers)
        + 150 * wagers
        + 15 * total
        + _outlook(game, table, count, 0, 0)
    )


def _their_interest(game: LostCities, table: _Table) -> jax.Array:
    """Return how much the opponent seems to want cards of each colour, in 1/20, int32[C]."""
    theirs = table.theirs
    highest_face = jnp.where(theirs.highest > 0, theirs.highest + (game.min_rank - 1), 0)
    top_fits = table.has_top & jnp.where(
        table.top == 0, theirs.highest == 0, table.top > theirs.highest
    )
    top_value = jnp.where(table.top == 0, 30, 20 + 2 * (table.top + (game.min_rank - 1)))
    interest = (
        jnp.where(theirs.length > 0, 100, 0)
        + 40 * theirs.wagers
        + 5 * theirs.total
        + 8 * highest_face
        + jnp.where(top_fits, top_value, 0)
    )
    if game.suit_size < game.bonus_threshold:
        return interest
    return interest + jnp.where(theirs.length + 1 >= game.bonus_threshold, 4 * game.bonus_amount, 0)


def _value_to_them(interest: jax.Array, fits: jax.Array, is_wager: Array, face: Array) -> jax.Array:
    """Return what cards are worth to the opponent, in 1/80."""
    return jnp.where(fits, jnp.where(is_wager, 640 + 6 * interest, face * (32 + interest)), 0)


# The decisions.


def _card_action(game: LostCities, style: Style, packed: jax.Array) -> jax.Array:
    """Return the action of the card phase, int32."""
    table = _see(game, packed)
    ranks = _ranks(game)[0]
    run = _run(game, table.hand[:, None], ranks[None, None, :] >= ranks[None, :, None])
    play, value = _best_play(game, style, table, run)
    kind = jnp.where(play, value, _best_discard(game, table))
    # Of equal cards the last slot, and the empty slot's mark is greater than any kind.
    slots = packed[game.num_cards : game.num_cards + game.hand_size]
    slot = jnp.sum(slots <= kind, dtype=jnp.int32) - 1
    return jnp.where(play, 2 * slot, 2 * slot + 1)


def _last_best(values: jax.Array) -> jax.Array:
    """Return the index of the greatest value, the last among equals, int32."""
    values = values.reshape(-1)
    indices = np.arange(values.size, dtype=np.int32)
    return jnp.max(jnp.where(values == jnp.max(values), indices, -1))


def _best_play(
    game: LostCities, style: Style, table: _Table, run: _Run
) -> tuple[jax.Array, jax.Array]:
    """Return whether to play a card, and its number among the C (R + 1) kinds."""
    mine, hand, deck = table.mine, table.hand, table.deck_left
    faces, ranks = _faces(game), _ranks(game)
    n, s, _ = run
    count, total = n[:, :1], s[:, :1]
    late, midway = deck <= _late(game), deck <= _midway(game)
    late_cost = jnp.where(late, 1500, jnp.where(midway, 800, 0))
    may_open = deck > style.last_open
    fitting = jnp.sum(jnp.where(mine.fits, hand, 0), axis=1)
    is_number = ranks > 0
    playable = (hand > 0) & mine.fits
    started = (mine.length > 0)[:, None]
    lowness = 100 * (game.min_rank + game.ranks - faces)

    # A wager before anything else.
    wager_outlook = _outlook(game, table, fitting - hand[:, 0], 0, 1)
    wager_value = (100 * total + 200 * count)[:, 0] + 20 * wager_outlook - late_cost
    bets = (
        playable[:, 0]
        & (count[:, 0] >= style.wager_count)
        & (total[:, 0] >= style.wager_sum)
        & may_open
    )

    # Then a number, in a colour that is open or worth opening.
    plan = _plan(game, style, table, run, hand[:, :1], faces)
    outlook = 20 * _outlook(game, table, fitting - 1, 0, 1)[:, None]
    haste = jnp.where(late, 200, jnp.where(midway, 80, 0))
    continuing = (
        700
        + lowness
        + haste * faces
        - jnp.where(mine.total[:, None] + s < style.open_sum, 600, 0)
        + 300 * mine.wagers[:, None]
        + outlook
    )
    opening = (
        100 * s
        + 200 * n
        + 150 * hand[:, :1]
        + plan
        + 100 * game.expedition_penalty
        + 100 * np.maximum(0, _middle_rank(game) - ranks)
        + outlook
        - late_cost
    )
    number_value = jnp.where(started, continuing, opening)
    advances = playable & is_number & (started | (may_open & (plan > 0)))

    # Then any number of a colour that is not hopeless, if nothing has been opened.
    hopeless = (plan <= 0) & (count < 2) & (total < style.forced_sum) & (deck > _midway(game))
    forced = playable & is_number & (table.opened == 0) & ~hopeless
    forced_value = plan + 20 * total + lowness

    any_bet, any_advance = jnp.any(bets), jnp.any(advances)
    values = jnp.where(
        any_advance,
        jnp.where(advances, number_value, _NEVER),
        jnp.where(forced, forced_value, _NEVER),
    )
    wager_column = jnp.where(bets, wager_value, _NEVER)[:, None]
    values = jnp.where(
        any_bet,
        jnp.where(is_number, _NEVER, wager_column),
        values,
    )
    return any_bet | any_advance | jnp.any(forced), _last_best(values)


def _best_discard(game: LostCities, table: _Table) -> jax.Array:
    """Return which of the C (R + 1) kinds to discard."""
    faces, ranks = _faces(game), _ranks(game)
    fits_me, fits_them = table.mine.fits, table.theirs.fits
    interest = _own_interest(game, table)[:, None]
    is_wager = ranks == 0
    to_me = jnp.where(
        is_wager,
        3500 + 6 * interest,
        400 * faces
        + 5 * interest
        + jnp.where(table.mine.length[:, None] > 0, 3500, 0)
        + jnp.where((interest >= 600) & (ranks <= _middle_rank(game)), 2500, 0),
    )
    to_them = _value_to_them(_their_interest(game, table)[:, None], fits_them, is_wager, faces)
    value = (
        -4 * jnp.where(fits_me, to_me, 0)
        - 25 * to_them
        + jnp.where(fits_me, 0, 40_000)
        + jnp.where(fits_them, 0, 12_000)
        - jnp.where(is_wager & fits_me, 8_000, 0)
    )
    return _last_best(jnp.where(table.hand > 0, value, _NEVER))


def _draw(game: LostCities, style: Style, packed: jax.Array, piles: jax.Array) -> jax.Array:
    """Return 0 for the deck or 1 + the colour of a pile, int32; bool[C] piles may be drawn."""
    table = _see(game, packed)
    mine, deck, opened = table.mine, table.deck_left, table.opened
    top = table.top
    is_wager = top == 0
    face = jnp.where(is_wager, 0, top + (game.min_rank - 1))
    unopened = mine.length == 0
    fits_me = jnp.where(is_wager, mine.highest == 0, top > mine.highest)
    fits_them = jnp.where(is_wager, table.theirs.highest == 0, top > table.theirs.highest)
    interest = _own_interest(game, table)
    to_them = _value_to_them(_their_interest(game, table), fits_them, is_wager, face)
    run = _run(game, table.hand, _ranks(game) >= top[:, None])
    support = _support(game, style, table, run, face)

    base = (
        10 * to_them
        + jnp.where(table.lead <= 0, 3_000, 0)
        - jnp.where(unopened, jnp.where(opened >= 4, 40_000, jnp.where(opened == 3, 20_000, 0)), 0)
    )
    crowded = unopened & (opened >= 4) & (support < 12_000) & (to_them < 800) & (table.lead > -15)
    weak = unopened & ((run.cards < style.wager_count) | (run.total < style.wager_sum))
    wager_value = jnp.where(
        mine.highest > 0,
        base - 4_000,
        jnp.where(
            weak,
            jnp.where(crowded, -16_000, base + support - 1_000),
            base + 12_000 + 20 * interest,
        ),
    )
    fitting = jnp.sum(jnp.where(mine.fits, table.hand, 0), axis=1)
    wanted = 2_000 * face + 14 * interest + jnp.where(unopened, support, 10_000)
    number_value = jnp.where(
        crowded,
        -16_000,
        base + jnp.where(fits_me, wanted, -4_000) + 400 * _outlook(game, table, fitting, 1, 0),
    )
    values = jnp.where(piles, jnp.where(is_wager, wager_value, number_value), _NEVER)
    deck_value = jnp.where(
        deck > _midway(game), 4_000, jnp.where(deck > _late(game), 2_000, -2_000)
    ) + jnp.where(table.lead > 0, 1_500, -2_500)
    return jnp.where(deck_value >= jnp.max(values), 0, 1 + _last_best(values))


def _support(
    game: LostCities, style: Style, table: _Table, run: _Run, face: jax.Array
) -> jax.Array:
    """Return how well the hand supports opening with the top of each pile, in 1/2000, int32[C]."""
    middle, opened = _middle_rank(game), table.opened
    wagers = table.hand[:, 0]
    q = run.cards
    solid = (
        (q + 1 >= style.open_count)
        & (run.total + face >= style.open_sum)
        & ((run.high > 0) | (table.top >= middle))
    )
    plan = _plan(game, style, table, run, wagers, face)
    return (
        1_600 * q
        + 2_000 * wagers
        + jnp.where(table.top <= middle, 3_000, 0)
        + jnp.where(solid, 8_000, jnp.where((opened <= 2) & ((q > 0) | (wagers > 0)), 3_000, 0))
        + jnp.where(opened <= 2, 5 * plan, jnp.where(opened == 3, 2 * jnp.maximum(plan, 0), 0))
    )
