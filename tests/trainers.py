"""Trainers of tiny settings, and what the tests of them look at."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import default, kuhn
from coorl_jax import config
from coorl_jax.cfr import iteration as iteration_lib
from coorl_jax.cfr import reservoir
from coorl_jax.cfr.iteration import STAGES, Trainer

SMALL = {
    "network.width": 8,
    "network.depth": 2,
    "traversal.traversals": 16,
    "traversal.lanes": 8,
    "memory.advantage_capacity": 200,
    "memory.strategy_capacity": 1000,
    "memory.value_capacity": 1000,
    "memory.target_dtype": "float32",
    "advantage.updates": 4,
    "advantage.batch_size": 16,
    "strategy.updates": 4,
    "strategy.batch_size": 16,
    "value.updates": 4,
    "value.batch_size": 16,
    "evaluation.pairs": 4,
}
# Deep CFR as it was published: both players at once, one memory of all iterations. configs/kuhn.py
# has turns, bootstrapped advantages, a network per player and learning rates that fall.
PUBLISHED = {
    "network.per_player": False,
    "traversal.alternating": False,
    "advantage.cumulative": "reservoir",
    "advantage.start": "scratch",
    "advantage.weighting": "linear",
    "advantage.decay_iterations": 0,
    "advantage.annealed": False,
    "strategy.every": 1,
    "strategy.decay_iterations": 0,
    "strategy.annealed": False,
}
TINY_LOST_CITIES = {
    "game.colors": 2,
    "game.ranks": 3,
    "game.wagers": 1,
    "game.hand_size": 2,
    "game.max_discard_draws": 2,
}


def kuhn_settings(**overrides):
    return config.override(
        config.from_config_dict(kuhn.get_config()), SMALL | PUBLISHED | overrides
    )


def lost_cities_settings(**overrides):
    base = config.from_config_dict(default.get_config("deep_cfr"))
    return config.override(base, SMALL | TINY_LOST_CITIES | overrides)


SETTINGS = {
    "kuhn": kuhn_settings(),
    "cards": lost_cities_settings(),
    "mlp": lost_cities_settings(
        **{
            "network.kind": "mlp",
            "network.per_player": True,
            "traversal.scheme": "outcome",
            "memory.target_dtype": "bfloat16",
        }
    ),
}
SETTINGS["mixture"] = kuhn_settings(
    **{
        "advantage.cumulative": "bootstrapped",
        "advantage.start": "warm",
        "strategy.weighting": "discounted",
        "mixture.capacity": 2,
    }
)
SETTINGS["baseline"] = kuhn_settings(
    **{"traversal.scheme": "baseline", "traversal.alternating": True, "value.start": "scratch"}
)
SETTINGS["critic"] = kuhn_settings(
    **{
        "traversal.scheme": "critic",
        "traversal.alternating": True,
        "network.per_player": True,
        "advantage.cumulative": "bootstrapped",
        "advantage.start": "warm",
        "advantage.weighting": "uniform",
        "advantage.decay_iterations": 2,
        "advantage.annealed": True,
        "value.start": "warm",
    }
)
READS_VALUES = ("baseline", "critic")
every_settings = pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
# For what hardly depends on them: all with -m slow, and a few always.
several_settings = pytest.mark.parametrize(
    "settings",
    [
        pytest.param(values, marks=[pytest.mark.slow] * (name not in ("kuhn", "critic")))
        for name, values in SETTINGS.items()
    ],
    ids=SETTINGS,
)


def advance(trainer, state, iterations=1):
    """Run whole iterations; return the state and the metrics of each."""
    lines = []
    for _ in range(iterations):
        lines.append({})
        for _ in STAGES:
            state, metrics = trainer.run_stage(state)
            lines[-1] |= metrics
    return state, lines


def run(settings, iterations):
    trainer = Trainer(settings)
    return advance(trainer, trainer.init(), iterations)


def rows_of(memory):
    """Return the filled rows of a memory; targets in bfloat16 are bits."""
    return jax.tree.map(lambda leaf: leaf[: int(reservoir.size(memory))], memory.rows)


def seats_of(trainer, memory):
    """Return the seats of the players whose decisions a memory holds, one for each row."""
    return np.asarray(jax.vmap(trainer.game.seat)(rows_of(memory).packed))


def differ(tree, other):
    return any(
        bool(jnp.any(a != b))
        for a, b in zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True)
    )


def spy_on_fits(monkeypatch):
    """Return a list that collects name, spec and step of the fits from now on."""
    given = []

    def spy(name, network, spec, loss, fitted, memories, key, iteration, step=None):
        given.append((name, spec, None if step is None else float(step)))
        return fit_networks(name, network, spec, loss, fitted, memories, key, iteration, step)

    fit_networks = iteration_lib.fit_networks
    monkeypatch.setattr(iteration_lib, "fit_networks", spy)
    return given


# Its programs compile fastest.
OUTCOME_ON_KUHN = kuhn_settings(
    **{
        "traversal.scheme": "outcome",
        "traversal.exploration": 0.5,
        "memory.advantage_capacity": 1000,
    }
)
