"""One iteration of PPO: a segment of rounds in every lane, and updates on what was decided there.

In self-play one network learns from the decisions of both players. Against a fixed player, the
opponent, it learns to answer it: what it then wins is a lower bound on what a best response would.

The policy is updated by the clipped objective, with a value network that reads whole states, as in
`cfr`: the learner's critic may know what the learner does not. The policy `current` is that of the
last update, and `average` has the exponential moving average of its parameters.
"""

from __future__ import annotations

import math
import time
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from coorl_jax.games.game import Game
from coorl_jax.networks import Network, Params, ValueNetwork
from coorl_jax.optimizer import learning_rate
from coorl_jax.policy import AnyPolicy, make_network, make_policies, make_value_network
from coorl_jax.ppo import rollout
from coorl_jax.ppo import update as updates
from coorl_jax.ppo.advantages import estimate
from coorl_jax.ppo.rollout import RoundLanes
from coorl_jax.ppo.update import Decisions, Learnt
from coorl_jax.settings import PpoSettings, Precision, Settings

# Streams of random numbers below the seed and, here, below that of training (cfr/iteration.py).
_TRAINING = 0
_ROUNDS_STREAM = 0x7FFF_0000  # past all iterations
_INIT_STREAM = 0x7FFF_0001


class PpoState(NamedTuple):
    """Everything a run needs to go on; a pytree of arrays."""

    iteration: jax.Array  # int32, iterations completed
    learnt: Learnt
    average: Params  # of the policy, a moving average
    reference: Params  # of the policy that the next one is to stay close to
    round_lanes: RoundLanes


class Start(NamedTuple):
    """Parameters to begin with."""

    policy: Params  # of a network whose outputs are logits
    value: Params | None  # None: new ones


class PpoTrainer:
    """The iterations of PPO for one `Settings`, as `training.Learner` has it.

    Raises:
      ValueError: for rules that make no game, or a network that cannot read it.
    """

    stages = ("improve",)

    def __init__(
        self, settings: Settings, opponent: AnyPolicy | None = None, start: Start | None = None
    ) -> None:
        """Prepare the iterations.

        Args:
          settings: of the run.
          opponent: whom the learner meets; None: itself.
          start: what it begins with; None: new parameters.
        """
        self.settings = settings
        self.network = make_network(settings)
        self.game = self.network.game
        self._opponent = opponent
        self._start = start

    def memory_report(self) -> str:
        """Return one line on what an iteration keeps of its decisions."""
        decisions = self.settings.ppo.lanes * self.settings.ppo.decisions
        size = self.game.packed_size + self.game.whole_size
        return (
            f"information state {self.game.packed_size} bytes, {decisions:,} decisions an "
            f"iteration = {decisions * size / 1e6:,.1f} MB"
        )

    def init(self) -> PpoState:
        """Return the state before the first iteration."""
        value_network = make_value_network(self.settings)
        learnt = updates.init(
            self.network, value_network, self.settings.ppo, self._key(_INIT_STREAM)
        )
        if self._start is not None:
            value = learnt.value if self._start.value is None else self._start.value
            learnt = updates.with_optimizers(self._start.policy, value, self.settings.ppo)
        return PpoState(
            iteration=jnp.int32(0),
            learnt=learnt,
            # Copies: what is donated must not be there twice.
            average=jax.tree.map(jnp.copy, learnt.policy),
            reference=jax.tree.map(jnp.copy, learnt.policy),
            round_lanes=_begin(self.game, self.settings.ppo.lanes, self._key(_ROUNDS_STREAM)),
        )

    def position(self, state: PpoState) -> tuple[int, int]:
        """Return the iterations completed, and 0, the only stage."""
        return int(state.iteration), 0

    def run_stage(self, state: PpoState) -> tuple[PpoState, dict[str, float]]:
        """Run an iteration; see `training.Learner`.

        Raises:
          ValueError: when no gradient was finite, so that it learns no more.
        """
        settings = self.settings
        iteration = int(state.iteration) + 1
        started = time.perf_counter()
        round_lanes, decisions, counts = jax.block_until_ready(
            _collect(
                self._in_precision(settings.precision.traversal),
                settings.ppo,
                settings.utility_scale,
                self._opponent,
                state.learnt,
                state.round_lanes,
                self._key(_ROUNDS_STREAM),
            )
        )
        collected = time.perf_counter()
        learnt, average, metrics = jax.block_until_ready(
            _improve(
                self._in_precision(settings.precision.fit),
                settings.ppo,
                state.learnt,
                state.average,
                state.reference,
                decisions,
                jnp.int32(iteration),
                self._key(iteration),
            )
        )
        seconds = time.perf_counter() - collected
        measured, counts = jax.device_get((metrics, counts))
        if measured.skipped and not math.isfinite(measured.policy_loss):
            rate = settings.ppo.learning_rate
            raise ValueError(
                f"config.ppo.learning_rate={rate}: must be lower, as the networks have diverged: "
                f"no gradient is finite; begin a new run, e.g. with {rate / 10:g}"
            )
        moves = iteration % settings.ppo.reference_every == 0
        nodes, slots = float(counts["nodes"]), settings.ppo.lanes * settings.ppo.decisions
        return (
            PpoState(
                iteration=jnp.int32(iteration),
                learnt=learnt,
                average=average,
                reference=jax.tree.map(jnp.copy, learnt.policy) if moves else state.reference,
                round_lanes=round_lanes,
            ),
            {
                "traversal_seconds": collected - started,
                "update_seconds": seconds,
                "traversal/nodes": nodes,
                "traversal/nodes_per_second": nodes / (collected - started),
                "traversal/lane_occupancy": nodes / slots,
                "ppo/decisions": float(counts["learnt_from"]),
                "ppo/rounds": float(counts["rounds"]),
                # While all lanes are in their first rounds, none has ended.
                "ppo/points_per_round": float(counts["points_per_round"])
                if counts["rounds"]
                else math.nan,
                "ppo/entropy": float(measured.entropy),
                "ppo/kl": float(measured.kl),
                "ppo/clipped": float(measured.clipped),
                "loss/policy": float(measured.policy_loss),
                "loss/value": float(measured.value_loss),
                "precision/nonfinite_steps": float(measured.skipped),
            },
        )

    def policy_parameters(self, state: PpoState) -> dict[str, Any]:
        """Return what is saved for play: "current", "average" and "value"."""
        return {
            "current": (state.learnt.policy,),
            "average": (state.average,),
            "value": (state.learnt.value,),
        }

    def policies(self, state: PpoState) -> dict[str, AnyPolicy]:
        """Return the policies themselves."""
        return make_policies(self.settings, self.network, self.policy_parameters(state))

    def _in_precision(self, precision: Precision) -> tuple[Network, ValueNetwork]:
        game, spec = self.network.game, self.network.spec
        return Network(game, spec, precision), ValueNetwork(game, spec, precision)

    def _key(self, stream: int) -> jax.Array:
        key = jax.random.fold_in(jax.random.key(self.settings.seed), _TRAINING)
        return jax.random.fold_in(key, stream)


@partial(jax.jit, static_argnames=("game", "lanes"))
def _begin(game: Game, lanes: int, key: jax.Array) -> RoundLanes:
    return rollout.begin(game, lanes, key)


@partial(
    jax.jit,
    static_argnames=("networks", "settings", "utility_scale"),
    donate_argnames=("round_lanes",),
)
def _collect(
    networks: tuple[Network, ValueNetwork],
    settings: PpoSettings,
    utility_scale: float,
    opponent: AnyPolicy | None,
    learnt: Learnt,
    round_lanes: RoundLanes,
    key: jax.Array,
) -> tuple[RoundLanes, Decisions, dict[str, jax.Array]]:
    """Play a segment and estimate the advantages of its decisions.

    Returns:
      The lanes after it, the decisions, and scalars about the segment.
    """
    network, value_network = networks
    game = network.game
    round_lanes, segment = rollout.collect(
        game,
        network,
        learnt.policy,
        opponent,
        round_lanes,
        settings.decisions,
        utility_scale,
        key,
    )
    value_after, after_is_learner = rollout.value_after(
        game, value_network, learnt.value, round_lanes, opponent is not None
    )
    estimates = estimate(
        rollout.values(value_network, learnt.value, segment.whole),
        segment.player,
        segment.is_learner,
        segment.ends,
        segment.utility,
        value_after,
        after_is_learner,
        settings.trace_decay,
    )
    decisions = Decisions(
        packed=segment.packed,
        whole=segment.whole,
        legal=segment.legal,
        action=segment.action,
        log_probability=segment.log_probability,
        advantage=estimates.advantage,
        value=estimates.value,
        weight=estimates.is_known.astype(jnp.float32),
    )
    rounds = jnp.sum(segment.ends)
    points = jnp.where(segment.ends, segment.utility, 0.0) * utility_scale
    if opponent is not None:  # In self-play both players are the learner: of player 0.
        points *= jnp.where(rollout.learner_seats(points.shape[1]) == 0, 1.0, -1.0)[None]
    counts = {
        "nodes": jnp.sum(jnp.any(segment.legal, axis=-1)),
        "learnt_from": jnp.sum(decisions.weight),
        "rounds": rounds,
        "points_per_round": jnp.sum(points) / jnp.maximum(rounds, 1),
    }
    return (
        round_lanes,
        jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), decisions),
        counts,
    )


@partial(jax.jit, static_argnames=("networks", "settings"))
def _improve(
    networks: tuple[Network, ValueNetwork],
    settings: PpoSettings,
    learnt: Learnt,
    average: Params,
    reference: Params,
    decisions: Decisions,
    iteration: jax.Array,
    key: jax.Array,
) -> tuple[Learnt, Params, updates.UpdateMetrics]:
    """Make the updates of an iteration, and move the average."""
    rate = learning_rate(settings.learning_rate, settings.decay_iterations, iteration)
    learnt, metrics = updates.update(*networks, settings, learnt, reference, decisions, rate, key)
    # The first averages are means of what there is, not of the parameters before the first update.
    keep = jnp.minimum(settings.average_decay, 1.0 - 1.0 / iteration)
    average = jax.tree.map(lambda old, new: keep * old + (1.0 - keep) * new, average, learnt.policy)
    return learnt, average, metrics
