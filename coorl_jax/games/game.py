"""The `Game` protocol: what a game must offer to be learnt by this package.

A game is a frozen, hashable object (a static argument of `jit`) with pure functions of one
state, used under `vmap`. Under `vmap` both branches of a `cond` run, so games select instead.
All chance is resolved when a round is dealt: every branch of a traversal then shares its deal
and draw order, which is one chance outcome per traversal (correct sampling) and the common
random numbers that make the difference of two actions' values cheap to estimate.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax

State = Any
"""A game's own NamedTuple of arrays."""

NUM_PLAYERS = 2
"""Every game here is a two-player zero-sum game."""
TURNS = 4
"""Decisions in which both players of Lost Cities take their turn. Lanes that start a multiple of it
apart are always at decisions of one seat, in one phase; in other games it is a number like others.
"""


class Game(Protocol):
    """A two-player zero-sum game of imperfect information, as pure array functions.

    A actions, P packed bytes, F features, W bytes and G features of a whole state; all functions
    take and give one state.
    """

    @property
    def name(self) -> str:
        """The registered name, e.g. "lost_cities"."""
        ...

    @property
    def num_actions(self) -> int:
        """A, the size of the action space (legal or not)."""
        ...

    @property
    def max_decisions(self) -> int:
        """Upper bound on the decisions in one round, both players together."""
        ...

    @property
    def max_player_decisions(self) -> int:
        """Upper bound on the decisions of either player in one round."""
        ...

    @property
    def packed_size(self) -> int:
        """P, the bytes of one packed information state."""
        ...

    @property
    def num_features(self) -> int:
        """F, the length of `features`."""
        ...

    def init(self, key: jax.Array) -> State:
        """Deal a round; consumes the key."""
        ...

    def step(self, state: State, action: jax.Array) -> State:
        """Return the state after `action` (int32 scalar); a terminal state stays as it is."""
        ...

    def player(self, state: State) -> jax.Array:
        """Return whose decision it is: int32, 0 or 1."""
        ...

    def legal_actions(self, state: State) -> jax.Array:
        """Return bool[A]: what the player to move may do; never empty before the end."""
        ...

    def is_terminal(self, state: State) -> jax.Array:
        """Return bool: whether the round has ended."""
        ...

    def returns(self, state: State) -> jax.Array:
        """Return float32[2] in points, summing to zero; meaningful at the end of the round."""
        ...

    def information_state(self, state: State, player: jax.Array) -> jax.Array:
        """Return uint8[P]: all that `player` knows and that matters (perfect recall)."""
        ...

    def features(self, packed: jax.Array) -> jax.Array:
        """Return float32[F] from uint8[P]; cheap, since it runs inside the loss."""
        ...

    def seat(self, packed: jax.Array) -> jax.Array:
        """Return the seat, int32 0 or 1, of the player that uint8[P] belongs to."""
        ...

    @property
    def whole_size(self) -> int:
        """W, the bytes of one packed whole state."""
        ...

    @property
    def num_whole_features(self) -> int:
        """G, the length of `whole_features`."""
        ...

    def whole_state(self, state: State) -> jax.Array:
        """Return uint8[W]: all that either player knows, as the player to move would write it.

        What nobody has seen yet, such as the order of a deck, is not in it. It is what a value
        network reads: the players' own policies never see it.
        """
        ...

    def whole_features(self, packed: jax.Array) -> jax.Array:
        """Return float32[G] from uint8[W]; cheap, since it runs inside the loss."""
        ...


class CardView(NamedTuple):
    """An information state or whole state as the colour-equivariant `cards` network reads it.

    C suits, Fs features per suit, Fg features that belong to no suit, A actions.
    """

    suits: jax.Array  # float32[C, Fs]; permuting the colours of the game permutes axis 0
    shared: jax.Array  # float32[Fg]; unchanged when the colours are permuted
    action_index: jax.Array  # int32[A]; where each action's logit stands, see CardGame


@runtime_checkable
class CardGame(Protocol):
    """A game with exchangeable suits, playable by the `cards` network.

    The network gives `suit_logits` numbers for each of `num_suits` suits, then
    `shared_logits` numbers that belong to no suit, as one flat vector;
    `CardView.action_index` points into it.
    """

    num_suits: int
    suit_logits: int
    shared_logits: int

    def card_view(self, packed: jax.Array) -> CardView:
        """Return the view of uint8[P]."""
        ...

    def whole_card_view(self, packed: jax.Array) -> CardView:
        """Return the view of a whole state, uint8[W]; its `action_index` has no meaning."""
        ...


@runtime_checkable
class EnumerableGame(Protocol):
    """A game small enough to enumerate."""

    def enumerate_deals(self) -> tuple[State, Any]:
        """Return all deals (states with a leading axis M) and float64[M] probabilities."""
        ...


@runtime_checkable
class DeterminizableGame(Protocol):
    """A game that can deal again all that a player does not know."""

    def sample_state(self, packed: jax.Array, key: jax.Array) -> State:
        """Draw a whole state among those that look the same to the player to move.

        Args:
          packed: uint8[P], of the player to move.
          key: consumed.

        Returns:
          A state in which that player is to move, knows and may do the same, drawn as often as the
          deal alone makes it: what the opponent's play tells is not taken into account.
        """
        ...
