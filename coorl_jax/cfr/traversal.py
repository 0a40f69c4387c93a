"""The lockstep traversal machine: thousands of game-tree walks as one array program.

B lanes advance together, each with its own explicit stack; T traversals, D records on a stack, E
of them branchings, A actions, P packed bytes. One pass evaluates the current nodes of all lanes
in one network call and moves every lane one decision on (descent.py). A recorded node waits on the
lane's stack as a frame; when a utility comes back, the frame takes it, and sends the lane into its
next action or, when none is left, gives an advantage sample and returns its own value (backup.py).
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
from coorl_jax.cfr.backup import pop
from coorl_jax.cfr.descent import decide
from coorl_jax.cfr.lanes import (
    DECIDING,
    IDLE,
    RETURNING,
    at_root,
    compact,
    draw_roots,
    empty_stack,
    scatter,
    select,
)
from coorl_jax.cfr.machine import (
    Critic,
    Machine,
    Memories,
    Outboxes,
    Program,
    Statistics,
    TraversalSpec,
)
from coorl_jax.cfr.sampling import Scheme
from coorl_jax.games.game import NUM_PLAYERS, Game
from coorl_jax.networks import Network, Params, ValueNetwork


def make_program(
    game: Game,
    network: Network,
    scheme: Scheme,
    spec: TraversalSpec,
    params: tuple[Any, ...],
    key: jax.Array,
    iteration: jax.Array,
    value_network: ValueNetwork | None = None,
    value_params: Params | None = None,
    traverser: jax.Array | None = None,
) -> Program:
    """Deal T traversals, and put together what they need.

    Args:
      game: the rules.
      network: the advantage network.
      scheme: how the traverser's actions are sampled, see sampling.py.
      spec: sizes.
      params: the network's parameters, one tree for both seats or one per seat.
      key: consumed.
      iteration: int32, t, recorded in the samples.
      value_network: for a scheme that reads values, otherwise None.
      value_params: its parameters.
      traverser: int32[T], 0 or 1, whose regrets each traversal estimates; the players in turn, if
        not given.

    Raises:
      ValueError: for a scheme that reads values without a network, or the reverse.
    """
    critic = None if value_network is None else Critic(value_network, value_params)
    if scheme.reads_values != (critic is not None):
        raise ValueError(
            f"value_network={value_network}: must be a network if the scheme reads values and None "
            f"if it does not, as {scheme}"
        )
    if traverser is None:
        traverser = jnp.arange(spec.traversals, dtype=jnp.int32) % NUM_PLAYERS
    roots_key, insert_key = jax.random.split(key)
    return Program(
        game=game,
        network=network,
        scheme=scheme,
        spec=spec,
        params=params,
        roots=draw_roots(game, scheme, traverser, roots_key),
        insert_key=insert_key,
        iteration=iteration,
        critic=critic,
        machine=jnp.int32(0),
    )


@partial(jax.jit, donate_argnames="memories")
def traverse(program: Program, memories: Memories) -> tuple[Memories, Statistics]:
    """Run T traversals to their end and insert their samples into the memories.

    Args:
      program: of a single machine; see side_by_side.py for several.
      memories: donated; as many of advantages and strategies as there are parameter trees.

    Returns:
      The memories, and `Statistics` with started == finished == T.

    References:
      Brown et al., Deep Counterfactual Regret Minimization, 2019, Algorithm 2 (the recursion).
    """
    if program.spec.machines != 1:
        raise ValueError(f"machines={program.spec.machines}: must be 1; see side_by_side.py")

    def fill_and_flush(
        carry: tuple[Machine, Memories, jax.Array],
    ) -> tuple[Machine, Memories, jax.Array]:
        machine, memories, flushes = carry
        machine = fill(program, machine)
        memories = flush(program, machine.outboxes, memories, flushes)
        return machine._replace(outboxes=empty_outboxes(program)), memories, flushes + 1

    machine, memories, _ = jax.lax.while_loop(
        lambda carry: has_work(program, carry[0].statistics),
        fill_and_flush,
        (start(program), memories, jnp.int32(0)),
    )
    return memories, machine.statistics


def start(program: Program) -> Machine:
    """Return the machine with its first traversals in its lanes."""
    game, spec = program.game, program.spec
    number = jnp.arange(spec.lanes, dtype=jnp.int32)
    share = spec.share(program.machine)
    traversal = jnp.minimum(program.traversal(number), spec.traversals - 1)
    first = at_root(program.roots, traversal, jnp.where(number < share, DECIDING, IDLE))
    zero = jnp.int32(0)
    return Machine(
        lanes=first,
        stack=empty_stack(game, program.scheme, first.state),
        statistics=Statistics(
            nodes=zero,
            passes=zero,
            evaluated=zero,
            fallbacks=zero,
            started=jnp.minimum(share, spec.lanes),
            finished=zero,
            advantage_samples=zero,
            strategy_samples=zero,
            value_samples=zero,
        ),
        outboxes=empty_outboxes(program),
    )


def empty_outboxes(program: Program) -> Outboxes:
    """Return outboxes with room for several passes."""
    game, lanes = program.game, program.spec.lanes
    capacity = max(8 * lanes, 4 * _pop_room(program))
    create = partial(outboxes.create, game.packed_size, game.num_actions)
    valued = program.critic is not None
    return Outboxes(
        advantage=create(capacity),
        strategy=create(8 * lanes),
        value=outboxes.create(game.whole_size, 1, capacity) if valued else None,
    )


def has_work(program: Program, statistics: Statistics) -> jax.Array:
    """Return bool, whether the machine is still to start or to finish a traversal."""
    return statistics.finished < program.spec.share(program.machine)


def fill(program: Program, machine: Machine) -> Machine:
    """Run passes until an outbox is nearly full or all work is done."""
    return jax.lax.while_loop(
        lambda m: has_work(program, m.statistics) & _has_room(program, m),
        lambda m: _pass(program, m),
        machine,
    )


def flush(program: Program, filled: Outboxes, memories: Memories, number: jax.Array) -> Memories:
    """Insert all samples, as flush int32 `number` of the program; no two have the same."""
    game, value = program.game, memories.value
    keys = jax.random.split(jax.random.fold_in(program.insert_key, number), 3)
    if filled.value is not None:
        value = outboxes.flush(filled.value, value, game, keys[2])
    return Memories(
        advantage=outboxes.flush(filled.advantage, memories.advantage, game, keys[0]),
        strategy=outboxes.flush(filled.strategy, memories.strategy, game, keys[1]),
        value=value,
    )


def _pop_room(program: Program) -> int:
    """Return the most advantage, or value, samples that one call of `pop` can give."""
    return program.pop_lanes * program.pop_frames


def _has_room(program: Program, machine: Machine) -> jax.Array:
    """Return whether one call of `decide` and one of `pop` can put out their samples."""
    room = machine.outboxes.strategy.has_room(program.spec.lanes)
    return room & _has_pop_room(program, machine)


def _has_pop_room(program: Program, machine: Machine) -> jax.Array:
    advantage, _, value = machine.outboxes
    room = advantage.has_room(_pop_room(program))
    return room if value is None else room & value.has_room(_pop_room(program))


def _pass(program: Program, machine: Machine) -> Machine:
    """Evaluate all lanes once, move each one decision on, resolve returns, refill."""
    machine = decide(program, machine)

    def resolves(carry: tuple[jax.Array, Machine]) -> jax.Array:
        pops, m = carry
        returning = (m.lanes.status == RETURNING) & (m.lanes.height > 0)
        goes_on = (pops < program.spec.pops_per_pass) & _has_pop_room(program, m)
        return goes_on & jnp.any(returning)

    _, machine = jax.lax.while_loop(
        resolves, lambda carry: (carry[0] + 1, pop(program, carry[1])), (jnp.int32(0), machine)
    )
    return _refill(program, machine)


def _refill(program: Program, machine: Machine) -> Machine:
    """Retire traversals with an empty stack and hand out the next ones from the counter."""
    lanes, statistics = machine.lanes, machine.statistics
    finished = (lanes.status == RETURNING) & (lanes.height == 0)
    status = jnp.where(finished, IDLE, lanes.status)
    chosen = compact(status == IDLE, program.refills)
    number = statistics.started + jnp.arange(program.refills, dtype=jnp.int32)
    due = statistics.passes % program.refill_period == 0
    taken = due & (chosen < program.spec.lanes) & (number < program.spec.share(program.machine))
    traversal = jnp.minimum(program.traversal(number), program.spec.traversals - 1)
    fresh = at_root(program.roots, traversal, jnp.full(program.refills, DECIDING))
    index = select(taken, chosen, program.spec.lanes)
    return machine._replace(
        lanes=scatter(lanes._replace(status=status), (index,), fresh),
        statistics=statistics._replace(
            started=statistics.started + jnp.sum(taken),
            finished=statistics.finished + jnp.sum(finished),
        ),
    )
