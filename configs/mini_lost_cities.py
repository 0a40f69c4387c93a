"""Mini Lost Cities: two colours of three cards, small enough for exact NashConv.

    python -m coorl_jax.train --config=configs/mini_lost_cities.py

A player holds one card, plays or discards it and draws from the deck of four or, twice at most in
a round between the two, from the other colour's pile. An expedition costs 4 points, its cards bring
1 to 3 and two of one colour a bonus of 4: a single card always loses, so that opening is a gamble
on the next. In equilibrium player 0 loses 1/6 of a point a round, and about half of the rounds see
player 0 open an expedition, six in ten player 1.

The average policy's NashConv, what both players together could gain by best responses, falls from
7.3 points after the first iteration to 0.83 after 10, 0.23 after 30 and 0.11 after 60, in 163
seconds on two busy CPU cores, and is still falling; the current policy's ends at 0.04 (seed 0;
random play: 5.25).
"""

import ml_collections

from configs import default


def get_config(preset: str | None = None) -> ml_collections.ConfigDict:
    """Return the configuration; there are no presets."""
    if preset is not None:
        raise ValueError(
            f"preset {preset!r}: configs/mini_lost_cities.py has none; leave out the colon"
        )
    config = default.get_config("deep_cfr")
    config.preset = "mini_lost_cities"
    config.name = "mini-lost-cities"
    config.iterations = 60
    # An expedition is worth -3 to 6 points.
    config.utility_scale = 5.0
    config.game.colors = 2
    config.game.ranks = 3
    config.game.min_rank = 1
    config.game.wagers = 0
    # With two cards each the deck has two: both players play once and the round is over.
    config.game.hand_size = 1
    config.game.expedition_penalty = -4
    config.game.bonus_threshold = 2
    config.game.bonus_amount = 4
    config.game.max_discard_draws = 2
    config.network.kind = "mlp"
    config.network.width = 128
    config.network.depth = 2
    # A player decides at most six times: try every action everywhere.
    config.traversal.scheme = "external"
    config.traversal.max_branching_nodes = 6
    # For schemes that sample the traverser's actions.
    config.traversal.exploration = 0.4
    config.traversal.traversals = 1024
    config.traversal.lanes = 256
    config.memory.advantage_capacity = 2_000_000
    config.memory.strategy_capacity = 2_000_000
    config.memory.target_dtype = "float32"
    # From scratch, so few updates fit badly: the average policy stays at 0.9 points.
    config.advantage.start = "warm"
    config.advantage.updates = 300
    config.advantage.batch_size = 1024
    config.strategy.updates = 300
    config.strategy.batch_size = 1024
    config.evaluation.every = 10
    config.evaluation.opponents = ("random",)
    config.evaluation.diagnostics = "light"
    config.evaluation.nash_conv = True
    config.light_evaluation.every = 0
    config.light_evaluation.opponents = ("random",)
    # NashConv tells which policy is best.
    config.gate.policy = "none"
    config.checkpoint.every = 20
    config.checkpoint.keep_policies = 10
    return config
