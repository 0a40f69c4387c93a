"""Rounds in lockstep for PPO: a segment of decisions in every lane, with what is learnt from them.

L lanes, T decisions of a segment, A actions, P packed bytes, W bytes of a whole state.

Lanes carry their rounds on from segment to segment, so every iteration has the same number of
decisions. They begin new rounds every few decisions only: where players take turns, all lanes are
then in the same phase and half of them wait for either player.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from coorl_jax.cfr.lanes import compact, pick, select
from coorl_jax.cfr.regret_matching import sample_action
from coorl_jax.games.game import NUM_PLAYERS, TURNS, Game
from coorl_jax.networks import Network, Params, ValueNetwork
from coorl_jax.policy import AnyPolicy, MixturePolicy, decide, softmax_policy

_LookAt: TypeAlias = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
"""Lanes int32[B], packed uint8[B, P] and legal bool[B, A] to probabilities float32[B, A]."""

# Streams of random numbers below a round's key.
_DEAL = 0
_DRAW = 1
_DECISION = 2  # + decisions since the deal


class RoundLanes(NamedTuple):
    """The lanes; in every other one the learner has seat 0, if it does not have both."""

    state: Any  # State with leading axis L
    round: jax.Array  # int32[L], the how many-th of its lane, from 0
    decisions: jax.Array  # int32[L], since the deal


class Segment(NamedTuple):
    """What was decided, leading axes [T, L]."""

    packed: jax.Array  # uint8[P]
    whole: jax.Array  # uint8[W]
    legal: jax.Array  # bool[A]
    action: jax.Array  # int32
    log_probability: jax.Array  # float32, of the action
    player: jax.Array  # int32, who decided
    is_learner: jax.Array  # bool, whether the learner did
    ends: jax.Array  # bool, whether the round ended with the decision
    utility: jax.Array  # float32, of player 0 where it ended


def begin(game: Game, lanes: int, key: jax.Array) -> RoundLanes:
    """Return lanes at the start of their first rounds; consumes the key of the run's rounds."""
    number = jnp.arange(lanes, dtype=jnp.int32)
    zeros = jnp.zeros(lanes, jnp.int32)
    return RoundLanes(_deal(game, key, number, zeros), zeros, zeros)


def collect(
    game: Game,
    network: Network,
    params: Params,
    opponent: AnyPolicy | None,
    round_lanes: RoundLanes,
    decisions: int,
    utility_scale: float,
    key: jax.Array,
) -> tuple[RoundLanes, Segment]:
    """Play a segment of `decisions` decisions in every lane.

    Args:
      game: the rules.
      network: the learner's, giving logits.
      params: its parameters.
      opponent: whom the learner meets, in seat 1 of even lanes and seat 0 of odd ones; None: the
        learner has both seats.
      round_lanes: where the lanes are.
      decisions: T, a multiple of `TURNS`.
      utility_scale: points per unit of utility.
      key: of the run's rounds, the same in every call.

    Returns:
      The lanes after it, and the segment.
    """
    number = jnp.arange(round_lanes.round.shape[0], dtype=jnp.int32)

    def turn(round_lanes: RoundLanes, _: None) -> tuple[RoundLanes, Segment]:
        round_lanes = _refill(game, key, number, round_lanes)
        round_keys = _round_keys(key, number, round_lanes.round)

        def play(round_lanes: RoundLanes, _: None) -> tuple[RoundLanes, Segment]:
            return _decide_and_step(
                game, network, params, opponent, round_lanes, utility_scale, round_keys
            )

        return jax.lax.scan(play, round_lanes, None, length=TURNS)

    round_lanes, segment = jax.lax.scan(turn, round_lanes, None, length=decisions // TURNS)
    return round_lanes, jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), segment)


def _decide_and_step(
    game: Game,
    network: Network,
    params: Params,
    opponent: AnyPolicy | None,
    round_lanes: RoundLanes,
    utility_scale: float,
    round_keys: jax.Array,
) -> tuple[RoundLanes, Segment]:
    """Take one decision in every lane whose round, of key[L], goes on."""
    state = round_lanes.state
    goes_on = ~jax.vmap(game.is_terminal)(state)
    player = jax.vmap(game.player)(state)
    legal = jax.vmap(game.legal_actions)(state) & goes_on[:, None]
    packed = jax.vmap(game.information_state)(state, player)
    is_learner = goes_on
    if opponent is not None:
        is_learner &= player == learner_seats(player.shape[0])

    def learner(packed: jax.Array, legal: jax.Array) -> jax.Array:
        return softmax_policy(network.apply(params, packed), legal)

    if opponent is None:
        probabilities = learner(packed, legal)
    else:
        fixed = partial(_fixed_player, opponent, round_keys)
        probabilities = _in_halves(
            ((is_learner, lambda _, *view: learner(*view)), (goes_on & ~is_learner, fixed)),
            packed,
            legal,
        )
    noise = jax.vmap(
        lambda round_key, n: jax.random.uniform(jax.random.fold_in(round_key, _DECISION + n))
    )(round_keys, round_lanes.decisions)
    action = sample_action(probabilities, noise)
    after = jax.vmap(game.step)(state, action)
    ends = goes_on & jax.vmap(game.is_terminal)(after)
    segment = Segment(
        packed=packed,
        whole=jax.vmap(game.whole_state)(state),
        legal=legal,
        action=action,
        log_probability=jnp.log(jnp.where(goes_on, pick(probabilities, action), 1.0)),
        player=player,
        is_learner=is_learner,
        ends=ends,
        utility=jax.vmap(game.returns)(after)[:, 0] / utility_scale,
    )
    after = jax.tree.map(partial(select, goes_on), after, state)
    return round_lanes._replace(state=after, decisions=round_lanes.decisions + goes_on), segment


def _fixed_player(
    opponent: AnyPolicy,
    round_keys: jax.Array,
    lanes: jax.Array,
    packed: jax.Array,
    legal: jax.Array,
) -> jax.Array:
    """Return what a fixed player plays, float32[B, A], in the lanes int32[B] of key[L]."""
    if not isinstance(opponent, MixturePolicy):
        return decide(opponent, packed, legal)[0]
    draw_keys = jax.vmap(lambda key: jax.random.fold_in(key, _DRAW))(round_keys)[lanes]

    def in_one(key: jax.Array, packed: jax.Array, legal: jax.Array) -> jax.Array:
        return opponent.draw(key).action_probabilities(packed[None], legal[None])[0]

    return jax.vmap(in_one)(draw_keys, packed, legal)


def _in_halves(
    players: tuple[tuple[jax.Array, _LookAt], ...], packed: jax.Array, legal: jax.Array
) -> jax.Array:
    """Return float32[L, A], each of two players asked about its own lanes alone, bool[L].

    Where players take turns strictly each has half of them; elsewhere both look at all.
    """
    lanes = legal.shape[0]
    half = -(-lanes // NUM_PLAYERS)

    def asked(width: int) -> jax.Array:
        probabilities = jnp.zeros(legal.shape, jnp.float32)
        for waits, look_at in players:
            chosen = compact(waits, width)
            readable = jnp.minimum(chosen, lanes - 1)
            found = look_at(readable, packed[readable], legal[readable])
            probabilities = probabilities.at[chosen].set(found, mode="drop")
        return probabilities

    fits = jnp.all(jnp.array([jnp.sum(waits) <= half for waits, _ in players]))
    return jax.lax.cond(fits, lambda: asked(half), lambda: asked(lanes))


def _refill(game: Game, key: jax.Array, number: jax.Array, round_lanes: RoundLanes) -> RoundLanes:
    """Begin a new round in every lane whose round has ended."""
    ended = jax.vmap(game.is_terminal)(round_lanes.state)
    following = round_lanes.round + ended

    def deal() -> Any:
        return jax.tree.map(
            partial(select, ended), _deal(game, key, number, following), round_lanes.state
        )

    return RoundLanes(
        # A shuffle is a sort, too dear to compute for nothing.
        state=jax.lax.cond(jnp.any(ended), deal, lambda: round_lanes.state),
        round=following,
        decisions=jnp.where(ended, 0, round_lanes.decisions),
    )


def _deal(game: Game, key: jax.Array, number: jax.Array, round_number: jax.Array) -> Any:
    """Return the starts of rounds int32[L] of lanes int32[L], leaves [L, ...]."""
    keys = _round_keys(key, number, round_number)
    return jax.vmap(lambda key: game.init(jax.random.fold_in(key, _DEAL)))(keys)


def _round_keys(key: jax.Array, number: jax.Array, round_number: jax.Array) -> jax.Array:
    """Return key[L]: a round depends on (key, lane, number in its lane) alone."""
    return jax.vmap(lambda lane, n: jax.random.fold_in(jax.random.fold_in(key, lane), n))(
        number, round_number
    )


def values(network: ValueNetwork, params: Params, whole: jax.Array) -> jax.Array:
    """Return float32[T, L], the values of whole states uint8[T, L, W] to the player to move."""
    return jax.lax.map(lambda row: network.apply(params, row)[:, 0], whole)


def value_after(
    game: Game, network: ValueNetwork, params: Params, round_lanes: RoundLanes, has_opponent: bool
) -> tuple[jax.Array, jax.Array]:
    """Value the lanes' states.

    Returns:
      float32[L], to player 0, and bool[L], whether it is the learner who decides next.
    """
    player = jax.vmap(game.player)(round_lanes.state)
    value = network.apply(params, jax.vmap(game.whole_state)(round_lanes.state))[:, 0]
    is_learner = player == learner_seats(player.shape[0]) if has_opponent else player >= 0
    return jnp.where(player == 0, value, -value), is_learner


def learner_seats(lanes: int) -> np.ndarray:
    """Return int32[L], the seat that the learner has in each lane against an opponent."""
    return np.arange(lanes, dtype=np.int32) % NUM_PLAYERS
