"""Rounds of a match in lockstep: the array program that `match.play` runs.

K deals, R = 2 K rounds, L lanes, G groups of lanes, A actions, P packed bytes, T = max_decisions.

A lane plays round after round, always with policy a in the same seat, so that the batch stays full
to the last rounds. Lanes begin new rounds only every few decisions: where players take turns, all
lanes are then at the same point of a turn, half of them wait for either policy, and a policy that
does different things at different points of a turn has to do only one of them.

Of a mixture a member is drawn for each group and seat, and the lanes of a group play together.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from coorl_jax.cfr.regret_matching import sample_action
from coorl_jax.games.game import NUM_PLAYERS, TURNS, Game
from coorl_jax.policy import (
    AnyPolicy,
    EitherKindPolicy,
    MixturePolicy,
    NetworkPolicy,
    Policy,
    decide,
)

_NARROWEST = 16
"""States that are worth a program of their own, at least."""
_DRAW_STREAM = 0xFFFF_FFFF  # stream of the draws, which no deal has for its number


class RecordedRounds(NamedTuple):
    """What is kept of rounds if it is asked for; the last axis of two is policies a, b."""

    final: Any  # State with leading axis R, at the end of the round
    actions: jax.Array  # int32[R, T], zeros after the end
    entropy: jax.Array  # float32[R, 2], sum over the policy's decisions, nats
    fallbacks: jax.Array  # int32[R, 2], decisions of the policy without a positive advantage


class Rounds(NamedTuple):
    """Results; round 2 i + s is deal i with policy a in seat s.

    The leading axis is R while rounds are played, and K, 2 in what `play_rounds` returns.
    """

    points: jax.Array  # float32[R], of policy a minus those of policy b
    decisions: jax.Array  # int32[R], both players together
    recorded: RecordedRounds | None


class _Lanes(NamedTuple):
    """The lanes of the batch; in every other one policy a has seat 0."""

    state: Any  # State with leading axis L
    round: jax.Array  # int32[L], as `Rounds` counts; R for a lane without a round
    noise_key: jax.Array  # key[L]
    decisions: jax.Array  # int32[L], taken so far
    active: jax.Array  # bool[L], whether the round goes on
    entropy: jax.Array  # float32[L, 2], sums over the round, of policies a and b
    fallbacks: jax.Array  # int32[L, 2]


class _Match(NamedTuple):
    """The carry of the loop."""

    lanes: _Lanes
    rounds: Rounds
    begun: jax.Array  # int32[2], deals begun with policy a in seat 0, in seat 1
    passes: jax.Array  # int32, decisions taken by the batch, each in up to all of its lanes


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _GroupPolicies:
    """Members of a mixture, for batches of G equal parts: one network policy for each."""

    members: NetworkPolicy  # leaves [G, ...]

    def decide(self, packed: jax.Array, legal: jax.Array) -> tuple[jax.Array, jax.Array]:
        groups = jax.tree.leaves(self.members)[0].shape[0]
        probabilities, fallback = jax.vmap(NetworkPolicy.decide)(
            self.members,
            packed.reshape(groups, -1, packed.shape[1]),
            legal.reshape(groups, -1, legal.shape[1]),
        )
        return probabilities.reshape(legal.shape), fallback.reshape(-1)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _MixtureDraws:
    """What a player draws from a mixture: one policy for each group of lanes and seat."""

    members: NetworkPolicy  # leaves [G, 2, ...]

    def in_seats(self, seats: jax.Array) -> _GroupPolicies:
        """Return the policies for the seat, int32[G], in which each group is looked at."""
        groups = jnp.arange(seats.shape[0])
        return _GroupPolicies(jax.tree.map(lambda leaf: leaf[groups, seats], self.members))


def _draw(
    policy: AnyPolicy, key: jax.Array, first_group: jax.Array, groups: int
) -> Policy | _MixtureDraws:
    """Return a policy, or draws from a mixture that depend on (key, group, seat) alone.

    Two players of one mixture never sit in the same seat of a round: their draws are independent.
    """
    if not isinstance(policy, MixturePolicy):
        return policy

    def draw(group: jax.Array) -> NetworkPolicy:
        return jax.vmap(policy.draw)(jax.random.split(jax.random.fold_in(key, group), NUM_PLAYERS))

    return _MixtureDraws(jax.vmap(draw)(first_group + jnp.arange(groups, dtype=jnp.int32)))


@partial(jax.jit, static_argnames=("game", "size", "lanes", "groups", "record"))
def play_rounds(
    game: Game,
    policy_a: AnyPolicy,
    policy_b: AnyPolicy,
    key: jax.Array,
    first: jax.Array,
    pairs: jax.Array,
    *,
    size: int,
    lanes: int,
    groups: int,
    record: bool,
) -> tuple[Any, Rounds, jax.Array]:
    """Play deals first ... first + pairs - 1 of a match, of at most `size`.

    Returns:
      The deals, leading axis `size`, or None if not recorded; the rounds; and int32, how often
      either policy was asked about half of the lanes.
    """
    deals = first + jnp.arange(size, dtype=jnp.int32)
    deal_keys, noise_keys = jnp.unstack(
        jax.vmap(lambda deal: jax.random.split(jax.random.fold_in(key, deal)))(deals), axis=1
    )
    starts = jax.vmap(game.init)(deal_keys)
    first_group = first // (size // groups)
    draw_key = jax.random.fold_in(key, _DRAW_STREAM)
    policies = tuple(
        _draw(policy, draw_key, first_group, groups) for policy in (policy_a, policy_b)
    )
    match = _begin_rounds(pairs, starts, noise_keys, _no_rounds(game, starts, lanes, record))

    def advance_and_refill(match: _Match) -> _Match:
        played, rounds = jax.lax.fori_loop(
            0, TURNS, lambda _, carry: _advance(game, policies, groups, *carry), match[:2]
        )
        return _begin_rounds(
            pairs,
            starts,
            noise_keys,
            _end_rounds(
                game,
                match._replace(lanes=played, rounds=rounds, passes=match.passes + TURNS),
            ),
        )

    match = jax.lax.while_loop(lambda match: jnp.any(match.lanes.active), advance_and_refill, match)
    by_deal = jax.tree.map(
        lambda leaf: leaf.reshape(size, NUM_PLAYERS, *leaf.shape[1:]), match.rounds
    )
    return starts if record else None, by_deal, match.passes


def _no_rounds(game: Game, starts: Any, lanes: int, record: bool) -> _Match:
    """Return the carry before the first round: every lane is free."""
    rounds = NUM_PLAYERS * jax.tree.leaves(starts)[0].shape[0]
    recorded = RecordedRounds(
        final=jax.tree.map(lambda leaf: _twice(jnp.zeros_like(leaf)), starts),
        actions=jnp.zeros((rounds, game.max_decisions), jnp.int32),
        entropy=jnp.zeros((rounds, NUM_PLAYERS), jnp.float32),
        fallbacks=jnp.zeros((rounds, NUM_PLAYERS), jnp.int32),
    )
    return _Match(
        lanes=_Lanes(
            state=jax.tree.map(
                lambda leaf: jnp.zeros((lanes, *leaf.shape[1:]), leaf.dtype), starts
            ),
            round=jnp.full(lanes, rounds, jnp.int32),
            noise_key=jax.random.split(jax.random.key(0), lanes),
            decisions=jnp.zeros(lanes, jnp.int32),
            active=jnp.zeros(lanes, jnp.bool_),
            entropy=jnp.zeros((lanes, NUM_PLAYERS), jnp.float32),
            fallbacks=jnp.zeros((lanes, NUM_PLAYERS), jnp.int32),
        ),
        rounds=Rounds(
            points=jnp.zeros(rounds, jnp.float32),
            decisions=jnp.zeros(rounds, jnp.int32),
            recorded=recorded if record else None,
        ),
        begun=jnp.zeros(NUM_PLAYERS, jnp.int32),
        passes=jnp.int32(0),
    )


def _begin_rounds(pairs: jax.Array, starts: Any, noise_keys: jax.Array, match: _Match) -> _Match:
    """Give lanes without a round the next deals, in order, as long as there are some."""
    lanes = match.lanes
    size = noise_keys.shape[0]
    free = (lanes.round == NUM_PLAYERS * size).reshape(-1, NUM_PLAYERS)
    deal = (match.begun[None] + jnp.cumsum(free, axis=0) - 1).reshape(-1)
    begins = free.reshape(-1) & (deal < pairs)
    new = jnp.where(begins, deal, 0)

    def begin(current: jax.Array, value: jax.Array) -> jax.Array:
        return jnp.where(_expand(begins, current.ndim), value, current)

    state = jax.tree.map(lambda current, leaf: begin(current, leaf[new]), lanes.state, starts)
    return match._replace(
        lanes=_Lanes(
            state=state,
            round=begin(lanes.round, NUM_PLAYERS * new + _seats(new.shape[0])),
            noise_key=begin(lanes.noise_key, noise_keys[new]),
            decisions=begin(lanes.decisions, jnp.int32(0)),
            active=lanes.active | begins,
            entropy=begin(lanes.entropy, jnp.float32(0)),
            fallbacks=begin(lanes.fallbacks, jnp.int32(0)),
        ),
        begun=match.begun + jnp.sum(begins.reshape(-1, NUM_PLAYERS), axis=0, dtype=jnp.int32),
    )


def _end_rounds(game: Game, match: _Match) -> _Match:
    """Note the results of lanes whose round is over, and free them."""
    lanes, rounds = match.lanes, match.rounds
    none = rounds.points.shape[0]
    ended = ~lanes.active
    where = jnp.where(ended, lanes.round, none)

    def note(noted: jax.Array, value: jax.Array) -> jax.Array:
        return noted.at[where].set(value, mode="drop")

    returns = jax.vmap(game.returns)(lanes.state)
    noted = rounds._replace(
        points=note(rounds.points, jnp.where(_seats(where.shape[0]) == 0, *returns.T)),
        decisions=note(rounds.decisions, lanes.decisions),
    )
    if (recorded := rounds.recorded) is not None:
        noted = noted._replace(
            recorded=recorded._replace(
                final=jax.tree.map(note, recorded.final, lanes.state),
                entropy=note(recorded.entropy, lanes.entropy),
                fallbacks=note(recorded.fallbacks, lanes.fallbacks),
            )
        )
    return match._replace(
        lanes=lanes._replace(round=jnp.where(ended, none, lanes.round)), rounds=noted
    )


def _advance(
    game: Game,
    policies: tuple[Policy | _MixtureDraws, ...],
    groups: int,
    lanes: _Lanes,
    rounds: Rounds,
) -> tuple[_Lanes, Rounds]:
    """Take one decision in as many lanes as there is room for.

    Each policy looks at half of every group's lanes only. Where players take turns strictly, the
    two rounds of a pair always wait for different policies and so every lane is served; in other
    games the lanes without room wait, which changes nothing but the time.
    """
    player = jax.vmap(game.player)(lanes.state)
    legal = jax.vmap(game.legal_actions)(lanes.state)
    packed = jax.vmap(game.information_state)(lanes.state, player)
    noise = jax.vmap(lambda key, n: jax.random.uniform(jax.random.fold_in(key, n)))(
        lanes.noise_key, lanes.decisions
    )
    num_lanes = player.shape[0]
    group_lanes = num_lanes // groups
    room = group_lanes // NUM_PLAYERS
    # Past a group's last waiting lane: an index out of range, which `set` drops.
    first_lane = group_lanes * jnp.arange(groups)[:, None]
    seat_a = _seats(num_lanes)
    action = jnp.full(num_lanes, -1, jnp.int32)
    entropy, fallbacks = lanes.entropy, lanes.fallbacks
    for role, policy in enumerate(policies):
        seat = seat_a if role == 0 else 1 - seat_a
        waiting = ((player == seat) & lanes.active).reshape(groups, -1)
        if isinstance(policy, _MixtureDraws):
            by_group = seat.reshape(groups, -1)
            look = jnp.take_along_axis(by_group, jnp.argmax(waiting, axis=1)[:, None], axis=1)
            waiting &= by_group == look
            look_at = policy.in_seats(look[:, 0]).decide
        elif isinstance(policy, NetworkPolicy | EitherKindPolicy) and groups == 1:
            # The lanes that wait come first; with groups they would lie apart.
            look_at = partial(_decide_first, policy, jnp.sum(waiting, dtype=jnp.int32))
        else:
            look_at = partial(decide, policy)
        within = jax.vmap(lambda row: jnp.nonzero(row, size=room, fill_value=group_lanes)[0])(
            waiting
        )
        chosen = jnp.where(within < group_lanes, first_lane + within, num_lanes).reshape(-1)
        probabilities, fallback = look_at(packed[chosen], legal[chosen])
        drawn = sample_action(probabilities, noise[chosen])
        action = action.at[chosen].set(drawn, mode="drop")
        if rounds.recorded is not None:
            entropy = entropy.at[chosen, role].add(_entropy(probabilities), mode="drop")
            fallbacks = fallbacks.at[chosen, role].add(fallback, mode="drop")
    served = action >= 0

    stepped = jax.vmap(game.step)(lanes.state, jnp.maximum(action, 0))
    state = jax.tree.map(
        lambda old, new: jnp.where(_expand(served, new.ndim), new, old), lanes.state, stepped
    )
    if (recorded := rounds.recorded) is not None:
        when = jnp.where(served, lanes.decisions, game.max_decisions)
        actions = recorded.actions.at[lanes.round, when].set(action, mode="drop")
        rounds = rounds._replace(recorded=recorded._replace(actions=actions))
    return (
        lanes._replace(
            state=state,
            decisions=lanes.decisions + served,
            active=lanes.active & ~jax.vmap(game.is_terminal)(state),
            entropy=entropy,
            fallbacks=fallbacks,
        ),
        rounds,
    )


def _decide_first(
    policy: NetworkPolicy | EitherKindPolicy, count: jax.Array, packed: jax.Array, legal: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Decide in the first `count` of B states, in others perhaps: their probabilities may be 0.

    When there are no more deals fewer and fewer lanes go on, and a network's products are most of
    the time of a match: so they are computed for a quarter, half, three quarters or all states.
    """
    batch = packed.shape[0]
    widths = [batch * quarters // 4 for quarters in range(1, 5)]
    if widths[0] < _NARROWEST:
        return policy.decide(packed, legal)

    def decide_in(width: int) -> tuple[jax.Array, jax.Array]:
        probabilities, fallback = policy.decide(packed[:width], legal[:width])
        rest = batch - width
        return jnp.pad(probabilities, ((0, rest), (0, 0))), jnp.pad(fallback, (0, rest))

    enough = jnp.sum(count > np.array(widths[:-1]), dtype=jnp.int32)
    return jax.lax.switch(enough, [partial(decide_in, width) for width in widths])


def _seats(lanes: int) -> np.ndarray:
    """Return int32[L], the seat of policy a in each lane."""
    return np.arange(lanes, dtype=np.int32) % NUM_PLAYERS


def _entropy(probabilities: jax.Array) -> jax.Array:
    """Return float32[B], nats, from float32[B, A]."""
    return -jnp.sum(jax.scipy.special.xlogy(probabilities, probabilities), axis=1)


def _twice(leaf: jax.Array) -> jax.Array:
    return jnp.repeat(leaf, NUM_PLAYERS, axis=0)


def _expand(mask: jax.Array, ndim: int) -> jax.Array:
    return mask.reshape(mask.shape + (1,) * (ndim - 1))
