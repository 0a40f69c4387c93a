"""One iteration of Deep CFR: traverse, fit the advantages, fit the average policy.

An iteration t runs in four stages. `traverse` samples regrets under the policy of the current
advantage network into the memories, reading the values learnt in the iteration before if the scheme
reads any; `fit_value` then fits the value network to what this iteration's walks met;
`fit_advantage` fits the advantage network to all of its memory, weighted by iteration;
`fit_strategy` fits the network of the average policy. The state between two stages is all there is:
stages draw their random numbers from (seed, iteration, stage), so a run that stops there and goes
on is the same run.

Two variations: *bootstrapped* advantages keep samples for one iteration only and carry the earlier
ones on in the network itself (cfr/fit.py); a *mixture* keeps the policies of the iterations
themselves, beside the network fitted to their average (cfr/mixture.py).

Reference: Brown et al., Deep Counterfactual Regret Minimization, 2019, Algorithm 1; with both
players' traversals in one batch (simultaneous updates), or one player's in each iteration
(alternating updates).
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from coorl_jax.cfr import mixture, reservoir, samples
from coorl_jax.cfr.fit import Fitted, bootstrap_step, fit_networks, fit_spec, init
from coorl_jax.cfr.machine import Memories
from coorl_jax.cfr.reservoir import Reservoir
from coorl_jax.cfr.sampling import make_scheme
from coorl_jax.cfr.side_by_side import traversal_spec, traverse
from coorl_jax.cfr.traversal import make_program
from coorl_jax.games.game import NUM_PLAYERS
from coorl_jax.networks import Network, ValueNetwork
from coorl_jax.policy import AnyPolicy, make_network, make_policies, make_value_network
from coorl_jax.settings import FitSettings, Precision, Settings

STAGES = ("traverse", "fit_value", "fit_advantage", "fit_strategy")

_TIMERS = {
    "traverse": "traversal_seconds",
    "fit_value": "value_train_seconds",
    "fit_advantage": "advantage_train_seconds",
    "fit_strategy": "strategy_train_seconds",
}

# Streams of random numbers below the seed; evaluation uses another one (evaluation/suite.py).
_TRAINING = 0
# Below an iteration: of the stages, of new parameters, of the mixture.
_STREAMS = {"traverse": 0, "fit_advantage": 1, "fit_strategy": 2, "fit_value": 5}
_INIT_STREAM = 3
_MIXTURE_STREAM = 4


class TrainState(NamedTuple):
    """Everything a run needs to go on; a pytree of arrays."""

    iteration: jax.Array  # int32, iterations completed
    stage: jax.Array  # int32, index in STAGES of what comes next
    advantage: Fitted
    strategy: Fitted
    value: Fitted
    memories: Memories
    mixture: Reservoir | None  # of the policies of past iterations, if they are kept


class _Networks(NamedTuple):
    """What a stage computes with, in its precision."""

    policy: Network  # advantages, or logits of the average policy
    value: ValueNetwork | None  # if the sampling scheme reads values


class Trainer:
    """The stages of an iteration for one `Settings`.

    Raises:
      ValueError: for rules that make no game, or a network that cannot read it.
    """

    stages = STAGES

    def __init__(self, settings: Settings):
        self.settings = settings
        self.network = make_network(settings)
        self.game = self.network.game
        self._bootstrapped = settings.advantage.cumulative == "bootstrapped"
        self._alternating = settings.traversal.alternating
        self._num_networks = NUM_PLAYERS if settings.network.per_player else 1
        self._scheme = make_scheme(settings)
        self._traversing = self._networks(settings.precision.traversal)
        self._fitting = self._networks(settings.precision.fit)
        traversals = settings.traversal.traversals * (1 if self._alternating else NUM_PLAYERS)
        self._traversal = traversal_spec(settings, traversals)
        self._sample = samples.example(
            self.game.packed_size,
            self.game.num_actions,
            jnp.dtype(settings.memory.target_dtype),
        )
        self._value_sample = samples.example(self.game.whole_size, 1, jnp.dtype(jnp.float32))

    def memory_report(self) -> str:
        """Return one line on the bytes of states, samples and memories."""
        slots, memories, mixture_bytes = self._memory_sizes()
        report = (
            f"information state {self.game.packed_size} bytes, sample {_num_bytes(self._sample)} "
            f"bytes, memories {slots:,} samples = {memories / 1e6:,.1f} MB"
        )
        if members := self.settings.mixture.capacity:
            report += f", mixture {members:,} policies = {mixture_bytes / 1e6:,.1f} MB"
        return report

    def memory_bytes(self) -> int:
        """Return the sum of what the report names: the bytes of all memories and of the mixture."""
        _, memories, mixture_bytes = self._memory_sizes()
        return memories + mixture_bytes

    def init(self) -> TrainState:
        """Return the state before the first iteration."""
        memory = self.settings.memory

        def fitted(network: Network, settings: FitSettings, stream: int, count: int) -> Fitted:
            key = jax.random.fold_in(self._key(0, _INIT_STREAM), stream)
            states = [
                init(network, fit_spec(settings), jax.random.fold_in(key, n)) for n in range(count)
            ]
            return Fitted(tuple(s[0] for s in states), tuple(s[1] for s in states))

        def memories(capacity: int) -> tuple[Reservoir, ...]:
            return tuple(
                reservoir.create(self._sample, capacity) for _ in range(self._num_networks)
            )

        settings, networks, count = self.settings, self._fitting, self._num_networks
        advantage = fitted(networks.policy, settings.advantage, 0, count)
        value, value_memory = Fitted((), ()), ()
        if networks.value is not None:
            value = fitted(networks.value, settings.value, 2, 1)
            value_memory = (reservoir.create(self._value_sample, memory.value_capacity),)
        slots = self.settings.mixture.capacity
        return TrainState(
            iteration=jnp.int32(0),
            stage=jnp.int32(0),
            advantage=advantage,
            strategy=fitted(networks.policy, settings.strategy, 1, count),
            value=value,
            memories=Memories(
                advantage=memories(memory.advantage_capacity),
                strategy=memories(memory.strategy_capacity),
                value=value_memory,
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
          The state after the stage, and the stage's metrics (names in docs/design.md); what several
          stages of an iteration have measured under one name is to be added up.
        """
        completed, stage = self.position(state)
        iteration = completed + 1
        key = self._key(iteration, _STREAMS[STAGES[stage]])
        run = {
            "traverse": self._traverse,
            "fit_value": self._fit_value,
            "fit_advantage": self._fit_advantage,
            "fit_strategy": self._fit_strategy,
        }[STAGES[stage]]
        started = time.perf_counter()
        state, metrics = run(state, key, iteration)
        seconds = time.perf_counter() - started
        if STAGES[stage] != "fit_value" or self._scheme.reads_values:
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
        """Return what is saved for play: "current", "average" and, if there, "mixture", "value"."""
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
        if state.value.params:
            parameters["value"] = state.value.params
        return parameters

    def policies(self, state: TrainState) -> dict[str, AnyPolicy]:
        """Return the policies themselves."""
        return make_policies(self.settings, self.network, self.policy_parameters(state))

    def _memory_sizes(self) -> tuple[int, int, int]:
        """Return the slots of all memories, their bytes, and the bytes of the mixture."""
        memory = self.settings.memory
        slots = self._num_networks * (memory.advantage_capacity + memory.strategy_capacity)
        total = slots * _num_bytes(self._sample)
        if self._scheme.reads_values:
            slots += memory.value_capacity
            total += memory.value_capacity * _num_bytes(self._value_sample)
        params = jax.eval_shape(self.network.init, jax.random.key(0))
        policies = self.settings.mixture.capacity * self._num_networks
        return slots, total, policies * _num_bytes(params)

    def _networks(self, precision: Precision) -> _Networks:
        value = make_value_network(self.settings) if self._scheme.reads_values else None
        return _Networks(
            dataclasses.replace(self.network, precision=precision),
            None if value is None else dataclasses.replace(value, precision=precision),
        )

    def _key(self, iteration: int, stream: int) -> jax.Array:
        key = jax.random.fold_in(jax.random.key(self.settings.seed), _TRAINING)
        return jax.random.fold_in(jax.random.fold_in(key, iteration), stream)

    def _traverser(self, iteration: int) -> int:
        """Return whose turn it is where the players alternate: player 0 begins."""
        return (iteration - 1) % NUM_PLAYERS

    def _traversers(self, iteration: int) -> jax.Array:
        """Return int32[T], the traversers of an iteration."""
        number = jnp.arange(self._traversal.traversals, dtype=jnp.int32)
        if self._alternating:
            return jnp.full_like(number, self._traverser(iteration))
        return number % NUM_PLAYERS

    def _traverse(
        self, state: TrainState, key: jax.Array, iteration: int
    ) -> tuple[TrainState, dict[str, float]]:
        memories = state.memories
        if self._bootstrapped:
            memories = memories._replace(advantage=_emptied(memories.advantage))
        # Values are those of the current policies: there is nothing to average over iterations.
        memories = memories._replace(value=_emptied(memories.value))
        policies = state.mixture
        if policies is not None:
            policies = mixture.insert(
                policies,
                state.advantage.params,
                jnp.int32(iteration),
                self._key(iteration, _MIXTURE_STREAM),
            )
        program = make_program(
            self.game,
            self._traversing.policy,
            self._scheme,
            self._traversal,
            state.advantage.params,
            key,
            jnp.int32(iteration),
            self._traversing.value,
            state.value.params[0] if state.value.params else None,
            self._traversers(iteration),
        )
        memories, statistics = traverse(program, memories)
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
            "traversal/lane_occupancy": nodes / int(statistics.evaluated),
            "traversal/fallback_rate": int(statistics.fallbacks) / nodes,
            "traversal/advantage_samples": float(statistics.advantage_samples),
            "traversal/strategy_samples": float(statistics.strategy_samples),
        }
        if self._scheme.reads_values:
            metrics["traversal/value_samples"] = float(statistics.value_samples)
        metrics |= {name: float(np.sum(size)) for name, size in sizes.items()}
        return state._replace(memories=memories, mixture=policies), metrics

    def _fit_value(
        self, state: TrainState, key: jax.Array, iteration: int
    ) -> tuple[TrainState, dict[str, float]]:
        if self._fitting.value is None:
            return state, {}
        value, metrics = fit_networks(
            "value",
            self._fitting.value,
            fit_spec(self.settings.value),
            "squared_error",
            state.value,
            state.memories.value,
            key,
            iteration,
        )
        return state._replace(value=value), metrics

    def _fit_advantage(
        self, state: TrainState, key: jax.Array, iteration: int
    ) -> tuple[TrainState, dict[str, float]]:
        settings, step, seats = self.settings.advantage, None, slice(None)
        updates = iteration  # of the advantages that are updated now
        if self._alternating:
            updates = (iteration + 1) // NUM_PLAYERS
            if self._num_networks == NUM_PLAYERS:
                player = self._traverser(iteration)
                seats = slice(player, player + 1)
        if self._bootstrapped:
            step = bootstrap_step(settings.exponent, settings.min_step, jnp.int32(updates))
        fitted, metrics = fit_networks(
            "advantage",
            self._fitting.policy,
            fit_spec(settings),
            "squared_error",
            Fitted(state.advantage.params[seats], state.advantage.opt_state[seats]),
            state.memories.advantage[seats],
            key,
            iteration,
            step,
        )
        advantage = Fitted(
            _with(state.advantage.params, seats, fitted.params),
            _with(state.advantage.opt_state, seats, fitted.opt_state),
        )
        return state._replace(advantage=advantage), metrics

    def _fit_strategy(
        self, state: TrainState, key: jax.Array, iteration: int
    ) -> tuple[TrainState, dict[str, float]]:
        settings = self.settings.strategy
        # The first is fitted too: all programs are then compiled in the first iteration.
        if iteration > 1 and iteration % settings.every:
            return state, {}
        strategy, metrics = fit_networks(
            "strategy",
            self._fitting.policy,
            fit_spec(settings),
            "cross_entropy",
            state.strategy,
            state.memories.strategy,
            key,
            iteration,
        )
        return state._replace(strategy=strategy), metrics


def _with(entries: tuple[Any, ...], place: slice, new: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the entries with others in place of some."""
    changed = list(entries)
    changed[place] = new
    return tuple(changed)


def _num_bytes(tree: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _emptied(memories: tuple[Reservoir, ...]) -> tuple[Reservoir, ...]:
    return tuple(reservoir.emptied(memory) for memory in memories)
