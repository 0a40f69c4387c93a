"""Sampling schemes: what a traversal does at the traverser's own decisions.

sigma is the current policy (regret matching on the advantage network), q the sampling policy,
u the utility to the traverser in units of the utility scale. At every node of the opponent one
action is drawn from sigma. At a node of the traverser a scheme either

* *branches*: explores several legal actions, each with a weight w, or
* *samples*: explores one action drawn from q = eps * uniform + (1 - eps) * sigma.

A node that is *recorded* waits on the stack and collects the utilities of the explored actions:

    u(a) = Q(h, a) + w (u_returned - Q(h, a))  if a is explored,   Q(h, a) otherwise
    r(a) = u(a) - sum_b sigma(b) u(b)          for every legal a: the advantage sample
    sum_b sigma(b) u(b)                        is the node's own value, returned upwards

where Q(h, a), the *baseline*, is 0 unless the scheme reads a value network, and w the inverse of
the probability with which a is explored, so that u is unbiased for every action.

| scheme | explores | records | baseline | w |
|---|---|---|---|---|
| `external` | all, at the first nodes of a path; below them a ~ q | all | 0 | 1; 1/q |
| `robust` | k of n at random, at the first nodes; below them a ~ q | all | 0 | n/k; 1/q |
| `outcome` | a ~ q | all | 0 | 1/q |
| `branch` | all at one node of a path; above it a ~ q, below it a ~ sigma | that one | 0 | 1 |
| `baseline` | a ~ q | all, and the opponent's | value network | 1/q |
| `critic` | a ~ q | all, and the opponent's | value network | 0 |

With w = 0 the advantage sample is r(a) = Q(h, a) - sum_b sigma(b) Q(h, b): whatever happens
below, it has no noise at h but the card that a draws, and the bias of the value network. Both
schemes with a value network also give it samples of what it should say, see `Baseline`.

References:
  `outcome`, `external`: Lanctot et al., Monte Carlo Sampling for Regret Minimization in Extensive
  Games, 2009, sections 3.1 and 3.2. Deep CFR: Brown et al., 2019. `robust`: Li et al., Double
  Neural Counterfactual Regret Minimization, 2018, section 4.1. `baseline`: Schmid et al., Variance
  Reduction in Monte Carlo CFR (VR-MCCFR), 2019; Steinberger et al., DREAM, 2020. `critic`:
  McAleer et al., ESCHER, 2023. `branch` estimates advantages by playing on from every action; for
  unbiased expectations see docs/algorithm.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from coorl_jax.games.game import Game
from coorl_jax.settings import Settings


class Plan(NamedTuple):
    """What to do at a traverser's node, for each of B lanes."""

    branches: jax.Array  # bool[B], explore several actions
    records: jax.Array  # bool[B], wait for the utilities and give an advantage sample
    exploration: jax.Array  # float32[B], eps of q where one action is sampled


class Scheme(Protocol):
    """A frozen, hashable object: a static argument of the traversal."""

    strategy_on_every_branch: ClassVar[bool]
    """Whether opponent nodes below every branch give strategy samples, or only those below the
    branch whose action the traverser would have sampled."""

    reads_values: ClassVar[bool]
    """Whether it needs a value network, and gives samples for it."""

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

    def branching(
        self, legal: jax.Array, noise: Callable[[], jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        """Return bool[B, A], the actions a branching node explores, and float32[B], their weight.

        Args:
          legal: bool[B, A].
          noise: gives float32[B, A], uniform in [0, 1); called only if there is a choice.
        """
        ...

    def sampled_weight(self, probability: jax.Array) -> jax.Array:
        """Return float32[B], the weight of one action sampled with a probability, float32[B]."""
        ...

    def trace_weight(self, ratio: jax.Array) -> jax.Array:
        """Return float32[B], c in the samples for the value network, see `Baseline`.

        Args:
          ratio: float32[B], sigma(a) / q(a) of the sampled action.
        """
        ...


@dataclasses.dataclass(frozen=True)
class _RecordsEveryNode:
    """What most schemes have in common."""

    exploration: float
    strategy_on_every_branch: ClassVar[bool] = True
    reads_values: ClassVar[bool] = False

    def max_records(self, game: Game) -> int:
        """Return D."""
        return game.max_player_decisions

    def target(self, game: Game, stratum: jax.Array) -> jax.Array:
        """Return 0: nothing is chosen beforehand."""
        del game, stratum
        return jnp.int32(0)

    def branching(
        self, legal: jax.Array, noise: Callable[[], jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        """Explore every legal action."""
        del noise
        return legal, jnp.ones(legal.shape[:1], jnp.float32)

    def sampled_weight(self, probability: jax.Array) -> jax.Array:
        """Return the inverse."""
        return 1.0 / probability

    def trace_weight(self, ratio: jax.Array) -> jax.Array:
        """Return 0: there is no value network."""
        return jnp.zeros_like(ratio)


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
class Robust(External):
    """External sampling of `branching_actions` actions, k, drawn uniformly without replacement."""

    branching_actions: int

    def branching(
        self, legal: jax.Array, noise: Callable[[], jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        """Explore the k legal actions with the least noise, all n if there are fewer."""
        priority = jnp.where(legal, noise(), 2.0)
        # Counting those before it, and not sorting, breaks ties by number.
        index = jnp.arange(legal.shape[1])
        mine, other = priority[:, :, None], priority[:, None, :]
        before = (other < mine) | ((other == mine) & (index[None, :] < index[:, None])[None])
        explored = legal & (jnp.sum(before, axis=2) < self.branching_actions)
        count = jnp.sum(legal, axis=1)
        explored_count = jnp.maximum(jnp.minimum(count, self.branching_actions), 1)
        return explored, (count / explored_count).astype(jnp.float32)


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
class Baseline(Outcome):
    """Outcome sampling that only the errors of a value network, and chance, make noisy.

    The opponent's nodes are recorded too, since their baseline takes away the noise of what the
    opponent does; they give no advantage sample.

    Attributes:
      trace_decay: lambda in [0, 1] of the samples that the value network learns from. A node's is
        the value of sum_b sigma(b) Q(h, b) + c (x - Q(h, a)) to the player who moves there, for
        the action a that was taken, with x the sample of the node below (at the end the utility)
        and c = lambda min(1, sigma(a) / q(a)): the mean is right where Q is, and exploration does
        not make it noisy (Retrace: Munos et al. 2016).
    """

    trace_decay: float
    reads_values: ClassVar[bool] = True

    def max_records(self, game: Game) -> int:
        """Return D: every node of a path."""
        return game.max_decisions

    def trace_weight(self, ratio: jax.Array) -> jax.Array:
        """Return c."""
        return self.trace_decay * jnp.minimum(1.0, ratio)


@dataclasses.dataclass(frozen=True)
class Critic(Baseline):
    """Advantages read off the value network alone."""

    def sampled_weight(self, probability: jax.Array) -> jax.Array:
        """Return 0: what is returned is for the value network only."""
        return jnp.zeros_like(probability)


@dataclasses.dataclass(frozen=True)
class Branch(_RecordsEveryNode):
    """Walk one path by q; at one node of the traverser play on from every action by sigma.

    The node is the traverser's decision number `target` (from 0), drawn uniformly from all
    numbers a round could have and *before* the walk: whether a node is chosen must not depend on
    what comes after it, or the histories of one information state would be sampled with the wrong
    weights. A round that ends earlier gives no sample.

    Targets are stratified over the traversals and ascending, so that traversals with the most
    work come first and the last lanes finish together.
    """

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


def make_scheme(settings: Settings) -> Scheme:
    """Return the sampling scheme that the settings name."""
    traversal, trace_decay = settings.traversal, settings.value.trace_decay
    exploration, nodes = traversal.exploration, traversal.max_branching_nodes
    return {
        "external": lambda: External(exploration, nodes),
        "robust": lambda: Robust(exploration, nodes, traversal.branching_actions),
        "outcome": lambda: Outcome(exploration),
        "branch": lambda: Branch(exploration),
        "baseline": lambda: Baseline(exploration, trace_decay),
        "critic": lambda: Critic(exploration, trace_decay),
    }[traversal.scheme]()
