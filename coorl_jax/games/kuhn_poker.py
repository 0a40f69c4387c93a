"""Kuhn poker: three cards, one bet, solved by hand (Kuhn 1950).

Each player antes 1 and holds one of the cards 0, 1, 2. Actions: 0 passes (check or fold), 1 bets
(bet or call) one more. Histories: pp, pbp, pbb, bp, bb. In equilibrium player 0 loses 1/18 a
round.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

PASS = 0
BET = 1

_CARDS = 3
# Histories by number, a binary tree: 0 is the start, history h continues with action a to
# 2 h + 1 + a. So 1 = p, 2 = b, 3 = pp, 4 = pb, 5 = bp, 6 = bb, 9 = pbp, 10 = pbb.
_HISTORIES = 11
_TERMINAL = np.isin(np.arange(_HISTORIES), [3, 5, 6, 9, 10])
# int32[histories]: the winner's gain, and who wins: 0 or 1, or 2 for the higher card.
_STAKE = np.array([0, 0, 0, 1, 0, 1, 2, 0, 0, 1, 2], np.int32)
_WINNER = np.array([2, 2, 2, 2, 2, 0, 2, 2, 2, 1, 2], np.int32)


class State(NamedTuple):
    """A deal and what was done."""

    cards: jax.Array  # int32[2], each player's card
    history: jax.Array  # int32, see above


@dataclasses.dataclass(frozen=True)
class KuhnPoker:
    """Kuhn poker as a `Game`."""

    @property
    def name(self) -> str:
        """The registered name."""
        return "kuhn_poker"

    @property
    def num_actions(self) -> int:
        """Pass or bet."""
        return 2

    @property
    def max_decisions(self) -> int:
        """The longest history is pbp or pbb."""
        return 3

    @property
    def max_player_decisions(self) -> int:
        """Player 0 decides at the start and after pass, bet."""
        return 2

    @property
    def packed_size(self) -> int:
        """Bytes: own card, history, seat."""
        return 3

    @property
    def num_features(self) -> int:
        """Own card, history and seat, one-hot."""
        return _CARDS + _HISTORIES + 2

    def init(self, key: jax.Array) -> State:
        """Deal two of the three cards; consumes the key."""
        deck = jax.random.permutation(key, jnp.arange(_CARDS, dtype=jnp.int32))
        return State(cards=deck[:2], history=jnp.int32(0))

    def step(self, state: State, action: jax.Array) -> State:
        """Append the action; a finished round stays as it is."""
        after = 2 * state.history + 1 + action.astype(jnp.int32)
        return state._replace(history=jnp.where(self.is_terminal(state), state.history, after))

    def player(self, state: State) -> jax.Array:
        """Return whose decision it is: player 0 at the start and after pass, bet."""
        return ((state.history == 1) | (state.history == 2)).astype(jnp.int32)

    def legal_actions(self, state: State) -> jax.Array:
        """Return bool[2]: pass and bet are always legal."""
        return jnp.broadcast_to(~self.is_terminal(state), (2,))

    def is_terminal(self, state: State) -> jax.Array:
        """Return whether the round is decided."""
        return jnp.asarray(_TERMINAL)[state.history]

    def returns(self, state: State) -> jax.Array:
        """Return float32[2], chips won."""
        winner = jnp.asarray(_WINNER)[state.history]
        higher = (state.cards[1] > state.cards[0]).astype(jnp.int32)
        winner = jnp.where(winner == 2, higher, winner)
        stake = jnp.asarray(_STAKE)[state.history].astype(jnp.float32)
        return jnp.where(np.arange(2) == winner, stake, -stake)

    def information_state(self, state: State, player: jax.Array) -> jax.Array:
        """Return uint8[3]: own card, history, seat."""
        own = jnp.where(player == 0, state.cards[0], state.cards[1])
        return jnp.stack([own, state.history, player.astype(jnp.int32)]).astype(jnp.uint8)

    def features(self, packed: jax.Array) -> jax.Array:
        """Return float32[F]: the packed bytes, one-hot."""
        return _one_hot(packed, (_CARDS, _HISTORIES, 2))

    def seat(self, packed: jax.Array) -> jax.Array:
        """Return the seat of the player that uint8[3] belongs to, int32."""
        return packed[2].astype(jnp.int32)

    @property
    def whole_size(self) -> int:
        """Bytes: the mover's card, the other card, history, seat of the mover."""
        return 4

    @property
    def num_whole_features(self) -> int:
        """Both cards, history and seat, one-hot."""
        return 2 * _CARDS + _HISTORIES + 2

    def whole_state(self, state: State) -> jax.Array:
        """Return uint8[4]: the mover's card, the other card, history, seat of the mover."""
        seat = self.player(state)
        cards = jnp.where(seat == 0, state.cards, state.cards[::-1])
        return jnp.stack([*cards, state.history, seat]).astype(jnp.uint8)

    def whole_features(self, packed: jax.Array) -> jax.Array:
        """Return float32[G]: the bytes, one-hot."""
        return _one_hot(packed, (_CARDS, _CARDS, _HISTORIES, 2))

    def enumerate_deals(self) -> tuple[State, np.ndarray]:
        """Return the six deals and their probabilities."""
        deals = [(a, b) for a in range(_CARDS) for b in range(_CARDS) if a != b]
        states = State(
            cards=jnp.asarray(deals, jnp.int32), history=jnp.zeros(len(deals), jnp.int32)
        )
        return states, np.full(len(deals), 1.0 / len(deals))


def _one_hot(values: jax.Array, sizes: tuple[int, ...]) -> jax.Array:
    """Return float32[sum of sizes], each value one-hot among as many as its size."""
    return jnp.concatenate(
        [
            (np.arange(size, dtype=np.uint8) == value).astype(jnp.float32)
            for value, size in zip(values, sizes, strict=True)
        ]
    )
