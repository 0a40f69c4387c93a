import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from policies import fixed

from coorl_jax import agents
from coorl_jax.agents.uniform import Uniform
from coorl_jax.cfr.regret_matching import sample_action
from coorl_jax.evaluation import lockstep, match, suite
from coorl_jax.evaluation.match import play
from coorl_jax.games.kuhn_poker import BET, PASS, KuhnPoker
from coorl_jax.games.lost_cities import LostCities
from coorl_jax.networks import Network, NetworkSpec
from coorl_jax.policy import MixturePolicy, NetworkPolicy, PolicySpec

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


def mixture_of_kuhn(*logits, weights):
    """A mixture of policies for Kuhn poker: each bets with one logit, whatever it knows."""
    network = Network(KuhnPoker(), NetworkSpec("mlp", width=2, depth=1))
    zeros = jax.tree.map(jnp.zeros_like, network.init(jax.random.key(0)))

    def member(logit):
        # The bias of the last layer is the only leaf with one number per action alone.
        def leaf(path, zero):
            is_output = "Dense_1" in str(path) and zero.ndim == 1
            return zero.at[BET].set(logit) if is_output else zero

        return jax.tree_util.tree_map_with_path(leaf, zeros)

    params = jax.tree.map(lambda *leaves: jnp.stack(leaves), *map(member, logits))
    return MixturePolicy(network, PolicySpec("strategy"), (params,), jnp.array(weights))


ALWAYS = 100.0  # logit
# In SMALL, discards its first card and draws from the deck.
DISCARDS = fixed(0, 1, 0, 0, 0, 0, 1, 0, 0)


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
            assert result.recording.actions[deal, seat, : len(actions)].tolist() == actions


def test_a_policy_against_itself_is_exactly_even():
    mixture = mixture_of_kuhn(1.0, -2.0, weights=[0.5, 0.5])
    for game, policy in (
        (SMALL, Uniform()),
        (Irregular(), fixed(1, 2, 3)),
        (KuhnPoker(), mixture),
    ):
        result = play(game, policy, policy, 20, jax.random.key(0))
        np.testing.assert_array_equal(result.points[:, 0], -result.points[:, 1])
        assert np.any(result.points != 0)
        assert result.points_per_round == (0, 0)


def test_swapping_the_policies_negates_every_number_exactly(monkeypatch):
    monkeypatch.setattr(match, "_GROUP", 2)
    one = mixture_of_kuhn(1.0, -2.0, 0.3, weights=[0.5, 0.2, 0.3])
    other = mixture_of_kuhn(-1.0, 0.5, weights=[0.5, 0.5])
    for game, a, b in (
        (SMALL, Uniform(), DISCARDS),
        (Irregular(), fixed(0.1, 0.8, 0.1), fixed(0.5, 0.1, 0.4)),
        (KuhnPoker(), one, other),
        (KuhnPoker(), one, fixed(0.5, 0.5)),
    ):
        there = play(game, a, b, 50, jax.random.key(4), record=True)
        back = play(game, b, a, 50, jax.random.key(4), record=True)
        np.testing.assert_array_equal(there.points, -back.points[:, ::-1])
        np.testing.assert_array_equal(there.decisions, back.decisions[:, ::-1])
        np.testing.assert_array_equal(there.recording.actions, back.recording.actions[:, ::-1])
        np.testing.assert_array_equal(
            there.recording.entropy, back.recording.entropy[:, ::-1, ::-1]
        )
        mean, error = there.points_per_round
        assert back.points_per_round == (-mean, error)
        assert there.win_rate == back.loss_rate
        assert there.loss_rate == back.win_rate
        assert mean != 0


def test_entropies_and_fallbacks_are_those_of_each_policys_decisions():
    unsure, sure = fixed(0.5, 0.5), fixed(*(np.arange(2) == PASS))
    result = play(KuhnPoker(), unsure, sure, 40, jax.random.key(0), record=True)
    # The unsure policy decides once in a round, since the other one never bets: log 2 nats.
    np.testing.assert_allclose(result.recording.entropy[..., 0], np.log(2), rtol=1e-6)
    assert (result.recording.entropy[..., 1] == 0).all()
    assert (result.recording.fallbacks == 0).all()

    game = dataclasses.replace(SMALL, max_discard_draws=1)
    network = Network(game, NetworkSpec("mlp", width=4, depth=1))
    params = jax.tree.map(jnp.zeros_like, network.init(jax.random.key(0)))
    lost = NetworkPolicy(network, PolicySpec("advantage"), (params,))
    result = play(game, Uniform(), lost, 8, jax.random.key(0), record=True)
    # No advantage of zero is positive. Turns are two decisions long, and of an odd number of turns
    # the first player has one more: policy b in column 1.
    turns = result.decisions // 2
    fallbacks = 2 * np.stack([turns[:, 0] // 2, (turns[:, 1] + 1) // 2], axis=1)
    np.testing.assert_array_equal(result.recording.fallbacks[..., 1], fallbacks)
    assert (result.recording.fallbacks[..., 0] == 0).all()
    assert set(turns.ravel() % 2) == {0, 1}


def test_narrow_batches_towards_the_end_and_chunks_in_turn_change_nothing(monkeypatch):
    game = KuhnPoker()
    mixture = mixture_of_kuhn(1.0, -2.0, 0.3, weights=[0.5, 0.2, 0.3])
    for a, b in (
        (mixture.member(0), mixture.member(1)),
        (mixture, mixture.member(2)),
        (mixture.member(0), Uniform()),
    ):
        # 75 pairs are two chunks of 64 pairs on a CPU, the second one mostly empty.
        narrow = play(game, a, b, 75, jax.random.key(8), record=True)
        in_turn = play(game, a, b, 75, jax.random.key(8), record=True, one_by_one=True)
        with monkeypatch.context() as patch:
            patch.setattr(lockstep, "_NARROWEST", 10**9)
            jax.clear_caches()  # The constant is no argument of the program.
            wide = play(game, a, b, 75, jax.random.key(8), record=True)
        jax.clear_caches()
        for other in (in_turn, wide):
            np.testing.assert_array_equal(other.points, narrow.points)
            np.testing.assert_array_equal(other.recording.actions, narrow.recording.actions)
            np.testing.assert_allclose(
                other.recording.entropy, narrow.recording.entropy, rtol=1e-5, atol=1e-6
            )


def test_final_states_are_those_that_the_actions_lead_to():
    policies = Uniform(), DISCARDS
    recorded = play(SMALL, *policies, 3, jax.random.key(3), record=True).recording
    for deal in range(3):
        for column in (0, 1):
            state = jax.tree.map(lambda leaf, deal=deal: leaf[deal], recorded.starts)
            for action in recorded.actions[deal, column]:
                state = SMALL.step(state, jnp.int32(action))
            jax.tree.map(
                lambda leaf, final, at=(deal, column): np.testing.assert_array_equal(
                    leaf, final[at]
                ),
                state,
                recorded.finals,
            )


def test_kuhn_values_by_hand():
    # Always betting against always passing: the passer folds to every bet, so the bettor wins the
    # ante in every round, as first and as second player.
    bet, fold = fixed(*(np.arange(2) == BET)), fixed(*(np.arange(2) == PASS))
    result = play(KuhnPoker(), bet, fold, 50, jax.random.key(0))
    assert result.points_per_round == (1, 0)
    assert result.win_rate == (1, 0)
    assert result.draw_rate == (0, 0)
    assert result.loss_rate == (0, 0)
    assert result.decisions_per_round == 2.5  # bet, fold; or pass, bet, fold
    assert result.rounds == 100


def test_standard_errors_are_those_of_pairs():
    result = match.MatchResult(
        points=np.array([[10.0, -10.0], [20.0, 0.0], [0.0, 30.0]]),
        decisions=np.full((3, 2), 4),
    )
    mean, error = result.points_per_round
    assert mean == pytest.approx(50 / 6)
    assert error == pytest.approx(np.std([0, 10, 15], ddof=1) / np.sqrt(3))
    assert result.win_rate == (0.5, 0)
    assert result.draw_rate == pytest.approx((1 / 3, 1 / 6))
    assert result.loss_rate == pytest.approx((1 / 6, 1 / 6))


def test_standard_errors_are_those_of_groups_where_pairs_share_a_draw():
    result = match.MatchResult(
        points=np.array([[10.0, -10.0], [20.0, 0.0], [0.0, 30.0], [5.0, 5.0], [1.0, 3.0]]),
        decisions=np.full((5, 2), 4),
        group=2,
    )
    mean, error = result.points_per_round
    assert mean == pytest.approx(32 / 5)
    # Pairs 0, 10, 15, 5, 2: groups (0, 10), (15, 5) and (2).
    deviations = [10 - 2 * 6.4, 20 - 2 * 6.4, 2 - 6.4]
    assert error == pytest.approx(np.sqrt(np.square(deviations).sum() * 3 / 2) / 5)


def test_each_group_plays_with_a_member_drawn_by_its_weight(monkeypatch):
    monkeypatch.setattr(match, "_GROUP", 2)
    mixture = mixture_of_kuhn(ALWAYS, -ALWAYS, weights=[0.25, 0.75])
    fold = fixed(*(np.arange(2) == PASS))
    result = play(KuhnPoker(), mixture, fold, 1600, jax.random.key(1), record=True)
    # A bettor's first action, in either seat, is a bet; policy a is second to move in column 1.
    bets = (
        np.stack([result.recording.actions[:, 0, 0], result.recording.actions[:, 1, 1]], axis=1)
        == BET
    )
    groups = bets.reshape(-1, 2, 2)  # group, pair, seat
    assert (groups == groups[:, :1]).all()
    share = groups[:, 0].mean()
    assert share == pytest.approx(0.25, abs=4 * np.sqrt(0.1875 / 1600))
    assert (result.points[bets] == 1).all()
    mean, error = result.points_per_round
    by_group = result.points.reshape(800, 4).mean(axis=1)
    assert mean == pytest.approx(by_group.mean())
    assert error == pytest.approx(by_group.std(ddof=1) / np.sqrt(800), rel=1e-6)


def test_two_players_draw_from_a_mixture_independently(monkeypatch):
    monkeypatch.setattr(match, "_GROUP", 1)
    mixture = mixture_of_kuhn(ALWAYS, -ALWAYS, weights=[0.5, 0.5])
    result = play(KuhnPoker(), mixture, mixture, 1600, jax.random.key(2), record=True)
    # Both decide at least once, and who always bets also calls.
    a_bets, b_bets = (result.recording.actions[:, 0, n] == BET for n in (0, 1))
    for a in (True, False):
        for b in (True, False):
            share = np.mean((a_bets == a) & (b_bets == b))
            assert share == pytest.approx(0.25, abs=4 * np.sqrt(0.1875 / 1600))


def test_a_mixture_plays_like_its_members_in_lockstep(monkeypatch):
    monkeypatch.setattr(match, "_GROUP", 2)
    monkeypatch.setattr(match, "_LANES", 16)
    mixture = mixture_of_kuhn(2.0, -2.0, weights=[0.5, 0.5])
    other = fixed(0.4, 0.6)
    key = jax.random.key(7)
    found = play(KuhnPoker(), mixture, other, 20, key, record=True)
    members = [play(KuhnPoker(), mixture.member(n), other, 20, key, record=True) for n in (0, 1)]
    same = np.stack(
        [(found.recording.actions == one.recording.actions).all(axis=2) for one in members]
    )
    by_group_and_seat = same.reshape(2, 10, 2, 2).all(axis=2)
    assert by_group_and_seat.any(axis=0).all()
    assert not by_group_and_seat.all(axis=(1, 2)).any()
    np.testing.assert_array_equal(found.recording.starts.cards, members[0].recording.starts.cards)
    assert found.group == 2
    few = play(KuhnPoker(), mixture, other, 10, key, record=True)
    np.testing.assert_array_equal(few.recording.actions, found.recording.actions[:10])


def test_nash_conv_of_a_mixture_is_not_that_of_the_mean():
    mixture = mixture_of_kuhn(ALWAYS, -ALWAYS, 3.0, weights=[0.5, 0.5, 0.0])
    found = suite.nash_convs(
        KuhnPoker(), {"mixture": mixture, "half": fixed(0.5, 0.5), "bet": mixture.member(0)}
    )
    # The first player bets and is called by half of the opponents: -1/2, 1/2, 3/2 with the cards
    # 0, 1, 2. The second one sees with whom it has to do: it wins 1 by betting against who
    # passes, and by calling or folding -1, 0, 2 against who bets.
    assert found["mixture"] == pytest.approx(1 / 2 + (1 + 1 / 3) / 2)
    # Of the two policies mixed decision by decision neither player learns anything.
    assert found["half"] == pytest.approx(11 / 12)
    # Who always bets is called by the cards 1 and 2.
    assert found["bet"] == pytest.approx(2 / 3)


def test_more_pairs_begin_with_the_same_rounds_and_neither_chunks_nor_lanes_matter(monkeypatch):
    policies = Uniform(), DISCARDS
    ten = play(SMALL, *policies, 10, jax.random.key(3), record=True)
    six = play(SMALL, *policies, 6, jax.random.key(3), record=True)
    with monkeypatch.context() as patch:
        patch.setattr(match, "_CHUNK", 4)
        chunked = play(SMALL, *policies, 10, jax.random.key(3), record=True)
    monkeypatch.setattr(match, "_LANES", 4)
    few_lanes = play(SMALL, *policies, 10, jax.random.key(3), record=True)
    everything = jax.tree.leaves((ten.points, ten.decisions, vars(ten.recording)))
    for result, deals in ((six, 6), (chunked, 10), (few_lanes, 10)):
        found = jax.tree.leaves((result.points, result.decisions, vars(result.recording)))
        for leaf, expected in zip(found, everything, strict=True):
            np.testing.assert_array_equal(leaf, expected[:deals])
    assert len({tuple(deck) for deck in ten.recording.starts.deck.tolist()}) == 10


def test_random_loses_to_doing_nothing():
    game = LostCities()
    policies = {"random": agents.make("random", game)}
    opponents = {"discard_only": agents.make("discard_only", game)}
    (row,) = suite.evaluate(game, policies, opponents, 40, seed=0)
    assert row["policy"] == "random"
    assert row["opponent"] == "discard_only"
    assert row["rounds"] == 80
    assert row["points_per_round"] < -20
    assert 0 < row["points_per_round_se"] < 10
    assert row["win_rate"] < 0.2
    assert set(row) == {
        "policy", "opponent", "rounds", "points_per_round", "points_per_round_se", "win_rate",
        "win_rate_se", "draw_rate", "draw_rate_se", "loss_rate", "loss_rate_se",
        "decisions_per_round", "match_points", "match_points_se", "match_win_rate",
        "match_win_rate_se", "match_draw_rate", "match_loss_rate", "elapsed_seconds",
    }  # fmt: skip


def test_suite_plays_all_on_the_same_decks_and_depends_on_the_seed():
    policies = {"random": Uniform(), "discards": DISCARDS}

    def decks(seed):
        results = suite.matches(SMALL, policies, policies, 4, seed, record=True)
        return [result.recording.starts.deck.tolist() for _, result in results]

    first = decks(0)
    assert len(first) == 4
    assert all(deck == first[0] for deck in first)
    assert decks(1)[0] != first[0]


def test_one_pair_has_no_standard_error():
    policy = Uniform()
    with pytest.raises(ValueError, match="pairs=1: must be at least 2"):
        play(SMALL, policy, policy, 1, jax.random.key(0))
