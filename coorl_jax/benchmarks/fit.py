"""Fits: the time of an update beside that of a bare gradient step, and the parts between them.

B batch. The *bare* step is loss, gradient and Adam on one batch of features and targets that lie
ready; an update also draws its batch from the memory, computes the features, bounds the gradient
and checks that it is finite.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import optax

from coorl_jax.benchmarks import resident
from coorl_jax.benchmarks.timing import Effort, Spread, interleave
from coorl_jax.cfr import reservoir
from coorl_jax.cfr.fit import Loss, fit, fit_spec, init
from coorl_jax.cfr.fit import loss_value as fit_loss
from coorl_jax.cfr.reservoir import Reservoir
from coorl_jax.cfr.samples import Sample
from coorl_jax.networks import Network, Params
from coorl_jax.policy import make_network
from coorl_jax.settings import FitSettings, Settings

_MILLISECOND = 1e-3


@dataclasses.dataclass(frozen=True)
class Update:
    """A fit by its updates, in milliseconds; the ratio is the median over rounds."""

    table: ClassVar[str] = "fit"

    network: str
    loss: str
    batch: int
    updates: int
    milliseconds: Spread
    bare_milliseconds: Spread
    ratio: float
    gather_milliseconds: Spread
    features_milliseconds: Spread


def measure(settings: Settings, effort: Effort, key: jax.Array) -> Iterator[Update]:
    """Time the fits of the advantages and of the average policy.

    Args:
      settings: of the network, its fits and the memories, which are full.
      effort: of every row.
      key: consumed.
    """
    dtype = settings.memory.target_dtype
    network = dataclasses.replace(make_network(settings), precision=settings.precision.fit)
    capacities = settings.memory.advantage_capacity, settings.memory.strategy_capacity
    bootstrapped = settings.advantage.cumulative == "bootstrapped"
    kinds: list[tuple[str, FitSettings, Loss, Any]] = [
        (
            "advantage",
            settings.advantage,
            "squared_error",
            jnp.float32(0.5) if bootstrapped else None,
        ),
        ("strategy", settings.strategy, "cross_entropy", None),
    ]
    for (name, how, loss, step), capacity in zip(kinds, capacities, strict=True):
        spec, batch = fit_spec(how), how.batch_size
        memory = resident.full_memory(network, capacity, dtype, key)
        params, opt_state = init(network, spec, key)
        states = resident.packed(network, resident.positions(network.game, 2 * batch, key))
        times = interleave(
            {
                "fit": partial(
                    *(fit, network, spec, loss, params, opt_state, memory, key),
                    *(jnp.int32(1), step),
                ),
                "bare": bare_steps(network, how, loss, key),
                "gather": partial(gathers, memory, batch, how.updates, key),
                "features": partial(all_features, network, states, how.updates),
            },
            effort,
        )
        in_units = {kind: time.per(how.updates, _MILLISECOND) for kind, time in times.items()}
        yield Update(
            network=name,
            loss=loss,
            batch=batch,
            updates=how.updates,
            milliseconds=in_units["fit"],
            bare_milliseconds=in_units["bare"],
            ratio=times["fit"].over(times["bare"]),
            gather_milliseconds=in_units["gather"],
            features_milliseconds=in_units["features"],
        )


def bare_steps(
    network: Network, settings: FitSettings, loss: Loss, key: jax.Array
) -> Callable[[], Any]:
    """Return a function that makes the bare steps of one fit.

    Args:
      network: what is fitted.
      settings: how.
      loss: for regression or for policies.
      key: consumed.
    """
    params = resident.parameters(network, key)
    batch = resident.sample_batch(network, settings.batch_size, jnp.float32, key)
    batch = batch._replace(packed=resident.features(network, batch.packed))
    bare = resident.without_features(network)
    return partial(
        _bare_steps, bare, fit_spec(settings).exponent, loss, settings.updates, params, batch
    )


@partial(jax.jit, static_argnames=("network", "exponent", "loss", "updates"))
def _bare_steps(
    network: Network, exponent: float, loss: Loss, updates: int, params: Params, batch: Sample
) -> Params:
    optimizer = optax.adam(1e-3)

    def update(carry: Any, _: None) -> Any:
        params, opt_state = carry
        gradient = jax.grad(fit_loss, argnums=3)(
            network, exponent, loss, params, batch, jnp.int32(1)
        )
        changes, opt_state = optimizer.update(gradient, opt_state, params)
        return (optax.apply_updates(params, changes), opt_state), None

    return jax.lax.scan(update, (params, optimizer.init(params)), length=updates)[0][0]


@partial(jax.jit, static_argnames=("batch", "updates"))
def gathers(memory: Reservoir, batch: int, updates: int, key: jax.Array) -> Sample:
    """Draw as many batches as a fit does, one after the other, and return the last."""
    # What is carried on is computed as a whole, although only the last batch is returned.
    empty = jax.tree.map(jnp.zeros_like, reservoir.sample(memory, key, batch))

    def draw(_: Sample, key: jax.Array) -> tuple[Sample, None]:
        return reservoir.sample(memory, key, batch), None

    return jax.lax.scan(draw, empty, jax.random.split(key, updates))[0]


@partial(jax.jit, static_argnames=("network", "updates"))
def all_features(network: Network, packed: jax.Array, updates: int) -> Any:
    """Compute the features of half of uint8[2 B, P], another half each time; return the last."""
    batch = packed.shape[0] // 2

    def compute(_: Any, start: jax.Array) -> tuple[Any, None]:
        states = jax.lax.dynamic_slice_in_dim(packed, start, batch)
        return resident.features(network, states), None

    empty = jax.tree.map(jnp.zeros_like, resident.features(network, packed[:batch]))
    return jax.lax.scan(compute, empty, jnp.arange(updates) % batch)[0]
