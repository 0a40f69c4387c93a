import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coorl_jax import agents
from coorl_jax.games.kuhn_poker import KuhnPoker
from coorl_jax.games.lost_cities import LostCities

GAME = LostCities(colors=2, ranks=4, wagers=1, hand_size=3, max_discard_draws=2)


def test_random_is_uniform_over_legal_actions():
    legal = jnp.array([[True, False, True, True], [False, True, False, False], [False] * 4])
    probabilities = agents.make("random", KuhnPoker()).action_probabilities(
        jnp.zeros((3, KuhnPoker().packed_size), jnp.uint8), legal
    )
    third = np.float32(1) / 3
    np.testing.assert_allclose(probabilities, [[third, 0, third, third], [0, 1, 0, 0], [0] * 4])


def test_random_is_uniform_in_lost_cities_too():
    decide = jax.jit(agents.make("random", GAME).action_probabilities)
    state = GAME.init(jax.random.key(1))
    while not GAME.is_terminal(state):
        legal = GAME.legal_actions(state)
        packed = GAME.information_state(state, GAME.player(state))
        probabilities = decide(packed[None], legal[None])[0]
        np.testing.assert_allclose(probabilities, legal / legal.sum(), rtol=1e-6)
        state = GAME.step(state, jnp.argmax(legal).astype(jnp.int32))


def test_all_bots_of_a_game_are_one_program():
    trees = [jax.tree.structure(agents.make(name, GAME)) for name in agents.names(GAME)]
    assert all(tree == trees[0] for tree in trees)


def test_discard_only_plays_a_whole_round_without_an_expedition():
    decide = jax.jit(agents.make("discard_only", GAME).action_probabilities)
    state = GAME.init(jax.random.key(0))
    actions = []
    while not GAME.is_terminal(state):
        legal = GAME.legal_actions(state)
        packed = GAME.information_state(state, GAME.player(state))
        probabilities = decide(packed[None], legal[None])[0]
        (action,) = np.flatnonzero(probabilities)
        assert probabilities[action] == 1
        assert legal[action]
        actions.append(int(action))
        state = GAME.step(state, jnp.int32(action))
    assert actions == [1, 6] * 4  # 10 cards, 6 of them dealt; discards slot 0, draws the deck
    assert GAME.returns(state).tolist() == [0, 0]


def test_names_are_those_that_play_the_game():
    assert agents.names(KuhnPoker()) == ("random",)
    assert agents.names(GAME) == (
        "random",
        "discard_only",
        "heuristic_balanced",
        "heuristic_aggressive",
        "heuristic_cautious",
        "heuristic_noisy",
    )
    for game in (KuhnPoker(), GAME):
        for name in agents.names(game):
            agents.make(name, game)


def test_older_names_stand_for_the_same_opponents():
    for older, name in (
        ("passive_discard", "discard_only"),
        ("safe_heuristic", "heuristic_balanced"),
        ("safe_heuristic_loose", "heuristic_aggressive"),
        ("safe_heuristic_strict", "heuristic_cautious"),
        ("noisy_safe", "heuristic_noisy"),
        ("random", "random"),
    ):
        assert agents.canonical(older) == name
        assert agents.canonical(name) == name
        made = [agents.make(each, GAME) for each in (older, name)]
        assert jax.tree.structure(made[0]) == jax.tree.structure(made[1])
        assert jax.tree.leaves(made[0]) == jax.tree.leaves(made[1])
    assert agents.canonical("bob") == "bob"


def test_unknown_and_unfit_opponents_are_named():
    known = ", ".join(agents.names(GAME))
    with pytest.raises(ValueError, match=rf"^opponent 'bob': must be one of {known}; e.g. random"):
        agents.make("bob", GAME)
    for name in ("discard_only", "safe_heuristic"):
        with pytest.raises(ValueError, match=rf"^opponent '{name}': plays lost_cities only, not"):
            agents.make(name, KuhnPoker())
