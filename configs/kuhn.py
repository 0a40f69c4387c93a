"""Kuhn poker: a game solved by hand, to check the algorithm in a minute on a laptop.

    python -m coorl_jax.train --config=configs/kuhn.py

In equilibrium player 0 loses 1/18 of an ante a round. The average policy's NashConv, what both
players together could gain by best responses, falls below 0.02 antes within 300 iterations, and
then wanders between 0.004 and 0.017 (random play: 0.92).
"""

import ml_collections

from configs import default


def get_config(preset: str | None = None) -> ml_collections.ConfigDict:
    """Return the configuration; there are no presets."""
    if preset is not None:
        raise ValueError(f"preset {preset!r}: configs/kuhn.py has none; leave out the colon")
    config = default.get_config("cpu")
    config.preset = "kuhn"
    config.name = "kuhn"
    config.iterations = 600
    # The stakes are one or two antes.
    config.utility_scale = 1.0
    del config.game
    config.game = ml_collections.ConfigDict({"name": "kuhn_poker"})
    config.network.kind = "mlp"
    config.network.width = 64
    config.network.depth = 2
    # Neither player decides more than twice: try every action everywhere.
    config.traversal.scheme = "external"
    config.traversal.max_branching_nodes = 2
    config.traversal.traversals = 512
    # One player's advantages at a time, against what the other has just learnt: twice as fast
    # as both at once, or more.
    config.traversal.alternating = True
    config.network.per_player = True
    config.traversal.lanes = 128
    # The advantage memory holds one iteration, the strategy memory all of the run.
    config.memory.advantage_capacity = 10_000
    config.memory.strategy_capacity = 1_000_000
    config.memory.target_dtype = "float32"
    # Advantages are carried on in the network: each fit is a small step, which must be more exact
    # than the step is long, so the learning rate falls within every fit and from fit to fit.
    config.advantage.cumulative = "bootstrapped"
    config.advantage.start = "warm"
    config.advantage.weighting = "uniform"
    config.advantage.updates = 100
    config.advantage.batch_size = 256
    config.advantage.decay_iterations = 200
    config.advantage.annealed = True
    config.strategy.every = 10
    config.strategy.updates = 200
    config.strategy.batch_size = 256
    config.strategy.decay_iterations = 200
    config.strategy.annealed = True
    config.evaluation.every = 50
    config.evaluation.opponents = ("random",)
    config.evaluation.nash_conv = True
    config.checkpoint.every = 100
    config.checkpoint.keep_policies = 10
    return config
