"""The parts of the lockstep machine put together: its sizes, its carry, its counters.

B lanes, T traversals.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax

from coorl_jax.cfr.lanes import Lanes, Roots, Stack, pick
from coorl_jax.cfr.outbox import Outbox
from coorl_jax.cfr.regret_matching import Fallback
from coorl_jax.cfr.reservoir import Reservoir
from coorl_jax.cfr.sampling import Scheme
from coorl_jax.games.game import TURNS, Game, State
from coorl_jax.networks import Network, Params, ValueNetwork


@dataclasses.dataclass(frozen=True)
class TraversalSpec:
    """The size and shape of the machine; a static argument.

    Attributes:
      traversals: T, over both players and all machines.
      lanes: B, of each machine.
      pops_per_pass: calls of `pop` in one pass, at most; changes speed only.
      fallback: regret matching without a positive advantage, "argmax" or "uniform".
      utility_scale: points per unit of utility.
    """

    traversals: int
    lanes: int
    pops_per_pass: int
    fallback: Fallback
    utility_scale: float
    machines: int = 1  # M, that share the traversals, see side_by_side.py

    def share(self, machine: Any) -> Any:
        """Return how many traversals machine number int32 `machine` walks: every M-th."""
        return (self.traversals - machine + self.machines - 1) // self.machines


class Statistics(NamedTuple):
    """What one call did; scalars."""

    nodes: jax.Array  # int32, decision points evaluated
    passes: jax.Array  # int32, calls of the advantage network
    evaluated: jax.Array  # int32, states that it was given, those of lanes without one as well
    fallbacks: jax.Array  # int32, nodes without a positive advantage
    started: jax.Array  # int32, traversals begun
    finished: jax.Array  # int32, traversals ended with an empty stack
    advantage_samples: jax.Array  # int32
    strategy_samples: jax.Array  # int32
    value_samples: jax.Array  # int32


class Memories(NamedTuple):
    """One memory per network.

    Those of advantages and strategies are tuples of one (shared by the seats) or two (one per
    seat); that of the value network is one or, without such a network, none. Its rows are samples
    of whole states with a single action that is always legal, and the value as its target.
    """

    advantage: tuple[Reservoir, ...]
    strategy: tuple[Reservoir, ...]
    value: tuple[Reservoir, ...] = ()


class Outboxes(NamedTuple):
    """Samples on their way to the memories."""

    advantage: Outbox
    strategy: Outbox
    value: Outbox | None


class Machine(NamedTuple):
    """The carry of the loop over passes."""

    lanes: Lanes
    stack: Stack
    statistics: Statistics
    outboxes: Outboxes


@partial(jax.tree_util.register_dataclass, meta_fields=["network"], data_fields=["params"])
@dataclasses.dataclass(frozen=True)
class Critic:
    """A value network with its parameters; a pytree of these."""

    network: ValueNetwork
    params: Params


@partial(
    jax.tree_util.register_dataclass,
    meta_fields=["game", "network", "scheme", "spec"],
    data_fields=["params", "roots", "insert_key", "iteration", "critic", "machine"],
)
@dataclasses.dataclass(frozen=True)
class Program:
    """What stays the same during the traversals; a pytree of its arrays."""

    game: Game
    network: Network
    scheme: Scheme
    spec: TraversalSpec
    params: tuple[Any, ...]
    roots: Roots
    insert_key: jax.Array  # of the memories' choices
    iteration: jax.Array  # int32, t
    critic: Critic | None  # for a scheme that reads values
    machine: jax.Array  # int32, which of the M machines

    def traversal(self, number: jax.Array) -> jax.Array:
        """Return the traversals int32[...] that the machine's own numbers int32[...] stand for."""
        return self.machine + self.spec.machines * number

    @property
    def refills(self) -> int:
        """Lanes that can take a new traversal in one pass; others wait for the next."""
        return min(self.spec.lanes, self.refill_period * self._ends)

    @property
    def refill_period(self) -> int:
        """Passes between two refills.

        With a network per seat, lanes that wait for each other's turns are all at decisions of one
        seat, whose network alone is evaluated; not so if they go back to branchings. In a short
        game waiting would cost more.
        """
        in_step = len(self.params) > 1 and self.scheme.max_branchings(self.game) == 0
        return TURNS if in_step and self.game.max_decisions > 16 * TURNS else 1

    @property
    def pop_frames(self) -> int:
        """K, frames of a lane that return at once: a chain of them where few frames branched."""
        records = self.scheme.max_records(self.game)
        return records - min(self.scheme.max_branchings(self.game), records - 1)

    @property
    def pop_lanes(self) -> int:
        """W, lanes whose frames return at once."""
        lanes = self._ends if self.pop_frames == 1 else max(8, self._ends // 4)
        return min(self.spec.lanes, lanes)

    @property
    def _ends(self) -> int:
        """Lanes that may end a round in the same pass: several times as many as do on average.

        A lane ends one every few dozen passes in a long game and every few in a short one.
        """
        return max(32, -(-16 * self.spec.lanes // self.game.max_decisions))


def utility(program: Program, state: State, player: jax.Array) -> jax.Array:
    """Return float32[B], the returns of players int32[B] in units of the utility scale."""
    returns = jax.vmap(program.game.returns)(state)
    return pick(returns, player) / program.spec.utility_scale
