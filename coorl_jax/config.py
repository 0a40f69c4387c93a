"""Settings: a `ConfigDict` from a configuration file becomes frozen, validated dataclasses.

What each field means stands above it in `configs/default.py`, what values it may take beside its
type here. Every message about a configuration is made here and reads `config.traversal.lanes=0:
must be ...; e.g. 4096`, before jax is loaded.
"""

from __future__ import annotations

import dataclasses
import difflib
import fnmatch
import functools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Protocol, get_args, get_origin, get_type_hints

import ml_collections

# Iterations, capacities and indices are int32 on the device.
_INT32_MAX = 2**31 - 1
# What a resumed run may change, as patterns.
_MAY_CHANGE = ("preset", "name", "iterations", "evaluation.*", "checkpoint.*", "log.*")


class ConfigError(ValueError):
    """A mistake in a configuration, explained in one sentence."""


class _Rule(Protocol):
    """What a field may hold: `parse` returns the value, or raises ValueError with the rule."""

    @property
    def example(self) -> Any: ...

    def parse(self, value: Any) -> Any: ...


@dataclasses.dataclass(frozen=True)
class _Integer:
    """An integer in [low, high]."""

    low: int
    example: int
    high: int = _INT32_MAX

    def parse(self, value: Any) -> int:
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        if not is_integer or not self.low <= value <= self.high:
            raise ValueError(f"must be an integer from {self.low} to {self.high}, in digits")
        return value


@dataclasses.dataclass(frozen=True)
class _Real:
    """A finite number above `above`, or from `low` to `high`."""

    example: float
    above: float = -math.inf
    low: float = -math.inf
    high: float = math.inf

    def parse(self, value: Any) -> float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and self.above < value < math.inf and self.low <= value <= self.high:
            return float(value)
        if self.above > -math.inf:
            raise ValueError(f"must be a finite number above {self.above:g}")
        raise ValueError(f"must be a number from {self.low:g} to {self.high:g}")


@dataclasses.dataclass(frozen=True)
class _Choice:
    """One of a few values, and of its type: 1 is not True."""

    options: tuple[Any, ...]

    @property
    def example(self) -> Any:
        return self.options[0]

    def parse(self, value: Any) -> Any:
        if type(value) is not type(self.example) or value not in self.options:
            raise ValueError(f"must be one of {', '.join(map(str, self.options))}")
        return value


@dataclasses.dataclass(frozen=True)
class _Name:
    """A word that is also safe as a part of a file name."""

    example: str

    def parse(self, value: Any) -> str:
        if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", value):
            raise ValueError("must be a word of letters, digits and . _ - that starts with one")
        return value


@dataclasses.dataclass(frozen=True)
class _Names:
    """A non-empty tuple of distinct words, each accepted by `item`; commas separate too."""

    item: _Rule
    example: tuple[str, ...]

    def parse(self, value: Any) -> tuple[str, ...]:
        if not isinstance(value, tuple | list):
            raise ValueError("must be a tuple of names")
        words = [word.strip() for item in value for word in str(item).split(",")]
        if not words or len(set(words)) < len(words):
            raise ValueError("must be a non-empty tuple of different names")
        return tuple(self.item.parse(word) for word in words)


_GAME_NAME = _Name("lost_cities")
_OPPONENTS = _Names(_Name("random"), example=("random", "discard_only"))
_POLICIES = _Names(_Choice(("current", "average")), example=("current", "average"))


@dataclasses.dataclass(frozen=True)
class GameSettings:
    """Which game, and its rule parameters as hashable pairs; the game itself checks them."""

    name: str
    rules: tuple[tuple[str, Any], ...]


@dataclasses.dataclass(frozen=True)
class NetworkSettings:
    """The shape of the networks; advantage and average policy share it."""

    kind: Literal["cards", "mlp"]
    width: Annotated[int, _Integer(1, example=64, high=2**16)]
    depth: Annotated[int, _Integer(1, example=3, high=1000)]
    layer_norm: bool
    residual: bool
    per_player: bool


@dataclasses.dataclass(frozen=True)
class TraversalSettings:
    """How regrets are sampled."""

    scheme: Literal["branch", "outcome", "external"]
    traversals: Annotated[int, _Integer(1, example=1024, high=2**28)]
    lanes: Annotated[int, _Integer(1, example=4096, high=2**24)]
    exploration: Annotated[float, _Real(low=0.0, high=1.0, example=0.1)]
    max_branching_nodes: Annotated[int, _Integer(1, example=2)]
    fallback: Literal["argmax", "uniform"]
    pops_per_pass: Annotated[int, _Integer(1, example=4, high=2**16)]


@dataclasses.dataclass(frozen=True)
class MemorySettings:
    """How many samples are kept, and in which precision."""

    advantage_capacity: Annotated[int, _Integer(1, example=1_000_000, high=2**30)]
    strategy_capacity: Annotated[int, _Integer(1, example=1_000_000, high=2**30)]
    target_dtype: Literal["bfloat16", "float16", "float32"]


@dataclasses.dataclass(frozen=True)
class FitSettings:
    """How a network is fitted to its memory."""

    start: Literal["scratch", "warm"]
    updates: Annotated[int, _Integer(1, example=500)]
    batch_size: Annotated[int, _Integer(1, example=1024, high=2**24)]
    learning_rate: Annotated[float, _Real(above=0.0, example=1e-3)]
    gradient_clip: Annotated[float, _Real(above=0.0, example=1.0)]
    weighting: Literal["linear", "uniform"]


@dataclasses.dataclass(frozen=True)
class StrategySettings(FitSettings):
    """How the network of the average policy is fitted, and how often."""

    every: Annotated[int, _Integer(1, example=1)]


@dataclasses.dataclass(frozen=True)
class EvaluationSettings:
    """Matches played during training."""

    every: Annotated[int, _Integer(0, example=10)]
    pairs: Annotated[int, _Integer(2, example=1000, high=2**24)]
    opponents: Annotated[tuple[str, ...], _OPPONENTS]
    policies: Annotated[tuple[str, ...], _POLICIES]
    nash_conv: bool


@dataclasses.dataclass(frozen=True)
class CheckpointSettings:
    """What is kept on disk."""

    every: Annotated[int, _Integer(1, example=10)]
    keep: Annotated[int, _Integer(1, example=2)]
    keep_policies: Annotated[int, _Integer(0, example=0)]


@dataclasses.dataclass(frozen=True)
class LogSettings:
    """Where metrics go besides `metrics.jsonl`."""

    tensorboard: bool


@dataclasses.dataclass(frozen=True)
class Settings:
    """Everything that determines a run; hashable, so that it may be a static argument."""

    preset: Annotated[str, _Name("cpu")]
    name: Annotated[str, _Name("lost-cities")]
    seed: Annotated[int, _Integer(0, example=0)]
    iterations: Annotated[int, _Integer(1, example=200)]
    utility_scale: Annotated[float, _Real(above=0.0, example=50.0)]
    matmul_precision: Literal["default", "high", "highest"]
    game: GameSettings
    network: NetworkSettings
    traversal: TraversalSettings
    memory: MemorySettings
    advantage: FitSettings
    strategy: StrategySettings
    evaluation: EvaluationSettings
    checkpoint: CheckpointSettings
    log: LogSettings


def from_config_dict(config: ml_collections.ConfigDict) -> Settings:
    """Return the settings of a configuration file's `ConfigDict`; see `from_dict`."""
    return from_dict(config.to_dict())


def from_dict(values: Mapping[str, Any]) -> Settings:
    """Return the settings of nested plain values, e.g. of `config.json`.

    Args:
      values: as `to_dict` gives them; lists serve as tuples.

    Raises:
      ConfigError: naming the first field that is unknown, missing or out of bounds.
    """
    settings = _parse_section(Settings, values, "config")
    if settings.traversal.scheme == "outcome" and settings.traversal.exploration == 0.0:
        raise ConfigError(
            "config.traversal.exploration=0.0: must be above 0 with scheme outcome, which divides "
            "by the probability of the sampled action; e.g. 0.1"
        )
    return settings


def to_dict(settings: Settings) -> dict[str, Any]:
    """Return the settings as nested plain values that JSON can hold."""
    values = dataclasses.asdict(settings)
    values["game"] = {"name": settings.game.name, **dict(settings.game.rules)}
    return values


def override(settings: Settings, overrides: Mapping[str, Any]) -> Settings:
    """Return the settings with other values of some fields, e.g. {"traversal.lanes": 64}."""
    values = to_dict(settings)
    for field, value in overrides.items():
        section, _, name = field.rpartition(".")
        (values[section] if section else values)[name] = value
    return from_dict(values)


def differences(saved: Settings, new: Settings) -> dict[str, tuple[Any, Any]]:
    """Return the fields in which two settings differ.

    Returns:
      Dotted field names without the leading "config.", each with its saved and its new value;
      None stands for a rule parameter that one of the two games does not have.
    """
    old_fields, new_fields = _flatten(to_dict(saved)), _flatten(to_dict(new))
    return {
        field: (old_fields.get(field), new_fields.get(field))
        for field in sorted({*old_fields, *new_fields})
        if old_fields.get(field) != new_fields.get(field)
    }


def may_change(field: str) -> bool:
    """Return whether a resumed run may be given another value of this dotted field."""
    return any(fnmatch.fnmatchcase(field, pattern) for pattern in _MAY_CHANGE)


def check_field(field: str) -> None:
    """Check that a dotted field, e.g. "traversal.lanes", exists and holds a value.

    A game's rule parameters are not checked: only the game knows them.

    Raises:
      ConfigError: naming the closest field there is.
    """
    name = f"config.{field}"
    if name not in _rules() and not field.startswith("game."):
        raise ConfigError(f"{name}: no such field; {_suggestion(name, list(_rules()))}")


def check_value(field: str, value: Any) -> Any:
    """Return the value that a dotted field takes when given `value`.

    Raises:
      ConfigError: when the field's rule refuses the value.
    """
    name = f"config.{field}"
    return _parse_value(_rules()[name], value, name)


@functools.cache
def _rules() -> dict[str, _Rule]:
    """Return the rule of every field that holds a value, by its full name."""
    rules: dict[str, _Rule] = {"config.game.name": _GAME_NAME}
    for name, kind in _fields(Settings).items():
        if not isinstance(kind, type):
            rules[f"config.{name}"] = kind
        elif kind is not GameSettings:
            rules |= {f"config.{name}.{field}": rule for field, rule in _fields(kind).items()}
    return rules


@functools.cache
def _fields(section: type) -> dict[str, Any]:
    """Return a section's fields: the class of a nested section, or the `_Rule` of a value."""

    def kind(hint: Any) -> Any:
        if get_origin(hint) is Literal:
            return _Choice(get_args(hint))
        if get_origin(hint) is Annotated:
            return hint.__metadata__[0]
        return _Choice((True, False)) if hint is bool else hint

    return {n: kind(hint) for n, hint in get_type_hints(section, include_extras=True).items()}


def _parse_section(section: type, values: Any, path: str) -> Any:
    """Return `section` built of `values`; `path` is its name in messages."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"{path}={values!r}: must be a section of named fields")
    if section is GameSettings:
        return _parse_game(values, path)
    fields = _fields(section)
    for name, value in values.items():
        if name not in fields:
            known = [f"{path}.{field}" for field in fields]
            hint = _suggestion(f"{path}.{name}", known)
            raise ConfigError(f"{path}.{name}={value!r}: no such field; {hint}")
    parsed = {}
    for name, kind in fields.items():
        field = f"{path}.{name}"
        if name not in values:
            raise ConfigError(f"{field}: missing from the configuration; see configs/default.py")
        if isinstance(kind, type):
            parsed[name] = _parse_section(kind, values[name], field)
        else:
            parsed[name] = _parse_value(kind, values[name], field)
    return section(**parsed)


def _parse_value(rule: _Rule, value: Any, path: str) -> Any:
    try:
        return rule.parse(value)
    except ValueError as error:
        raise ConfigError(f"{path}={value!r}: {error}; e.g. {rule.example}") from None


def _parse_game(values: Mapping[str, Any], path: str) -> GameSettings:
    name = _parse_value(_GAME_NAME, values.get("name"), f"{path}.name")
    rules = {field: value for field, value in values.items() if field != "name"}
    for field, value in rules.items():
        if value is not None and not isinstance(value, bool | int | float | str):
            raise ConfigError(f"{path}.{field}={value!r}: must be a number or a word; e.g. 5")
    return GameSettings(name, tuple(sorted(rules.items())))


def _suggestion(name: str, known: Sequence[str]) -> str:
    """Return a hint at the known name closest to `name`, by its last part if need be."""
    last = name.rpartition(".")[2]
    matches = [field for field in known if field.rpartition(".")[2] == last]
    matches += difflib.get_close_matches(name, known, n=1)
    return f"did you mean {matches[0]}?" if matches else f"there are {', '.join(known)}"


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat
