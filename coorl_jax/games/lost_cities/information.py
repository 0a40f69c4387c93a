"""What a Lost Cities player knows: the packed information state and its features.

Packed bytes, for C colours, K cards a colour, N = C K cards and hand size H:

| bytes | content |
|---|---|
| 0 .. N-1 | what the player knows of each card: UNSEEN ... PILE + height |
| N .. N+H-1 | own hand by slot: kind of card, `colour * (ranks + 1) + kind`; EMPTY for none |
| N+H | phase: 0 card, 1 draw |
| N+H+1 | cards left in the deck |
| N+H+2 | colour whose pile may not be drawn now; C for none |
| N+H+3 | discard draws left; 255 for unlimited |
| N+H+4 | seat, 0 or 1 |
| N+H+5 | 1 if it is this player's decision |

This is perfect recall of what matters: cards taken from a discard pile are known to both players
for as long as they stay in the hand, whoever took them. The wagers of a colour are the same card
to a player, so their bytes are sorted, and `kind` is 0 for any wager and 1 .. ranks for numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from coorl_jax.games.game import CardView
from coorl_jax.games.lost_cities.locations import DISCARD, EXPEDITION, HAND, KNOWN

if TYPE_CHECKING:
    from coorl_jax.games.lost_cities.rules import LostCities, State

# What a player knows of a card.
UNSEEN = 0  # in the deck or, unknown, in the opponent's hand
OWN = 1  # in the own hand
OWN_KNOWN = 2  # in the own hand, and the opponent knows
OPPONENT_KNOWN = 3  # known to be in the opponent's hand
OWN_EXPEDITION = 4
OPPONENT_EXPEDITION = 5
PILE = 6  # + height in its discard pile

EMPTY = 255
_SCALARS = 6


def num_kinds(game: LostCities) -> int:
    """Return the kinds of card in a colour: any wager, and each number."""
    return game.ranks + 1


def packed_size(game: LostCities) -> int:
    """Return P in bytes."""
    return game.num_cards + game.hand_size + _SCALARS


def pack(
    game: LostCities, state: State, player: jax.Array, opponent_hidden: int = UNSEEN
) -> jax.Array:
    """Return uint8[P], what `player` knows of the state.

    Args:
      game: the rules.
      state: the state.
      player: int32, 0 or 1.
      opponent_hidden: what to write for cards in the opponent's hand that the player has not seen.
    """
    location = state.location
    seat = player.astype(jnp.uint8)
    opponent = 1 - seat
    known = jnp.where(location >= DISCARD, location - (DISCARD - PILE), jnp.uint8(UNSEEN))
    for code, meaning in (
        (HAND + seat, OWN),
        (HAND + opponent, opponent_hidden),
        (KNOWN + seat, OWN_KNOWN),
        (KNOWN + opponent, OPPONENT_KNOWN),
        (EXPEDITION + seat, OWN_EXPEDITION),
        (EXPEDITION + opponent, OPPONENT_EXPEDITION),
    ):
        known = jnp.where(location == code, jnp.uint8(meaning), known)
    known = known.reshape(game.colors, game.suit_size)
    known = jnp.concatenate(
        [_sort_few(known[:, : game.wagers]), known[:, game.wagers :]], axis=1
    ).reshape(-1)

    hand = jnp.where(player == 0, state.hands[0], state.hands[1])
    color, k = hand // game.suit_size, hand % game.suit_size
    kind = jnp.maximum(k, max(game.wagers - 1, 0)) - (game.wagers - 1)
    slots = jnp.where(hand < game.num_cards, color * num_kinds(game) + kind, jnp.uint8(EMPTY))
    scalars = jnp.stack(
        [
            state.phase,
            state.deck_left,
            state.barred,
            state.discard_draws_left,
            player.astype(jnp.int32),
            (state.mover == player).astype(jnp.int32),
        ]
    )
    return jnp.concatenate([known, slots, scalars.astype(jnp.uint8)])


def seat(game: LostCities, packed: jax.Array) -> jax.Array:
    """Return the seat the packed state belongs to, int32."""
    return packed[game.num_cards + game.hand_size + 4].astype(jnp.int32)


def phase(game: LostCities, packed: jax.Array) -> jax.Array:
    """Return 0 in the card phase and 1 in the draw phase, int32."""
    return packed[game.num_cards + game.hand_size].astype(jnp.int32)


class _Known(NamedTuple):
    """The packed bytes, taken apart. C colours, K cards a colour, H hand size."""

    cards: jax.Array  # uint8[C, K], UNSEEN ... PILE + height
    slots: jax.Array  # uint8[H], kinds; EMPTY for none
    draws: jax.Array  # bool, draw phase
    deck_left: jax.Array  # float32
    barred: jax.Array  # bool[C]
    discard_draws_left: jax.Array  # float32, as a share of the limit; 1 if unlimited
    seat: jax.Array  # float32


def _unpack(game: LostCities, packed: jax.Array) -> _Known:
    n, h = game.num_cards, game.hand_size
    scalars = packed[n + h :]
    left = scalars[3].astype(jnp.float32) / max(game.max_discard_draws or 0, 1)
    return _Known(
        cards=packed[:n].reshape(game.colors, game.suit_size),
        slots=packed[n : n + h],
        draws=scalars[0] == 1,
        deck_left=scalars[1].astype(jnp.float32),
        barred=np.arange(game.colors, dtype=np.uint8) == scalars[2],
        discard_draws_left=jnp.ones_like(left) if game.max_discard_draws is None else left,
        seat=scalars[4].astype(jnp.float32),
    )


class _Expedition(NamedTuple):
    """Figures of one player's expeditions, all float32[C] but `cards`."""

    cards: jax.Array  # bool[C, K]
    num_cards: jax.Array
    total: jax.Array  # sum of faces
    wagers: jax.Array
    highest: jax.Array  # kind of the highest number, 0 for none
    score: jax.Array  # points if the round ended now


def _kinds(game: LostCities) -> np.ndarray:
    """Return float32[1, K]: 0 for a wager, 1 .. ranks for numbers."""
    k = np.arange(game.suit_size)[None]
    return np.maximum(k - game.wagers + 1, 0).astype(np.float32)


def _faces(game: LostCities) -> np.ndarray:
    """Return float32[1, K]: points of each card in an expedition."""
    kinds = _kinds(game)
    return np.where(kinds == 0, 0, kinds + (game.min_rank - 1)).astype(np.float32)


def _expedition(game: LostCities, cards: jax.Array) -> _Expedition:
    faces, kinds = _faces(game), _kinds(game)
    held = cards.astype(jnp.float32)
    num_cards = jnp.sum(held, axis=1)
    total = jnp.sum(held * faces, axis=1)
    wagers = jnp.sum(held[:, : game.wagers], axis=1)
    bonus = jnp.where(num_cards >= game.bonus_threshold, float(game.bonus_amount), 0.0)
    score = (total + game.expedition_penalty) * (1 + wagers) + bonus
    return _Expedition(
        cards=cards,
        num_cards=num_cards,
        total=total,
        wagers=wagers,
        highest=jnp.max(held * kinds, axis=1),
        score=jnp.where(num_cards > 0, score, 0.0),
    )


def _fits(game: LostCities, expedition: _Expedition) -> jax.Array:
    """Return bool[C, K]: the cards that could be added to each expedition."""
    kinds = _kinds(game)
    return jnp.where(
        kinds == 0, expedition.highest[:, None] == 0, kinds > expedition.highest[:, None]
    )


def _pile_top(game: LostCities, cards: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return bool[C, kinds], the kind on top of each pile, and float32[C], pile sizes."""
    code = jnp.max(cards, axis=1)
    size = jnp.maximum(code, PILE - 1) - (PILE - 1)
    top = (cards == code[:, None]) & (size > 0)[:, None]
    wager = jnp.any(top[:, : game.wagers], axis=1, keepdims=True)
    return jnp.concatenate([wager, top[:, game.wagers :]], axis=1), size.astype(jnp.float32)


def counted(game: LostCities, cards: jax.Array) -> jax.Array:
    """Return bool[C, K] with the wagers as "at least 1, 2, ... of them": they are one kind."""
    wagers = jnp.sum(cards[:, : game.wagers], axis=1, keepdims=True)
    return jnp.concatenate([wagers > np.arange(game.wagers)[None], cards[:, game.wagers :]], axis=1)


def card_view(game: LostCities, packed: jax.Array) -> CardView:
    """Return what the `cards` network reads from uint8[P].

    Features of a colour, K = wagers + ranks bits each: own hand; own hand and known to the
    opponent; known in the opponent's hand; own expedition; opponent's expedition; discard pile;
    own hand and playable; unseen and playable by me; not mine and playable by the opponent. Then
    the kind on top of the pile (ranks + 1 bits), for either expedition cards/8, sum/40,
    wagers/3, opened, score/50, highest/9, and sum of own playable cards/40, pile size/8, barred.

    Shared features: phase, deck/44, deck < 10, deck < 20, discard draws left (share), both
    scores/50, their difference/50, seat.
    """
    known = _unpack(game, packed)
    cards = known.cards
    own_known = cards == OWN_KNOWN
    own_hand = (cards == OWN) | own_known
    opponent_known = cards == OPPONENT_KNOWN
    unseen = cards == UNSEEN
    mine = _expedition(game, cards == OWN_EXPEDITION)
    theirs = _expedition(game, cards == OPPONENT_EXPEDITION)
    fits_me, fits_them = _fits(game, mine), _fits(game, theirs)
    playable = own_hand & fits_me
    top, pile_size = _pile_top(game, cards)
    faces = _faces(game)

    bits = jnp.concatenate(
        [
            counted(game, plane)
            for plane in (
                own_hand,
                own_known,
                opponent_known,
                mine.cards,
                theirs.cards,
                cards >= PILE,
                playable,
                unseen & fits_me,
                (unseen | opponent_known) & fits_them,
            )
        ]
        + [top],
        axis=1,
    ).astype(jnp.float32)
    columns = [
        column
        for side in (mine, theirs)
        for column in (
            side.num_cards / 8,
            side.total / 40,
            side.wagers / 3,
            (side.num_cards > 0).astype(jnp.float32),
            side.score / 50,
            side.highest / 9,
        )
    ]
    columns += [
        jnp.sum(playable.astype(jnp.float32) * faces, axis=1) / 40,
        pile_size / 8,
        known.barred.astype(jnp.float32),
    ]
    suits = jnp.concatenate([bits, jnp.stack(columns, axis=1)], axis=1)
    return CardView(suits, _shared(known, mine, theirs), _action_index(game, known))


def _shared(known: _Known, mine: _Expedition, theirs: _Expedition) -> jax.Array:
    own_score, their_score = jnp.sum(mine.score), jnp.sum(theirs.score)
    return jnp.stack(
        [
            known.draws.astype(jnp.float32),
            known.deck_left / 44,
            (known.deck_left < 10).astype(jnp.float32),
            (known.deck_left < 20).astype(jnp.float32),
            known.discard_draws_left,
            own_score / 50,
            their_score / 50,
            (own_score - their_score) / 50,
            known.seat,
        ]
    )


def _action_index(game: LostCities, known: _Known) -> jax.Array:
    """Return int32[A]: where the network's output holds each action's logit.

    The output has, for each colour, `ranks + 1` numbers for playing each kind of card, as many
    for discarding it and one for taking the pile; and one last number for the deck. An empty
    slot points at the deck's, and is illegal anyway.
    """
    kinds = num_kinds(game)
    per_color = 2 * kinds + 1
    deck = game.colors * per_color
    slots = known.slots.astype(jnp.int32)
    play = (slots // kinds) * per_color + slots % kinds
    empty = known.slots == EMPTY
    slot_actions = jnp.stack(
        [jnp.where(empty, deck, play), jnp.where(empty, deck, play + kinds)], axis=1
    )
    draws = np.concatenate([[deck], np.arange(game.colors) * per_color + 2 * kinds])
    return jnp.concatenate([slot_actions.reshape(-1), jnp.asarray(draws, jnp.int32)])


def num_features(game: LostCities) -> int:
    """Return F, the length of `flat_features`."""
    return 5 * game.num_cards + game.hand_size * (game.colors + 2) + 7 * game.colors + 9


def flat_features(game: LostCities, packed: jax.Array) -> jax.Array:
    """Return float32[F] for a network without structure.

    Five planes of N cards: own hand; publicly known hands (+1 mine, -1 the opponent's); own
    expedition; opponent's expedition; discard piles. Then for each slot of the hand its colour
    (one-hot), kind / ranks and playability; for each colour score/50 and highest/9 of either
    expedition, the kind on top of the pile / ranks, pile size/8, barred; and the shared features
    of `card_view`.
    """
    known = _unpack(game, packed)
    cards = known.cards
    own_known = cards == OWN_KNOWN
    own_hand = (cards == OWN) | own_known
    mine = _expedition(game, cards == OWN_EXPEDITION)
    theirs = _expedition(game, cards == OPPONENT_EXPEDITION)
    planes = [
        counted(game, own_hand).astype(jnp.float32),
        counted(game, own_known).astype(jnp.float32)
        - counted(game, cards == OPPONENT_KNOWN).astype(jnp.float32),
        counted(game, mine.cards).astype(jnp.float32),
        counted(game, theirs.cards).astype(jnp.float32),
        counted(game, cards >= PILE).astype(jnp.float32),
    ]
    top, pile_size = _pile_top(game, cards)
    kinds = np.arange(num_kinds(game), dtype=np.float32)

    held = known.slots != EMPTY
    slot_color = known.slots // num_kinds(game)
    slot_kind = (known.slots % num_kinds(game)).astype(jnp.float32)
    is_color = (slot_color[:, None] == np.arange(game.colors, dtype=np.uint8)[None]) & held[:, None]
    slot_highest = jnp.sum(jnp.where(is_color, mine.highest[None], 0.0), axis=1)
    slot_fits = held & jnp.where(slot_kind == 0, slot_highest == 0, slot_kind > slot_highest)
    slots = jnp.concatenate(
        [
            is_color.astype(jnp.float32),
            (jnp.where(held, slot_kind, 0.0) / game.ranks)[:, None],
            slot_fits.astype(jnp.float32)[:, None],
        ],
        axis=1,
    )
    columns = jnp.stack(
        [
            mine.score / 50,
            theirs.score / 50,
            mine.highest / 9,
            theirs.highest / 9,
            jnp.sum(jnp.where(top, kinds[None], 0.0), axis=1) / game.ranks,
            pile_size / 8,
            known.barred.astype(jnp.float32),
        ],
        axis=1,
    )
    parts = [*planes, slots, columns, _shared(known, mine, theirs)]
    return jnp.concatenate([part.reshape(-1) for part in parts])


def _sort_few(columns: jax.Array) -> jax.Array:
    """Sort uint8[C, W] along the last axis by a transposition network; W is at most a few."""
    values = [columns[:, i] for i in range(columns.shape[1])]
    for _ in range(len(values)):
        for i in range(len(values) - 1):
            low, high = jnp.minimum(values[i], values[i + 1]), jnp.maximum(values[i], values[i + 1])
            values[i], values[i + 1] = low, high
    return jnp.stack(values, axis=1) if values else columns
