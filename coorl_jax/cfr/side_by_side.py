"""Several traversal machines at once, for a device that one of them does not keep busy.

On a CPU the network's products use all cores, and nearly everything else a single one. So two
machines share the traversals and the lanes: what one does alone goes on beside the other's
products. Each runs in a thread of the host and gives its samples in portions, which go into the
memories in turns, so that the same run has the same memories however fast the machines are.

An accelerator runs one program after the other and is kept busy by more lanes.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import jax
import jax.numpy as jnp

from coorl_jax.cfr import traversal
from coorl_jax.cfr.lanes import Lanes, Stack
from coorl_jax.cfr.machine import Machine, Memories, Outboxes, Program, Statistics, TraversalSpec
from coorl_jax.cfr.traversal import empty_outboxes, fill, flush, has_work, start
from coorl_jax.settings import Settings

# What a machine keeps between two portions.
_Walks = tuple[Lanes, Stack, Statistics]


def traversal_spec(settings: Settings, traversals: int) -> TraversalSpec:
    """Return the sizes of so many traversals, over both players, on this device."""
    how = settings.traversal
    machines = how.machines
    if machines == 0:
        machines = 2 if jax.default_backend() == "cpu" else 1
    machines = min(machines, how.lanes)
    return TraversalSpec(
        traversals=traversals,
        lanes=-(-how.lanes // machines),
        pops_per_pass=how.pops_per_pass,
        fallback=how.fallback,
        utility_scale=settings.utility_scale,
        machines=machines,
    )


def traverse(program: Program, memories: Memories) -> tuple[Memories, Statistics]:
    """Run T traversals to their end on M machines, and insert their samples into the memories.

    A single machine is one array program; more are not to be called under `jit`.

    Args:
      program: of M = `program.spec.machines`.
      memories: donated; as for `traversal.traverse`.

    Returns:
      The memories, which hold the samples that one machine would give, in another order, and the
      machines' `Statistics`, added up.
    """
    if program.spec.machines == 1:
        return traversal.traverse(program, memories)
    dispatching = threading.Lock()

    def run(machine: int, walks: _Walks) -> tuple[int, _Walks, Outboxes, bool]:
        # Not from the main thread: what one thread dispatches is run one after the other.
        with dispatching:  # so that the program is compiled once
            own = dataclasses.replace(program, machine=jnp.int32(machine))
            walks, filled, has_more = _fill(own, *walks)
        return machine, walks, filled, bool(has_more)

    threads = ThreadPoolExecutor(program.spec.machines)
    statistics: list[Statistics] = []
    try:
        running = deque(threads.submit(run, *numbered) for numbered in enumerate(_start(program)))
        flushes = 0
        while running:
            machine, walks, filled, has_more = running.popleft().result()
            if has_more:
                running.append(threads.submit(run, machine, walks))
            else:
                statistics.append(walks[2])
            memories = _flush(program, filled, memories, jnp.int32(flushes))
            flushes += 1
    finally:
        # An interrupt does not wait for a machine that is running.
        threads.shutdown(wait=False, cancel_futures=True)
    return memories, jax.tree.map(lambda *counts: sum(counts), *statistics)


@jax.jit
def _start(program: Program) -> list[_Walks]:
    """Return what the M machines begin with."""
    machines = [
        start(dataclasses.replace(program, machine=jnp.int32(machine)))
        for machine in range(program.spec.machines)
    ]
    return [(m.lanes, m.stack, m.statistics) for m in machines]


@partial(jax.jit, donate_argnames=("lanes", "stack", "statistics"))
def _fill(
    program: Program, lanes: Lanes, stack: Stack, statistics: Statistics
) -> tuple[_Walks, Outboxes, jax.Array]:
    """Return the machine's next portion of samples, and whether it has more, bool."""
    machine = fill(program, Machine(lanes, stack, statistics, empty_outboxes(program)))
    walks = machine.lanes, machine.stack, machine.statistics
    return walks, machine.outboxes, has_work(program, machine.statistics)


_flush = jax.jit(flush, donate_argnames="memories")
