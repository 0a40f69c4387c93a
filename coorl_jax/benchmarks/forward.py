"""A network's call: time by batch, size and precision.

B batch. The *bare* network reads features that lie ready, see `resident.py`: the floor with which
traversals and fits are compared.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import jax

from coorl_jax.benchmarks import resident
from coorl_jax.benchmarks.timing import Effort, Spread, interleave
from coorl_jax.games.game import Game
from coorl_jax.networks import Network, NetworkSpec, Params
from coorl_jax.settings import Precision

BATCHES = (1, 4, 16, 64, 256, 1024, 4096, 16_384, 65_536)
NETWORKS = {"512x3": NetworkSpec("mlp", 512, 3), "1024x6": NetworkSpec("mlp", 1024, 6)}
PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16")
PASSES = 4
"""Batches of one call of `passes`, so that what a call costs the host hardly counts."""

_MICROSECOND = 1e-6


@dataclasses.dataclass(frozen=True)
class Call:
    """One call from Python, on packed states and, bare, on features."""

    table: ClassVar[str] = "forward"

    network: str
    precision: str
    batch: int
    microseconds: Spread
    microseconds_per_state: Spread
    bare_microseconds: Spread
    bare_microseconds_per_state: Spread


@partial(jax.jit, static_argnames="network")
def call(network: Network, params: Params, inputs: Any) -> jax.Array:
    """Evaluate one batch, float32[B, A]."""
    return network.apply(params, inputs)


@partial(jax.jit, static_argnames="network")
def passes(network: Network, params: Params, inputs: tuple[Any, ...]) -> jax.Array:
    """Evaluate batches in one program, and return the sum of their outputs, float32[B, A].

    It is not a loop, in which every batch would first be copied to where the loop reads it.
    """
    return sum(
        (network.apply(params, each) for each in inputs[1:]), network.apply(params, inputs[0])
    )


def bare_passes(network: Network, params: Params, batch: int, key: jax.Array) -> Any:
    """Return a function that evaluates PASSES batches of features; consumes the key."""
    inputs = tuple(
        resident.features(network, each) for each in resident.batches(network, batch, PASSES, key)
    )
    return partial(passes, resident.without_features(network), params, inputs)


def measure(
    game: Game,
    effort: Effort,
    key: jax.Array,
    networks: Mapping[str, NetworkSpec] = NETWORKS,
    precisions: Sequence[Precision] = PRECISIONS,
    batches: Sequence[int] = BATCHES,
) -> Iterator[Call]:
    """Time calls.

    Args:
      game: whose decisions are evaluated.
      effort: of every row.
      key: consumed.
      networks: shapes by name.
      precisions: of `Network.precision`.
      batches: B.

    Yields:
      Networks, precisions and batches in turn.
    """
    for name, spec in networks.items():
        for precision in precisions:
            network = Network(game, spec, precision)
            params = resident.parameters(network, key)
            for batch in batches:
                (states,) = resident.batches(network, batch, 1, key)
                bare = resident.without_features(network)
                times = interleave(
                    {
                        "call": partial(call, network, params, states),
                        "bare": partial(call, bare, params, resident.features(network, states)),
                    },
                    effort,
                )
                yield Call(
                    network=name,
                    precision=precision,
                    batch=batch,
                    microseconds=times["call"].per(1, _MICROSECOND),
                    microseconds_per_state=times["call"].per(batch, _MICROSECOND),
                    bare_microseconds=times["bare"].per(1, _MICROSECOND),
                    bare_microseconds_per_state=times["bare"].per(batch, _MICROSECOND),
                )
