"""Exhaustive trees: Kuhn poker by hand, Lost Cities against a recursion."""

from __future__ import annotations

import collections
import itertools

import game_checks
import jax
import numpy as np
import pytest
from policies import uneven, uniform

from coorl_jax.games import tree
from coorl_jax.games.kuhn_poker import KuhnPoker
from coorl_jax.games.lost_cities import LostCities

KUHN = KuhnPoker()
TINY = LostCities(
    colors=2, ranks=2, min_rank=1, wagers=0, hand_size=1, expedition_penalty=-1,
    bonus_threshold=2, bonus_amount=3, max_discard_draws=1,
)  # fmt: skip

# Histories of Kuhn poker in the packed state (own card, history, seat).
START, PASS, BET, PASS_BET = 0, 1, 2, 4


@pytest.fixture(scope="module")
def kuhn():
    return tree.enumerate_game(KUHN)


@pytest.fixture(scope="module")
def tiny():
    return tree.enumerate_game(TINY)


def kuhn_policy(bets):
    """Return the policy that bets with the given probabilities, by (card, history), else never."""

    def policy(packed, legal):
        bet = np.array([bets.get((card, history), 0.0) for card, history, _ in packed.tolist()])
        return np.stack([1 - bet, bet], axis=1)

    return policy


def rows(kuhn):
    return {(card, history): i for i, (card, history, _) in enumerate(kuhn.packed.tolist())}


def test_kuhn_is_a_game():
    game_checks.check_game(KUHN)


def test_shape_of_kuhn_poker(kuhn):
    """Six deals; p, b; pp, pb, bp, bb; pbp, pbb. Of these pp, bp, bb, pbp and pbb end."""
    assert [len(level.parent) for level in kuhn.levels] == [6, 12, 24, 12]
    ends = [int((level.information_state < 0).sum()) for level in kuhn.levels]
    assert ends == [0, 0, 18, 12]
    assert sorted(rows(kuhn)) == sorted(
        (card, history) for card in range(3) for history in (START, PASS, BET, PASS_BET)
    )
    for level in kuhn.levels:
        assert set(level.chance) == {1 / 6}
    assert sorted(kuhn.levels[3].returns) == [-2] * 3 + [-1] * 6 + [2] * 3


def test_uniform_kuhn_poker_is_worth_an_eighth(kuhn):
    """Showdowns cancel over the deals: P(bet, pass) - P(pass, bet, pass) = 1/4 - 1/8."""
    assert tree.advantages(kuhn, uniform).value == pytest.approx(1 / 8, abs=1e-15)


@pytest.mark.parametrize("alpha", [0, 0.1, 1 / 3])
def test_equilibria_of_kuhn_poker(kuhn, alpha):
    """The family of Kuhn (1950): player 0 loses 1/18, and no action has a positive advantage."""
    policy = kuhn_policy(
        {
            (0, START): alpha,
            (2, START): 3 * alpha,
            (1, PASS_BET): alpha + 1 / 3,
            (2, PASS_BET): 1,
            (0, PASS): 1 / 3,
            (2, PASS): 1,
            (1, BET): 1 / 3,
            (2, BET): 1,
        }
    )
    found = tree.advantages(kuhn, policy)
    assert found.value == pytest.approx(-1 / 18, abs=1e-15)
    assert found.advantage.max() < 1e-12


def test_uniform_advantages_of_kuhn_poker(kuhn):
    """By hand, with the opponent's two possible cards equally likely.

    The queen (card 1) facing a bet: fold -1, call (2 - 2) / 2 = 0. The jack facing a bet: fold
    -1, call -2. The king at the start: pass leads to a pass (+1) or a bet, then fold (-1) or
    call (+2), so (1 + 0.5) / 2 = 0.75; a bet wins 1 or 2, so 1.5.
    """
    found = tree.advantages(kuhn, uniform)
    at = rows(kuhn)
    for state, of_pass, of_bet in (
        ((1, BET), -1, 0),
        ((0, BET), -1, -2),
        ((2, PASS_BET), -1, 2),
        ((2, START), 0.75, 1.5),
        # The jack passes: -1, or after a bet -1.5. It bets: +1 or -2.
        ((0, START), -1.25, -0.5),
        # The queen after a pass: pass +-1 cancels; a bet wins 1, or +-2 cancels.
        ((1, PASS), 0, 0.5),
    ):
        mean = (of_pass + of_bet) / 2
        np.testing.assert_allclose(
            found.advantage[at[state]], [of_pass - mean, of_bet - mean], atol=1e-12
        )
    # Of the six deals, two have this card; then the opponent's decisions.
    for (_, history), i in at.items():
        expected = 1 / 3 if history == START else 1 / 6
        assert found.reach[i] == pytest.approx(expected)


def test_unreached_information_states_have_no_advantage(kuhn):
    found = tree.advantages(kuhn, kuhn_policy({}))
    at = rows(kuhn)
    assert found.reach[at[1, BET]] == 0
    np.testing.assert_array_equal(found.advantage[at[1, BET]], 0)
    # Player 0 itself never passes into a bet here, which is no matter of its own reach.
    assert found.reach[at[1, START]] > 0


def brute_force(game, packed_rows, policy):
    """Walk the game one history at a time; return value, advantages by packed state, reach."""
    step, look = jax.jit(game.step), jax.jit(game.legal_actions)
    total = collections.defaultdict(lambda: np.zeros(game.num_actions))
    reach = collections.defaultdict(float)

    def walk(state, weights):
        """Return player 0's value; `weights` are chance times each player's own probability."""
        if game.is_terminal(state):
            return float(game.returns(state)[0])
        player = int(game.player(state))
        key = np.asarray(game.information_state(state, np.int32(player))).tobytes()
        sigma = policy[packed_rows[key]]
        values = np.zeros(game.num_actions)
        legal = np.flatnonzero(look(state))
        for action in legal:
            below = weights.copy()
            below[player] *= sigma[action]
            values[action] = walk(step(state, np.int32(action)), below)
        mean = sigma @ values
        others = weights[1 - player] * weights[2]
        total[key][legal] += others * (values[legal] - mean) * (1 if player == 0 else -1)
        reach[key] += others
        return mean

    deals, probabilities = game.enumerate_deals()
    value = sum(
        probability
        * walk(jax.tree.map(lambda leaf, i=i: leaf[i], deals), np.array([1, 1, probability]))
        for i, probability in enumerate(probabilities)
    )
    return value, total, reach


def test_advantages_equal_a_recursion(kuhn, tiny):
    for game, of in ((KUHN, kuhn), (TINY, tiny)):
        policy = tree.evaluate_policy(of, uneven)
        found = tree.advantages(of, uneven)
        index = {packed.tobytes(): i for i, packed in enumerate(of.packed)}
        value, total, reach = brute_force(game, index, policy)
        assert set(total) == set(index)
        assert found.value == pytest.approx(value, abs=1e-12)
        for key, i in index.items():
            assert found.reach[i] == pytest.approx(reach[key], abs=1e-12)
            expected = total[key] / reach[key] if reach[key] else np.zeros(game.num_actions)
            np.testing.assert_allclose(found.advantage[i], expected, atol=1e-9)
        assert np.abs(found.advantage).max() > 0.1
        # The policy's own mean advantage is zero wherever it matters.
        np.testing.assert_allclose((policy * found.advantage).sum(axis=1), 0, atol=1e-9)


def test_tree_is_consistent(tiny):
    deals = len(tiny.levels[0].parent)
    assert deals == 24
    assert tiny.levels[0].chance.sum() == pytest.approx(1)
    for above, level in zip(tiny.levels, tiny.levels[1:], strict=False):
        state = above.information_state[level.parent]
        assert (state >= 0).all()
        assert tiny.legal[state, level.action].all()
        children = np.bincount(level.parent, minlength=len(above.parent))
        inner = above.information_state >= 0
        np.testing.assert_array_equal(
            children, np.where(inner, tiny.legal[above.information_state].sum(axis=1), 0)
        )
        np.testing.assert_array_equal(level.chance, above.chance[level.parent])
        np.testing.assert_array_equal(
            above.player[inner], tiny.player[above.information_state[inner]]
        )
    assert (tiny.levels[-1].information_state < 0).all()
    assert len(np.unique(tiny.packed, axis=0)) == len(tiny.packed)


def test_chunks_do_not_matter(tiny, monkeypatch):
    monkeypatch.setattr(tree, "_CHUNKS", (16, 64))
    jax.tree.map(np.testing.assert_array_equal, tree.enumerate_game(TINY), tiny)


def test_large_games_are_refused():
    with pytest.raises(ValueError, match="more than 500 histories"):
        tree.enumerate_game(TINY, max_histories=500)
    for rules in (LostCities(), LostCities(colors=2, ranks=5, wagers=0, hand_size=2)):
        with pytest.raises(ValueError, match=r"hand_size=.*more than 50,000 deals"):
            tree.enumerate_game(rules)


def test_deals_of_lost_cities_are_distinct_and_complete():
    """Every deck is one of the deals after its hands are sorted, all equally often."""
    rules = LostCities(colors=2, ranks=3, wagers=0, hand_size=2)
    deals, probabilities = rules.enumerate_deals()

    def seen(states):
        dealt = (states.location, states.hands, states.deck[:, 2 * rules.hand_size :])
        return list(map(tuple, np.concatenate([leaf.reshape(len(leaf), -1) for leaf in dealt], 1)))

    assert len(probabilities) == len(set(seen(deals))) == 720 // (2 * 2)
    np.testing.assert_array_equal(probabilities, 1 / 180)
    decks = np.array([*itertools.permutations(range(rules.num_cards))], np.uint8)
    shuffled = collections.Counter(seen(jax.vmap(rules.from_deck)(decks)))
    assert shuffled == dict.fromkeys(seen(deals), 4)


def test_ambiguous_information_states_are_refused():
    class Forgetful(KuhnPoker):
        def information_state(self, state, player):
            return super().information_state(state, player).at[2].set(0).at[1].set(0)

    with pytest.raises(ValueError, match="two of its histories differ"):
        tree.enumerate_game(Forgetful())


@pytest.mark.parametrize(
    "policy",
    [
        lambda packed, legal: legal * 0.4,
        lambda packed, legal: np.where([True, False], 1.5, -0.5) * np.ones_like(legal, float),
        lambda packed, legal: legal * np.nan,
        lambda packed, legal: np.ones(len(legal)),
    ],
)
def test_policies_must_be_distributions(kuhn, policy):
    with pytest.raises(ValueError, match="policy_fn"):
        tree.advantages(kuhn, policy)


def test_policies_must_keep_to_legal_actions(tiny):
    with pytest.raises(ValueError, match="must be a distribution over actions"):
        tree.advantages(tiny, lambda packed, legal: np.full(legal.shape, 1 / legal.shape[1]))


@pytest.mark.parametrize("width", [1, 8, 13])
def test_rows_are_numbered_as_numpy_does(width):
    rng = np.random.default_rng(width)
    rows = rng.choice(np.array([0, 1, 128, 255], np.uint8), size=(200, width))
    rows = rows[rng.integers(len(rows), size=1000)]
    _, first, numbers = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    found = tree._unique_rows(rows)
    np.testing.assert_array_equal(found[0], first)
    np.testing.assert_array_equal(found[1], numbers.reshape(-1))
