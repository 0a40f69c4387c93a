"""Upwards: utilities are handed to the frames that wait for them.

A frame takes its next pending action, or has none left, gives its samples and hands its own value
to the frame above. This needs no network, and is done for the few lanes that return. Most frames
explore one action, so that a round ends in a chain of returns: many frames of a lane are handled
at once, and only their values one after the other.

W lanes handled at once, K frames of each, A actions.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from coorl_jax.cfr import outbox as outboxes
from coorl_jax.cfr.lanes import (
    DECIDING,
    EVERY_ACTION,
    RETURNING,
    Frame,
    Lanes,
    compact,
    first_action,
    pick,
    scatter,
    select,
)
from coorl_jax.cfr.machine import Machine, Program, utility


class _Returns(NamedTuple):
    """What frames do with the utilities handed to them; leaves [W, K], the top frame first."""

    resolves: jax.Array  # bool, the frame has no pending action and hands its value on
    utility: jax.Array  # float32, u of the explored action
    value: jax.Array  # float32, sum_b sigma(b) u(b)
    value_sample: jax.Array  # float32, see `sampling.Baseline`


def pop(program: Program, machine: Machine) -> Machine:
    """Hand the returned utilities to up to K frames of up to W returning lanes.

    The first frame with a pending action takes it, and the lane is DECIDING again or returns at
    once with the end of the round; those above it give their samples.
    """
    lanes = machine.lanes
    chosen = compact((lanes.status == RETURNING) & (lanes.height > 0), program.pop_lanes)
    lane = jnp.minimum(chosen, program.spec.lanes - 1)  # readable; writes go to `chosen`
    valid = chosen < program.spec.lanes
    old: Lanes = jax.tree.map(lambda leaf: leaf[lane], lanes)
    level = old.height[:, None] - 1 - jnp.arange(program.pop_frames, dtype=jnp.int32)[None]
    exists = valid[:, None] & (level >= 0)
    place = jnp.maximum(level, 0)
    frames: Frame = jax.tree.map(lambda leaf: leaf[lane[:, None], place], machine.stack.frames)

    returns = _hand_up(frames, exists, old.value, old.value_sample)
    utilities = jnp.where(_explored(frames), returns.utility[:, :, None], frames.utility)
    frames = frames._replace(utility=utilities)
    machine = _give_samples(program, machine, frames, returns)
    count = jnp.sum(returns.resolves, axis=1, dtype=jnp.int32)
    last = jnp.maximum(count - 1, 0)
    new = old._replace(
        height=old.height - count,
        value=jnp.where(count > 0, pick(returns.value, last), old.value),
        value_sample=jnp.where(count > 0, pick(returns.value_sample, last), old.value_sample),
    )
    if program.scheme.max_branchings(program.game) > 0:
        top = jnp.minimum(count, program.pop_frames - 1)
        frame: Frame = jax.tree.map(lambda leaf: leaf[jnp.arange(program.pop_lanes), top], frames)
        goes_on = valid & (new.height > 0) & (count < program.pop_frames) & _is_pending(frame)
        frame, resumed = _take_pending(program, machine, lane, old, new, frame)
        new = jax.tree.map(partial(select, goes_on), resumed, new)
        written = select(goes_on, chosen, program.spec.lanes)
        stored = scatter(machine.stack.frames, (written, jnp.maximum(new.height - 1, 0)), frame)
        machine = machine._replace(stack=machine.stack._replace(frames=stored))
    return machine._replace(lanes=scatter(lanes, (chosen,), new))


def _hand_up(
    frames: Frame, exists: jax.Array, value: jax.Array, value_sample: jax.Array
) -> _Returns:
    """Hand utilities up from frame to frame, as far as frames have no pending action.

    Args:
      frames: leaves [W, K, ...], the top frame first.
      exists: bool[W, K].
      value: float32[W], handed to the top frame.
      value_sample: float32[W], the same of the sample for the value network.
    """
    baseline = _of_action(frames, frames.utility)
    probability = _of_action(frames, frames.sigma)
    expected = jnp.sum(frames.sigma * frames.utility, axis=2)
    resolves = exists & ~_is_pending(frames)
    valued = frames.valued
    trace_weight = jnp.zeros_like(expected) if valued is None else valued.trace_weight

    def hand(carry, frame):
        value, value_sample, reached = carry
        baseline, probability, expected, weight, trace_weight, resolves = frame
        utility = baseline + weight * (value - baseline)
        out = expected + probability * (utility - baseline)
        sample = expected + trace_weight * (value_sample - baseline)
        reached = reached & resolves
        carry = jnp.where(reached, out, value), jnp.where(reached, sample, value_sample), reached
        return carry, _Returns(reached, utility, out, sample)

    by_frame = (baseline, probability, expected, frames.weight, trace_weight, resolves)
    _, returns = jax.lax.scan(
        hand,
        (value, value_sample, jnp.ones(value.shape, jnp.bool_)),
        tuple(column.T for column in by_frame),
        unroll=8,
    )
    return _Returns(*(column.T for column in returns))


def _give_samples(program: Program, machine: Machine, frames: Frame, returns: _Returns) -> Machine:
    """Put out the samples of frames that are resolved: r(a) = u(a) - sum_b sigma(b) u(b).

    Args:
      program: what stays the same.
      machine: whose outboxes have room.
      frames: leaves [W, K, ...], with the utilities of the actions explored last.
      returns: of these frames.
    """
    advantages = jnp.where(frames.legal, frames.utility - returns.value[:, :, None], 0.0)
    statistics, value = machine.statistics, machine.outboxes.value
    gives = returns.resolves
    if frames.valued is not None:
        assert value is not None
        own = frames.valued.own
        to_mover = jnp.where(own, returns.value_sample, -returns.value_sample)
        one_action = jnp.ones((*gives.shape, 1), jnp.bool_)
        value = _append(
            value,
            gives,
            frames.valued.whole,
            one_action,
            to_mover[:, :, None],
            program.iteration,
        )
        statistics = statistics._replace(value_samples=statistics.value_samples + jnp.sum(gives))
        gives = gives & own
    advantage = _append(
        machine.outboxes.advantage,
        gives,
        frames.packed,
        frames.legal,
        advantages,
        program.iteration,
    )
    statistics = statistics._replace(
        advantage_samples=statistics.advantage_samples + jnp.sum(gives)
    )
    return machine._replace(
        outboxes=machine.outboxes._replace(advantage=advantage, value=value),
        statistics=statistics,
    )


def _take_pending(
    program: Program, machine: Machine, lane: jax.Array, old: Lanes, new: Lanes, frame: Frame
) -> tuple[Frame, Lanes]:
    """Send lanes into the first pending action of their frames.

    Args:
      program: what stays the same.
      machine: whose stack keeps the states of frames that branched.
      lane: int32[W].
      old: the lanes' registers, leaves [W, ...].
      new: the same after returns.
      frame: leaves [W, ...], with the utility of the action explored last.

    Returns:
      The frame and the lanes, to be used where an action is pending.
    """
    game = program.game
    action = first_action(frame.pending)
    frame = frame._replace(
        pending=frame.pending & (jnp.arange(game.num_actions)[None] != action[:, None]),
        action=action,
    )
    state = jax.tree.map(lambda leaf: leaf[lane, frame.branchings], machine.stack.states)
    state = jax.vmap(game.step)(state, action)
    ended = jax.vmap(game.is_terminal)(state)
    end = utility(program, state, program.roots.traverser[old.traversal])
    every = frame.main_action == EVERY_ACTION
    return frame, Lanes(
        state=state,
        status=jnp.where(ended, RETURNING, DECIDING),
        traversal=old.traversal,
        depth=frame.depth + 1,
        own_decisions=frame.own_decisions + 1,
        branchings=frame.branchings + 1,
        height=new.height,
        gives_strategy=every | (action == frame.main_action),
        value=end,
        value_sample=end,
    )


def _explored(frames: Frame) -> jax.Array:
    """Return bool[W, K, A], the action being explored."""
    return jnp.arange(frames.sigma.shape[-1])[None, None] == frames.action[:, :, None]


def _of_action(frames: Frame, values: jax.Array) -> jax.Array:
    """Return float32[W, K], the entries float32[W, K, A] of the actions being explored."""
    return jnp.sum(jnp.where(_explored(frames), values, 0.0), axis=2)


def _is_pending(frames: Frame) -> jax.Array:
    """Return bool[...], whether an action of bool[..., A] is still to be explored."""
    return jnp.any(frames.pending, axis=-1)


def _append(
    outbox: outboxes.Outbox,
    gives: jax.Array,
    packed: jax.Array,
    legal: jax.Array,
    target: jax.Array,
    iteration: jax.Array,
) -> outboxes.Outbox:
    """Append rows [W, K, ...] as `outbox.append` does rows [B, ...]."""
    rows = (gives, packed, legal, target)
    gives, packed, legal, target = (row.reshape(-1, *row.shape[2:]) for row in rows)
    return outboxes.append(outbox, gives, packed, legal, target, iteration)
