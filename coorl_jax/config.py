"""Configurations: a `ConfigDict` from a configuration file becomes validated `Settings`.

Every message about a configuration is made here and reads `config.traversal.lanes=0: must be ...;
e.g. 4096`, before jax is loaded.
"""

from __future__ import annotations

import dataclasses
import difflib
import fnmatch
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import ml_collections

from coorl_jax.fields import Choice, Rule
from coorl_jax.settings import GAME_NAME, OPPONENT, SELF_PLAY, GameSettings, Settings

# What a resumed run may change, as patterns.
_MAY_CHANGE = (
    *("preset", "name", "iterations", "precision.evaluation"),
    *("evaluation.*", "light_evaluation.*", "gate.*", "checkpoint.*", "log.*"),
)

# Deals of a test between mixtures: those that share a draw are as good as one.
_MIXTURE_PAIRS = 1000


class ConfigError(ValueError):
    """A mistake in a configuration, explained in one sentence."""


def from_config_dict(config: ml_collections.ConfigDict) -> Settings:
    """Return the settings of a configuration file's `ConfigDict`; see `from_dict`."""
    return from_dict(config.to_dict())


def from_dict(values: Mapping[str, Any]) -> Settings:
    """Return the settings of nested plain values, e.g. of `config.json`.

    Args:
      values: as `to_dict` gives them; lists serve as tuples.

    Raises:
      ConfigError: naming the first field that is unknown, missing or out of bounds, or does not go
        with another.
    """
    settings = _parse_section(Settings, values, "config")
    _check_together(settings)
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
def _rules() -> dict[str, Rule]:
    """Return the rule of every field that holds a value, by its full name."""
    rules: dict[str, Rule] = {"config.game.name": GAME_NAME}
    for name, kind in _fields(Settings).items():
        if not isinstance(kind, type):
            rules[f"config.{name}"] = kind
        elif kind is not GameSettings:
            rules |= {f"config.{name}.{field}": rule for field, rule in _fields(kind).items()}
    return rules


@functools.cache
def _fields(section: type) -> dict[str, Any]:
    """Return a section's fields: the class of a nested section, or the `Rule` of a value."""

    def kind(hint: Any) -> Any:
        if get_origin(hint) is Literal:
            return Choice(get_args(hint))
        if get_origin(hint) is Annotated:
            return hint.__metadata__[0]
        return Choice((True, False)) if hint is bool else hint

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


def _check_together(settings: Settings) -> None:
    """Refuse values that are good alone but not together."""
    if settings.mixture.capacity == 0:
        _require_no_mixture(settings)
    if settings.gate.policy == "mixture" and settings.gate.pairs < _MIXTURE_PAIRS:
        raise ConfigError(
            f"config.gate.pairs={settings.gate.pairs}: must be at least {_MIXTURE_PAIRS} with "
            "policy mixture, of which 16 pairs share a draw; e.g. 1000"
        )
    if settings.algorithm == "ppo":
        _check_ppo(settings)
    else:
        _check_cfr(settings)
    _check_opponent(settings)


def _check_cfr(settings: Settings) -> None:
    """Refuse what does not go together in the algorithm cfr."""
    traversal, advantage = settings.traversal, settings.advantage
    if traversal.exploration == 0.0 and traversal.scheme not in ("branch", "critic"):
        raise ConfigError(
            f"config.traversal.exploration=0.0: must be above 0 with scheme {traversal.scheme}, "
            "which would otherwise never sample what the policy does not play, and misjudge it; "
            "e.g. 0.1"
        )
    if advantage.cumulative == "bootstrapped" and advantage.start != "warm":
        raise ConfigError(
            f"config.advantage.start={advantage.start!r}: must be warm with cumulative "
            "bootstrapped, which keeps earlier iterations in the parameters alone; e.g. warm"
        )
    if traversal.alternating and advantage.cumulative == "bootstrapped":
        _require_networks_per_player(settings)


def _require_networks_per_player(settings: Settings) -> None:
    """Refuse a fit to one player's samples that the other player's advantages would share."""
    if not settings.network.per_player:
        raise ConfigError(
            "config.network.per_player=False: must be True with alternating traversals and "
            "bootstrapped advantages, as a shared network would forget those of the player who is "
            "not the traverser; e.g. True"
        )


def _require_no_mixture(settings: Settings) -> None:
    """Refuse to let a mixture play that is not kept."""
    for field, policies in (
        ("evaluation.policies", settings.evaluation.policies),
        ("light_evaluation.policies", settings.light_evaluation.policies),
        ("gate.policy", (settings.gate.policy,)),
    ):
        if "mixture" in policies:
            raise ConfigError(
                f"config.mixture.capacity=0: must be at least 1 where config.{field} has mixture; "
                "e.g. 1000"
            )


def _check_ppo(settings: Settings) -> None:
    """Refuse what the algorithm ppo does not have, and sizes that do not go with each other."""
    ppo = settings.ppo
    if ppo.decisions % 4:
        raise ConfigError(f"config.ppo.decisions={ppo.decisions}: must be a multiple of 4; e.g. 32")
    if (ppo.lanes * ppo.decisions) % ppo.minibatches:
        raise ConfigError(
            f"config.ppo.minibatches={ppo.minibatches}: must divide the decisions of an iteration, "
            f"lanes * decisions = {ppo.lanes * ppo.decisions}; "
            f"e.g. {math.gcd(8, ppo.lanes * ppo.decisions)}"
        )
    if settings.network.per_player:
        raise ConfigError(
            "config.network.per_player=True: must be False with config.algorithm=ppo, which has "
            "one network for both seats; e.g. False"
        )
    if settings.mixture.capacity:
        raise ConfigError(
            f"config.mixture.capacity={settings.mixture.capacity}: must be 0 with "
            "config.algorithm=ppo, which keeps no policies of iterations; e.g. 0"
        )


def _check_opponent(settings: Settings) -> None:
    """Refuse an opponent that is not there to be met, or is itself."""
    has_opponent = settings.algorithm == "ppo" and settings.ppo.opponent != SELF_PLAY
    for section in ("evaluation", "light_evaluation"):
        if OPPONENT in getattr(settings, section).opponents and not has_opponent:
            raise ConfigError(
                f"config.{section}.opponents: must have no {OPPONENT!r} without "
                "config.algorithm=ppo and a fixed player in config.ppo.opponent; "
                "e.g. --config.algorithm=ppo --config.ppo.opponent=pretrained:current"
            )


def _parse_value(rule: Rule, value: Any, path: str) -> Any:
    try:
        return rule.parse(value)
    except ValueError as error:
        raise ConfigError(f"{path}={value!r}: {error}; e.g. {rule.example}") from None


def _parse_game(values: Mapping[str, Any], path: str) -> GameSettings:
    name = _parse_value(GAME_NAME, values.get("name"), f"{path}.name")
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
