"""A trainer in place of the real one, whose iterations take no time: for tests of all around it.

    python tests/tiny_trainer.py --workdir=RUN --config=configs/kuhn.py ...

is `coorl_jax.train` with it. Its memory is large enough for a checkpoint to be caught half-written.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from coorl_jax import commandline, train
from coorl_jax.cfr import iteration as iteration_lib
from coorl_jax.networks import Params
from coorl_jax.policy import make_network, make_policies
from coorl_jax.settings import Settings

STAGES = iteration_lib.STAGES
STAGE_SECONDS = 0.01
SLOTS = 500_000
TIMERS = (
    "traversal_seconds",
    "value_train_seconds",
    "advantage_train_seconds",
    "strategy_train_seconds",
)


class TinyState(NamedTuple):
    iteration: jax.Array  # int32
    stage: jax.Array  # int32
    params: tuple[Params, ...]  # of one network for both seats
    memory: jax.Array  # uint8[SLOTS]


class TinyTrainer:
    """Every stage draws numbers that depend on all that came before."""

    stages = STAGES

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.network = make_network(settings)
        self.game = self.network.game

    def memory_report(self) -> str:
        return f"memory {SLOTS} bytes"

    def init(self) -> TinyState:
        params = (self.network.init(jax.random.key(self.settings.seed)),)
        return TinyState(jnp.int32(0), jnp.int32(0), params, jnp.zeros(SLOTS, dtype=jnp.uint8))

    def position(self, state: TinyState) -> tuple[int, int]:
        return int(state.iteration), int(state.stage)

    def run_stage(self, state: TinyState) -> tuple[TinyState, dict[str, float]]:
        iteration, stage = self.position(state)
        time.sleep(STAGE_SECONDS)
        seed = iteration * len(STAGES) + stage + self.settings.seed
        params, memory = _advance(state.params, state.memory, jnp.int32(seed))
        following = (stage + 1) % len(STAGES)
        total = float(_total(params))
        metrics = {TIMERS[stage]: STAGE_SECONDS, f"sum/{STAGES[stage]}": total}
        state = TinyState(
            jnp.int32(iteration + (following == 0)), jnp.int32(following), params, memory
        )
        return state, metrics

    def policy_parameters(self, state: TinyState) -> dict[str, Any]:
        return {"current": state.params, "average": state.params}

    def policies(self, state: TinyState) -> dict[str, Any]:
        return make_policies(self.settings, self.network, self.policy_parameters(state))


@jax.jit
def _advance(
    params: tuple[Params, ...], memory: jax.Array, seed: jax.Array
) -> tuple[tuple[Params, ...], jax.Array]:
    key = jax.random.key(seed)
    params = jax.tree.map(lambda leaf: 0.9 * leaf + jax.random.normal(key, leaf.shape), params)
    return params, memory + jax.random.bits(key, memory.shape, jnp.uint8)


@jax.jit
def _total(params: tuple[Params, ...]) -> jax.Array:
    return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(params))


if __name__ == "__main__":
    iteration_lib.Trainer = TinyTrainer
    commandline.run(train.main, config=True)
