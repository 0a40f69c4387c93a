"""Runs of the lockstep machine that keep every sample, and stand-ins for its networks."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from coorl_jax.cfr import reservoir, samples, side_by_side
from coorl_jax.cfr.machine import Memories, TraversalSpec
from coorl_jax.cfr.traversal import make_program, traverse

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
        return _hashed(packed, params, self.table, self.game.num_actions)


@dataclasses.dataclass(frozen=True)
class HashValueNetwork:
    """A stand-in for a value network: values are a hash of the bytes of the whole state."""

    table: tuple[float, ...] = (-1.5, -1.0, -0.25, 0.25, 0.5, 2.0)

    def init(self, key):
        return jax.random.bits(key, (), jnp.uint32)

    def apply(self, params, packed):
        return _hashed(packed, params, self.table, 1)


def _hashed(packed, seed, table, outputs):
    """Return float32[B, outputs], entries of the table chosen by a hash of uint8[B, P]."""
    positions = np.arange(1, packed.shape[1] + 1, dtype=np.uint32)[None]
    mixed = _mix(packed.astype(jnp.uint32) + positions * np.uint32(0x9E3779B9))
    state = _mix(jnp.sum(mixed, axis=1, dtype=jnp.uint32) + seed)
    numbers = np.arange(1, outputs + 1, dtype=np.uint32)[None]
    hashed = _mix(state[:, None] + numbers * np.uint32(0x85EBCA6B))
    return jnp.asarray(table, jnp.float32)[(hashed >> 8) % len(table)]


def _mix(x):
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


@dataclasses.dataclass(frozen=True, eq=False)
class Values:
    """A value network with its parameters; no two are equal, so that results can be cached."""

    network: Any
    params: Any


class Samples(NamedTuple):
    """n samples on the host; of values there is one action, and the packed state is the whole."""

    packed: np.ndarray  # uint8[n, P]
    legal: np.ndarray  # bool[n, A]
    target: np.ndarray  # float[n, A]
    iteration: np.ndarray  # int32[n]


class Result(NamedTuple):
    """What a set of traversals gave: samples by memory (one, or one per seat), and counts."""

    advantage: tuple[Samples, ...]
    strategy: tuple[Samples, ...]
    value: tuple[Samples, ...]  # of one memory, or none without a value network
    statistics: Any


def make_params(network, seeds: tuple[int, ...]) -> tuple[Any, ...]:
    """One parameter tree for both seats, or one for each, by the number of seeds."""
    return tuple(network.init(jax.random.key(seed)) for seed in seeds)


def hash_values(seed: int = 5) -> Values:
    """Return values that have nothing to do with the game."""
    network = HashValueNetwork()
    return Values(network, network.init(jax.random.key(seed)))


def empty_memories(game, count: int, capacity: int, valued: bool = False) -> Memories:
    row = samples.example(game.packed_size, game.num_actions, jnp.dtype(jnp.float32))
    whole_row = samples.example(game.whole_size, 1, jnp.dtype(jnp.float32))
    return Memories(
        advantage=tuple(reservoir.create(row, capacity) for _ in range(count)),
        strategy=tuple(reservoir.create(row, capacity) for _ in range(count)),
        value=(reservoir.create(whole_row, capacity),) if valued else (),
    )


# Compiled programs by everything static; values of one network share theirs.
_programs: dict[tuple, Any] = {}


def compile_machine(program, memories, seeds, capacity, quick, function):
    critic = program.critic
    values = critic and (critic.network, str(jax.tree.map(jnp.shape, critic.params)))
    static = (program.game, program.network, program.scheme, program.spec, len(seeds), capacity)
    static = (*static, quick, values, function)
    if static not in _programs:
        options = QUICK_COMPILATION if quick else None
        lowered = function.lower(program, memories)
        _programs[static] = lowered.compile(compiler_options=options)
    return _programs[static]


def run_once(
    game,
    network,
    scheme,
    spec: TraversalSpec,
    seeds=(1,),
    key=0,
    capacity=1 << 15,
    quick=True,
    values: Values | None = None,
    function=traverse,
) -> Result:
    """Run the machine into memories that keep every sample, and look at them."""
    program = make_program(
        *(game, network, scheme, spec, make_params(network, seeds)),
        *(jax.random.key(key), jnp.int32(ITERATION)),
        *(() if values is None else (values.network, values.params)),
    )
    memories = empty_memories(game, len(seeds), capacity, values is not None)
    if spec.machines == 1:
        function = compile_machine(program, memories, seeds, capacity, quick, function)
    else:
        function = side_by_side.traverse
    memories, statistics = function(program, memories)

    def contents(memory, actions: int) -> Samples:
        size = reservoir.num_seen(memory)
        assert size <= capacity, "the test needs a larger memory"
        rows = jax.tree.map(lambda leaf: np.asarray(leaf)[:size], memory.rows)
        legal = np.unpackbits(rows.legal, axis=1, count=actions).astype(bool)
        return Samples(rows.packed, legal, rows.target, rows.iteration)

    return Result(
        advantage=tuple(contents(memory, game.num_actions) for memory in memories.advantage),
        strategy=tuple(contents(memory, game.num_actions) for memory in memories.strategy),
        value=tuple(contents(memory, 1) for memory in memories.value),
        statistics=jax.tree.map(int, jax.device_get(statistics)),
    )


run_machine = functools.cache(run_once)


def forget() -> None:
    """Drop all compiled programs and results."""
    _programs.clear()
    run_machine.cache_clear()


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
