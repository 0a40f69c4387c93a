"""A trainer in place of the real one, whose iterations take no time: for tests of all around it.

    python tests/tiny_trainer.py --workdir=RUN --config=configs/kuhn.py ...

is `coorl_jax.train` with it. Its memory is large enough for a checkpoint to be caught half-written.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from coorl_jax import agents, commandline, train
from coorl_jax.cfr import iteration as iteration_lib
from coorl_jax.games.kuhn_poker import KuhnPoker
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
    params: tuple[dict[str, jax.Array], ...]  # float32[4, width]
    memory: jax.Array  # uint8[SLOTS]


class TinyTrainer:
    """Every stage draws numbers that depend on all that came before."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.game = KuhnPoker()

    def memory_report(self) -> str:
        return f"memory {SLOTS} bytes"

    def init(self) -> TinyState:
        params = {"w": jnp.zeros((4, self.settings.network.width))}
        return TinyState(jnp.int32(0), jnp.int32(0), (params,), jnp.zeros(SLOTS, dtype=jnp.uint8))

    def position(self, state: TinyState) -> tuple[int, int]:
        return int(state.iteration), int(state.stage)

    def run_stage(self, state: TinyState) -> tuple[TinyState, dict[str, float]]:
        iteration, stage = self.position(state)
        time.sleep(STAGE_SECONDS)
        seed = iteration * len(STAGES) + stage + self.settings.seed
        weights, memory = _advance(state.params[0]["w"], state.memory, jnp.int32(seed))
        following = (stage + 1) % len(STAGES)
        metrics = {TIMERS[stage]: STAGE_SECONDS, f"sum/{STAGES[stage]}": float(jnp.sum(weights))}
        state = TinyState(
            jnp.int32(iteration + (following == 0)), jnp.int32(following), ({"w": weights},), memory
        )
        return state, metrics

    def policy_parameters(self, state: TinyState) -> dict[str, Any]:
        return {"current": state.params, "average": state.params}

    def policies(self, state: TinyState) -> dict[str, Any]:
        policy = agents.make("random", self.game)
        return {"current": policy, "average": policy}


@jax.jit
def _advance(weights: jax.Array, memory: jax.Array, seed: jax.Array) -> tuple[jax.Array, jax.Array]:
    key = jax.random.key(seed)
    noise = jax.random.normal(key, weights.shape)
    return 0.9 * weights + noise, memory + jax.random.bits(key, memory.shape, jnp.uint8)


if __name__ == "__main__":
    iteration_lib.Trainer = TinyTrainer
    commandline.run(train.main, config=True)
