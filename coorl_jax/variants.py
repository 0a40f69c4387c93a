"""Variants of a configuration that a study compares: its sampling schemes and its settings.

A variant is other values of some fields, by dotted name, as `config.override` takes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coorl_jax import config as config_lib
from coorl_jax.settings import Settings

Variants = dict[str, dict[str, Any]]

REFERENCE = "external"
"""The variant that others are compared with: the configuration itself, with external sampling."""


def schemes(settings: Settings) -> Variants:
    """Return a variant for each sampling scheme.

    A traversal visits fewer nodes where it tries fewer actions, so there are more of them: on Leduc
    poker and on small Lost Cities an iteration visits about as many nodes with every scheme.
    """
    traversals = settings.traversal.traversals

    def scheme(name: str, factor: int) -> dict[str, Any]:
        return {"traversal.scheme": name, "traversal.traversals": factor * traversals}

    return {
        "external": scheme("external", 1),
        "robust": scheme("robust", 1) | {"traversal.branching_actions": 2},
        "outcome": scheme("outcome", 4),
        "branch": scheme("branch", 3),
        "baseline": scheme("baseline", 4),
        "critic": scheme("critic", 4),
    }


def alternatives(settings: Settings) -> Variants:
    """Return variants of external sampling that differ in other settings."""
    external = schemes(settings)["external"]
    # Players who take turns need networks of their own where these carry the advantages on.
    own = {"network.per_player": True}
    bootstrapped = own | {"advantage.cumulative": "bootstrapped", "advantage.start": "warm"}
    memory = settings.memory
    reservoir = {
        "advantage.cumulative": "reservoir",
        # The memory of bootstrapped advantages need hold no more than one iteration.
        "memory.advantage_capacity": max(memory.advantage_capacity, memory.strategy_capacity),
    }
    changes: Variants = {
        # Deep CFR as published.
        "reservoir_scratch": reservoir
        | {
            "advantage.start": "scratch",
            "advantage.updates": 300,
            "advantage.decay_iterations": 0,
            "advantage.annealed": False,
        },
        "reservoir_warm": reservoir | {"advantage.start": "warm"},
        "bootstrapped": bootstrapped,
        "min_step": bootstrapped | {"advantage.min_step": 0.01},
        "fallback_uniform": {"traversal.fallback": "uniform"},
        "weighting_uniform": _weighting("uniform"),
        "weighting_linear": _weighting("linear"),
        "weighting_discounted": _weighting("discounted"),
        "constant_learning_rate": _learning_rate(decay_iterations=0, annealed=False),
        "annealed": _learning_rate(annealed=True),
        "not_annealed": _learning_rate(annealed=False),
        "alternating": own | {"traversal.alternating": True},
        "simultaneous": {"traversal.alternating": False},
        "per_player": own,
        "shared_network": {"network.per_player": False, "traversal.alternating": False},
        "external_bounded": {
            "traversal.max_branching_nodes": 1,
            "traversal.traversals": 2 * settings.traversal.traversals,
        },
    }
    return {name: external | change for name, change in changes.items()}


def apply(settings: Settings, name: str, overrides: Mapping[str, Any]) -> Settings:
    """Return the settings of a variant.

    Args:
      settings: what it is a variant of.
      name: of the variant.
      overrides: its values, by dotted name.

    Raises:
      ConfigError: naming the variant, when its values do not go with the others.
    """
    try:
        return config_lib.override(settings, overrides)
    except config_lib.ConfigError as error:
        raise config_lib.ConfigError(f"variant {name}: {error}") from error


def distinct(settings: Settings, variants: Variants) -> list[str]:
    """Return the names of the variants without those that are an earlier one once more.

    Raises:
      ConfigError: as `apply`.
    """
    made: dict[Settings, str] = {}
    for name, overrides in variants.items():
        made.setdefault(apply(settings, name, overrides), name)
    return list(made.values())


def _weighting(weighting: str) -> dict[str, Any]:
    return {"advantage.weighting": weighting, "strategy.weighting": weighting}


def _learning_rate(**fields: int | bool) -> dict[str, Any]:
    return {f"{fit}.{name}": fields[name] for fit in ("advantage", "strategy") for name in fields}
