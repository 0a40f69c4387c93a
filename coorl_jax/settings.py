"""The sections of a configuration as frozen, hashable dataclasses.

What each field means stands above it in `configs/default.py`, what values it may take beside its
type here.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, Literal, TypeAlias

from coorl_jax.fields import Choice, Integer, Name, Names, Player, Real

GAME_NAME = Name("lost_cities")
_OPPONENTS = Names(Name("random"), example=("random", "discard_only"))
_POLICIES = Names(Choice(("current", "average", "mixture")), example=("current", "average"))

OPPONENT = "opponent"
"""What evaluations call the fixed player of `ppo.opponent`."""
SELF_PLAY = "itself"
"""The value of `ppo.opponent` for none."""
FROM_SCRATCH = "scratch"
"""The value of `ppo.start` for new parameters."""

Precision: TypeAlias = Literal["float32", "tf32", "bfloat16"]
"""In which a network computes, see `networks.Network`."""


@dataclasses.dataclass(frozen=True)
class GameSettings:
    """Which game, and its rule parameters as hashable pairs; the game itself checks them."""

    name: str
    rules: tuple[tuple[str, Any], ...]


@dataclasses.dataclass(frozen=True)
class NetworkSettings:
    """The shape of the networks; advantage, average policy and value share it."""

    kind: Literal["cards", "mlp"]
    width: Annotated[int, Integer(1, example=64, high=2**16)]
    depth: Annotated[int, Integer(1, example=3, high=1000)]
    layer_norm: bool
    residual: bool
    per_player: bool


@dataclasses.dataclass(frozen=True)
class PrecisionSettings:
    """In which precision networks compute, by what they are used for."""

    traversal: Precision
    evaluation: Precision
    fit: Precision


@dataclasses.dataclass(frozen=True)
class TraversalSettings:
    """How regrets are sampled."""

    scheme: Literal["branch", "outcome", "external", "robust", "baseline", "critic"]
    traversals: Annotated[int, Integer(1, example=1024, high=2**28)]
    alternating: bool
    lanes: Annotated[int, Integer(1, example=4096, high=2**24)]
    machines: Annotated[int, Integer(0, example=2, high=64)]
    exploration: Annotated[float, Real(low=0.0, high=1.0, example=0.1)]
    max_branching_nodes: Annotated[int, Integer(1, example=2)]
    branching_actions: Annotated[int, Integer(1, example=2, high=2**16)]
    fallback: Literal["argmax", "uniform"]
    pops_per_pass: Annotated[int, Integer(1, example=4, high=2**16)]


@dataclasses.dataclass(frozen=True)
class MemorySettings:
    """How many samples are kept, and in which precision."""

    advantage_capacity: Annotated[int, Integer(1, example=1_000_000, high=2**30)]
    strategy_capacity: Annotated[int, Integer(1, example=1_000_000, high=2**30)]
    value_capacity: Annotated[int, Integer(1, example=100_000, high=2**30)]
    target_dtype: Literal["bfloat16", "float16", "float32"]


@dataclasses.dataclass(frozen=True)
class FitSettings:
    """How a network is fitted to its memory."""

    start: Literal["scratch", "warm"]
    updates: Annotated[int, Integer(1, example=500)]
    batch_size: Annotated[int, Integer(1, example=1024, high=2**24)]
    learning_rate: Annotated[float, Real(above=0.0, example=1e-3)]
    decay_iterations: Annotated[int, Integer(0, example=50)]
    annealed: bool
    gradient_clip: Annotated[float, Real(above=0.0, example=1.0)]


@dataclasses.dataclass(frozen=True)
class WeightedFitSettings(FitSettings):
    """How a network is fitted to samples of all iterations."""

    weighting: Literal["uniform", "linear", "discounted"]
    discount: Annotated[float, Real(low=0.0, high=100.0, example=2.0)]

    @property
    def exponent(self) -> float:
        """p: what is of iteration t has weight (t / T)^p at iteration T."""
        return {"uniform": 0.0, "linear": 1.0, "discounted": self.discount}[self.weighting]


@dataclasses.dataclass(frozen=True)
class AdvantageSettings(WeightedFitSettings):
    """How the advantage network is fitted, and how advantages accumulate over iterations."""

    cumulative: Literal["reservoir", "bootstrapped"]
    min_step: Annotated[float, Real(low=0.0, high=1.0, example=0.1)]
    keep_negative: bool


@dataclasses.dataclass(frozen=True)
class StrategySettings(WeightedFitSettings):
    """How the network of the average policy is fitted, and how often."""

    every: Annotated[int, Integer(1, example=1)]


@dataclasses.dataclass(frozen=True)
class ValueSettings(FitSettings):
    """How the value network is fitted, and what to."""

    trace_decay: Annotated[float, Real(low=0.0, high=1.0, example=0.9)]


@dataclasses.dataclass(frozen=True)
class PpoSettings:
    """How the control learns; in place of all between `traversal` and `mixture`."""

    lanes: Annotated[int, Integer(2, example=512, high=2**24)]
    decisions: Annotated[int, Integer(4, example=32, high=2**16)]
    epochs: Annotated[int, Integer(1, example=2, high=1000)]
    minibatches: Annotated[int, Integer(1, example=8, high=2**16)]
    learning_rate: Annotated[float, Real(above=0.0, example=1e-3)]
    decay_iterations: Annotated[int, Integer(0, example=300)]
    gradient_clip: Annotated[float, Real(above=0.0, example=1.0)]
    clip: Annotated[float, Real(above=0.0, example=0.2)]
    trace_decay: Annotated[float, Real(low=0.0, high=1.0, example=0.95)]
    entropy: Annotated[float, Real(low=0.0, high=100.0, example=0.01)]
    reference_kl: Annotated[float, Real(low=0.0, high=100.0, example=0.1)]
    reference_every: Annotated[int, Integer(1, example=20)]
    average_decay: Annotated[float, Real(low=0.0, high=1.0, example=0.99)]
    opponent: Annotated[str, Player("pretrained:current")]
    start: Annotated[str, Player("pretrained")]


@dataclasses.dataclass(frozen=True)
class MixtureSettings:
    """Which iterations' policies are kept, to be drawn from."""

    capacity: Annotated[int, Integer(0, example=1000, high=2**20)]


@dataclasses.dataclass(frozen=True)
class EvaluationSettings:
    """Matches played during training."""

    every: Annotated[int, Integer(0, example=10)]
    pairs: Annotated[int, Integer(2, example=1000, high=2**24)]
    opponents: Annotated[tuple[str, ...], _OPPONENTS]
    policies: Annotated[tuple[str, ...], _POLICIES]
    diagnostics: Literal["full", "light"]


@dataclasses.dataclass(frozen=True)
class FullEvaluationSettings(EvaluationSettings):
    """Matches played during training, and what best responses gain."""

    nash_conv: bool


@dataclasses.dataclass(frozen=True)
class GateSettings:
    """The test by which the best policies so far are kept."""

    policy: Literal["current", "average", "mixture", "none"]
    # The mean of fewer pairs is not normal enough for the stated significance.
    pairs: Annotated[int, Integer(100, example=500, high=2**24)]
    significance: Annotated[float, Real(low=1e-6, high=0.5, example=0.05)]


@dataclasses.dataclass(frozen=True)
class CheckpointSettings:
    """What is kept on disk."""

    every: Annotated[int, Integer(1, example=10)]
    keep: Annotated[int, Integer(1, example=2)]
    keep_policies: Annotated[int, Integer(0, example=0)]


@dataclasses.dataclass(frozen=True)
class LogSettings:
    """Where metrics go besides `metrics.jsonl`."""

    tensorboard: bool


@dataclasses.dataclass(frozen=True)
class Settings:
    """Everything that determines a run; hashable, so that it may be a static argument."""

    preset: Annotated[str, Name("cpu")]
    name: Annotated[str, Name("lost-cities")]
    seed: Annotated[int, Integer(0, example=0)]
    algorithm: Literal["cfr", "ppo"]
    iterations: Annotated[int, Integer(1, example=200)]
    utility_scale: Annotated[float, Real(above=0.0, example=50.0)]
    game: GameSettings
    network: NetworkSettings
    precision: PrecisionSettings
    traversal: TraversalSettings
    memory: MemorySettings
    advantage: AdvantageSettings
    strategy: StrategySettings
    value: ValueSettings
    ppo: PpoSettings
    mixture: MixtureSettings
    evaluation: FullEvaluationSettings
    light_evaluation: EvaluationSettings
    gate: GateSettings
    checkpoint: CheckpointSettings
    log: LogSettings

    def is_due(self, every: int, iteration: int) -> bool:
        """Return whether what is done every so many iterations is due after this one.

        Also after the last, and after the first, so that what would fail, or has to be compiled,
        does so at once; never if `every` is 0.
        """
        last = iteration >= self.iterations
        return every > 0 and (iteration == 1 or iteration % every == 0 or last)
