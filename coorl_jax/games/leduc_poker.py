"""Leduc poker: six cards, two rounds of betting, one public card (Southey et al. 2005).

The deck has two cards of each of three ranks. Each player antes 1 and holds one card. Actions:
0 folds, 1 calls (or checks), 2 raises. In each round player 0 begins and at most two raises are
made, of 2 in the first round and of 4 in the second; folding is legal only when facing a raise.
Between the rounds the public card is turned up. At the end whoever pairs it wins, else the higher
rank; equal ranks split the pot. These are the rules and action numbers of OpenSpiel's leduc_poker.

Suits mean nothing, but an information state names its cards, as OpenSpiel's does: there are 936.
The features tell ranks only, so that a network sees the 288 that differ.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

FOLD = 0
CALL = 1
RAISE = 2

_RANKS = 3
_SUITS = 2
_CARDS = _RANKS * _SUITS  # card c has rank c // _SUITS
_HIDDEN = _CARDS  # the public card of a packed state of the first round
_ANTE = 1
_RAISES = (2, 4)  # chips, by round

# The betting of one round is a line. It is open while a player is to move, called when both have
# put in the same and the round is over, or folded. An action is legal if it leads to a line.
_OPEN = ("", "c", "r", "cr", "rr", "crr")
_CALLED = ("cc", "rc", "crc", "rrc", "crrc")
_FOLDED = ("rf", "crf", "rrf", "crrf")
_LINES = (*_OPEN, *_CALLED, *_FOLDED)
_ACTIONS = "fcr"
# bool[lines, actions], and int32[lines, actions]: the line after an action, itself if illegal.
_LEGAL = np.array([[line + action in _LINES for action in _ACTIONS] for line in _LINES])
_NEXT = np.array(
    [
        [_LINES.index(line + action if line + action in _LINES else line) for action in _ACTIONS]
        for line in _LINES
    ],
    np.int32,
)
# int32[lines]: who moves next; after a fold, who wins.
_PLAYER = np.array([len(line) % 2 for line in _LINES], np.int32)
# int32[lines]: raises that both players have paid for.
_MATCHED = np.array([line.count("r") - line.endswith("f") for line in _LINES], np.int32)
_IS_CALLED = np.array([line in _CALLED for line in _LINES])
_IS_FOLDED = np.array([line in _FOLDED for line in _LINES])


class State(NamedTuple):
    """A deal and the betting."""

    cards: jax.Array  # int32[3], each player's card and the public card
    lines: jax.Array  # int32[2], the line of each round; 0 if it has not begun


@dataclasses.dataclass(frozen=True)
class LeducPoker:
    """Leduc poker as a `Game`."""

    @property
    def name(self) -> str:
        """The registered name."""
        return "leduc_poker"

    @property
    def num_actions(self) -> int:
        """Fold, call or raise."""
        return len(_ACTIONS)

    @property
    def max_decisions(self) -> int:
        """Both rounds may go check, raise, raise, call."""
        return 2 * max(map(len, _LINES))

    @property
    def max_player_decisions(self) -> int:
        """Two decisions of either player in each round."""
        return self.max_decisions // 2

    @property
    def packed_size(self) -> int:
        """Bytes: own card, public card, line of each round, seat."""
        return 5

    @property
    def num_features(self) -> int:
        """Ranks of own and public card, lines and seat, one-hot."""
        return 2 * _RANKS + len(_OPEN + _CALLED) + len(_OPEN) + 2

    def init(self, key: jax.Array) -> State:
        """Deal three of the six cards; consumes the key."""
        deck = jax.random.permutation(key, jnp.arange(_CARDS, dtype=jnp.int32))
        return State(cards=deck[:3], lines=jnp.zeros(2, jnp.int32))

    def step(self, state: State, action: jax.Array) -> State:
        """Append the action to the current round; a finished game stays as it is."""
        bet = jnp.asarray(_NEXT)[state.lines, action]
        return state._replace(lines=jnp.where(np.arange(2) == _round(state), bet, state.lines))

    def player(self, state: State) -> jax.Array:
        """Return whose decision it is: the players take turns, player 0 begins each round."""
        return jnp.asarray(_PLAYER)[_line(state)]

    def legal_actions(self, state: State) -> jax.Array:
        """Return bool[3]: fold when facing a raise, call, raise at most twice a round."""
        return jnp.asarray(_LEGAL)[_line(state)]

    def is_terminal(self, state: State) -> jax.Array:
        """Return whether a player has folded or the second round is called."""
        return ~self.legal_actions(state).any()

    def returns(self, state: State) -> jax.Array:
        """Return float32[2], chips won."""
        raises = jnp.asarray(_MATCHED)[state.lines]
        stake = _ANTE + jnp.sum(raises * np.array(_RAISES, np.int32))
        ranks = state.cards // _SUITS
        # A pair is above every rank.
        strength = ranks[:2] + _RANKS * (ranks[:2] == ranks[2])
        showdown = jnp.sign(strength[0] - strength[1])
        line = _line(state)
        fold = 1 - 2 * jnp.asarray(_PLAYER)[line]
        sign = jnp.where(jnp.asarray(_IS_FOLDED)[line], fold, showdown)
        return (sign * stake * np.array([1, -1], np.int32)).astype(jnp.float32)

    def information_state(self, state: State, player: jax.Array) -> jax.Array:
        """Return uint8[5]: own card, public card (6 while hidden), lines, seat."""
        own = jnp.where(player == 0, state.cards[0], state.cards[1])
        public = jnp.where(_round(state) == 0, _HIDDEN, state.cards[2])
        return jnp.stack([own, public, *state.lines, player.astype(jnp.int32)]).astype(jnp.uint8)

    def features(self, packed: jax.Array) -> jax.Array:
        """Return float32[F]: ranks, lines and seat, one-hot; a hidden card is all zeros."""
        return _one_hot(packed, cards=2)

    def seat(self, packed: jax.Array) -> jax.Array:
        """Return the seat of the player that uint8[5] belongs to, int32."""
        return packed[4].astype(jnp.int32)

    @property
    def whole_size(self) -> int:
        """Bytes: the mover's card, the other's, public card, line of each round, mover's seat."""
        return 6

    @property
    def num_whole_features(self) -> int:
        """Ranks of the three cards, lines and seat, one-hot."""
        return _RANKS + self.num_features

    def whole_state(self, state: State) -> jax.Array:
        """Return uint8[6]: the mover's information state with the other's card behind its own."""
        seat = self.player(state)
        packed = self.information_state(state, seat)
        other = jnp.where(seat == 0, state.cards[1], state.cards[0]).astype(jnp.uint8)
        return jnp.concatenate([packed[:1], other[None], packed[1:]])

    def whole_features(self, packed: jax.Array) -> jax.Array:
        """Return float32[G]: ranks, lines and seat, one-hot; a hidden card is all zeros."""
        return _one_hot(packed, cards=3)

    def enumerate_deals(self) -> tuple[State, np.ndarray]:
        """Return the 120 deals and their probabilities."""
        deals = list(itertools.permutations(range(_CARDS), 3))
        states = State(
            cards=jnp.asarray(deals, jnp.int32), lines=jnp.zeros((len(deals), 2), jnp.int32)
        )
        return states, np.full(len(deals), 1.0 / len(deals))


def _round(state: State) -> jax.Array:
    """Return the current round, int32 0 or 1: the second begins when the first is called."""
    return jnp.asarray(_IS_CALLED)[state.lines[0]].astype(jnp.int32)


def _line(state: State) -> jax.Array:
    """Return the line of the current round."""
    return state.lines[_round(state)]


def _one_hot(values: jax.Array, cards: int) -> jax.Array:
    """Return the one-hot ranks of so many cards, then of the two lines and the seat, float32."""
    values = jnp.concatenate([values[:cards] // _SUITS, values[cards:]])
    sizes = (*(_RANKS,) * cards, len(_OPEN + _CALLED), len(_OPEN), 2)
    return jnp.concatenate(
        [
            (np.arange(size, dtype=np.uint8) == value).astype(jnp.float32)
            for value, size in zip(values, sizes, strict=True)
        ]
    )
