"""One pass downwards: every lane at a decision takes one action.

B lanes, A actions. All nodes are evaluated in one network call; those of the traverser that are
recorded go on their lane's stack, those of the opponent give strategy samples.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from coorl_jax.cfr import outbox as outboxes
from coorl_jax.cfr.critic import action_values
from coorl_jax.cfr.lanes import (
    DECIDING,
    EVERY_ACTION,
    RETURNING,
    Frame,
    Stack,
    Valued,
    branching_noise,
    compact,
    decision_noise,
    first_action,
    pick,
    scatter,
    select,
)
from coorl_jax.cfr.machine import Machine, Program, utility
from coorl_jax.cfr.regret_matching import (
    regret_matching,
    sample_action,
    uniform_policy,
)
from coorl_jax.networks import apply_per_player

_WIDTHS = 4  # at most; each is compiled
_NARROWEST = 32  # lanes; fewer take as long


def decide(program: Program, machine: Machine) -> Machine:
    """Evaluate the nodes of all lanes, record those of the traverser, and take one action."""
    game, spec, lanes = program.game, program.spec, machine.lanes
    state, count = lanes.state, spec.lanes
    active = lanes.status == DECIDING
    mover = jax.vmap(game.player)(state)
    packed = jax.vmap(game.information_state)(state, mover)
    legal = jax.vmap(game.legal_actions)(state)
    advantages, evaluated = _advantages(program, packed, mover, active)
    sigma, fell_back = regret_matching(advantages, legal, spec.fallback)

    traverser = program.roots.traverser[lanes.traversal]
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
    several, weight_of_several = program.scheme.branching(
        legal,
        lambda: jax.vmap(partial(branching_noise, num_actions=game.num_actions))(
            program.roots.noise_key[lanes.traversal], lanes.depth
        ),
    )
    is_sampled = jax.nn.one_hot(sampled, game.num_actions) > 0
    explored = jnp.where(branches[:, None], several, is_sampled)
    action = jnp.where(branches, first_action(several), sampled)
    main_action = (
        jnp.full(count, EVERY_ACTION) if program.scheme.strategy_on_every_branch else sampled
    )
    records = active & own & plan.records
    baseline, valued = jnp.zeros_like(sigma), None
    if program.critic is not None:
        records = active
        values = action_values(
            game,
            program.critic.network,
            program.critic.params,
            state,
            legal & active[:, None],
            spec.utility_scale,
        )
        baseline = jnp.where(own[:, None], values, -values)
        valued = Valued(
            whole=jax.vmap(game.whole_state)(state),
            own=own,
            trace_weight=program.scheme.trace_weight(pick(sigma, sampled) / pick(q, sampled)),
        )
    frame = Frame(
        packed=packed,
        legal=legal,
        sigma=sigma,
        utility=baseline,
        pending=explored & (jnp.arange(game.num_actions)[None] != action[:, None]),
        weight=jnp.where(
            branches, weight_of_several, program.scheme.sampled_weight(pick(q, sampled))
        ),
        action=action,
        main_action=main_action,
        depth=lanes.depth,
        own_decisions=lanes.own_decisions,
        branchings=lanes.branchings,
        valued=valued,
    )
    index = jnp.arange(count, dtype=jnp.int32)
    frames = scatter(machine.stack.frames, (select(records, index, count), lanes.height), frame)
    states = scatter(
        machine.stack.states,
        (select(records & branches, index, count), lanes.branchings),
        state,
    )

    gives = active & ~own & lanes.gives_strategy
    strategy = outboxes.append(
        machine.outboxes.strategy, gives, packed, legal, sigma, program.iteration
    )

    state = jax.vmap(game.step)(state, action)
    ended = active & jax.vmap(game.is_terminal)(state)
    follows_main = ~branches | (main_action == EVERY_ACTION) | (action == main_action)
    ended_utility = utility(program, state, traverser)
    lanes = lanes._replace(
        state=state,
        status=jnp.where(ended, RETURNING, lanes.status),
        depth=lanes.depth + 1,
        own_decisions=lanes.own_decisions + own,
        branchings=lanes.branchings + (records & branches),
        height=lanes.height + records,
        gives_strategy=lanes.gives_strategy & follows_main,
        value=jnp.where(ended, ended_utility, lanes.value),
        value_sample=jnp.where(ended, ended_utility, lanes.value_sample),
    )
    statistics = machine.statistics._replace(
        nodes=machine.statistics.nodes + jnp.sum(active),
        passes=machine.statistics.passes + 1,
        evaluated=machine.statistics.evaluated + evaluated,
        fallbacks=machine.statistics.fallbacks + jnp.sum(active & fell_back),
        strategy_samples=machine.statistics.strategy_samples + jnp.sum(gives),
    )
    return Machine(
        lanes=lanes,
        stack=Stack(frames, states),
        statistics=statistics,
        outboxes=machine.outboxes._replace(strategy=strategy),
    )


def widths(lanes: int) -> list[int]:
    """Return the batches that the network is compiled for: B, and its halves a few times over.

    At the end of a call, when no traversals are left to begin, lanes run dry one after the other.
    """
    found = [lanes]
    while len(found) < _WIDTHS and found[-1] >= 2 * _NARROWEST:
        found.append(-(-found[-1] // 2))
    return found


def _advantages(
    program: Program, packed: jax.Array, mover: jax.Array, active: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Evaluate the lanes with a decision, in the narrowest batch that has room for them.

    Args:
      program: what stays the same.
      packed: uint8[B, P].
      mover: int32[B].
      active: bool[B], whether the lane is at a decision.

    Returns:
      float32[B, A], of no meaning in other lanes, and int32, the size of the batch.
    """
    # The seats of the other lanes do not matter: those of all may be the same.
    seat = jnp.where(active, mover, mover[jnp.argmax(active)])
    evaluate = partial(apply_per_player, program.network, program.params)
    count = len(mover)

    def narrow(width: int) -> Callable[[], jax.Array]:
        def evaluate_some() -> jax.Array:
            chosen = compact(active, width)
            lane = jnp.minimum(chosen, count - 1)
            some = evaluate(packed[lane], seat[lane])
            empty = jnp.zeros((count, some.shape[1]), some.dtype)
            return scatter(empty, (chosen,), some)

        return evaluate_some

    sizes = widths(count)
    if len(sizes) == 1:
        return evaluate(packed, seat), jnp.int32(count)
    size = jnp.array(sizes, jnp.int32)
    index = jnp.sum(jnp.sum(active) <= size) - 1
    branches = [lambda: evaluate(packed, seat), *(narrow(width) for width in sizes[1:])]
    return jax.lax.switch(index, branches), size[index]
