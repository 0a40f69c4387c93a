"""Lost Cities: deal, turn, legality and scoring, for any rule parameters.

Card ids: `colour * (wagers + ranks) + k`; k < wagers is a wager (a "handshake"), any other k is
the number card of face `min_rank + k - wagers`. Actions, with the hand in ascending card ids:
`2 s` plays slot s, `2 s + 1` discards it, `2 H` draws from the deck, `2 H + 1 + c` takes the top
card of discard pile c (H = hand size).

The state holds one byte per card that says where the card is. On bytes, questions about all
cards ("which of them lie in an expedition?") are a few vector instructions, which is what makes
a step cheap when thousands of rounds advance together.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from coorl_jax.games.game import CardView
from coorl_jax.games.lost_cities import determinize, information, whole
from coorl_jax.games.lost_cities.deals import enumerate_decks
from coorl_jax.games.lost_cities.hands import insert_sorted, pick, remove_slot
from coorl_jax.games.lost_cities.locations import DECK, DISCARD, EXPEDITION, HAND, KNOWN

CARD_PHASE = 0
DRAW_PHASE = 1

_MAX_CARDS = 200  # card ids, sentinels and location codes all fit a byte


class State(NamedTuple):
    """One round in progress. N cards, H hand size."""

    location: jax.Array  # uint8[N], codes of locations.py
    hands: jax.Array  # uint8[2, H], ascending card ids; N marks an empty place
    deck: jax.Array  # uint8[N], draw order, deck[0] dealt first
    deck_left: jax.Array  # int32, cards not yet drawn
    phase: jax.Array  # int32, CARD_PHASE or DRAW_PHASE
    mover: jax.Array  # int32, the player to decide
    barred: jax.Array  # int32, the colour just discarded to; `colors` if none
    discard_draws_left: jax.Array  # int32, both players together; constant if unlimited


@dataclasses.dataclass(frozen=True)
class LostCities:
    """The rules of Lost Cities for two players, as a `Game` and a `CardGame`.

    Attributes:
      colors: number of colours, C.
      ranks: number cards per colour.
      min_rank: face value of the lowest number card.
      wagers: wager cards per colour.
      hand_size: cards in a hand, H.
      expedition_penalty: points added to the sum of every started expedition (negative).
      bonus_threshold: cards an expedition needs for the bonus.
      bonus_amount: points of the bonus, not multiplied by wagers.
      max_discard_draws: draws from discard piles allowed in a round, both players together;
        None for the tabletop rule, under which a round need not end.

    Raises:
      ValueError: for parameters that make no game, naming the parameter.
    """

    colors: int = 5
    ranks: int = 9
    min_rank: int = 2
    wagers: int = 3
    hand_size: int = 8
    expedition_penalty: int = -20
    bonus_threshold: int = 8
    bonus_amount: int = 20
    max_discard_draws: int | None = 60

    def __post_init__(self) -> None:
        """Check the parameters."""
        for field, low, high, example in (
            ("colors", 1, 20, 5),
            ("ranks", 1, 40, 9),
            ("min_rank", 0, 100, 2),
            ("wagers", 0, 20, 3),
            ("hand_size", 1, 60, 8),
            ("expedition_penalty", -1000, 0, -20),
            ("bonus_threshold", 1, 100, 8),
            ("bonus_amount", 0, 1000, 20),
        ):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
                raise ValueError(
                    f"{field}={value!r}: must be an integer from {low} to {high}; e.g. {example}"
                )
        limit = self.max_discard_draws
        if limit is not None and (
            isinstance(limit, bool) or not isinstance(limit, int) or not 0 <= limit <= 254
        ):
            raise ValueError(
                f"max_discard_draws={limit!r}: must be an integer from 0 to 254, or None for the "
                "unlimited tabletop rule; e.g. 60"
            )
        if self.num_cards > _MAX_CARDS:
            raise ValueError(
                f"colors={self.colors}: colors * (wagers + ranks) is {self.num_cards}, but a deck "
                f"holds at most {_MAX_CARDS} cards; e.g. colors=5 with wagers=3, ranks=9"
            )
        if self.num_cards <= 2 * self.hand_size:
            raise ValueError(
                f"hand_size={self.hand_size}: the deck of {self.num_cards} cards must hold more "
                "than two hands; e.g. hand_size=8 for 60 cards"
            )

    @property
    def name(self) -> str:
        """The registered name."""
        return "lost_cities"

    @property
    def suit_size(self) -> int:
        """K, cards of one colour."""
        return self.wagers + self.ranks

    @property
    def num_cards(self) -> int:
        """N, cards in the deck."""
        return self.colors * self.suit_size

    @property
    def num_actions(self) -> int:
        """A: play or discard each slot, draw the deck or a pile."""
        return 2 * self.hand_size + 1 + self.colors

    @property
    def max_decisions(self) -> int:
        """Two decisions for each card that can be drawn.

        Raises:
          ValueError: if discard draws are unlimited, since a round then need not end.
        """
        if self.max_discard_draws is None:
            raise ValueError(
                "max_discard_draws=None: rounds without a stall limit need not end; set it to an "
                "integer, e.g. 60"
            )
        return 2 * (self.num_cards - 2 * self.hand_size + self.max_discard_draws)

    @property
    def max_player_decisions(self) -> int:
        """Two decisions a turn, every other turn, player 0 first."""
        turns = self.max_decisions // 2
        return 2 * ((turns + 1) // 2)

    def init(self, key: jax.Array) -> State:
        """Shuffle and deal; consumes the key."""
        return self.from_deck(
            jax.random.permutation(key, jnp.arange(self.num_cards, dtype=jnp.uint8))
        )

    def from_deck(self, deck: jax.Array) -> State:
        """Deal the given deck, uint8[N] in draw order, alternating from player 0."""
        n, h = self.num_cards, self.hand_size
        hands = jnp.sort(deck[: 2 * h].reshape(h, 2).T, axis=1)
        cards = np.arange(n, dtype=np.uint8)
        held = (hands[:, :, None] == cards[None, None]).any(axis=1)
        location = jnp.where(held[0], jnp.uint8(HAND), jnp.uint8(DECK))
        location = jnp.where(held[1], jnp.uint8(HAND + 1), location)
        limit = 255 if self.max_discard_draws is None else self.max_discard_draws
        return State(
            location=location,
            hands=hands,
            deck=deck,
            deck_left=jnp.int32(n - 2 * h),
            phase=jnp.int32(CARD_PHASE),
            mover=jnp.int32(0),
            barred=jnp.int32(self.colors),
            discard_draws_left=jnp.int32(limit),
        )

    def player(self, state: State) -> jax.Array:
        """Return whose decision it is, int32."""
        return state.mover

    def is_terminal(self, state: State) -> jax.Array:
        """Return whether the last deck card has been drawn."""
        return state.deck_left == 0

    def step(self, state: State, action: jax.Array) -> State:
        """Return the state after a legal action; a terminal state stays as it is.

        A decision moves one card: out of the hand in the card phase, into it in the draw phase.
        Both are computed and one is selected, because under `vmap` both would run anyway.
        """
        draws = state.phase == DRAW_PHASE
        hand_row = (np.arange(2) == state.mover)[:, None]
        hand = jnp.where(state.mover == 0, state.hands[0], state.hands[1])
        location = state.location
        cards = np.arange(self.num_cards, dtype=np.uint8)

        # Card phase: the card of a slot goes to its expedition or its pile.
        slot = action // 2
        slot_card = pick(hand, slot)
        discards = action % 2 == 1

        # Draw phase: the next deck card, or the top of a pile.
        pile = action - (2 * self.hand_size + 1)
        from_deck = pile < 0
        pile_color = jnp.maximum(pile, 0)
        sizes = self._pile_sizes(location)
        on_top = (location == (DISCARD - 1 + pick(sizes, pile_color)).astype(jnp.uint8)) & (
            self._color_of_cards() == pile_color
        )
        top_card = jnp.max(jnp.where(on_top, cards, jnp.uint8(0)))
        deck_card = pick(state.deck, self.num_cards - state.deck_left)
        drawn_card = jnp.where(from_deck, deck_card, top_card)

        card = jnp.where(draws, drawn_card, slot_card)
        color = (card // self.suit_size).astype(jnp.int32)
        seat = state.mover.astype(jnp.uint8)
        left_to = jnp.where(
            discards, DISCARD + pick(sizes, color).astype(jnp.uint8), EXPEDITION + seat
        )
        drawn_to = jnp.where(from_deck, HAND + seat, KNOWN + seat)
        moved = cards == card
        if self.wagers:
            forgotten = self._forgotten_wager(location, card, seat) & ~draws
            new_location = jnp.where(forgotten, HAND + seat, location)
        else:
            new_location = location
        new_location = jnp.where(moved, jnp.where(draws, drawn_to, left_to), new_location)

        new_hand = jnp.where(
            draws, insert_sorted(hand, drawn_card), remove_slot(hand, slot, self.num_cards)
        )
        limited = self.max_discard_draws is not None
        new_state = State(
            location=new_location,
            hands=jnp.where(hand_row, new_hand[None], state.hands),
            deck=state.deck,
            deck_left=state.deck_left - (draws & from_deck).astype(jnp.int32),
            phase=1 - state.phase,
            mover=jnp.where(draws, 1 - state.mover, state.mover),
            barred=jnp.where(~draws & discards, color, self.colors),
            discard_draws_left=state.discard_draws_left
            - (draws & ~from_deck & limited).astype(jnp.int32),
        )
        ended = self.is_terminal(state)
        return jax.tree.map(lambda old, new: jnp.where(ended, old, new), state, new_state)

    def legal_actions(self, state: State) -> jax.Array:
        """Return bool[A] for the player to move."""
        hand = jnp.where(state.mover == 0, state.hands[0], state.hands[1])
        own = state.location == (EXPEDITION + state.mover).astype(jnp.uint8)
        playable = self._playable(own).reshape(-1)
        # The empty place of a hand holds N, one past the last card.
        padded = jnp.concatenate([playable, jnp.zeros(1, jnp.bool_)])
        held = hand < self.num_cards
        card_actions = jnp.stack([padded[hand], held], axis=1).reshape(-1)
        colors = np.arange(self.colors, dtype=np.int32)
        piles = (
            (self._pile_sizes(state.location) > 0)
            & (colors != state.barred)
            & (state.discard_draws_left > 0)
        )
        draws = state.phase == DRAW_PHASE
        draw_actions = jnp.concatenate([jnp.ones(1, jnp.bool_), piles])
        return jnp.concatenate([card_actions & ~draws, draw_actions & draws])

    def scores(self, state: State) -> jax.Array:
        """Return int32[2, C], the points of each player's expeditions if the round ended now."""
        location = state.location.reshape(self.colors, self.suit_size)
        own = location[None] == (EXPEDITION + np.arange(2, dtype=np.uint8))[:, None, None]
        faces = np.maximum(np.arange(self.suit_size) - self.wagers + self.min_rank, 0)
        faces[: self.wagers] = 0
        total = jnp.sum(jnp.where(own, faces.astype(np.int32)[None, None], 0), axis=2)
        wagered = jnp.sum(own[:, :, : self.wagers], axis=2, dtype=jnp.int32)
        cards = jnp.sum(own, axis=2, dtype=jnp.int32)
        bonus = jnp.where(cards >= self.bonus_threshold, self.bonus_amount, 0)
        points = (total + self.expedition_penalty) * (1 + wagered) + bonus
        return jnp.where(cards > 0, points, 0)

    def returns(self, state: State) -> jax.Array:
        """Return float32[2], each player's score minus the other's, in points."""
        totals = jnp.sum(self.scores(state), axis=1).astype(jnp.float32)
        return totals - totals[::-1]

    # What a player knows (information.py).

    @property
    def packed_size(self) -> int:
        """P, bytes of a packed information state."""
        return information.packed_size(self)

    @property
    def num_features(self) -> int:
        """F, features for the `mlp` network."""
        return information.num_features(self)

    @property
    def num_suits(self) -> int:
        """C, for the `cards` network."""
        return self.colors

    @property
    def suit_logits(self) -> int:
        """Logits per colour: play and discard each kind of card, take the pile."""
        return 2 * information.num_kinds(self) + 1

    @property
    def shared_logits(self) -> int:
        """Logits that belong to no colour: drawing from the deck."""
        return 1

    def information_state(self, state: State, player: jax.Array) -> jax.Array:
        """Return uint8[P], see `information.pack`."""
        return information.pack(self, state, player)

    def features(self, packed: jax.Array) -> jax.Array:
        """Return float32[F], see `information.flat_features`."""
        return information.flat_features(self, packed)

    def card_view(self, packed: jax.Array) -> CardView:
        """Return what the `cards` network reads, see `information.card_view`."""
        return information.card_view(self, packed)

    def seat(self, packed: jax.Array) -> jax.Array:
        """Return the seat of the player that uint8[P] belongs to, int32."""
        return information.seat(self, packed)

    @property
    def whole_size(self) -> int:
        """W, bytes of a packed whole state."""
        return information.packed_size(self)

    @property
    def num_whole_features(self) -> int:
        """G, features of a whole state for the `mlp` network."""
        return whole.num_features(self)

    def whole_state(self, state: State) -> jax.Array:
        """Return uint8[W], see `whole.pack`."""
        return whole.pack(self, state)

    def whole_features(self, packed: jax.Array) -> jax.Array:
        """Return float32[G], see `whole.flat_features`."""
        return whole.flat_features(self, packed)

    def whole_card_view(self, packed: jax.Array) -> CardView:
        """Return what the `cards` network reads of it, see `whole.card_view`."""
        return whole.card_view(self, packed)

    def sample_state(self, packed: jax.Array, key: jax.Array) -> State:
        """Return a state that the player to move cannot tell apart; see `determinize`."""
        return determinize.sample_state(self, packed, key)

    def enumerate_deals(self) -> tuple[State, np.ndarray]:
        """Return every deal of a small game and its probability; see `deals.enumerate_decks`."""
        decks = enumerate_decks(self.num_cards, self.hand_size)
        states = jax.vmap(self.from_deck)(jnp.asarray(decks))
        return states, np.full(len(decks), 1.0 / len(decks))

    # Helpers on locations.

    def _color_of_cards(self) -> np.ndarray:
        return np.arange(self.num_cards, dtype=np.int32) // self.suit_size

    def _pile_sizes(self, location: jax.Array) -> jax.Array:
        """Return int32[C]: DISCARD codes are the greatest, and the top card's tells the size."""
        highest = jnp.max(location.reshape(self.colors, self.suit_size), axis=1)
        return jnp.maximum(highest, DISCARD - 1).astype(jnp.int32) - (DISCARD - 1)

    def _playable(self, own: jax.Array) -> jax.Array:
        """Return bool[C, K]: cards that fit an expedition holding `own` (bool[N])."""
        k = np.arange(self.suit_size, dtype=np.uint8)[None]
        numbers = own.reshape(self.colors, self.suit_size) & (k >= self.wagers)
        highest = jnp.max(jnp.where(numbers, k + 1, jnp.uint8(0)), axis=1)[:, None]
        return jnp.where(k < self.wagers, highest == 0, k + 1 > highest)

    def _forgotten_wager(self, location: jax.Array, card: jax.Array, seat: jax.Array) -> jax.Array:
        """Return bool[N]: the known wager that stops being known when `card` leaves the hand.

        The wagers of a colour look the same. A player known to hold one who plays or discards any
        wager of that colour may have parted with just that one, so one less is known, whichever
        card id the engine happens to move.
        """
        k = np.arange(self.num_cards) % self.suit_size
        color = (card // self.suit_size).astype(jnp.int32)
        same = (k < self.wagers) & (self._color_of_cards() == color)
        is_wager = card % self.suit_size < self.wagers
        was_known = pick(location, card) == KNOWN + seat
        known = same & (location == KNOWN + seat)
        one_past = np.arange(1, self.num_cards + 1, dtype=np.uint8)
        last = jnp.max(jnp.where(known, one_past, jnp.uint8(0)))
        return (one_past == last) & is_wager & ~was_known
