"""The traversal written as a plain recursion, one history at a time.

It follows the text of `coorl_jax/cfr/sampling.py`. It shares with the machine the rules of the
game, the networks and the random numbers (`draw_roots`, `decision_noise`, `branching_noise`), and
nothing else: regret matching, drawing actions, the walk and the estimates are written out again,
in float64.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from machine_runs import ITERATION, Result, Samples, Values, make_params

from coorl_jax.cfr.lanes import branching_noise, decision_noise, draw_roots
from coorl_jax.cfr.machine import TraversalSpec
from coorl_jax.cfr.sampling import Baseline, Branch, Critic, External, Outcome, Robust
from coorl_jax.games.game import NUM_PLAYERS


class PlainStatistics(NamedTuple):
    nodes: int
    fallbacks: int


@dataclasses.dataclass
class Position:
    """One history of the game, as the reference sees it."""

    state: Any
    player: int
    packed: np.ndarray  # uint8[P], of the player to move
    legal: np.ndarray  # bool[A]
    terminal: bool
    returns: np.ndarray  # float32[2]
    sigma: np.ndarray  # float64[A]
    fell_back: bool
    whole: np.ndarray  # uint8[W]
    value: float  # of the whole state to the player to move, by the value network
    children: dict[int, Position] = dataclasses.field(default_factory=dict)


class Walk(NamedTuple):
    """Where a traversal is, besides the position."""

    depth: int  # decisions since the deal
    own_decisions: int  # the traverser's among them
    branchings: int  # nodes of the path that branched
    gives_strategy: bool  # whether nodes of the opponent give strategy samples


class Returned(NamedTuple):
    """What comes back from a position."""

    utility: float  # to the traverser
    value_sample: float  # x of the value samples, to the traverser; see `sampling.Baseline`


class PlainTraversal:
    """The reference. Positions are remembered, since small games come back to them."""

    def __init__(self, game, network, scheme, spec: TraversalSpec, seeds=(1,), values=None):
        self.game = game
        self.network = network
        self.scheme = scheme
        self.spec = spec
        self.params = make_params(network, seeds)
        self.values: Values | None = values
        self.roots: dict[bytes, Position] = {}

    def run(self, key=0) -> Result:
        """Run all traversals, one after the other."""
        game, traversals = self.game, self.spec.traversals
        roots = draw_roots(
            game,
            self.scheme,
            jnp.arange(traversals) % NUM_PLAYERS,
            jax.random.split(jax.random.key(key))[0],
        )
        noise, branching = _all_noise(game, roots.noise_key)
        states, targets = jax.device_get((roots.state, roots.target))
        self.nodes = self.fallbacks = 0
        self.advantage: list[list[tuple]] = [[] for _ in self.params]
        self.strategy: list[list[tuple]] = [[] for _ in self.params]
        self.value: list[list[tuple]] = [[]]
        for i in range(traversals):
            root = self._root(jax.tree.map(lambda leaf, i=i: leaf[i], states))
            self.traverser = i % NUM_PLAYERS
            self.noise, self.branching_noise = noise[i], branching[i]
            self.target = int(targets[i])
            self._walk(root, Walk(0, 0, 0, True))
        sizes = game.packed_size, game.num_actions
        valued = self.value if self.values is not None else []
        return Result(
            advantage=tuple(_collect(rows, *sizes) for rows in self.advantage),
            strategy=tuple(_collect(rows, *sizes) for rows in self.strategy),
            value=tuple(_collect(rows, game.whole_size, 1) for rows in valued),
            statistics=PlainStatistics(self.nodes, self.fallbacks),
        )

    def _walk(self, at: Position, walk: Walk) -> Returned:
        """Walk on from here and return what it is worth to the traverser."""
        if at.terminal:
            utility = float(at.returns[self.traverser]) / self.spec.utility_scale
            return Returned(utility, utility)
        self.nodes += 1
        self.fallbacks += at.fell_back
        if at.player == self.traverser:
            return self._own(at, walk)
        if walk.gives_strategy:
            self._give(self.strategy, at, at.sigma)
        action = draw_action(at.sigma, self.noise[walk.depth])
        returned = self._walk(self._child(at, action), walk._replace(depth=walk.depth + 1))
        if self.values is None:
            return returned
        utility = self._utility(at, at.sigma, {action: returned}, branches=False)
        return Returned(float(at.sigma @ utility), self._give_value(at, at.sigma, action, returned))

    def _own(self, at: Position, walk: Walk) -> Returned:
        branches, records, exploration = self._plan(walk)
        q = exploration * at.legal / at.legal.sum() + (1 - exploration) * at.sigma
        sampled = draw_action(q, self.noise[walk.depth])
        explored = self._branching(at, walk.depth) if branches else [sampled]
        returned = {}
        for action in explored:
            is_main = self.scheme.strategy_on_every_branch or action == sampled
            returned[action] = self._walk(
                self._child(at, int(action)),
                Walk(
                    walk.depth + 1,
                    walk.own_decisions + 1,
                    walk.branchings + branches,
                    walk.gives_strategy and is_main,
                ),
            )
        if not records:
            return returned[sampled]
        utility = self._utility(at, q, returned, branches)
        value = float(at.sigma @ utility)
        self._give(self.advantage, at, np.where(at.legal, utility - value, 0.0))
        if self.values is None:
            return Returned(value, value)
        return Returned(value, self._give_value(at, q, sampled, returned[sampled]))

    def _branching(self, at: Position, depth: int) -> list[int]:
        """List the actions that a branching node explores."""
        legal = [int(action) for action in np.flatnonzero(at.legal)]
        if isinstance(self.scheme, Robust):
            noise = self.branching_noise[depth]
            return sorted(legal, key=lambda a: noise[a])[: self.scheme.branching_actions]
        return legal

    def _utility(self, at: Position, q, returned: dict[int, Returned], branches) -> np.ndarray:
        """Return u of all actions: the baseline, corrected where an action was explored."""
        utility = self._baseline(at)
        for action, below in returned.items():
            weight = 1 / q[action]
            if branches:
                weight = at.legal.sum() / len(returned)
            if isinstance(self.scheme, Critic):
                weight = 0.0
            utility[action] += weight * (below.utility - utility[action])
        return utility

    def _baseline(self, at: Position) -> np.ndarray:
        """Return Q(h, a), the value of the successors to the traverser; 0 without values."""
        baseline = np.zeros(len(at.legal))
        if self.values is not None:
            for action in np.flatnonzero(at.legal):
                child = self._child(at, int(action))
                sign = 1.0 if child.player == self.traverser else -1.0
                if child.terminal:
                    end = float(child.returns[self.traverser]) / self.spec.utility_scale
                baseline[action] = end if child.terminal else sign * child.value
        return baseline

    def _give_value(self, at: Position, q, action: int, returned: Returned) -> float:
        """Give a value sample and return it as the traverser sees it."""
        baseline = self._baseline(at)
        c = self.scheme.trace_decay * min(1.0, at.sigma[action] / q[action])
        sample = float(at.sigma @ baseline) + c * (returned.value_sample - baseline[action])
        to_mover = sample if at.player == self.traverser else -sample
        self.value[0].append((at.whole, np.ones(1, bool), np.array([to_mover]), ITERATION))
        return sample

    def _plan(self, walk: Walk) -> tuple[bool, bool, float]:
        """Whether to branch, whether to record, and how much to explore where one is sampled."""
        match self.scheme:
            case External():
                branches = walk.branchings < self.scheme.max_branching_nodes
                return branches, True, self.scheme.exploration
            case Outcome() | Baseline() | Critic():
                return False, True, self.scheme.exploration
            case Branch():
                at_target = walk.own_decisions == self.target
                below = walk.own_decisions > self.target
                return at_target, at_target, 0.0 if below else self.scheme.exploration
        raise AssertionError(f"no reference for {self.scheme}")

    def _give(self, memories, at: Position, target) -> None:
        memory = memories[at.player if len(memories) > 1 else 0]
        memory.append((at.packed, at.legal, target, ITERATION))

    def _root(self, state) -> Position:
        deal = b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state))
        if deal not in self.roots:
            self.roots[deal] = self._look(state)
        return self.roots[deal]

    def _child(self, at: Position, action: int) -> Position:
        if action not in at.children:
            state = _step(self.game, at.state, np.int32(action))
            at.children[action] = self._look(state)
        return at.children[action]

    def _look(self, state) -> Position:
        values = (None, None) if self.values is None else (self.values.network, self.values.params)
        seen = jax.device_get(_look(self.game, self.network, self.params, state, *values))
        sigma, fell_back = match_regrets(
            seen.advantages[int(seen.player) if len(self.params) > 1 else 0],
            seen.legal,
            self.spec.fallback,
        )
        return Position(
            state=state,
            player=int(seen.player),
            packed=seen.packed,
            legal=seen.legal,
            terminal=bool(seen.terminal),
            returns=seen.returns,
            sigma=sigma,
            fell_back=fell_back,
            whole=seen.whole,
            value=float(seen.value),
        )


class _Seen(NamedTuple):
    """What the rules and the networks say of a state; see `Position`."""

    player: Any
    packed: Any
    legal: Any
    terminal: Any
    returns: Any
    advantages: list[Any]  # of each network
    whole: Any
    value: Any


@functools.partial(jax.jit, static_argnums=0)
def _step(game, state, action):
    return game.step(state, action)


@functools.partial(jax.jit, static_argnums=(0, 1, 4))
def _look(game, network, params, state, value_network, value_params):
    player = game.player(state)
    packed = game.information_state(state, player)
    whole = game.whole_state(state)
    value = jnp.nan
    if value_network is not None:
        value = value_network.apply(value_params, whole[None])[0, 0]
    return _Seen(
        player=player,
        packed=packed,
        legal=game.legal_actions(state),
        terminal=game.is_terminal(state),
        returns=game.returns(state),
        advantages=[network.apply(tree, packed[None])[0] for tree in params],
        whole=whole,
        value=value,
    )


@functools.partial(jax.jit, static_argnums=0)
def _draw_all_noise(game, noise_key):
    depths = jnp.arange(game.max_decisions)

    def at_depths(key):
        branching = functools.partial(branching_noise, num_actions=game.num_actions)
        return (
            jax.vmap(decision_noise, in_axes=(None, 0))(key, depths),
            jax.vmap(branching, in_axes=(None, 0))(key, depths),
        )

    return jax.vmap(at_depths)(noise_key)


def _all_noise(game, noise_key) -> tuple[np.ndarray, np.ndarray]:
    """Return the noise of all decisions, [T, depths], and branchings, [T, depths, A]."""
    return jax.device_get(_draw_all_noise(game, noise_key))


def _collect(rows: list[tuple], packed_size: int, actions: int) -> Samples:
    if rows:
        return Samples(*(np.stack(column) for column in zip(*rows, strict=True)))
    return Samples(
        np.zeros((0, packed_size), np.uint8),
        np.zeros((0, actions), bool),
        np.zeros((0, actions)),
        np.zeros(0),
    )


def match_regrets(advantages, legal, fallback) -> tuple[np.ndarray, bool]:
    """Return sigma, and whether no legal advantage was positive; by the text of design.md."""
    sigma = np.where(legal, np.maximum(advantages.astype(np.float64), 0), 0)
    if sigma.sum() > 0:
        return sigma / sigma.sum(), False
    if not legal.any():
        return sigma, False
    if fallback == "uniform":
        return legal / legal.sum(), True
    return np.eye(len(legal))[max(np.flatnonzero(legal), key=lambda a: advantages[a])], True


def draw_action(probabilities, noise) -> int:
    """Invert the cumulative distribution."""
    possible = np.flatnonzero(probabilities > 0)
    above = np.cumsum(probabilities[possible]) > noise
    return int(possible[np.argmax(above) if above.any() else -1])
