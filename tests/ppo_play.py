"""Rounds that a random network of logits plays as PPO does, for the tests of rollouts and updates.

L lanes, T decisions of a segment.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from policies import fixed

from configs import mini_lost_cities
from coorl_jax import config
from coorl_jax.evaluation import exploitability
from coorl_jax.games import registry, sequence_form
from coorl_jax.games import tree as trees
from coorl_jax.games.kuhn_poker import KuhnPoker
from coorl_jax.games.leduc_poker import LeducPoker
from coorl_jax.networks import Network, NetworkSpec
from coorl_jax.policy import MixturePolicy, NetworkPolicy, PolicySpec
from coorl_jax.ppo import rollout

MINI_RULES = config.from_config_dict(mini_lost_cities.get_config()).game
GAMES = {
    "kuhn": KuhnPoker(),
    "leduc": LeducPoker(),
    "mini_lost_cities": registry.make(MINI_RULES.name, dict(MINI_RULES.rules)),
}
SCALE = 2.0  # points per unit of utility
SEED = 3
# Kuhn poker with many lanes tells what rounds are worth; only some of them are played again.
PLAYED = {"kuhn": (64, 501), "leduc": (40, 7), "mini_lost_cities": (24, 7)}
SHAPE = NetworkSpec("mlp", 8, 2)


def random_params(network, seed):
    """Return parameters whose outputs differ much from state to state, unlike those of `init`."""
    leaves, structure = jax.tree.flatten(network.init(jax.random.key(seed)))
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    drawn = [0.7 * jax.random.normal(k, leaf.shape) for k, leaf in zip(keys, leaves, strict=True)]
    return jax.tree.unflatten(structure, drawn)


OPPONENTS = {
    "kuhn": fixed(3.0, 1.0),
    "leduc": fixed(0.0, 1.0, 3.0),  # never folds
    "mini_lost_cities": fixed(0.0, 1.0, 3.0, 0.0, 2.0),
    "mixture": MixturePolicy(
        Network(GAMES["leduc"], SHAPE),
        PolicySpec("strategy"),
        (
            jax.tree.map(
                lambda *leaves: jnp.stack(leaves),
                *(random_params(Network(GAMES["leduc"], SHAPE), seed) for seed in (10, 11, 12)),
            ),
        ),
        jnp.array([1.0, 0.0, 2.0]),
    ),
}


@functools.cache
def play(game, decisions, lanes=7, opponent=None, segments=1):
    """Return the network's policy, the segments' decisions [T, ...] in a row, and the lanes."""
    network = Network(game, SHAPE)
    policy = NetworkPolicy(network, PolicySpec("strategy"), (random_params(network, 1),))
    key = jax.random.key(SEED)
    round_lanes = rollout.begin(game, lanes, key)
    given = []
    for _ in range(segments):
        round_lanes, segment = _collect(
            game,
            network,
            policy.params[0],
            OPPONENTS.get(opponent),
            round_lanes,
            decisions,
            SCALE,
            key,
        )
        given.append(jax.device_get(segment))
    return policy, jax.tree.map(lambda *leaves: np.concatenate(leaves), *given), round_lanes


_collect = jax.jit(
    rollout.collect, static_argnames=("game", "network", "decisions", "utility_scale")
)


@functools.cache
def kuhn_tree():
    return trees.enumerate_game(KuhnPoker())


def plan_of(policy, seat):
    """Return how likely a policy makes each of a seat's sequences in Kuhn poker."""
    probabilities = trees.evaluate_policy(kuhn_tree(), exploitability.as_policy_fn(policy))
    return sequence_form.realization_plan(kuhn_tree().sequence_form.decisions[seat], probabilities)
