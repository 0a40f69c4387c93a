"""Rounds that begin in the middle: decisions taken out of played rounds, and the game from there.

S decisions or states, R rounds, A actions, P packed bytes. What has happened is given, the order of
the deck is not: it is shuffled again for every round.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from coorl_jax.cfr.regret_matching import sample_action
from coorl_jax.games.lost_cities import LostCities
from coorl_jax.games.lost_cities.rules import State
from coorl_jax.policy import Policy

THIRDS = ("early", "middle", "late")
"""Of a round: by how many thirds of the deck left by the deal have been drawn, rounded down."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ResumedLostCities(LostCities):
    """Lost Cities where a round begins at one of S states, and the rest of the deck is shuffled.

    Games are equal only if they are the same object: the states are no part of a comparison.

    Attributes:
      states: leaves [S, ...], none of them terminal.
    """

    states: State

    # Those inherited look at the parent's fields alone.

    def __eq__(self, other: object) -> bool:
        """Tell whether it is this very object."""
        return self is other

    def __hash__(self) -> int:
        """Return the object's own hash."""
        return id(self)

    def init(self, key: jax.Array) -> State:
        """Choose a state uniformly and shuffle its deck; consumes the key."""
        state_key, deck_key = jax.random.split(key)
        index = jax.random.randint(state_key, (), 0, len(self.states.deck_left))
        state: State = jax.tree.map(lambda leaf: jnp.asarray(leaf)[index], self.states)
        position = np.arange(self.num_cards)
        is_drawn = position < self.num_cards - state.deck_left
        noise = jax.random.uniform(deck_key, (self.num_cards,))
        # Places drawn already sort before the others, in their order.
        order = jnp.argsort(jnp.where(is_drawn, position - self.num_cards, noise))
        return state._replace(deck=state.deck[order])


class Decisions(NamedTuple):
    """S decisions of player 0 to sample at, on the host."""

    states: State  # leaves [S, ...]
    packed: np.ndarray  # uint8[S, P], all different
    legal: np.ndarray  # bool[S, A], at least two actions each
    third: np.ndarray  # int64[S], index in THIRDS


def collect(game: LostCities, policy: Policy, states: int, key: jax.Array) -> Decisions:
    """Play rounds and take a decision out of each third of a round.

    A round gives one decision of a third at most, drawn uniformly from those of player 0 with at
    least two legal actions: at the others every advantage is 0. Of decisions that look the same to
    the player the first is taken.

    Args:
      game: the rules.
      policy: plays both seats.
      states: decisions of each third.
      key: consumed.

    Returns:
      The decisions, 3 * states of them, the early ones first.

    Raises:
      ValueError: if twice as many rounds do not give enough of them.
    """
    drawn = jax.device_get(_play(game, policy, 2 * states, key))
    places: list[tuple[int, int]] = []
    known: set[bytes] = set()
    for third, name in enumerate(THIRDS):
        wanted = len(places) + states
        for number in np.flatnonzero(drawn.offered[third]):
            view = drawn.packed[third, number].tobytes()
            if len(places) < wanted and view not in known:
                known.add(view)
                places.append((third, int(number)))
        if len(places) < wanted:
            raise ValueError(
                f"--states={states}: {2 * states} rounds have only {len(places) - third * states} "
                f"different decisions in the {name} third; take fewer, e.g. {max(2, states // 4)}"
            )
    index = tuple(np.array(places).T)
    return Decisions(
        states=jax.tree.map(lambda leaf: leaf[index], drawn.states),
        packed=drawn.packed[index],
        legal=drawn.legal[index],
        third=index[0],
    )


class _Drawn(NamedTuple):
    """One decision of each third of R rounds."""

    states: State  # leaves [3, R, ...]
    packed: jax.Array  # uint8[3, R, P]
    legal: jax.Array  # bool[3, R, A]
    offered: jax.Array  # int32[3, R], how many it was drawn from; if 0, there is none


@partial(jax.jit, static_argnames=("game", "rounds"))
def _play(game: LostCities, policy: Policy, rounds: int, key: jax.Array) -> _Drawn:
    deal_key, action_key, choice_key = jax.random.split(key, 3)
    state = jax.vmap(game.init)(jax.random.split(deal_key, rounds))
    deck = game.num_cards - 2 * game.hand_size

    def look(state: State) -> tuple[jax.Array, jax.Array]:
        packed = jax.vmap(game.information_state)(state, state.mover)
        return packed, jax.vmap(game.legal_actions)(state)

    def decide(carry: tuple[jax.Array, State, _Drawn]) -> tuple[jax.Array, State, _Drawn]:
        depth, state, drawn = carry
        packed, legal = look(state)
        third = len(THIRDS) * (deck - state.deck_left) // deck
        choice = (state.deck_left > 0) & (state.mover == 0) & (jnp.sum(legal, axis=1) > 1)
        offers = choice[None] & (third[None] == np.arange(len(THIRDS))[:, None])
        offered = drawn.offered + offers
        # The n-th decision replaces the one kept with probability 1 / n: reservoir sampling.
        noise = jax.random.uniform(jax.random.fold_in(choice_key, depth), (rounds,))
        takes = offers & (noise[None] * offered < 1)

        def keep(old: jax.Array, new: jax.Array) -> jax.Array:
            return jnp.where(takes.reshape(takes.shape + (1,) * (new.ndim - 1)), new[None], old)

        states, views, masks = jax.tree.map(keep, drawn[:3], (state, packed, legal))
        noise = jax.random.uniform(jax.random.fold_in(action_key, depth), (rounds,))
        action = sample_action(policy.action_probabilities(packed, legal), noise)
        return depth + 1, jax.vmap(game.step)(state, action), _Drawn(states, views, masks, offered)

    states, views, masks = jax.tree.map(
        lambda leaf: jnp.zeros((len(THIRDS), *leaf.shape), leaf.dtype), (state, *look(state))
    )
    nothing = _Drawn(states, views, masks, jnp.zeros((len(THIRDS), rounds), jnp.int32))
    _, _, drawn = jax.lax.while_loop(
        lambda carry: jnp.any(carry[1].deck_left > 0),
        decide,
        (jnp.int32(0), state, nothing),
    )
    return drawn
