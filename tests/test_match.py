import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coorl_jax import agents
from coorl_jax.cfr.regret_matching import sample_action
from coorl_jax.evaluation import match, suite
from coorl_jax.evaluation.match import play
from coorl_jax.games.kuhn_poker import BET, PASS, KuhnPoker
from coorl_jax.games.lost_cities import LostCities

SMALL = LostCities(colors=2, ranks=4, wagers=1, hand_size=3, max_discard_draws=2)


class Steps(NamedTuple):
    luck: jax.Array  # float32
    player: jax.Array  # int32
    step: jax.Array  # int32
    points: jax.Array  # float32, for player 0


@dataclasses.dataclass(frozen=True)
class Irregular:
    """A game whose players do not take turns: action 1 keeps the move and pays, up to 6 moves."""

    name: str = "irregular"
    num_actions: int = 3
    max_decisions: int = 6
    packed_size: int = 2

    def init(self, key):
        luck = jax.random.uniform(key)
        return Steps(luck, jnp.int32(0), jnp.int32(0), jnp.float32(0))

    def step(self, state, action):
        moved = Steps(
            state.luck,
            jnp.where(action == 1, state.player, 1 - state.player),
            state.step + 1 + (action == 2),
            state.points + state.luck * action * (1 - 2 * state.player),
        )
        ended = self.is_terminal(state)
        return jax.tree.map(lambda old, new: jnp.where(ended, old, new), state, moved)

    def player(self, state):
        return state.player

    def legal_actions(self, state):
        return jnp.broadcast_to(~self.is_terminal(state), 3)

    def is_terminal(self, state):
        return state.step >= 6

    def returns(self, state):
        return jnp.stack([state.points, -state.points])

    def information_state(self, state, player):
        return jnp.stack([state.step, player]).astype(jnp.uint8)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Fixed:
    """Plays every state with the same probabilities."""

    weights: jax.Array  # float32[A]

    def action_probabilities(self, packed, legal):
        weights = legal * self.weights[None]
        total = jnp.sum(weights, axis=1, keepdims=True)
        return weights / jnp.where(total > 0, total, 1)


def fixed(*weights):
    return Fixed(jnp.array(weights, jnp.float32))


def round_by_hand(game, policies, key):
    """Play one round, one decision at a time; `policies` by seat."""
    deal_key, noise_key = jax.random.split(key)
    state = game.init(deal_key)
    actions = []
    while not game.is_terminal(state):
        player = game.player(state)
        packed = game.information_state(state, player)
        probabilities = policies[int(player)].action_probabilities(
            packed[None], game.legal_actions(state)[None]
        )
        noise = jax.random.uniform(jax.random.fold_in(noise_key, len(actions)))
        actions.append(int(sample_action(probabilities, noise[None])[0]))
        state = game.step(state, jnp.int32(actions[-1]))
    return float(game.returns(state)[0]), actions


@pytest.mark.parametrize(
    ("game", "policy_a", "policy_b"),
    [
        (Irregular(), fixed(0.1, 0.8, 0.1), fixed(0.5, 0.1, 0.4)),
        (Irregular(), fixed(0, 1, 0), fixed(0, 1, 0)),
        (KuhnPoker(), fixed(0.3, 0.7), fixed(0.8, 0.2)),
    ],
)
def test_equals_rounds_played_one_by_one(game, policy_a, policy_b):
    key = jax.random.key(5)
    result = play(game, policy_a, policy_b, 8, key, record=True)
    for deal in range(8):
        for seat in (0, 1):
            policies = (policy_a, policy_b) if seat == 0 else (policy_b, policy_a)
            points, actions = round_by_hand(game, policies, jax.random.fold_in(key, deal))
            np.testing.assert_allclose(
                result.points[deal, seat], points if seat == 0 else -points, rtol=1e-6
            )
            assert result.decisions[deal, seat] == len(actions)
            assert result.actions[deal, seat, : len(actions)].tolist() == actions


def test_a_policy_against_itself_is_exactly_even():
    for game, policy in ((SMALL, agents.make("random", SMALL)), (Irregular(), fixed(1, 2, 3))):
        result = play(game, policy, policy, 20, jax.random.key(0))
        np.testing.assert_array_equal(result.points[:, 0], -result.points[:, 1])
        assert np.any(result.points != 0)
        assert result.points_per_round == (0, 0)


def test_kuhn_values_by_hand():
    # Always betting against always passing: the passer folds to every bet, so the bettor wins the
    # ante in every round, as first and as second player.
    bet, fold = fixed(*(np.arange(2) == BET)), fixed(*(np.arange(2) == PASS))
    result = play(KuhnPoker(), bet, fold, 50, jax.random.key(0))
    assert result.points_per_round == (1, 0)
    assert result.win_rate == (1, 0)
    assert result.draw_rate == 0
    assert result.decisions_per_round == 2.5  # bet, fold; or pass, bet, fold
    assert result.rounds == 100


def test_standard_errors_are_those_of_pairs():
    result = match.MatchResult(
        points=np.array([[10.0, -10.0], [20.0, 0.0], [0.0, 30.0]]),
        decisions=np.full((3, 2), 4),
        actions=np.zeros((3, 2, 0), int),
        starts=None,
    )
    mean, error = result.points_per_round
    assert mean == pytest.approx(50 / 6)
    assert error == pytest.approx(np.std([0, 10, 15], ddof=1) / np.sqrt(3))
    assert result.win_rate == (0.5, 0)
    assert result.draw_rate == pytest.approx(1 / 3)


def test_more_pairs_begin_with_the_same_rounds_and_chunks_do_not_matter(monkeypatch):
    policies = agents.make("random", SMALL), agents.make("discard_only", SMALL)
    ten = play(SMALL, *policies, 10, jax.random.key(3), record=True)
    six = play(SMALL, *policies, 6, jax.random.key(3), record=True)
    monkeypatch.setattr(match, "_CHUNK", 4)
    chunked = play(SMALL, *policies, 10, jax.random.key(3), record=True)
    for field in ("points", "decisions", "actions"):
        np.testing.assert_array_equal(getattr(six, field), getattr(ten, field)[:6])
        np.testing.assert_array_equal(getattr(chunked, field), getattr(ten, field))
    np.testing.assert_array_equal(chunked.starts.deck, ten.starts.deck)
    assert len({tuple(deck) for deck in ten.starts.deck.tolist()}) == 10


def test_random_loses_to_doing_nothing():
    game = LostCities()
    policies = {"random": agents.make("random", game)}
    (row,) = suite.evaluate(game, policies, ["discard_only"], 40, seed=0)
    assert row["policy"] == "random"
    assert row["opponent"] == "discard_only"
    assert row["rounds"] == 80
    assert row["points_per_round"] < -20
    assert 0 < row["points_per_round_se"] < 10
    assert row["win_rate"] < 0.2
    assert set(row) == {
        "policy", "opponent", "rounds", "points_per_round", "points_per_round_se", "win_rate",
        "win_rate_se", "draw_rate", "decisions_per_round", "elapsed_seconds",
    }  # fmt: skip


def test_suite_plays_all_on_the_same_decks_and_depends_on_the_seed():
    policies = {"a": agents.make("random", SMALL), "b": agents.make("discard_only", SMALL)}

    def decks(seed):
        results = suite.matches(SMALL, policies, ["random", "discard_only"], 4, seed)
        return [result.starts.deck.tolist() for _, result in results]

    first = decks(0)
    assert len(first) == 4
    assert all(deck == first[0] for deck in first)
    assert decks(1)[0] != first[0]


def test_unknown_opponent_is_refused_before_any_match():
    with pytest.raises(ValueError, match="opponent 'bob'"):
        suite.evaluate(SMALL, {"a": agents.make("random", SMALL)}, ["random", "bob"], 4, 0)


def test_one_pair_has_no_standard_error():
    policy = agents.make("random", SMALL)
    with pytest.raises(ValueError, match="pairs=1: must be at least 2"):
        play(SMALL, policy, policy, 1, jax.random.key(0))
