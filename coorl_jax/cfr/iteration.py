"""One iteration of Deep CFR: traverse, fit the advantages, fit the average policy.

An iteration t runs in three stages. `traverse` samples regrets under the policy of the current
advantage network, for both players at once, into the memories; `fit_advantage` fits the advantage
network to all of its memory, weighted by iteration; `fit_strategy` fits the network of the
average policy. The state between two stages is all there is: stages draw their random numbers
from (seed, iteration, stage), so a run that stops there and goes on is the same run.

Two variations: *bootstrapped* advantages keep samples for one iteration only and carry the earlier
ones on in the network itself (cfr/fit.py); a *mixture* keeps the policies of the iterations
themselves, beside the network fitted to their average (cfr/mixture.py).

Reference: Brown et al., Deep Counterfactual Regret Minimization, 2019, Algorithm 1; with both
players' traversals in one batch (simultaneous updates).
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from coorl_jax.cfr import mixture, reservoir, samples
from coorl_jax.cfr.fit import FitSpec, Loss, bootstrap_step, fit, init
from coorl_jax.cfr.reservoir import Reservoir
from coorl_jax.cfr.sampling import Branch, External, Outcome, Scheme
from coorl_jax.cfr.traversal import Memories, TraversalSpec, traverse
from coorl_jax.config import AdvantageSettings, FitSettings, Settings, TraversalSettings
from coorl_jax.games.game import NUM_PLAYERS
from coorl_jax.networks import Network, Params
from coorl_jax.policy import AnyPolicy, make_network, make_policies

STAGES = ("traverse", "fit_advantage", "fit_strategy")

_TIMERS = {
    "traverse": "traversal_seconds",
    "fit_advantage": "advantage_train_seconds",
    "fit_strategy": "strategy_train_seconds",
}

# Streams of random numbers below the seed; evaluation uses another one (evaluation/suite.py).
_TRAINING = 0
# Beside those of the stages.
_INIT_STREAM = len(STAGES)
_MIXTURE_STREAM = len(STAGES) + 1


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
    mixture: Reservoir | None  # of the policies of past iterations, if they are kept


class Trainer:
    """The stages of an iteration for one `Settings`.

    Raises:
      ValueError: for rules that make no game, or a network that cannot read it.
    """

    def __init__(self, settings: Settings):
        self.settings = settings
        self.network = make_network(settings)
        self.game = self.network.game
        self._bootstrapped = settings.advantage.cumulative == "bootstrapped"
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
            key = jax.random.fold_in(self._key(0, _INIT_STREAM), stream)
            states = [
                init(self.network, spec, jax.random.fold_in(key, n))
                for n in range(self._num_networks)
            ]
            return Fitted(tuple(s[0] for s in states), tuple(s[1] for s in states))

        def memories(capacity: int) -> tuple[Reservoir, ...]:
            return tuple(
                reservoir.create(self._sample, capacity) for _ in range(self._num_networks)
            )

        advantage = fitted(fit_spec(self.settings.advantage), 0)
        slots = self.settings.mixture.capacity
        return TrainState(
            iteration=jnp.int32(0),
            stage=jnp.int32(0),
            advantage=advantage,
            strategy=fitted(fit_spec(self.settings.strategy), 1),
            memories=Memories(
                advantage=memories(memory.advantage_capacity),
                strategy=memories(memory.strategy_capacity),
            ),
            mixture=mixture.create(advantage.params, slots) if slots else None,
        )

    def position(self, state: TrainState) -> tuple[int, int]:
        """Return the iterations completed and the index in STAGES of the next stage."""
        return int(state.iteration), int(state.stage)

    def run_stage(self, state: TrainState) -> tuple[TrainState, dict[str, float]]:
        """Run the next stage to its end.

        Args:
          state: its memories and mixture are donated; use the returned state afterwards.

        Returns:
          The state after the stage, and the stage's metrics (names in docs/design.md).
        """
        completed, stage = self.position(state)
        iteration = completed + 1
        key = self._key(iteration, stage)
        run = {
            "traverse": self._traverse,
            "fit_advantage": self._fit_advantage,
            "fit_strategy": self._fit_strategy,
        }[STAGES[stage]]
        started = time.perf_counter()
        state, metrics = run(state, key, iteration)
        seconds = time.perf_counter() - started
        metrics[_TIMERS[STAGES[stage]]] = seconds
        if "traversal/nodes" in metrics:
            metrics["traversal/nodes_per_second"] = metrics["traversal/nodes"] / seconds
        next_stage = (stage + 1) % len(STAGES)
        return (
            state._replace(
                iteration=jnp.int32(completed + (next_stage == 0)), stage=jnp.int32(next_stage)
            ),
            metrics,
        )

    def policy_parameters(self, state: TrainState) -> dict[str, Any]:
        """Return the parameters of the policies: "current", "average" and, if kept, "mixture"."""
        parameters: dict[str, Any] = {
            "current": state.advantage.params,
            "average": state.strategy.params,
        }
        if state.mixture is not None:
            parameters["mixture"] = {
                "params": state.mixture.rows.params,
                # The mixture is the average policy, too, and weighs iterations as its network does.
                "weights": mixture.weights(state.mixture, self.settings.strategy.exponent),
            }
        return parameters

    def policies(self, state: TrainState) -> dict[str, AnyPolicy]:
        """Return the policies themselves."""
        return make_policies(self.settings, self.network, self.policy_parameters(state))

    def _key(self, iteration: int, stage: int) -> jax.Array:
        key = jax.random.fold_in(jax.random.key(self.settings.seed), _TRAINING)
        return jax.random.fold_in(jax.random.fold_in(key, iteration), stage)

    def _traverse(
        self, state: TrainState, key: jax.Array, iteration: int
    ) -> tuple[TrainState, dict[str, float]]:
        memories = state.memories
        if self._bootstrapped:
            memories = memories._replace(
                advantage=tuple(reservoir.emptied(memory) for memory in memories.advantage)
            )
        policies = state.mixture
        if policies is not None:
            policies = mixture.insert(
                policies,
                state.advantage.params,
                jnp.int32(iteration),
                self._key(iteration, _MIXTURE_STREAM),
            )
        memories, statistics = traverse(
            self.game,
            self.network,
            self._scheme,
            self._traversal,
            state.advantage.params,
            memories,
            key,
            jnp.int32(iteration),
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
        return state._replace(memories=memories, mixture=policies), metrics

    def _fit_advantage(
        self, state: TrainState, key: jax.Array, iteration: int
    ) -> tuple[TrainState, dict[str, float]]:
        settings, step = self.settings.advantage, None
        if self._bootstrapped:
            step = bootstrap_step(settings.exponent, settings.min_step, jnp.int32(iteration))
        advantage, metrics = _fit_networks(
            "advantage",
            self.network,
            fit_spec(settings),
            "squared_error",
            state.advantage,
            state.memories.advantage,
            key,
            iteration,
            step,
        )
        return state._replace(advantage=advantage), metrics

    def _fit_strategy(
        self, state: TrainState, key: jax.Array, iteration: int
    ) -> tuple[TrainState, dict[str, float]]:
        settings = self.settings.strategy
        # The first is fitted too: all programs are then compiled in the first iteration.
        if iteration > 1 and iteration % settings.every:
            return state, {}
        strategy, metrics = _fit_networks(
            "strategy",
            self.network,
            fit_spec(settings),
            "cross_entropy",
            state.strategy,
            state.memories.strategy,
            key,
            iteration,
        )
        return state._replace(strategy=strategy), metrics


def _fit_networks(
    name: str,
    network: Network,
    spec: FitSpec,
    loss: Loss,
    fitted: Fitted,
    memories: tuple[Reservoir, ...],
    key: jax.Array,
    iteration: int,
    step: jax.Array | None = None,
) -> tuple[Fitted, dict[str, float]]:
    """Fit a network to each of the memories; `name` is for the metrics, the rest as for `fit`."""
    results = [
        fit(
            network,
            spec,
            loss,
            params,
            opt_state,
            memory,
            jax.random.fold_in(key, n),
            jnp.int32(iteration),
            step,
        )
        for n, (params, opt_state, memory) in enumerate(
            zip(fitted.params, fitted.opt_state, memories, strict=True)
        )
    ]
    reports = jax.device_get([result[2] for result in results])
    fitted = Fitted(tuple(r[0] for r in results), tuple(r[1] for r in results))
    jax.block_until_ready(fitted)
    return fitted, {
        f"loss/{name}": float(np.mean([report.loss for report in reports])),
        f"precision/nonfinite_steps_{name}": float(sum(report.skipped for report in reports)),
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
    exponent = settings.exponent
    if isinstance(settings, AdvantageSettings) and settings.cumulative == "bootstrapped":
        exponent = 0.0  # All samples are of one iteration; its weight is in the step.
    return FitSpec(
        start=settings.start,
        updates=settings.updates,
        batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        gradient_clip=settings.gradient_clip,
        exponent=exponent,
    )
