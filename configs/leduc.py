"""Leduc poker: the smallest poker with a public card, and exact NashConv.

    python -m coorl_jax.train --config=configs/leduc.py

The average policy's NashConv, what both players together could gain by best responses, falls from
4.5 antes after the first iteration to about 0.3 after 200, in three minutes on two CPU cores, and
is still falling (seed 0; random play: 4.75).
"""

import ml_collections

from configs import default


def get_config(preset: str | None = None) -> ml_collections.ConfigDict:
    """Return the configuration; there are no presets."""
    if preset is not None:
        raise ValueError(f"preset {preset!r}: configs/leduc.py has none; leave out the colon")
    config = default.get_config("cpu")
    config.preset = "leduc"
    config.name = "leduc"
    config.iterations = 200
    # Pots are up to 13 antes a player.
    config.utility_scale = 10.0
    del config.game
    config.game = ml_collections.ConfigDict({"name": "leduc_poker"})
    config.network.kind = "mlp"
    config.network.width = 128
    config.network.depth = 3
    # A player decides at most four times: try every action everywhere.
    config.traversal.scheme = "external"
    config.traversal.max_branching_nodes = 4
    config.traversal.traversals = 1024
    config.traversal.lanes = 256
    config.memory.advantage_capacity = 2_000_000
    config.memory.strategy_capacity = 2_000_000
    config.memory.target_dtype = "float32"
    config.advantage.updates = 300
    config.advantage.batch_size = 512
    config.strategy.updates = 100
    config.strategy.batch_size = 512
    config.evaluation.opponents = ("random",)
    config.evaluation.nash_conv = True
    config.checkpoint.every = 50
    config.checkpoint.keep_policies = 10
    return config
