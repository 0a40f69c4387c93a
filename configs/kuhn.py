"""Kuhn poker: a game solved by hand, to check the algorithm in a minute on a laptop.

    python -m coorl_jax.train --config=configs/kuhn.py

In equilibrium player 0 loses 1/18 of an ante a round.
"""

import ml_collections

from configs import default


def get_config() -> ml_collections.ConfigDict:
    """Return the configuration."""
    config = default.get_config("cpu")
    config.preset = "kuhn"
    config.name = "kuhn"
    config.iterations = 50
    # The stakes are one or two antes.
    config.utility_scale = 1.0
    del config.game
    config.game = ml_collections.ConfigDict({"name": "kuhn_poker"})
    config.network.kind = "mlp"
    config.network.width = 32
    config.network.depth = 2
    # The tree has three decisions: try every action everywhere.
    config.traversal.scheme = "external"
    config.traversal.max_branching_nodes = 3
    config.traversal.traversals = 256
    config.traversal.lanes = 64
    config.memory.advantage_capacity = 100_000
    config.memory.strategy_capacity = 100_000
    config.memory.target_dtype = "float32"
    config.advantage.updates = 200
    config.advantage.batch_size = 256
    config.strategy.updates = 200
    config.strategy.batch_size = 256
    config.evaluation.opponents = ("random",)
    config.checkpoint.keep_policies = 10
    return config
