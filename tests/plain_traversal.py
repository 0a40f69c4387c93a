"""The traversal written as a plain recursion, one history at a time, and what it takes to compare
the lockstep machine with it.

The reference follows the text of `coorl_jax/cfr/sampling.py`. It shares with the machine the rules
of the game, the network and the random numbers (`draw_roots`, `decision_noise`), and nothing else:
regret matching, drawing an action, the walk and the estimates are written out again, in float64.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from coorl_jax.cfr import reservoir, samples
from coorl_jax.cfr.lanes import decision_noise, draw_roots
from coorl_jax.cfr.machine import Memories, TraversalSpec
from coorl_jax.cfr.sampling import Branch, External, Outcome
from coorl_jax.cfr.traversal import traverse
from coorl_jax.games.game import NUM_PLAYERS

ITERATION = 3

# Unoptimised code compiles in half the time, and small traversals run in milliseconds anyway.
QUICK_COMPILATION = {"xla_backend_optimization_level": 0}


@dataclasses.dataclass(frozen=True)
class HashNetwork:
    """A stand-in for a network: advantages are a hash of the packed bytes.

    Integers all the way to a table of few small numbers: bit for bit the same in any batch, and
    policies that are neither uniform nor, mostly, deterministic.
    """

    game: Any
    table: tuple[float, ...] = (-2.0, -1.0, 1.0, 2.0, 3.0, 5.0, 1.0, 4.0)

    def init(self, key):
        return jax.random.bits(key, (), jnp.uint32)

    def apply(self, params, packed):
        positions = np.arange(1, packed.shape[1] + 1, dtype=np.uint32)[None]
        mixed = self._mix(packed.astype(jnp.uint32) + positions * np.uint32(0x9E3779B9))
        state = self._mix(jnp.sum(mixed, axis=1, dtype=jnp.uint32) + params)
        actions = np.arange(1, self.game.num_actions + 1, dtype=np.uint32)[None]
        hashed = self._mix(state[:, None] + actions * np.uint32(0x85EBCA6B))
        return jnp.asarray(self.table, jnp.float32)[(hashed >> 8) % len(self.table)]

    def _mix(self, x):
        x = (x ^ (x >> 16)) * np.uint32(0x7FEB352D)
        x = (x ^ (x >> 15)) * np.uint32(0x846CA68B)
        return x ^ (x >> 16)


@dataclasses.dataclass(frozen=True)
class ConstantNetwork:
    """A stand-in for a network: the same advantages everywhere."""

    advantages: tuple[float, ...]

    def init(self, key):
        return jnp.zeros(())

    def apply(self, params, packed):
        return jnp.broadcast_to(
            jnp.asarray(self.advantages, jnp.float32)[None],
            (packed.shape[0], len(self.advantages)),
        )


class Samples(NamedTuple):
    """n samples on the host."""

    packed: np.ndarray  # uint8[n, P]
    legal: np.ndarray  # bool[n, A]
    target: np.ndarray  # float[n, A]
    iteration: np.ndarray  # int32[n]


class Result(NamedTuple):
    """What a set of traversals gave: samples by memory (one, or one per seat), and counts."""

    advantage: tuple[Samples, ...]
    strategy: tuple[Samples, ...]
    statistics: Any


class PlainStatistics(NamedTuple):
    nodes: int
    fallbacks: int


def make_params(network, seeds: tuple[int, ...]) -> tuple[Any, ...]:
    """One parameter tree for both seats, or one for each, by the number of seeds."""
    return tuple(network.init(jax.random.key(seed)) for seed in seeds)


def empty_memories(game, count: int, capacity: int) -> Memories:
    row = samples.example(game.packed_size, game.num_actions, jnp.dtype(jnp.float32))
    return Memories(
        *(tuple(reservoir.create(row, capacity) for _ in range(count)) for _ in Memories._fields)
    )


@functools.cache
def compile_machine(game, network, scheme, spec: TraversalSpec, seeds, capacity, quick):
    lowered = traverse.lower(
        *(game, network, scheme, spec),
        make_params(network, seeds),
        empty_memories(game, len(seeds), capacity),
        *(jax.random.key(0), jnp.int32(ITERATION)),
    )
    return lowered.compile(compiler_options=QUICK_COMPILATION if quick else None)


@functools.cache
def run_machine(
    game, network, scheme, spec: TraversalSpec, seeds=(1,), key=0, capacity=1 << 14, quick=True
) -> Result:
    """Run the machine into memories that keep every sample, and look at them."""
    machine = compile_machine(game, network, scheme, spec, seeds, capacity, quick)
    memories, statistics = machine(
        make_params(network, seeds),
        empty_memories(game, len(seeds), capacity),
        jax.random.key(key),
        jnp.int32(ITERATION),
    )

    def contents(memory) -> Samples:
        size = reservoir.num_seen(memory)
        assert size <= capacity, "the test needs a larger memory"
        rows = jax.tree.map(lambda leaf: np.asarray(leaf)[:size], memory.rows)
        legal = np.unpackbits(rows.legal, axis=1, count=game.num_actions).astype(bool)
        return Samples(rows.packed, legal, rows.target, rows.iteration)

    return Result(
        advantage=tuple(contents(memory) for memory in memories.advantage),
        strategy=tuple(contents(memory) for memory in memories.strategy),
        statistics=jax.tree.map(int, jax.device_get(statistics)),
    )


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
    children: dict[int, Position] = dataclasses.field(default_factory=dict)


class Walk(NamedTuple):
    """Where a traversal is, besides the position."""

    depth: int  # decisions since the deal
    own_decisions: int  # the traverser's among them
    branchings: int  # nodes of the path that branched
    gives_strategy: bool  # whether nodes of the opponent give strategy samples


class PlainTraversal:
    """The reference. Positions are remembered, since small games come back to them."""

    def __init__(self, game, network, scheme, spec: TraversalSpec, seeds=(1,)):
        self.game = game
        self.network = network
        self.scheme = scheme
        self.spec = spec
        self.params = make_params(network, seeds)
        self.roots: dict[bytes, Position] = {}

    def run(self, key=0) -> Result:
        """Run all traversals, one after the other."""
        traversals = self.spec.traversals
        roots = draw_roots(
            self.game, self.scheme, traversals, jax.random.split(jax.random.key(key))[0]
        )
        depths = jnp.arange(self.game.max_decisions)
        each_depth = jax.vmap(decision_noise, in_axes=(None, 0))
        noise = np.asarray(jax.vmap(each_depth, in_axes=(0, None))(roots.noise_key, depths))
        states, targets = jax.device_get((roots.state, roots.target))
        self.nodes = self.fallbacks = 0
        self.advantage: list[list[tuple]] = [[] for _ in self.params]
        self.strategy: list[list[tuple]] = [[] for _ in self.params]
        for i in range(traversals):
            root = self._root(jax.tree.map(lambda leaf, i=i: leaf[i], states))
            self.traverser = i % NUM_PLAYERS
            self.noise, self.target = noise[i], int(targets[i])
            self._value(root, Walk(0, 0, 0, True))
        return Result(
            advantage=tuple(self._collect(rows) for rows in self.advantage),
            strategy=tuple(self._collect(rows) for rows in self.strategy),
            statistics=PlainStatistics(self.nodes, self.fallbacks),
        )

    def advantages(self, utility, sigma, explored):
        """Return r(a) = u(a) - sum_b sigma(b) u(b) of a recorded node."""
        return utility - sigma @ utility

    def opponent_policy(self, at: Position):
        """Return what an action of the opponent is drawn from."""
        return at.sigma

    def _value(self, at: Position, walk: Walk) -> float:
        """Walk on from here and return the utility to the traverser."""
        if at.terminal:
            return float(at.returns[self.traverser]) / self.spec.utility_scale
        self.nodes += 1
        self.fallbacks += at.fell_back
        if at.player == self.traverser:
            return self._own_value(at, walk)
        if walk.gives_strategy:
            self._give(self.strategy, at, at.sigma)
        action = draw_action(self.opponent_policy(at), self.noise[walk.depth])
        return self._value(self._child(at, action), walk._replace(depth=walk.depth + 1))

    def _own_value(self, at: Position, walk: Walk) -> float:
        branches, records, exploration = self._plan(walk)
        q = exploration * at.legal / at.legal.sum() + (1 - exploration) * at.sigma
        sampled = draw_action(q, self.noise[walk.depth])
        explored = np.flatnonzero(at.legal) if branches else [sampled]
        returned = {}
        for action in explored:
            is_main = self.scheme.strategy_on_every_branch or action == sampled
            returned[action] = self._value(
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
        utility = np.zeros(len(at.legal))
        for action, value in returned.items():
            utility[action] = value if branches else value / q[action]
        advantages = self.advantages(utility, at.sigma, list(returned))
        self._give(self.advantage, at, np.where(at.legal, advantages, 0.0))
        return float(at.sigma @ utility)

    def _plan(self, walk: Walk) -> tuple[bool, bool, float]:
        """Whether to branch, whether to record, and how much to explore where one is sampled."""
        match self.scheme:
            case External():
                branches = walk.branchings < self.scheme.max_branching_nodes
                return branches, True, self.scheme.exploration
            case Outcome():
                return False, True, self.scheme.exploration
            case Branch():
                at_target = walk.own_decisions == self.target
                below = walk.own_decisions > self.target
                return at_target, at_target, 0.0 if below else self.scheme.exploration
        raise AssertionError(f"no reference for {self.scheme}")

    def _give(self, memories, at: Position, target) -> None:
        memory = memories[at.player if len(memories) > 1 else 0]
        memory.append((at.packed, at.legal, target, ITERATION))

    def _collect(self, rows: list[tuple]) -> Samples:
        if rows:
            return Samples(*(np.stack(column) for column in zip(*rows, strict=True)))
        actions = self.game.num_actions
        empty = np.zeros((0, self.game.packed_size), np.uint8)
        return Samples(empty, np.zeros((0, actions), bool), np.zeros((0, actions)), np.zeros(0))

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
        player, packed, legal, terminal, returns, advantages = jax.device_get(
            _look(self.game, self.network, self.params, state)
        )
        sigma, fell_back = match_regrets(
            advantages[int(player) if len(self.params) > 1 else 0], legal, self.spec.fallback
        )
        return Position(
            state, int(player), packed, legal, bool(terminal), returns, sigma, fell_back
        )


@functools.partial(jax.jit, static_argnums=0)
def _step(game, state, action):
    return game.step(state, action)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _look(game, network, params, state):
    player = game.player(state)
    packed = game.information_state(state, player)
    advantages = [network.apply(tree, packed[None])[0] for tree in params]
    legal = game.legal_actions(state)
    return player, packed, legal, game.is_terminal(state), game.returns(state), advantages


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


def assert_same_samples(left: Samples, right: Samples, rtol: float, atol: float) -> None:
    """Check that two multisets of samples are equal: targets nearly, everything else exactly."""
    assert len(left.packed) == len(right.packed)
    left, right = _sorted(left), _sorted(right)
    np.testing.assert_array_equal(left.packed, right.packed)
    np.testing.assert_array_equal(left.legal, right.legal)
    np.testing.assert_array_equal(left.iteration, right.iteration)
    np.testing.assert_allclose(left.target, right.target, rtol=rtol, atol=atol)


def _sorted(rows: Samples) -> Samples:
    """Sort by information state, then by one number made of the whole target.

    Targets that differ by rounding differ as little in that number: where the order of two rows is
    decided by rounding, their targets are nearly equal as well. Sorting by the first action's
    target would not do: it can be equal in two rows whose other targets differ.
    """
    weights = np.sqrt([2.0, 3.0, 5.0, 7.0, 11.0, 13.0, 17.0, 19.0, 23.0, 29.0])
    actions = rows.target.shape[1]
    assert actions <= len(weights)
    summary = rows.target.astype(np.float64) @ weights[:actions]
    columns = [summary, *rows.legal.T, rows.iteration, *rows.packed.T]
    return Samples(*(field[np.lexsort(columns)] for field in rows))
