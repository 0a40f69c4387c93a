"""That training learns: Kuhn poker, exactly measured."""

from __future__ import annotations

import pytest
from trainers import PUBLISHED, advance

from configs import kuhn
from coorl_jax import config
from coorl_jax.cfr.iteration import Trainer
from coorl_jax.evaluation import suite
from coorl_jax.evaluation.exploitability import as_policy_fn, nash_conv
from coorl_jax.games import tree as trees


def train_kuhn(iterations, **overrides):
    """Return the game and the policies after some iterations of configs/kuhn.py with changes.

    Uniform play has a NashConv of 0.92.
    """
    base = config.from_config_dict(kuhn.get_config())
    trainer = Trainer(config.override(base, overrides))
    state, _ = advance(trainer, trainer.init(), iterations)
    return trainer.game, trainer.policies(state)


def test_published_deep_cfr_approaches_equilibrium():
    overrides = {
        "advantage.updates": 200,
        "strategy.updates": 200,
        "memory.advantage_capacity": 500_000,
    }
    game, policies = train_kuhn(60, **PUBLISHED, **overrides)
    found = nash_conv(trees.enumerate_game(game), as_policy_fn(policies["average"]))
    assert found.nash_conv < 0.2  # 0.12 is usual.
    assert found.value == pytest.approx(-1 / 18, abs=0.03)


def test_the_shipped_run_and_its_mixture_approach_equilibrium():
    game, policies = train_kuhn(100, **{"mixture.capacity": 100})
    found = suite.nash_convs(game, policies)
    # 0.02 is usual.
    assert found["average"] < 0.06
    assert found["mixture"] < 0.06


@pytest.mark.parametrize(
    "scheme", ["external", "robust", "outcome", "branch", "baseline", "critic"]
)
def test_every_scheme_learns(scheme):
    overrides = {
        "traversal.scheme": scheme,
        # One of two: with both, robust would be external.
        "traversal.branching_actions": 1,
        "memory.value_capacity": 10_000,
    }
    game, policies = train_kuhn(20, **overrides)
    found = suite.nash_convs(game, policies)
    assert found["average"] < 0.4  # 0.06 (external) to 0.18 (outcome) are usual.
