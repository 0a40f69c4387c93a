"""Settings of PPO on Kuhn poker, as small as they come."""

from __future__ import annotations

from configs import kuhn
from coorl_jax import config

SMALL = {
    "algorithm": "ppo",
    "iterations": 4,
    "network.width": 8,
    "network.depth": 2,
    "network.per_player": False,
    "traversal.alternating": False,
    "ppo.lanes": 6,
    "ppo.decisions": 8,
    "ppo.minibatches": 4,
    "evaluation.every": 2,
    "evaluation.pairs": 8,
    "checkpoint.every": 1,
}


STEPS = {
    "ppo.epochs": 1,
    "ppo.minibatches": 1,
    "ppo.decay_iterations": 3,
    "ppo.reference_kl": 0.1,
    "ppo.reference_every": 2,
    "ppo.average_decay": 0.7,
}


def ppo_settings(**overrides):
    return config.override(config.from_config_dict(kuhn.get_config()), SMALL | overrides)
