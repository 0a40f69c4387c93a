"""Scaling: what a node and a sample cost as lanes, networks and memories grow."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from coorl_jax import config as config_lib
from coorl_jax.benchmarks import fit, forward, resident
from coorl_jax.benchmarks.timing import Effort, Spread, interleave
from coorl_jax.benchmarks.traversal import Walks
from coorl_jax.cfr.sampling import make_scheme
from coorl_jax.cfr.side_by_side import traversal_spec
from coorl_jax.networks import Network, NetworkSpec
from coorl_jax.policy import make_network
from coorl_jax.settings import Settings

LANES = (64, 256, 1024, 4096, 16_384, 65_536)
NETWORKS = {
    "128x3": NetworkSpec("mlp", 128, 3),
    "512x3": NetworkSpec("mlp", 512, 3),
    "1024x6": NetworkSpec("mlp", 1024, 6),
}
CAPACITIES = (200_000, 2_000_000, 20_000_000)

_PER_LANE = 4  # traversals
_LANES = 1024  # for networks of several sizes
_BATCH = 8192  # rows inserted at once, and drawn at once
_TIMES = 16  # insertions or draws of a call


@dataclasses.dataclass(frozen=True)
class Speed:
    """Nodes a second, and their median ratio to the bare states a second at the same batch."""

    table: ClassVar[str] = "nodes"

    network: str
    lanes: int
    nodes: int
    occupancy: float
    nodes_per_second: Spread
    bare_per_second: Spread
    ratio_to_bare: float


@dataclasses.dataclass(frozen=True)
class Memory:
    """A sample's time in a memory; ratios to the smallest one in the same state, by rounds.

    A memory that is being filled writes row after row, a full one replaces rows at random, here as
    many again as it has slots: every other sample is kept.
    """

    table: ClassVar[str] = "memory"

    capacity: int
    state: str
    insert_nanoseconds: Spread
    insert_ratio: float
    draw_nanoseconds: Spread
    draw_ratio: float


def measure(
    settings: Settings,
    effort: Effort,
    key: jax.Array,
    lanes: Sequence[int] = LANES,
    networks: Mapping[str, NetworkSpec] = NETWORKS,
    capacities: Sequence[int] = CAPACITIES,
) -> Iterator[Speed | Memory]:
    """Time traversals of the scheme `outcome` by lanes and by network, then memories.

    Args:
      settings: of the game, the network and the traversal.
      effort: of every row; once a row of more and more lanes takes longer than its budget, there
        are no further ones.
      key: consumed.
      lanes: numbers, ascending.
      networks: shapes by name, for one number of lanes.
      capacities: samples, ascending.
    """
    settings = config_lib.override(settings, {"traversal.scheme": "outcome"})
    precision = settings.precision.traversal
    network = dataclasses.replace(make_network(settings), precision=precision)
    shape = f"{network.spec.width}x{network.spec.depth}"
    for count in lanes:
        started = time.perf_counter()
        yield _speed(settings, shape, network, count, effort, key)
        if time.perf_counter() - started > effort.budget:
            break
    for name, spec in networks.items():
        sized = dataclasses.replace(network, spec=spec)
        yield _speed(settings, name, sized, min(_LANES, max(lanes)), effort, key)
    yield from _memories(network, settings.memory.target_dtype, effort, key, capacities)


def _speed(
    settings: Settings, name: str, network: Network, lanes: int, effort: Effort, key: jax.Array
) -> Speed:
    settings = config_lib.override(settings, {"traversal.lanes": lanes})
    spec = traversal_spec(settings, _PER_LANE * lanes)
    params = resident.parameters(network, key)
    walks = Walks(network, make_scheme(settings), spec, (params,), settings.memory.target_dtype)
    times = interleave(
        {"walks": walks, "bare": forward.bare_passes(network, params, lanes, key)}, effort
    )
    statistics: Any = jax.device_get(walks.statistics)
    nodes, states = int(statistics.nodes), forward.PASSES * lanes
    return Speed(
        network=name,
        lanes=lanes,
        nodes=nodes,
        occupancy=nodes / int(statistics.evaluated),
        nodes_per_second=times["walks"].rate(nodes),
        bare_per_second=times["bare"].rate(states),
        ratio_to_bare=times["bare"].over(times["walks"]) * nodes / states,
    )


def _memories(
    network: Network, dtype: str, effort: Effort, key: jax.Array, capacities: Sequence[int]
) -> Iterator[Memory]:
    """Time memories, each in turns with the smallest one; no two large ones are there at once."""
    rows = resident.sample_batch(network, _BATCH, jnp.float32, key)
    samples = _TIMES * _BATCH
    for state, seen in (("filling", 0), ("full", 2)):
        for capacity in capacities:
            candidates = {}
            for name, size in (("smallest", capacities[0]), ("this", capacity)):
                memory = resident.empty_memory(network, size, dtype)
                inserting = resident.Inserting(memory, rows, _TIMES, seen=seen * size)
                candidates[f"insert {name}"] = inserting
                candidates[f"draw {name}"] = partial(_draw, inserting, key)
            times = interleave(candidates, effort)
            yield Memory(
                capacity=capacity,
                state=state,
                insert_nanoseconds=times["insert this"].per(samples, 1e-9),
                insert_ratio=times["insert this"].over(times["insert smallest"]),
                draw_nanoseconds=times["draw this"].per(samples, 1e-9),
                draw_ratio=times["draw this"].over(times["draw smallest"]),
            )


def _draw(inserting: resident.Inserting, key: jax.Array) -> jax.Array:
    """Draw batches from what the memory holds after the insertions before."""
    return fit.gathers(inserting.memory, _BATCH, _TIMES, key)
