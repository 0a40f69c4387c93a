"""A match: many deals, each played twice with seats swapped, in lockstep.

K pairs of rounds, L = 2K lanes, A actions, T = max_decisions. Both rounds of a pair have the same
deck and the same action noise per decision, so that luck largely cancels in their mean: standard
errors are those of a mean over independent pairs.

Of a mixture, a few pairs in a row, a *group*, share the member that is drawn: each round is played
by a member with the right probability, and one network serves many lanes. Groups are independent of
each other, pairs within one are not: standard errors are then those of a mean over groups.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from coorl_jax.cfr.regret_matching import sample_action
from coorl_jax.games.game import NUM_PLAYERS, Game
from coorl_jax.policy import AnyPolicy, MixturePolicy, NetworkPolicy, Policy

_CHUNK = 1024
"""Pairs played at once; more are played chunk by chunk by the same compiled program."""
_GROUP = 16
"""Pairs that share a draw from a mixture, at most: a power of two."""
_DRAWS = 0xFFFF_FFFF  # stream of the draws, which no deal has for its number


@dataclasses.dataclass(frozen=True)
class MatchResult:
    """Rounds between policies a and b; row i is deal i, column s has policy a in seat s.

    Attributes:
      points: float32[K, 2], points of policy a minus those of policy b.
      decisions: int32[K, 2], length of each round, both players together.
      actions: int32[K, 2, T], what was played, zeros after the end; T is 0 if not recorded.
      starts: the dealt states with leading axis K.
      group: pairs in a row that are not independent, since they share a draw from a mixture.
    """

    points: np.ndarray
    decisions: np.ndarray
    actions: np.ndarray
    starts: Any
    group: int = 1

    @property
    def rounds(self) -> int:
        """Rounds played."""
        return self.points.size

    @property
    def points_per_round(self) -> tuple[float, float]:
        """Mean points per round for policy a, and its standard error."""
        return _mean_and_error(self.points, self.group)

    @property
    def win_rate(self) -> tuple[float, float]:
        """Share of rounds that policy a wins, and its standard error."""
        return _mean_and_error(self.points > 0, self.group)

    @property
    def draw_rate(self) -> float:
        """Share of drawn rounds."""
        return float(np.mean(self.points == 0))

    @property
    def decisions_per_round(self) -> float:
        """Mean length of a round."""
        return float(np.mean(self.decisions))


def play(
    game: Game,
    policy_a: AnyPolicy,
    policy_b: AnyPolicy,
    pairs: int,
    key: jax.Array,
    *,
    record: bool = False,
) -> MatchResult:
    """Play `pairs` deals twice each, policy a once in each seat.

    Deal i depends on (key, i) alone: with the same key, any two policies meet on the same decks,
    and more pairs begin with the same rounds (with a mixture, if there are more than 16 already).

    Args:
      game: the rules.
      policy_a: whose points are counted.
      policy_b: its opponent.
      pairs: K, at least 2 for a standard error.
      key: consumed.
      record: whether to keep decks and actions.

    Returns:
      The rounds.

    Raises:
      ValueError: with fewer than two pairs.
    """
    if pairs < 2:
        raise ValueError(f"pairs={pairs}: must be at least 2 for a standard error; e.g. 1000")
    # A power of two, so that few different programs are ever compiled.
    size = min(1 << (pairs - 1).bit_length(), _CHUNK)
    drawn = isinstance(policy_a, MixturePolicy) or isinstance(policy_b, MixturePolicy)
    # Two groups at least, for a standard error.
    group = min(_GROUP, size // 2) if drawn else 1
    play_chunk = partial(_play_chunk, game, policy_a, policy_b, key)
    chunks = [
        jax.device_get(play_chunk(jnp.int32(first), size, size // group if drawn else 1, record))
        for first in range(0, pairs, size)
    ]
    rounds = jax.tree.map(lambda *parts: np.concatenate(parts)[:pairs], *chunks)
    return MatchResult(rounds.points, rounds.decisions, rounds.actions, rounds.starts, group)


class _Rounds(NamedTuple):
    """Results of a chunk: the fields of `MatchResult`."""

    points: jax.Array  # float32[K, 2]
    decisions: jax.Array  # int32[K, 2]
    actions: jax.Array  # int32[K, 2, T]
    starts: Any  # State with leading axis K


class _Lanes(NamedTuple):
    """The carry of the loop; lane 2i + s is deal i with policy a in seat s."""

    state: Any  # State with leading axis L
    decisions: jax.Array  # int32[L]; decisions taken so far
    active: jax.Array  # bool[L]; whether the round goes on
    actions: jax.Array  # int32[L, T]; T is 0 if not recorded


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Drawn:
    """Members of a mixture, one for each of G groups: a policy for batches of G equal parts."""

    members: NetworkPolicy  # leaves [G, ...]

    def action_probabilities(self, packed: jax.Array, legal: jax.Array) -> jax.Array:
        groups = jax.tree.leaves(self.members)[0].shape[0]
        probabilities = jax.vmap(NetworkPolicy.action_probabilities)(
            self.members,
            packed.reshape(groups, -1, packed.shape[1]),
            legal.reshape(groups, -1, legal.shape[1]),
        )
        return probabilities.reshape(legal.shape)


def _draw(policy: AnyPolicy, key: jax.Array, first_group: jax.Array, groups: int) -> Policy:
    """Return a policy, or draws from a mixture; group n's draw depends on (key, n) alone."""
    if not isinstance(policy, MixturePolicy):
        return policy
    numbers = first_group + jnp.arange(groups, dtype=jnp.int32)
    return _Drawn(jax.vmap(lambda n: policy.draw(jax.random.fold_in(key, n)))(numbers))


@partial(jax.jit, static_argnames=("game", "pairs", "groups", "record"))
def _play_chunk(
    game: Game,
    policy_a: AnyPolicy,
    policy_b: AnyPolicy,
    key: jax.Array,
    first: jax.Array,
    pairs: int,
    groups: int,
    record: bool,
) -> _Rounds:
    """Play deals first, first + 1, ... of a match; lanes are served group by group."""
    deals = first + jnp.arange(pairs, dtype=jnp.int32)
    deal_keys, noise_keys = jnp.unstack(
        jax.vmap(lambda deal: jax.random.split(jax.random.fold_in(key, deal)))(deals), axis=1
    )
    starts = jax.vmap(game.init)(deal_keys)
    noise_keys = _twice(noise_keys)
    seat_a = jnp.tile(jnp.arange(NUM_PLAYERS, dtype=jnp.int32), pairs)
    state = jax.tree.map(_twice, starts)
    lanes = _Lanes(
        state=state,
        decisions=jnp.zeros(NUM_PLAYERS * pairs, jnp.int32),
        active=~jax.vmap(game.is_terminal)(state),
        actions=jnp.zeros((NUM_PLAYERS * pairs, game.max_decisions if record else 0), jnp.int32),
    )
    first_group = first // (pairs // groups)
    policies = tuple(
        _draw(policy, draw_key, first_group, groups)
        for policy, draw_key in zip(
            (policy_a, policy_b), jax.random.split(jax.random.fold_in(key, _DRAWS)), strict=True
        )
    )
    advance = partial(_advance, game, policies, groups, noise_keys, seat_a)
    lanes = jax.lax.while_loop(lambda lanes: jnp.any(lanes.active), advance, lanes)

    returns = jax.vmap(game.returns)(lanes.state)
    points = jnp.where(seat_a == 0, returns[:, 0], returns[:, 1])
    return _Rounds(
        points=points.reshape(pairs, NUM_PLAYERS),
        decisions=lanes.decisions.reshape(pairs, NUM_PLAYERS),
        actions=lanes.actions.reshape(pairs, NUM_PLAYERS, -1),
        starts=starts,
    )


def _advance(
    game: Game,
    policies: tuple[Policy, ...],
    groups: int,
    noise_keys: jax.Array,
    seat_a: jax.Array,
    lanes: _Lanes,
) -> _Lanes:
    """Take one decision in as many lanes as there is room for.

    Each policy looks at half of every group's lanes only. Where players take turns strictly, the
    two rounds of a pair always wait for different policies and so every lane is served; in other
    games the lanes without room wait, which changes nothing but the time.
    """
    player = jax.vmap(game.player)(lanes.state)
    legal = jax.vmap(game.legal_actions)(lanes.state)
    packed = jax.vmap(game.information_state)(lanes.state, player)
    noise = jax.vmap(lambda key, n: jax.random.uniform(jax.random.fold_in(key, n)))(
        noise_keys, lanes.decisions
    )
    num_lanes = player.shape[0]
    group_lanes = num_lanes // groups
    room = group_lanes // NUM_PLAYERS
    action = jnp.full(num_lanes, -1, jnp.int32)
    for policy, waits_for in zip(policies, (player == seat_a, player != seat_a), strict=True):
        waiting = (waits_for & lanes.active).reshape(groups, -1)
        within = jax.vmap(lambda row: jnp.nonzero(row, size=room, fill_value=group_lanes)[0])(
            waiting
        )
        # Past a group's last waiting lane: an index out of range, which `set` drops.
        first_lane = group_lanes * jnp.arange(groups)[:, None]
        chosen = jnp.where(within < group_lanes, first_lane + within, num_lanes).reshape(-1)
        probabilities = policy.action_probabilities(packed[chosen], legal[chosen])
        drawn = sample_action(probabilities, noise[chosen])
        action = action.at[chosen].set(drawn, mode="drop")
    served = action >= 0

    stepped = jax.vmap(game.step)(lanes.state, jnp.maximum(action, 0))
    state = jax.tree.map(
        lambda old, new: jnp.where(_expand(served, new.ndim), new, old), lanes.state, stepped
    )
    actions = lanes.actions
    if actions.size:
        when = jnp.where(served, lanes.decisions, actions.shape[1])
        actions = actions.at[jnp.arange(num_lanes), when].set(action, mode="drop")
    return _Lanes(
        state=state,
        decisions=lanes.decisions + served,
        active=~jax.vmap(game.is_terminal)(state),
        actions=actions,
    )


def _twice(leaf: jax.Array) -> jax.Array:
    """Return [x0, x0, x1, x1, ...]."""
    return jnp.repeat(leaf, NUM_PLAYERS, axis=0)


def _expand(mask: jax.Array, ndim: int) -> jax.Array:
    return mask.reshape(mask.shape + (1,) * (ndim - 1))


def _mean_and_error(values: np.ndarray, group: int) -> tuple[float, float]:
    """Return the mean of [K, 2] and its standard error, from groups that are independent."""
    by_pair = values.mean(axis=1, dtype=np.float64)
    mean = by_pair.mean()
    # The last group may be smaller, so deviations are summed and not averaged: "cluster-robust".
    deviations = np.add.reduceat(by_pair - mean, np.arange(0, by_pair.size, group))
    groups = deviations.size
    variance = np.sum(deviations**2) * groups / (groups - 1) / by_pair.size**2
    return float(mean), float(np.sqrt(variance))
