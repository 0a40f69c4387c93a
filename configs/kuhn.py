"""Kuhn poker: a game solved by hand, to check the algorithm in a minute on a laptop.

    python -m coorl_jax.train --config=configs/kuhn.py

In equilibrium player 0 loses 1/18 of an ante a round. The average policy's NashConv, what both
players together could gain by best responses, falls below 0.02 antes within 300 iterations, and
then wanders between 0.004 and 0.017 (random play: 0.92).
"""

import ml_collections

from configs import leduc


def get_config(preset: str | None = None) -> ml_collections.ConfigDict:
    """Return the configuration; there are no presets."""
    if preset is not None:
        raise ValueError(f"preset {preset!r}: configs/kuhn.py has none; leave out the colon")
    # Learnt as Leduc poker is, with less of everything.
    config = leduc.get_config()
    config.preset = "kuhn"
    config.name = "kuhn"
    config.iterations = 600
    # The stakes are one or two antes.
    config.utility_scale = 1.0
    config.game.name = "kuhn_poker"
    # Neither player decides more than twice: try every action everywhere.
    config.traversal.max_branching_nodes = 2
    # Paths are so short that a little exploration comes everywhere.
    config.traversal.exploration = 0.1
    config.traversal.traversals = 512
    config.traversal.lanes = 128
    # The advantage memory holds one iteration, the strategy memory all of the run.
    config.memory.advantage_capacity = 10_000
    config.memory.strategy_capacity = 1_000_000
    config.advantage.batch_size = 256
    config.strategy.batch_size = 256
    config.evaluation.every = 50
    config.checkpoint.every = 100
    return config
