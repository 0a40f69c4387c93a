"""Sampling schemes: what a traversal does at the traverser's own decisions.

sigma is the current policy (regret matching on the advantage network), q the sampling policy,
u the utility to the traverser in units of the utility scale. At every node of the opponent one
action is drawn from sigma. At a node of the traverser a scheme either

* *branches*: explores every legal action, each with weight 1, or
* *samples*: explores one action drawn from q = eps * uniform + (1 - eps) * sigma,

and it may *record* the node: the node then waits on the stack, collects the utilities
u(a) = weight * (utility returned) of the explored actions, 0 for the others, and gives the
advantage sample r(a) = u(a) - sum_b sigma(b) u(b) for every legal a. Its own value
sum_b sigma(b) u(b) is returned upwards. A sampled action has weight 1 / q(a), which makes u
unbiased for every action, explored or not.

| scheme | branches at | records | q |
|---|---|---|---|
| `external` | the first `max_branching_nodes` nodes of a path | every node | below them |
| `outcome` | no node | every node | everywhere |
| `branch` | one node of a path | that node | above it; below it sigma |

References:
  `outcome`, `external`: Lanctot et al., Monte Carlo Sampling for Regret Minimization in Extensive
  Games, 2009, sections 3.1 and 3.2. Deep CFR: Brown et al., 2019. `branch` estimates advantages by
  playing on from every action; for unbiased expectations see docs/algorithm.md.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from coorl_jax.games.game import Game


class Plan(NamedTuple):
    """What to do at a traverser's node, for each of B lanes."""

    branches: jax.Array  # bool[B], explore every legal action
    records: jax.Array  # bool[B], wait for the utilities and give an advantage sample
    exploration: jax.Array  # float32[B], eps of q where one action is sampled


class Scheme(Protocol):
    """A frozen, hashable object: a static argument of the traversal."""

    strategy_on_every_branch: ClassVar[bool]
    """Whether opponent nodes below every branch give strategy samples, or only those below the
    branch whose action the traverser would have sampled."""

    def max_records(self, game: Game) -> int:
        """Return D, the recorded nodes that can wait on one path."""
        ...

    def max_branchings(self, game: Game) -> int:
        """Return how many of them can have branched."""
        ...

    def target(self, game: Game, stratum: jax.Array) -> jax.Array:
        """Return int32, a traversal's own random choice, from a number in [0, 1)."""
        ...

    def plan(self, own_decisions: jax.Array, branchings: jax.Array, target: jax.Array) -> Plan:
        """Return what to do.

        Args:
          own_decisions: int32[B], decisions of the traverser on the path before this one.
          branchings: int32[B], nodes of the path that branched.
          target: int32[B], see `target`.
        """
        ...


@dataclasses.dataclass(frozen=True)
class _RecordsEveryNode:
    """What external and outcome sampling have in common."""

    exploration: float
    strategy_on_every_branch: ClassVar[bool] = True

    def max_records(self, game: Game) -> int:
        """Return D."""
        return game.max_player_decisions

    def target(self, game: Game, stratum: jax.Array) -> jax.Array:
        """Return 0: nothing is chosen beforehand."""
        del game, stratum
        return jnp.int32(0)


@dataclasses.dataclass(frozen=True)
class External(_RecordsEveryNode):
    """External sampling; below `max_branching_nodes` branching nodes on a path, outcome sampling.

    With the bound at or above the traverser's decisions it is plain external sampling.
    """

    max_branching_nodes: int

    def max_branchings(self, game: Game) -> int:
        """Return the bound, or the longest path if that is shorter."""
        return min(self.max_branching_nodes, game.max_player_decisions)

    def plan(self, own_decisions: jax.Array, branchings: jax.Array, target: jax.Array) -> Plan:
        """Branch while the bound allows it."""
        del own_decisions, target
        return Plan(
            branches=branchings < self.max_branching_nodes,
            records=jnp.ones_like(branchings, jnp.bool_),
            exploration=jnp.full(branchings.shape, self.exploration, jnp.float32),
        )


@dataclasses.dataclass(frozen=True)
class Outcome(_RecordsEveryNode):
    """Outcome sampling: one path, every node of the traverser recorded."""

    def max_branchings(self, game: Game) -> int:
        """Return 0."""
        del game
        return 0

    def plan(self, own_decisions: jax.Array, branchings: jax.Array, target: jax.Array) -> Plan:
        """Sample and record."""
        del branchings, target
        return Plan(
            branches=jnp.zeros_like(own_decisions, jnp.bool_),
            records=jnp.ones_like(own_decisions, jnp.bool_),
            exploration=jnp.full(own_decisions.shape, self.exploration, jnp.float32),
        )


@dataclasses.dataclass(frozen=True)
class Branch:
    """Walk one path by q; at one node of the traverser play on from every action by sigma.

    The node is the traverser's decision number `target` (from 0), drawn uniformly from all
    numbers a round could have and *before* the walk: whether a node is chosen must not depend on
    what comes after it, or the histories of one information state would be sampled with the wrong
    weights. A round that ends earlier gives no sample.

    Targets are stratified over the traversals and ascending, so that traversals with the most
    work come first and the last lanes finish together.
    """

    exploration: float
    # Only one node of a path branches, so that its branches alone need to be told apart.
    strategy_on_every_branch: ClassVar[bool] = False

    def max_records(self, game: Game) -> int:
        """Return 1."""
        del game
        return 1

    def max_branchings(self, game: Game) -> int:
        """Return 1."""
        del game
        return 1

    def target(self, game: Game, stratum: jax.Array) -> jax.Array:
        """Return the number of the decision to branch at."""
        number = jnp.floor(stratum * game.max_player_decisions).astype(jnp.int32)
        return jnp.minimum(number, game.max_player_decisions - 1)

    def plan(self, own_decisions: jax.Array, branchings: jax.Array, target: jax.Array) -> Plan:
        """Branch at the target; explore above it only."""
        del branchings
        at_target = own_decisions == target
        return Plan(
            branches=at_target,
            records=at_target,
            exploration=jnp.where(own_decisions <= target, jnp.float32(self.exploration), 0.0),
        )
