"""Variations of Deep CFR in the trainer: bootstrapping, value networks, turns, mixtures."""

from __future__ import annotations

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from trainers import READS_VALUES, SETTINGS, advance, differ, rows_of, run, seats_of, spy_on_fits

from coorl_jax import config
from coorl_jax.cfr import mixture, reservoir
from coorl_jax.cfr.iteration import STAGES, Trainer
from coorl_jax.games.kuhn_poker import KuhnPoker

# Bootstrapped advantages.


def test_bootstrapped_advantages_keep_the_samples_of_one_iteration():
    state, lines = run(SETTINGS["mixture"], 3)
    (memory,) = state.memories.advantage
    assert reservoir.num_seen(memory) == lines[-1]["traversal/advantage_samples"]
    assert set(np.asarray(rows_of(memory).iteration).tolist()) == {3}
    assert set(np.asarray(rows_of(state.memories.strategy[0]).iteration).tolist()) == {1, 2, 3}


@pytest.mark.parametrize(
    ("overrides", "step"),
    [
        ({"advantage.weighting": "uniform"}, 1 / 3),
        ({"advantage.weighting": "linear"}, 2 / 4),
        ({"advantage.weighting": "linear", "advantage.min_step": 0.75}, 0.75),
        ({"advantage.weighting": "discounted", "advantage.discount": 3.0}, 4 / 6),
        ({"advantage.weighting": "linear", "advantage.keep_negative": True}, 2 / 4),
    ],
)
def test_the_step_of_bootstrapped_advantages_is_that_of_the_settings(monkeypatch, overrides, step):
    """In iteration 3, and the samples of that one iteration all have weight 1."""
    trainer = Trainer(config.override(SETTINGS["mixture"], overrides))
    state = trainer.init()._replace(
        iteration=jnp.int32(2), stage=jnp.int32(STAGES.index("fit_advantage"))
    )
    given = spy_on_fits(monkeypatch)
    trainer.run_stage(state)
    ((_, spec, found),) = given
    assert (spec.exponent, found) == (0.0, pytest.approx(step))
    assert spec.keep_negative == overrides.get("advantage.keep_negative", False)


# The value network.


@pytest.mark.parametrize("scheme", READS_VALUES)
def test_the_value_memory_holds_the_samples_of_one_iteration(scheme):
    settings = SETTINGS[scheme]
    state, lines = run(settings, 3)
    (memory,) = state.memories.value
    for line in lines:
        # A walk from the deal to the end of a round of Kuhn poker has two or three decisions.
        assert 2 * 16 <= line["traversal/value_samples"] <= 3 * 16
        assert line["loss/value"] > 0
        assert line["precision/nonfinite_steps"] == 0
        assert line["value_train_seconds"] > 0
    assert reservoir.num_seen(memory) == lines[-1]["traversal/value_samples"]
    rows = rows_of(memory)
    assert set(np.asarray(rows.iteration).tolist()) == {3}
    assert rows.target.shape == (len(rows.iteration), 1)
    assert rows.packed.shape[1] == KuhnPoker().whole_size


@pytest.mark.parametrize("name", SETTINGS)
def test_what_is_saved_for_play_has_the_value_network_if_there_is_one(name):
    trainer = Trainer(SETTINGS[name])
    state = trainer.init()
    parameters = trainer.policy_parameters(state)
    assert ("value" in parameters) == (name in READS_VALUES)
    if "value" in parameters:
        (params,) = parameters["value"]
        chex.assert_trees_all_equal(params, state.value.params[0])
        # It plays no game itself.
        assert trainer.policies(state).keys() == {"current", "average"}


def test_schemes_without_a_value_network_say_nothing_of_values():
    state, (line,) = run(SETTINGS["kuhn"], 1)
    assert not [name for name in line if "value" in name]
    assert not jax.tree.leaves((state.value, state.memories.value))


# Players who take turns.


def test_players_who_take_turns_change_one_network_at_a_time(monkeypatch):
    trainer = Trainer(SETTINGS["critic"])
    state, given = trainer.init(), spy_on_fits(monkeypatch)
    for turn in (0, 1, 0, 1):
        before = state.advantage
        state, (line,) = advance(trainer, state)
        assert line["traversal/traversals"] == trainer.settings.traversal.traversals
        for part in ("params", "opt_state"):
            pairs = zip(getattr(before, part), getattr(state.advantage, part), strict=True)
            assert [differ(*pair) for pair in pairs] == [turn == 0, turn == 1]
        # Samples of the traverser's regrets alone, and of what the opponent plays.
        memories = state.memories.advantage
        assert reservoir.size(memories[1 - turn]) == 0
        assert set(seats_of(trainer, memories[turn])) == {turn}
        strategy = rows_of(state.memories.strategy[turn]).iteration
        assert int(state.iteration) not in np.asarray(strategy)
        strategy = rows_of(state.memories.strategy[1 - turn]).iteration
        assert int(state.iteration) in np.asarray(strategy)
    # Advantages have been updated as often as it was their player's turn.
    steps = [step for name, _, step in given if name == "advantage"]
    assert steps == pytest.approx([1, 1, 1 / 2, 1 / 2])


def test_players_who_take_turns_can_share_a_network():
    trainer = Trainer(SETTINGS["baseline"])
    state = trainer.init()
    for _ in range(3):
        before = state.advantage.params
        state, _ = advance(trainer, state)
        assert differ(before, state.advantage.params)
    (memory,) = state.memories.advantage
    iterations = np.asarray(rows_of(memory).iteration)
    assert set(iterations) == {1, 2, 3}
    np.testing.assert_array_equal(seats_of(trainer, memory), (iterations - 1) % 2)


# Mixtures.


@pytest.mark.parametrize("capacity", [2, 8])
@pytest.mark.parametrize("per_player", [False, True])
def test_a_mixture_keeps_the_policies_that_traversals_followed(capacity, per_player):
    overrides = {"mixture.capacity": capacity, "network.per_player": per_player}
    settings = config.override(SETTINGS["mixture"], overrides)
    trainer = Trainer(settings)
    state, followed = trainer.init(), {}
    for t in range(1, 6):
        followed[t] = jax.device_get(state.advantage.params)
        state, _ = advance(trainer, state)
    # The network fitted last has been followed by no traversal yet.
    kept = np.asarray(state.mixture.rows.iteration)
    assert set(kept[kept > 0]) <= {1, 2, 3, 4, 5}
    assert len(set(kept[kept > 0])) == (kept > 0).sum() == min(capacity, 5)
    policy = trainer.policies(state)["mixture"]
    for slot, t in enumerate(kept):
        if t:
            chex.assert_trees_all_equal(jax.device_get(policy.member(slot).params), followed[t])
    # Discounted by default: t^2.
    np.testing.assert_allclose(policy.weights, kept**2 / np.sum(kept**2), rtol=1e-6)


def test_a_mixture_with_too_few_slots_is_a_uniform_sample_of_the_iterations():
    params = ({"w": jnp.zeros(2)},)
    counts = np.zeros(9)
    for seed in range(200):
        kept = mixture.create(params, 3)
        for t in range(1, 10):
            moved = ({"w": jnp.full(2, float(t))},)
            kept = mixture.insert(
                kept, moved, jnp.int32(t), jax.random.fold_in(jax.random.key(seed), t)
            )
        np.testing.assert_array_equal(kept.rows.params[0]["w"][:, 0], kept.rows.iteration)
        counts[np.asarray(kept.rows.iteration) - 1] += 1
    # Each of nine is kept with probability 1/3, 67 times of 200 give or take 6.7.
    np.testing.assert_allclose(counts, 200 / 3, atol=4 * 6.7)
