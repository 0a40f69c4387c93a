"""Diagnostics of a match: two deals of four rounds by hand, and what holds for any match."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest
from policies import fixed

from coorl_jax.agents.uniform import Uniform
from coorl_jax.evaluation.diagnostics import diagnose, matches_of_three
from coorl_jax.evaluation.match import MatchResult, Recording, play
from coorl_jax.games.lost_cities import LostCities

# Cards 0 to 4 are the wager and the faces 2, 3, 4, 5 of the first colour, 5 to 9 those of the
# second. An expedition costs 5 points and has its bonus of 20 from 3 cards on; four cards are left
# in the deck after the deal, and two may be drawn from piles.
GAME = LostCities(
    colors=2, ranks=4, min_rank=2, wagers=1, hand_size=3,
    expedition_penalty=-5, bonus_threshold=3, bonus_amount=20, max_discard_draws=2,
)  # fmt: skip


def play_slot(slot):
    return 2 * slot


def discard_slot(slot):
    return 2 * slot + 1


DRAW_DECK = 6
TAKE_PILE_0 = 7

# Who is dealt what: cards go to the seats in turn.
DECKS = [
    [0, 5, 1, 9, 4, 2, 3, 6, 7, 8],  # seat 0 holds 0, 1, 4, seat 1 holds 2, 5, 9
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9],  # seat 0 holds 0, 2, 4, seat 1 holds 1, 3, 5
]

# ROUNDS[deal][column], turn by turn; policy a has seat 0 in column 0 and seat 1 in column 1.
ROUNDS = [
    [
        # Ends with 0, 1, 2 (a wager, faces 2, 3) for a: (5 - 5) * 2 + 20 = 20 with a bonus;
        # and with 9 (face 5) for b: 5 - 5 = 0.
        [
            (play_slot(0), DRAW_DECK),  # a plays 0, the wager, and draws 3
            (discard_slot(0), DRAW_DECK),  # b discards 2 and draws 6
            (play_slot(0), TAKE_PILE_0),  # a plays 1 and takes 2
            (play_slot(2), DRAW_DECK),  # b plays 9 and draws 7
            (play_slot(0), DRAW_DECK),  # a plays 2 and draws the last card
        ],
        # Ends with 5, 7 (a wager, face 3) for a: (3 - 5) * 2 = -4; and with 4 (face 5) and, of the
        # other colour, 6 (face 2) for b: 5 - 5 = 0 and 2 - 5 = -3. Both pile draws are used.
        [
            (discard_slot(0), DRAW_DECK),  # b discards 0 and draws 3
            (play_slot(1), TAKE_PILE_0),  # a plays 5, the wager, and takes 0
            (play_slot(2), DRAW_DECK),  # b plays 4 and draws 6
            (discard_slot(1), DRAW_DECK),  # a discards 2 and draws 7
            (play_slot(2), TAKE_PILE_0),  # b plays 6 and takes 2
            (play_slot(1), DRAW_DECK),  # a plays 7 and draws the last card
        ],
    ],
    [
        # Ends with 4 (face 5) for a: 5 - 5 = 0; and with 3 (face 4) for b: 4 - 5 = -1.
        [
            (play_slot(2), DRAW_DECK),  # a plays 4 and draws 6
            (discard_slot(0), DRAW_DECK),  # b discards 1 and draws 7
            (discard_slot(1), DRAW_DECK),  # a discards 2 and draws 8
            (play_slot(0), DRAW_DECK),  # b plays 3 and draws the last card
        ],
        # Ends with 5, 7 (a wager, face 3) for a: (3 - 5) * 2 = -4; and with 2 (face 3) for b:
        # 3 - 5 = -2.
        [
            (discard_slot(0), DRAW_DECK),  # b discards 0 and draws 6
            (play_slot(2), DRAW_DECK),  # a plays 5, the wager, and draws 7
            (play_slot(0), DRAW_DECK),  # b plays 2 and draws 8
            (play_slot(2), DRAW_DECK),  # a plays 7 and draws the last card
        ],
    ],
]

# Scores of a: 20, -4, 0, -4; of b: 0, -3, -1, -2.
POINTS = [[20 - 0, -4 + 3], [0 + 1, -4 + 2]]  # 20, -1, 1, -2

step = jax.jit(LostCities.step, static_argnums=0)
legal_actions = jax.jit(LostCities.legal_actions, static_argnums=0)
from_deck = jax.jit(LostCities.from_deck, static_argnums=0)


def final_state(game, deck, actions):
    """Play actions, all of which must be legal and the last of which must end the round."""
    state = from_deck(game, np.array(deck, np.uint8))
    for action in actions:
        assert state.deck_left > 0
        assert legal_actions(game, state)[action], action
        state = step(game, state, np.int32(action))
    assert state.deck_left == 0
    return jax.device_get(state)


def stack(nested):
    """Return states of equal depth in lists as one with leading axes."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *nested)


def recorded_by_hand(game, deals):
    """Return the match of some of the deals above."""
    rounds = [[[action for turn in one for action in turn] for one in ROUNDS[k]] for k in deals]
    actions = np.zeros((len(rounds), 2, 12), np.int32)
    for deal, pair in enumerate(rounds):
        for column, one in enumerate(pair):
            actions[deal, column, : len(one)] = one
    entropy = np.array([[[0.5, 2], [1, 0.6]], [[0.25, 0], [0.25, 1]]], np.float32)
    fallbacks = np.array([[[2, 0], [1, 4]], [[0, 4], [1, 1]]], np.int32)
    return MatchResult(
        points=np.array(POINTS, np.float32)[deals],
        decisions=np.array([[10, 12], [8, 8]], np.int32)[deals],
        recording=Recording(
            starts=stack([jax.device_get(from_deck(game, np.uint8(DECKS[k]))) for k in deals]),
            finals=stack(
                [
                    stack([final_state(game, DECKS[k], one) for one in pair])
                    for k, pair in zip(deals, rounds, strict=True)
                ]
            ),
            actions=actions,
            entropy=entropy[deals],
            fallbacks=fallbacks[deals],
        ),
    )


# Turns of a: 3, 3, 2, 2, so 10 cards, 10 draws, 20 decisions; of b: 2, 3, 2, 2, so 9, 9 and 18.
EXPECTED = {
    "score": 3,  # (20 - 4 + 0 - 4) / 4
    "score_sd": np.sqrt(99),  # deviations 17, -7, -3, -7: (289 + 49 + 9 + 49) / 4
    "points_sd": np.sqrt(81.25),  # mean 4.5: (15.5^2 + 5.5^2 + 3.5^2 + 6.5^2) / 4 = 325 / 4
    # In order -2, -1, 1, 20: quantile p is 3 p steps from the first.
    "points_p05": -2 + 0.15 * 1,
    "points_p25": -2 + 0.75 * 1,
    "points_p50": (-1 + 1) / 2,
    "points_p75": 1 + 0.25 * 19,
    "points_p95": 1 + 0.85 * 19,
    # Pairs 9.5 and -0.5: variance 10^2 / 4 = 25. Columns 20, 1 and -1, -2: 19^2 / 4 = 90.25 and
    # 0.25, so 90.5 / 4 if independent.
    "pairing_variance_ratio": 25 / (90.5 / 4),
    "decisions_per_round": 9.5,  # (10 + 12 + 8 + 8) / 4
    "turns_per_round": 4.75,
    "stall_rate": 1 / 4,  # the second round
    "play_share": 8 / 10,  # 3 + 2 + 1 + 2
    "discard_share": 2 / 10,  # 0 + 1 + 1 + 0
    "wager_play_share": 3 / 10,  # 1 + 1 + 0 + 1
    "number_play_share": 5 / 10,  # 2 + 1 + 1 + 1
    "deck_draw_share": 8 / 10,
    "pile_draw_share": 2 / 10,  # 1 + 1 + 0 + 0
    "discard_draws": 2 / 4,
    "opened_colors": 4 / 4,  # one in every round
    "positive_expeditions": 1 / 4,  # 20
    "even_expeditions": 1 / 4,  # 0
    "negative_expeditions": 2 / 4,  # -4 and -4
    "bonus_expeditions": 1 / 4,  # that of three cards
    "score_per_opened_color": 12 / 4,
    "wagers_played": 3 / 4,
    "policy_entropy": 2 / 20,  # 0.5 + 1 + 0.25 + 0.25
    "fallback_rate": 4 / 20,  # 2 + 1 + 0 + 1
    "opponent_score": -1.5,  # (0 - 3 - 1 - 2) / 4
    "opponent_score_sd": np.sqrt(1.25),  # deviations 1.5, -1.5, 0.5, -0.5: 5 / 4
    "opponent_play_share": 5 / 9,  # 1 + 2 + 1 + 1
    "opponent_discard_share": 4 / 9,  # 1 + 1 + 1 + 1
    "opponent_wager_play_share": 0,
    "opponent_number_play_share": 5 / 9,
    "opponent_deck_draw_share": 8 / 9,
    "opponent_pile_draw_share": 1 / 9,  # in the second round
    "opponent_discard_draws": 1 / 4,
    "opponent_opened_colors": 5 / 4,  # 1 + 2 + 1 + 1
    "opponent_positive_expeditions": 0,
    "opponent_even_expeditions": 2 / 4,  # of face 5 in both rounds of the first deal
    "opponent_negative_expeditions": 3 / 4,  # -3, -1, -2
    "opponent_bonus_expeditions": 0,
    "opponent_score_per_opened_color": -6 / 5,
    "opponent_wagers_played": 0,
    "opponent_policy_entropy": 3.6 / 18,  # 2 + 0.6 + 0 + 1
    "opponent_fallback_rate": 9 / 18,  # 0 + 4 + 4 + 1
}


@pytest.fixture(scope="module")
def by_hand():
    return diagnose(GAME, recorded_by_hand(GAME, [0, 1]))


@pytest.mark.parametrize("name", EXPECTED)
def test_by_hand(by_hand, name):
    assert by_hand[name] == pytest.approx(EXPECTED[name], rel=1e-6, abs=1e-12)


def test_every_diagnostic_is_computed_by_hand(by_hand):
    assert set(by_hand) == set(EXPECTED)
    assert all(type(value) is float for value in by_hand.values())


def test_an_unlimited_number_of_pile_draws_is_never_used_up():
    unlimited = dataclasses.replace(GAME, max_discard_draws=None)
    found = diagnose(unlimited, recorded_by_hand(unlimited, [0]))
    assert found["discard_draws"] + found["opponent_discard_draws"] == 3 / 2
    assert found["stall_rate"] == 0
    assert diagnose(GAME, recorded_by_hand(GAME, [0]))["stall_rate"] == 1 / 2


def test_a_match_without_expeditions_has_no_undefined_numbers():
    match = recorded_by_hand(GAME, [1])
    turns = [discard_slot(0), DRAW_DECK] * 4
    final = final_state(GAME, DECKS[1], turns)
    recording = dataclasses.replace(
        match.recording,
        actions=np.array([[turns + [0] * 4] * 2]),
        finals=stack([stack([final, final])]),
    )
    found = diagnose(GAME, MatchResult(0 * match.points, match.decisions, recording=recording))
    assert found["opened_colors"] == found["score_per_opened_color"] == 0
    assert found["pairing_variance_ratio"] == 1
    assert found["discard_share"] == found["deck_draw_share"] == 1


def test_a_match_that_was_not_recorded_is_refused():
    result = MatchResult(np.zeros((2, 2), np.float32), np.full((2, 2), 8))
    with pytest.raises(ValueError, match="recording=None: this match was not recorded"):
        diagnose(GAME, result)


@pytest.fixture(scope="module")
def there_and_back():
    """A match, and the diagnostics of it and of the same one with the policies swapped."""
    game = dataclasses.replace(GAME, wagers=2)
    policies = Uniform(), fixed(*range(1, game.num_actions + 1))
    there = play(game, *policies, 300, jax.random.key(1), record=True)
    # What `play` returns for the policies in the other order, see test_match.py.
    recording = there.recording
    back = dataclasses.replace(
        there,
        points=-there.points[:, ::-1],
        decisions=there.decisions[:, ::-1],
        recording=dataclasses.replace(
            recording,
            finals=jax.tree.map(lambda leaf: leaf[:, ::-1], recording.finals),
            actions=recording.actions[:, ::-1],
            entropy=recording.entropy[:, ::-1, ::-1],
            fallbacks=recording.fallbacks[:, ::-1, ::-1],
        ),
    )
    return there, diagnose(game, there), diagnose(game, back)


def test_swapping_the_policies_swaps_what_is_said_of_them_exactly(there_and_back):
    _, there, back = there_and_back
    of_a_policy = {name for name in there if f"opponent_{name}" in there}
    for name in of_a_policy:
        assert there[name] == back[f"opponent_{name}"], name
        assert there[f"opponent_{name}"] == back[name], name
    assert 0 < there["play_share"] != there["opponent_play_share"] > 0
    opposite = {"p05": "p95", "p25": "p75", "p50": "p50", "p75": "p25", "p95": "p05"}
    for one, other in opposite.items():
        assert there[f"points_{one}"] == -back[f"points_{other}"]
    for name in set(there) - of_a_policy - {f"opponent_{name}" for name in of_a_policy}:
        assert name in {f"points_{one}" for one in opposite} or there[name] == back[name], name


def test_diagnostics_agree_with_the_match_and_with_each_other(there_and_back):
    result, found, _ = there_and_back
    approx = pytest.approx
    assert found["score"] - found["opponent_score"] == approx(result.points_per_round[0])
    assert found["decisions_per_round"] == result.decisions_per_round
    assert found["wager_play_share"] + found["number_play_share"] == approx(found["play_share"])
    assert found["wager_play_share"] > 0
    assert found["score_per_opened_color"] * found["opened_colors"] == approx(found["score"])
    outcomes = [found[f"{how}_expeditions"] for how in ("positive", "even", "negative")]
    assert sum(outcomes) == approx(found["opened_colors"])
    assert min(outcomes) > 0
    # What pairing does to the standard error that the match states.
    independent = np.sqrt(result.points.var(axis=0, ddof=1).sum() / 4 / 300)
    assert result.points_per_round[1] / independent == approx(
        np.sqrt(found["pairing_variance_ratio"])
    )


# Matches of three rounds.

TABLE = np.array(
    [
        # Started by a: 5; it leads and starts, -5; level, and a started the last, so b starts: 7.
        # Started by b: -3; it leads and starts, 2; it still leads, 7. Totals 7 and 6.
        [5, -3],
        [-5, 2],
        [4, 7],
        # Started by a: 0; level, so b starts: -4; it leads, 4. Started by b: 0; level, so a starts:
        # 1; it leads, -3. Totals 0 and -2.
        [0, 0],
        [1, -4],
        [-3, 4],
    ],
    np.float32,
)


def test_matches_of_three_by_hand():
    left_over = np.full((2, 2), 100, np.float32)
    for table in (TABLE, np.concatenate([TABLE, left_over])):
        assert matches_of_three(table) == {
            "match_points": 11 / 4,
            "match_points_se": 7.5 / 2,  # 6.5 and -1
            "match_win_rate": 1 / 2,
            "match_win_rate_se": 1 / 2,  # 1 and 0
            "match_draw_rate": 1 / 4,
            "match_loss_rate": 1 / 4,
        }


def test_swapping_the_policies_negates_matches_exactly():
    points = np.random.default_rng(0).integers(-3, 4, (300, 2)).astype(np.float32)
    there, back = matches_of_three(points), matches_of_three(-points[:, ::-1])
    assert back["match_points"] == -there["match_points"] != 0
    assert back["match_points_se"] == there["match_points_se"] > 0
    assert back["match_win_rate"] == there["match_loss_rate"] != there["match_win_rate"]
    assert back["match_draw_rate"] == there["match_draw_rate"] > 0


def test_errors_of_matches_are_those_of_blocks_that_are_independent():
    # Constant within three deals, so every match of triple i has 3 i^2 points: 0, 3, 12, 27.
    points = np.repeat(np.arange(4) ** 2, 3)[:, None] * np.ones((1, 2))
    # Groups of 2 and 3 deals begin together every 6, that is every 2 matches: 3 against 39.
    error = np.sqrt(2 * (18**2 + 18**2)) / 4
    assert matches_of_three(points, group=2)["match_points_se"] == pytest.approx(error)
    assert matches_of_three(points, group=6)["match_points_se"] == pytest.approx(error)
    alone = matches_of_three(points)["match_points_se"]
    assert alone == pytest.approx(np.std([0, 3, 12, 27], ddof=1) / 2)
    assert matches_of_three(points, group=3)["match_points_se"] == alone


@pytest.mark.parametrize(("deals", "group", "least"), [(5, 1, 6), (8, 2, 9), (8, 6, 9)])
def test_too_few_deals_for_an_error_of_matches_are_refused(deals, group, least):
    with pytest.raises(ValueError, match=f"points of {deals} deals: must be at least {least}"):
        matches_of_three(np.zeros((deals, 2)), group)
    assert matches_of_three(np.zeros((least, 2)), group)["match_points_se"] == 0
