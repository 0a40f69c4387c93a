"""Leduc poker: the smallest poker with a public card, and exact NashConv.

    python -m coorl_jax.train --config=configs/leduc.py

The average policy's NashConv, what both players together could gain by best responses, is about
0.3 antes after a hundred iterations, 0.1 after four hundred and 0.05 at the end (random play: 4.75;
three seeds in docs/strength.md). The whole took 12 to 18 minutes on two busy CPU cores.
"""

import ml_collections

from configs import default


def get_config(preset: str | None = None) -> ml_collections.ConfigDict:
    """Return the configuration; there are no presets."""
    if preset is not None:
        raise ValueError(f"preset {preset!r}: configs/leduc.py has none; leave out the colon")
    config = default.get_config("deep_cfr")
    config.preset = "leduc"
    config.name = "leduc"
    config.iterations = 2000
    # Pots are up to 13 antes a player.
    config.utility_scale = 10.0
    del config.game
    config.game = ml_collections.ConfigDict({"name": "leduc_poker"})
    config.network.kind = "mlp"
    config.network.width = 64
    config.network.depth = 2
    # A player decides at most four times: try every action everywhere.
    config.traversal.scheme = "external"
    config.traversal.max_branching_nodes = 4
    # For schemes that sample the traverser's actions.
    config.traversal.exploration = 0.4
    config.traversal.traversals = 1024
    # One player's advantages at a time, against what the other has just learnt: this gains more
    # than anything else here (docs/algorithm.md).
    config.traversal.alternating = True
    config.network.per_player = True
    config.traversal.lanes = 256
    # The advantage memory holds one iteration, the strategy memory a sample of all.
    config.memory.advantage_capacity = 100_000
    config.memory.strategy_capacity = 2_000_000
    config.memory.target_dtype = "float32"
    # Advantages are carried on in the network: each fit is a small step, which must be more exact
    # than the step is long, so the learning rate falls within every fit and from fit to fit.
    config.advantage.cumulative = "bootstrapped"
    config.advantage.start = "warm"
    config.advantage.weighting = "uniform"
    config.advantage.updates = 100
    config.advantage.decay_iterations = 200
    config.advantage.annealed = True
    config.strategy.every = 10
    config.strategy.updates = 200
    config.strategy.decay_iterations = 200
    config.strategy.annealed = True
    config.evaluation.every = 100
    config.evaluation.opponents = ("random",)
    config.evaluation.diagnostics = "light"
    config.evaluation.nash_conv = True
    config.light_evaluation.every = 0
    config.light_evaluation.opponents = ("random",)
    # NashConv tells which policy is best.
    config.gate.policy = "none"
    config.checkpoint.every = 500
    config.checkpoint.keep_policies = 10
    return config
