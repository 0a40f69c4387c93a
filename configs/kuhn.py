"""Kuhn poker: a game solved by hand, to check the algorithm in a minute on a laptop.

    python -m coorl_jax.train --config=configs/kuhn.py

In equilibrium player 0 loses 1/18 of an ante a round. After 200 iterations the average policy's
NashConv, what both players together could gain by best responses, is about 0.03 antes (random play:
0.92).
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
    config.iterations = 200
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
    config.traversal.lanes = 128
    # All samples of the run fit.
    config.memory.advantage_capacity = 500_000
    config.memory.strategy_capacity = 500_000
    config.memory.target_dtype = "float32"
    config.advantage.updates = 200
    config.advantage.batch_size = 256
    config.strategy.updates = 200
    config.strategy.batch_size = 256
    config.evaluation.opponents = ("random",)
    config.evaluation.nash_conv = True
    config.checkpoint.every = 50
    config.checkpoint.keep_policies = 10
    return config
