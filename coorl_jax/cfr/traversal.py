"""The lockstep traversal machine: thousands of game-tree walks as one array program.

B lanes advance together, each with its own explicit stack; T traversals, D records on a stack, E
of them branchings, A actions, P packed bytes. One pass evaluates the current nodes of all lanes
in one network call and moves every lane one decision on. A recorded node of the traverser waits
on the lane's stack as a frame; when a utility comes back, the frame takes it, and sends the lane
into its next action or, when none is left, gives an advantage sample and returns its own value.
Returns are resolved within the pass, without the network, on the few lanes that return. A lane
whose stack is empty takes the next traversal from a counter, so the batch stays full; every
traversal that is started is finished, since dropping the slow ones would bias the sample.

Random numbers are a function of (key, traversal, depth) alone: a traversal gives the same samples
whatever the number of lanes, and all branches at one depth share their noise (common random
numbers), as they share the deal.

Samples are collected in outboxes, which are emptied into the memories when nearly full.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from coorl_jax.cfr import outbox as outboxes
from coorl_jax.cfr.lanes import (
    DECIDING,
    EVERY_ACTION,
    IDLE,
    RETURNING,
    Frame,
    Lanes,
    Stack,
    at_root,
    compact,
    decision_noise,
    draw_roots,
    empty_stack,
    first_action,
    pick,
    scatter,
    select,
)
from coorl_jax.cfr.machine import Machine, Memories, Program, Statistics, TraversalSpec
from coorl_jax.cfr.regret_matching import (
    regret_matching,
    sample_action,
    uniform_policy,
)
from coorl_jax.cfr.sampling import Scheme
from coorl_jax.games.game import NUM_PLAYERS, Game, State
from coorl_jax.networks import Network, apply_per_player


@partial(jax.jit, static_argnames=("game", "network", "scheme", "spec"), donate_argnames="memories")
def traverse(
    game: Game,
    network: Network,
    scheme: Scheme,
    spec: TraversalSpec,
    params: tuple[Any, ...],
    memories: Memories,
    key: jax.Array,
    iteration: jax.Array,
) -> tuple[Memories, Statistics]:
    """Run T traversals to their end and insert their samples into the memories.

    Args:
      game: the rules.
      network: the advantage network.
      scheme: how the traverser's actions are sampled, see sampling.py.
      spec: sizes.
      params: the network's parameters, one tree for both seats or one per seat.
      memories: donated; as many of each kind as `params` has trees.
      key: consumed.
      iteration: int32, t, recorded in the samples.

    Returns:
      The memories, and `Statistics` with started == finished == T.

    References:
      Brown et al., Deep Counterfactual Regret Minimization, 2019, Algorithm 2 (the recursion).
    """
    traversal_key, insert_key = jax.random.split(key)
    roots = draw_roots(game, scheme, spec.traversals, traversal_key)
    program = Program(game, network, scheme, spec, params, roots, iteration)
    machine = _start(program)

    def fill_outboxes(machine: Machine) -> Machine:
        return jax.lax.while_loop(
            lambda m: _has_work(program, m) & _has_room(program, m),
            lambda m: _pass(program, m),
            machine,
        )

    def fill_and_flush(
        carry: tuple[Machine, Memories, jax.Array],
    ) -> tuple[Machine, Memories, jax.Array]:
        machine, memories, flushes = carry
        machine = fill_outboxes(machine)
        keys = jax.random.split(jax.random.fold_in(insert_key, flushes))
        advantage, into_advantage = outboxes.flush(
            machine.advantage, memories.advantage, game, keys[0]
        )
        strategy, into_strategy = outboxes.flush(machine.strategy, memories.strategy, game, keys[1])
        machine = machine._replace(advantage=advantage, strategy=strategy)
        return machine, Memories(into_advantage, into_strategy), flushes + 1

    machine, memories, _ = jax.lax.while_loop(
        lambda carry: _has_work(program, carry[0]),
        fill_and_flush,
        (machine, memories, jnp.int32(0)),
    )
    return memories, machine.statistics


def _start(program: Program) -> Machine:
    """Return the machine with the first traversals in its lanes."""
    game, spec = program.game, program.spec
    lanes, traversals = spec.lanes, spec.traversals
    index = jnp.arange(lanes, dtype=jnp.int32)
    status = jnp.where(index < traversals, DECIDING, IDLE)
    first = at_root(program.roots, jnp.minimum(index, traversals - 1), status)
    started = min(lanes, traversals)
    zero = jnp.int32(0)
    advantage_room, strategy_room = _room_per_pass(program)
    return Machine(
        lanes=first,
        stack=empty_stack(game, program.scheme, first.state),
        advantage=outboxes.create(game, 8 * advantage_room),
        strategy=outboxes.create(game, 8 * strategy_room),
        statistics=Statistics(
            nodes=zero,
            passes=zero,
            fallbacks=zero,
            started=jnp.int32(started),
            finished=zero,
            advantage_samples=zero,
            strategy_samples=zero,
        ),
    )


def _has_work(program: Program, machine: Machine) -> jax.Array:
    waiting = machine.statistics.started < program.spec.traversals
    return waiting | jnp.any(machine.lanes.status != IDLE)


def _room_per_pass(program: Program) -> tuple[int, int]:
    """Return the most advantage and strategy samples that one pass can give."""
    return program.width * program.spec.pops_per_pass, program.spec.lanes


def _has_room(program: Program, machine: Machine) -> jax.Array:
    advantage_room, strategy_room = _room_per_pass(program)
    return machine.advantage.has_room(advantage_room) & machine.strategy.has_room(strategy_room)


def _pass(program: Program, machine: Machine) -> Machine:
    """Evaluate all lanes once, move each one decision on, resolve returns, refill."""
    machine = _decide(program, machine)

    def resolves(carry: tuple[jax.Array, Machine]) -> jax.Array:
        pops, m = carry
        returning = (m.lanes.status == RETURNING) & (m.lanes.height > 0)
        return (pops < program.spec.pops_per_pass) & jnp.any(returning)

    _, machine = jax.lax.while_loop(
        resolves, lambda carry: (carry[0] + 1, _pop(program, carry[1])), (jnp.int32(0), machine)
    )
    return _refill(program, machine)


def _decide(program: Program, machine: Machine) -> Machine:
    """Evaluate the nodes of all lanes, record those of the traverser, and take one action."""
    game, spec, lanes = program.game, program.spec, machine.lanes
    state, count = lanes.state, spec.lanes
    active = lanes.status == DECIDING
    mover = jax.vmap(game.player)(state)
    packed = jax.vmap(game.information_state)(state, mover)
    legal = jax.vmap(game.legal_actions)(state)
    advantages = apply_per_player(program.network, program.params, packed, mover)
    sigma, fell_back = regret_matching(advantages, legal, spec.fallback)

    traverser = lanes.traversal % NUM_PLAYERS
    own = mover == traverser
    plan = program.scheme.plan(
        lanes.own_decisions, lanes.branchings, program.roots.target[lanes.traversal]
    )
    # Off-policy at the traverser's own nodes only: exploring at the opponent's as well would
    # estimate values against an opponent who explores.
    exploration = jnp.where(own, plan.exploration, 0.0)[:, None]
    q = exploration * uniform_policy(legal) + (1.0 - exploration) * sigma
    noise = jax.vmap(decision_noise)(program.roots.noise_key[lanes.traversal], lanes.depth)
    sampled = sample_action(q, noise)

    branches = own & plan.branches
    records = active & own & plan.records
    explored = jnp.where(branches[:, None], legal, jax.nn.one_hot(sampled, game.num_actions) > 0)
    action = jnp.where(branches, first_action(legal), sampled)
    main_action = (
        jnp.full(count, EVERY_ACTION) if program.scheme.strategy_on_every_branch else sampled
    )
    frame = Frame(
        packed=packed,
        legal=legal,
        sigma=sigma,
        utility=jnp.zeros_like(sigma),
        pending=explored & (jnp.arange(game.num_actions)[None] != action[:, None]),
        weight=jnp.where(branches, 1.0, 1.0 / pick(q, sampled)),
        action=action,
        main_action=main_action,
        depth=lanes.depth,
        own_decisions=lanes.own_decisions,
        branchings=lanes.branchings,
    )
    index = jnp.arange(count, dtype=jnp.int32)
    frames = scatter(machine.stack.frames, (select(records, index, count), lanes.height), frame)
    states = scatter(
        machine.stack.states,
        (select(records & branches, index, count), lanes.branchings),
        state,
    )

    gives = active & ~own & lanes.gives_strategy
    strategy = outboxes.append(machine.strategy, gives, packed, legal, sigma, program.iteration)

    state = jax.vmap(game.step)(state, action)
    ended = active & jax.vmap(game.is_terminal)(state)
    follows_main = ~branches | (main_action == EVERY_ACTION) | (action == main_action)
    lanes = lanes._replace(
        state=state,
        status=jnp.where(ended, RETURNING, lanes.status),
        depth=lanes.depth + 1,
        own_decisions=lanes.own_decisions + own,
        branchings=lanes.branchings + (records & branches),
        height=lanes.height + records,
        gives_strategy=lanes.gives_strategy & follows_main,
        value=jnp.where(ended, _utility(program, state, traverser), lanes.value),
    )
    statistics = machine.statistics._replace(
        nodes=machine.statistics.nodes + jnp.sum(active),
        passes=machine.statistics.passes + 1,
        fallbacks=machine.statistics.fallbacks + jnp.sum(active & fell_back),
        strategy_samples=machine.statistics.strategy_samples + jnp.sum(gives),
    )
    return machine._replace(
        lanes=lanes, stack=Stack(frames, states), strategy=strategy, statistics=statistics
    )


def _pop(program: Program, machine: Machine) -> Machine:
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
    utility = jnp.where(returned, (frame.weight * old.value)[:, None], frame.utility)
    goes_on = jnp.any(frame.pending, axis=1)

    # No action pending: r(a) = u(a) - sum_b sigma(b) u(b) for every legal action.
    value = jnp.sum(frame.sigma * utility, axis=1)
    advantages = jnp.where(frame.legal, utility - value[:, None], 0.0)
    gives = valid & ~goes_on
    outbox = outboxes.append(
        machine.advantage, gives, frame.packed, frame.legal, advantages, program.iteration
    )
    new = old._replace(height=jnp.where(goes_on, old.height, level), value=value)

    # An action pending: only frames that branched have one, and their state was kept.
    if program.scheme.max_branchings(game) > 0:
        action = first_action(frame.pending)
        frame = frame._replace(
            utility=utility,
            pending=frame.pending & (actions != action[:, None]),
            action=action,
        )
        state = jax.tree.map(lambda leaf: leaf[lane, frame.branchings], machine.stack.states)
        state = jax.vmap(game.step)(state, action)
        ended = jax.vmap(game.is_terminal)(state)
        value = _utility(program, state, old.traversal % NUM_PLAYERS)
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
            value=value,
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


def _refill(program: Program, machine: Machine) -> Machine:
    """Retire traversals with an empty stack and hand out the next ones from the counter."""
    lanes, statistics = machine.lanes, machine.statistics
    finished = (lanes.status == RETURNING) & (lanes.height == 0)
    status = jnp.where(finished, IDLE, lanes.status)
    chosen = compact(status == IDLE, program.width)
    last = program.spec.traversals - 1
    number = statistics.started + jnp.arange(program.width, dtype=jnp.int32)
    taken = (chosen < program.spec.lanes) & (number <= last)
    traversal = jnp.minimum(number, last)
    fresh = at_root(program.roots, traversal, jnp.full(program.width, DECIDING))
    index = select(taken, chosen, program.spec.lanes)
    return machine._replace(
        lanes=scatter(lanes._replace(status=status), (index,), fresh),
        statistics=statistics._replace(
            started=statistics.started + jnp.sum(taken),
            finished=statistics.finished + jnp.sum(finished),
        ),
    )


def _utility(program: Program, state: State, traverser: jax.Array) -> jax.Array:
    """Return float32[B], the traversers' returns in units of the utility scale."""
    returns = jax.vmap(program.game.returns)(state)
    return pick(returns, traverser) / program.spec.utility_scale
