"""One step upwards: utilities are handed to the frames that wait for them.

A frame takes its next pending action, or has none left, gives its samples and hands its own value
to the frame above. This needs no network, and is done for the few lanes that return.
"""

from __future__ import annotations

from functools import partial

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


def pop(program: Program, machine: Machine) -> Machine:
    """Hand the returned utility to the top frame, for up to `width` returning lanes.

    The frame takes its next pending action, and the lane is DECIDING again or returns at once
    with the end of the round; or it has none, gives its sample and its value goes on upwards.
    """
    game, lanes = program.game, machine.lanes
    chosen = compact((lanes.status == RETURNING) & (lanes.height > 0), program.width)
    lane = jnp.minimum(chosen, program.spec.lanes - 1)  # readable; writes go to `chosen`
    valid = chosen < program.spec.lanes
    old: Lanes = jax.tree.map(lambda leaf: leaf[lane], lanes)
    level = jnp.maximum(old.height - 1, 0)
    frame: Frame = jax.tree.map(lambda leaf: leaf[lane, level], machine.stack.frames)

    actions = jnp.arange(game.num_actions)[None]
    returned = actions == frame.action[:, None]
    correction = frame.weight[:, None] * (old.value[:, None] - frame.utility)
    utilities = jnp.where(returned, frame.utility + correction, frame.utility)
    goes_on = jnp.any(frame.pending, axis=1)

    # No action pending: r(a) = u(a) - sum_b sigma(b) u(b) for every legal action.
    value = jnp.sum(frame.sigma * utilities, axis=1)
    advantages = jnp.where(frame.legal, utilities - value[:, None], 0.0)
    gives = valid & ~goes_on
    value_sample = old.value_sample
    if frame.valued is not None:
        value_sample, machine = _give_value(program, machine, frame, value_sample, gives)
        gives = gives & frame.valued.own
    outbox = outboxes.append(
        machine.advantage, gives, frame.packed, frame.legal, advantages, program.iteration
    )
    new = old._replace(
        height=jnp.where(goes_on, old.height, level), value=value, value_sample=value_sample
    )

    # An action pending: only frames that branched have one, and their state was kept.
    if program.scheme.max_branchings(game) > 0:
        action = first_action(frame.pending)
        frame = frame._replace(
            utility=utilities,
            pending=frame.pending & (actions != action[:, None]),
            action=action,
        )
        state = jax.tree.map(lambda leaf: leaf[lane, frame.branchings], machine.stack.states)
        state = jax.vmap(game.step)(state, action)
        ended = jax.vmap(game.is_terminal)(state)
        end = utility(program, state, program.roots.traverser[old.traversal])
        every = frame.main_action == EVERY_ACTION
        resumed = Lanes(
            state=state,
            status=jnp.where(ended, RETURNING, DECIDING),
            traversal=old.traversal,
            depth=frame.depth + 1,
            own_decisions=frame.own_decisions + 1,
            branchings=frame.branchings + 1,
            height=old.height,
            gives_strategy=every | (action == frame.main_action),
            value=end,
            value_sample=end,
        )
        new = jax.tree.map(partial(select, goes_on), resumed, new)
        written = select(valid & goes_on, chosen, program.spec.lanes)
        frames = scatter(machine.stack.frames, (written, level), frame)
        machine = machine._replace(stack=machine.stack._replace(frames=frames))

    statistics = machine.statistics._replace(
        advantage_samples=machine.statistics.advantage_samples + jnp.sum(gives)
    )
    return machine._replace(
        lanes=scatter(lanes, (chosen,), new), advantage=outbox, statistics=statistics
    )


def _give_value(
    program: Program, machine: Machine, frame: Frame, below: jax.Array, gives: jax.Array
) -> tuple[jax.Array, Machine]:
    """Form the value samples of frames from those below, `sampling.Baseline`, and put them out.

    Only one action of such a frame is explored, so that its utilities are still the baseline.
    """
    assert frame.valued is not None
    assert machine.value is not None
    expected = jnp.sum(frame.sigma * frame.utility, axis=1)
    error = below - pick(frame.utility, frame.action)
    value_sample = expected + frame.valued.trace_weight * error
    to_mover = jnp.where(frame.valued.own, value_sample, -value_sample)
    one_action = jnp.ones((*gives.shape, 1), jnp.bool_)
    value = outboxes.append(
        machine.value, gives, frame.valued.whole, one_action, to_mover[:, None], program.iteration
    )
    statistics = machine.statistics._replace(
        value_samples=machine.statistics.value_samples + jnp.sum(gives)
    )
    return value_sample, machine._replace(value=value, statistics=statistics)
