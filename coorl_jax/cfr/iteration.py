"""One iteration of Deep CFR: traverse, fit the advantages, fit the average policy.

An iteration t runs in three stages. `traverse` samples regrets under the policy of the current
advantage network, for both players at once, into the memories; `fit_advantage` fits the advantage
network to all of its memory, weighted by iteration; `fit_strategy` fits the network of the
average policy. The state between two stages is all there is: stages draw their random numbers
from (seed, iteration, stage), so a run that stops there and goes on is the same run.

Reference: Brown et al., Deep Counterfactual Regret Minimization, 2019, Algorithm 1; with both
players' traversals in one batch (simultaneous updates).
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from coorl_jax.cfr import reservoir, samples
from coorl_jax.cfr.fit import FitSpec, Loss, fit, init
from coorl_jax.cfr.sampling import Branch, External, Outcome, Scheme
from coorl_jax.cfr.traversal import Memories, TraversalSpec, traverse
from coorl_jax.config import FitSettings, Settings, TraversalSettings
from coorl_jax.games.game import NUM_PLAYERS
from coorl_jax.networks import Params
from coorl_jax.policy import NetworkPolicy, make_network, make_policies

STAGES = ("traverse", "fit_advantage", "fit_strategy")

# Streams of random numbers below the seed; evaluation uses another one (evaluation/suite.py).
_TRAINING = 0
_INIT_STAGE = len(STAGES)


class Fitted(NamedTuple):
    """A network of one or two seats: one entry that serves both, or one for each."""

    params: tuple[Params, ...]
    opt_state: tuple[Any, ...]


class TrainState(NamedTuple):
    """Everything a run needs to go on; a pytree of arrays."""

    iteration: jax.Array  # int32, iterations completed
    stage: jax.Array  # int32, index in STAGES of what comes next
    advantage: Fitted
    strategy: Fitted
    memories: Memories


class Trainer:
    """The stages of an iteration for one `Settings`.

    Raises:
      ValueError: for rules that make no game, or a network that cannot read it.
    """

    def __init__(self, settings: Settings):
        self.settings = settings
        self.network = make_network(settings)
        self.game = self.network.game
        self._num_networks = NUM_PLAYERS if settings.network.per_player else 1
        self._scheme = make_scheme(settings.traversal)
        self._traversal = TraversalSpec(
            traversals=NUM_PLAYERS * settings.traversal.traversals,
            lanes=settings.traversal.lanes,
            pops_per_pass=settings.traversal.pops_per_pass,
            fallback=settings.traversal.fallback,
            utility_scale=settings.utility_scale,
        )
        self._sample = samples.example(
            self.game.packed_size,
            self.game.num_actions,
            jnp.dtype(settings.memory.target_dtype),
        )

    def memory_report(self) -> str:
        """Return one line on the bytes of states, samples and memories."""
        memory = self.settings.memory
        sample_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(self._sample))
        slots = self._num_networks * (memory.advantage_capacity + memory.strategy_capacity)
        return (
            f"information state {self.game.packed_size} bytes, sample {sample_bytes} bytes, "
            f"memories {slots:,} samples = {slots * sample_bytes / 1e6:,.1f} MB"
        )

    def init(self) -> TrainState:
        """Return the state before the first iteration."""
        memory = self.settings.memory

        def fitted(spec: FitSpec, stream: int) -> Fitted:
            key = jax.random.fold_in(self._key(0, _INIT_STAGE), stream)
            states = [
                init(self.network, spec, jax.random.fold_in(key, n))
                for n in range(self._num_networks)
            ]
            return Fitted(tuple(s[0] for s in states), tuple(s[1] for s in states))

        def memories(capacity: int) -> tuple[reservoir.Reservoir, ...]:
            return tuple(
                reservoir.create(self._sample, capacity) for _ in range(self._num_networks)
            )

        return TrainState(
            iteration=jnp.int32(0),
            stage=jnp.int32(0),
            advantage=fitted(fit_spec(self.settings.advantage), 0),
            strategy=fitted(fit_spec(self.settings.strategy), 1),
            memories=Memories(
                advantage=memories(memory.advantage_capacity),
                strategy=memories(memory.strategy_capacity),
            ),
        )

    def position(self, state: TrainState) -> tuple[int, int]:
        """Return the iterations completed and the index in STAGES of the next stage."""
        return int(state.iteration), int(state.stage)

    def run_stage(self, state: TrainState) -> tuple[TrainState, dict[str, float]]:
        """Run the next stage to its end.

        Args:
          state: its memories are donated; use the returned state afterwards.

        Returns:
          The state after the stage, and the stage's metrics (names in docs/design.md).
        """
        completed, stage = self.position(state)
        key = self._key(completed + 1, stage)
        iteration = jnp.int32(completed + 1)
        started = time.perf_counter()
        if STAGES[stage] == "traverse":
            state, metrics = self._traverse(state, key, iteration)
            timer = "traversal_seconds"
        elif STAGES[stage] == "fit_advantage":
            advantage, metrics = self._fit(
                "advantage", state.advantage, state.memories.advantage, key, iteration
            )
            state = state._replace(advantage=advantage)
            timer = "advantage_train_seconds"
        else:
            metrics = {}
            # The first is fitted too: all programs are then compiled in the first iteration.
            if completed == 0 or (completed + 1) % self.settings.strategy.every == 0:
                strategy, metrics = self._fit(
                    "strategy", state.strategy, state.memories.strategy, key, iteration
                )
                state = state._replace(strategy=strategy)
            timer = "strategy_train_seconds"
        seconds = time.perf_counter() - started
        metrics[timer] = seconds
        if "traversal/nodes" in metrics:
            metrics["traversal/nodes_per_second"] = metrics["traversal/nodes"] / seconds
        next_stage = (stage + 1) % len(STAGES)
        return (
            state._replace(
                iteration=jnp.int32(completed + (next_stage == 0)), stage=jnp.int32(next_stage)
            ),
            metrics,
        )

    def policy_parameters(self, state: TrainState) -> dict[str, tuple[Params, ...]]:
        """Return the parameters of the policies, "current" and "average"."""
        return {"current": state.advantage.params, "average": state.strategy.params}

    def policies(self, state: TrainState) -> dict[str, NetworkPolicy]:
        """Return the policies themselves."""
        return make_policies(self.settings, self.network, self.policy_parameters(state))

    def _key(self, iteration: int, stage: int) -> jax.Array:
        key = jax.random.fold_in(jax.random.key(self.settings.seed), _TRAINING)
        return jax.random.fold_in(jax.random.fold_in(key, iteration), stage)

    def _traverse(
        self, state: TrainState, key: jax.Array, iteration: jax.Array
    ) -> tuple[TrainState, dict[str, float]]:
        memories, statistics = traverse(
            self.game,
            self.network,
            self._scheme,
            self._traversal,
            state.advantage.params,
            state.memories,
            key,
            iteration,
        )
        sizes = {
            "memory/advantage": [reservoir.size(memory) for memory in memories.advantage],
            "memory/strategy": [reservoir.size(memory) for memory in memories.strategy],
        }
        statistics, sizes = jax.device_get((statistics, sizes))
        spec = self._traversal
        if not statistics.started == statistics.finished == spec.traversals:
            raise RuntimeError(
                f"{statistics.started} traversals started and {statistics.finished} finished of "
                f"{spec.traversals}: the traversal machine lost some, which is a bug"
            )
        nodes = int(statistics.nodes)
        metrics = {
            "traversal/nodes": float(nodes),
            "traversal/traversals": float(spec.traversals),
            "traversal/passes": float(statistics.passes),
            "traversal/lane_occupancy": nodes / (int(statistics.passes) * spec.lanes),
            "traversal/fallback_rate": int(statistics.fallbacks) / nodes,
            "traversal/advantage_samples": float(statistics.advantage_samples),
            "traversal/strategy_samples": float(statistics.strategy_samples),
        }
        metrics |= {name: float(np.sum(size)) for name, size in sizes.items()}
        return state._replace(memories=memories), metrics

    def _fit(
        self,
        loss: Loss,
        fitted: Fitted,
        memories: tuple[reservoir.Reservoir, ...],
        key: jax.Array,
        iteration: jax.Array,
    ) -> tuple[Fitted, dict[str, float]]:
        settings = self.settings.advantage if loss == "advantage" else self.settings.strategy
        results = [
            fit(
                self.network,
                fit_spec(settings),
                loss,
                params,
                opt_state,
                memory,
                jax.random.fold_in(key, n),
                iteration,
            )
            for n, (params, opt_state, memory) in enumerate(
                zip(fitted.params, fitted.opt_state, memories, strict=True)
            )
        ]
        reports = jax.device_get([result[2] for result in results])
        fitted = Fitted(tuple(r[0] for r in results), tuple(r[1] for r in results))
        jax.block_until_ready(fitted)
        return fitted, {
            f"loss/{loss}": float(np.mean([report.loss for report in reports])),
            f"precision/nonfinite_steps_{loss}": float(sum(report.skipped for report in reports)),
        }


def make_scheme(settings: TraversalSettings) -> Scheme:
    """Return the sampling scheme that the settings name."""
    if settings.scheme == "external":
        return External(settings.exploration, settings.max_branching_nodes)
    if settings.scheme == "outcome":
        return Outcome(settings.exploration)
    return Branch(settings.exploration)


def fit_spec(settings: FitSettings) -> FitSpec:
    """Return how a network is fitted, from the settings of either network."""
    return FitSpec(
        start=settings.start,
        updates=settings.updates,
        batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        gradient_clip=settings.gradient_clip,
        weighting=settings.weighting,
    )
