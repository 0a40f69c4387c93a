"""Generalised advantage estimation where players take turns.

L lanes, T decisions of a segment. Every sum is in the view of player 0, so that utilities of two
players add up: what player 1 gains is what player 0 loses. At the end a player's advantages are in
its own view.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Estimates(NamedTuple):
    """Of each decision, [T, L], in the view of the player who took it."""

    advantage: jax.Array  # float32, of the action over what the player expects
    value: jax.Array  # float32, what the value network is to learn
    is_known: jax.Array  # bool, whether the other two mean anything


def estimate(
    value: jax.Array,
    player: jax.Array,
    is_learner: jax.Array,
    ends: jax.Array,
    utility: jax.Array,
    value_after: jax.Array,
    after_is_learner: jax.Array,
    trace_decay: float,
) -> Estimates:
    """Estimate the advantages of the learner's decisions.

    Between two of them, whoever else decides is part of the game:

        delta_t = v_t' - v_t,  advantage_t = delta_t + lambda advantage_t'

    in the view of player 0, where t' is the learner's next decision in the round, or its end, whose
    value is the utility and whose advantage is 0. In self-play t' is the next decision, and the
    player to move may change: the view takes care of the sign. A segment that stops before the
    learner decides again does not know t': its last decision has no estimate, but its value stands
    for what comes after the one before. (Where it ended the round it has one: a slight preference
    for such decisions.)

    Args:
      value: float32[T, L], of the state to the player who decides.
      player: int32[T, L], who decides.
      is_learner: bool[T, L], whether that is the learner and the round goes on.
      ends: bool[T, L], whether the round ends with the decision.
      utility: float32[T, L], of player 0 where it does.
      value_after: float32[L], of the state after the segment, to player 0.
      after_is_learner: bool[L], whether the learner decides there.
      trace_decay: lambda in [0, 1].

    Returns:
      The estimates; not known where the learner does not decide.

    References:
      Schulman et al., High-Dimensional Continuous Control Using Generalized Advantage Estimation,
      2016, eq. 16, with a discount of 1.
    """
    sign = jnp.where(player == 0, 1.0, -1.0)

    def back(carry, row):
        value_next, advantage_next, is_known = carry
        value, is_learner, ends, utility = row
        value_next = jnp.where(ends, utility, value_next)
        advantage_next = jnp.where(ends, 0.0, advantage_next)
        is_known |= ends
        advantage = jnp.where(is_known, value_next - value + trace_decay * advantage_next, 0.0)
        carry = (
            jnp.where(is_learner, value, value_next),
            jnp.where(is_learner, advantage, advantage_next),
            is_known | is_learner,
        )
        return carry, (advantage, is_learner & is_known)

    start = (value_after, jnp.zeros_like(value_after), after_is_learner)
    rows = (sign * value, is_learner, ends, utility)
    _, (advantage, is_known) = jax.lax.scan(back, start, rows, reverse=True)
    advantage = sign * advantage
    return Estimates(advantage, value + advantage, is_known)
