"""The rule-based players: recorded decisions, hand-made states, noise, batches."""

from __future__ import annotations

import pathlib

import game_checks
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coorl_jax import agents
from coorl_jax.agents import heuristic
from coorl_jax.cfr.regret_matching import sample_action
from coorl_jax.games.lost_cities import LostCities, information, records

DATA = pathlib.Path(__file__).parent / "data"
CLASSIC = LostCities()
RULES_BASED = (
    "heuristic_balanced",
    "heuristic_aggressive",
    "heuristic_cautious",
    "heuristic_noisy",
)
DETERMINISTIC = RULES_BASED[:3]
WAGER = 0
DECK = 16


@jax.jit
def probabilities(policy, packed, legal):
    return policy.action_probabilities(packed, legal)


@pytest.mark.parametrize(
    ("name", "positions"), [("bot_decisions_classic", 3000), ("bot_decisions_3c5r1h4", 200)]
)
def test_every_recorded_decision_agrees(name, positions):
    decisions = dict.fromkeys(("discard_only", *DETERMINISTIC), 0)

    def plays(bot, game, packed, legal):
        decisions[bot] += len(packed)
        # Filled up, so that one program serves batches of all sizes.
        full = [np.resize(rows, (512, rows.shape[1])) for rows in (packed, legal)]
        probability = np.asarray(probabilities(agents.make(bot, game), *full))[: len(packed)]
        assert (probability.max(axis=1) == 1).all()
        return probability == 1

    path = DATA / f"{name}.jsonl.gz"
    assert list(records.replay(records.read_records(path), plays)) == []
    assert decisions == dict.fromkeys(decisions, positions)


def position(
    hand, mine=None, theirs=None, piles=None, deck=30, draws=False, game=CLASSIC
) -> np.ndarray:
    """Return uint8[P] of what a player sees.

    Args:
      hand: (colour, face) of each card, in order; face 0 for a wager.
      mine: faces of my expeditions by colour.
      theirs: faces of the opponent's.
      piles: faces of the discard piles by colour, the top last.
      deck: cards left.
      draws: draw phase rather than card phase.
      game: the rules.
    """
    cards = np.full((game.colors, game.suit_size), information.UNSEEN, np.uint8)

    def lay(color, face, what):
        free = cards[color] == information.UNSEEN
        k = np.flatnonzero(free)[0] if face == WAGER else game.wagers + face - game.min_rank
        assert free[k]
        assert (face == WAGER) == (k < game.wagers)
        cards[color, k] = what

    for expeditions, what in (
        (mine, information.OWN_EXPEDITION),
        (theirs, information.OPPONENT_EXPEDITION),
    ):
        for color, faces in (expeditions or {}).items():
            for face in faces:
                lay(color, face, what)
    for color, faces in (piles or {}).items():
        for height, face in enumerate(faces):
            lay(color, face, information.PILE + height)
    slots = np.full(game.hand_size, information.EMPTY, np.uint8)
    for slot, (color, face) in enumerate(hand):
        lay(color, face, information.OWN)
        kind = 0 if face == WAGER else face - game.min_rank + 1
        slots[slot] = color * (game.ranks + 1) + kind
    assert list(slots) == sorted(slots)
    scalars = [draws, deck, game.colors, 60, 0, 1]
    return np.concatenate([cards.reshape(-1), slots, np.array(scalars, np.uint8)])


def action(packed, name="heuristic_balanced", game=CLASSIC) -> int:
    """Return what a deterministic player does."""
    known = packed[: game.num_cards].reshape(game.colors, game.suit_size)
    held = packed[game.num_cards : game.num_cards + game.hand_size] != information.EMPTY
    draws = packed[game.num_cards + game.hand_size] == 1
    legal = np.concatenate(
        [
            np.repeat(held & ~draws, 2),
            [draws],
            draws & (known >= information.PILE).any(axis=1),
        ]
    )
    row = np.asarray(probabilities(agents.make(name, game), packed[None], legal[None]))[0]
    assert row.max() == 1
    return int(row.argmax())


def play_slot(slot):
    return 2 * slot


def discard_slot(slot):
    return 2 * slot + 1


# Colour 4 started with a 10: nothing fits it, and the first colour is not forced.
STARTED = {4: (10,)}


@pytest.mark.parametrize(
    ("deck", "name", "expected"),
    [
        # 3 numbers with sum 16 open, as long as the deck is greater than a share of it.
        (13, "heuristic_balanced", play_slot(0)),
        (12, "heuristic_balanced", discard_slot(3)),
        (8, "heuristic_aggressive", play_slot(0)),
        (7, "heuristic_aggressive", discard_slot(3)),
        (19, "heuristic_cautious", play_slot(0)),
        (18, "heuristic_cautious", discard_slot(3)),
    ],
)
def test_a_colour_is_opened_until_the_deck_is_short(deck, name, expected):
    # The 9 does not fit: a discard of it costs nothing.
    hand = [(0, 3), (0, 5), (0, 8), (4, 9)]
    assert action(position(hand, STARTED, {4: (WAGER,)}, deck=deck), name) == expected


@pytest.mark.parametrize(
    ("faces", "name", "bets"),
    [
        ((4, 6, 9), "heuristic_balanced", True),  # 3 numbers, sum 19 >= 18.4
        ((3, 6, 9), "heuristic_balanced", False),  # 18
        ((9, 10), "heuristic_balanced", False),  # 2 numbers
        ((6, 10), "heuristic_aggressive", True),  # 2 numbers, sum 16
        ((5, 10), "heuristic_aggressive", False),  # 15
        ((3, 4, 7, 8), "heuristic_cautious", True),  # 4 numbers, sum 22 >= 21.6
        ((2, 4, 7, 8), "heuristic_cautious", False),  # 21
        ((6, 9, 10), "heuristic_cautious", False),  # 3 numbers
    ],
)
def test_a_wager_wants_numbers_behind_it(faces, name, bets):
    hand = [(0, WAGER), (0, WAGER), *((0, face) for face in faces)]
    # Of two equal wagers the last one.
    assert (action(position(hand), name) == play_slot(1)) == bets


def test_wagers_come_before_numbers_and_numbers_before_discards():
    hand = [(0, WAGER), (0, 6), (0, 7), (0, 9), (1, 2)]
    mine = {1: (WAGER, WAGER)}
    assert action(position(hand, mine)) == play_slot(0)
    # It is late: no wager; a started colour goes on, at whatever value.
    assert action(position(hand, mine, deck=12)) == play_slot(4)


def test_a_first_colour_is_forced_open():
    """Value 0.2 x sum + 11 - face: 7 and 4 have 2.2 + 7 = 9.2; a single 8 has 1.6 + 3."""
    hand = [(0, 4), (0, 7), (1, 8)]
    assert action(position(hand)) == play_slot(0)
    # One low number is hopeless, until half of the deck is gone.
    assert action(position([(0, 7)], deck=22)) == discard_slot(0)
    assert action(position([(0, 7)], deck=21)) == play_slot(0)
    assert action(position([(0, 8)], deck=22)) == play_slot(0)


def test_of_equal_discards_the_higher_slot_goes():
    hand = [(0, 5), (1, 5), (2, 5)]
    assert action(position(hand, STARTED)) == discard_slot(2)
    assert action(position(hand[:2], STARTED)) == discard_slot(1)


def test_rounding_of_doubles_decides_a_discard():
    """Two cards that are worth 15.75 without rounding; as doubles, the higher slot's is worth more.

    The 2 of colour 2 and the 5 of colour 3, both of no use to the opponent.
    """
    two = 0.8 * 2 + (1.2 * 3 + 1.5 * 2 + 0.15 * (2 + 6 + 9)) + 5
    five = 0.8 * 5 + (1.2 * 3 + 0.15 * (5 + 6 + 10)) + 5
    assert five - 1e-9 < two < five
    hand = [(2, WAGER), (2, WAGER), (2, 2), (2, 6), (2, 9), (3, 5), (3, 6), (3, 10)]
    mine = {0: (10,), 1: (10,), 4: (10,)}
    theirs = {2: (5, 8), 3: (9,)}
    assert action(position(hand, mine, theirs)) == discard_slot(2)


# Piles. Three colours are mine, two of them with more points than the opponent's none.
RICH = {1: range(2, 11), 2: range(5, 11), 3: range(5, 11)}


def test_a_tie_of_deck_and_pile_goes_to_the_deck():
    """Midway and in the lead, the deck and a 4 that the opponent could use are worth 1.75."""
    interest = 0.25 * 3 + 5 + 0.4 * 3 + (1.0 + 0.1 * 4)
    value = 0.4 * (4 * (0.4 + 0.25 * interest)) - 10 + 4 + 0.7 * (1.2 + 0.15 * 6) + (0.8 + 1.5)
    assert value == 1.75 == 1 + 0.75
    hand, theirs, piles = [(0, 6)], {0: (3,)}, {0: (4,)}
    assert action(position(hand, RICH, theirs, piles, 15, True)) == DECK
    assert action(position(hand, RICH, theirs, piles, 30, True)) == DECK
    assert action(position(hand, RICH, theirs, piles, 12, True)) == DECK + 1


def test_rounding_of_doubles_decides_a_draw():
    value = 0.4 * (3 * (0.4 + 0.25 * (1.0 + 0.1 * 3))) - 10 + 3
    value = value + 0.7 * (1.2 * 2 + 1.5 + 0.15 * 10) + (0.8 * 2 + 1 + 1.5)
    assert 1.75 < value < 1.75 + 1e-9
    hand = [(0, WAGER), (0, 4), (0, 6)]
    assert action(position(hand, RICH, piles={0: (3,)}, deck=15, draws=True)) == DECK + 1

    interest = 5 + 0.25 * 2 + 0.4 * 2 + (1.0 + 0.1 * 4)
    value = 0.4 * (4 * (0.4 + 0.25 * interest)) - 10 + 4
    value = value + 0.7 * (1.2 * 2 + 0.15 * 10) + (0.8 + 1.5)
    assert 2.75 - 1e-9 < value < 2.75
    hand = [(0, 3), (0, 7)]
    assert action(position(hand, RICH, {0: (2,)}, {0: (4,)}, 30, True)) == DECK


def test_of_equal_piles_the_higher_colour_is_drawn():
    piles = {0: (9,), 2: (9,), 3: (2,)}
    mine = {0: (8,), 1: (2,), 2: (8,)}
    assert action(position([], mine, piles=piles, draws=True)) == DECK + 1 + 2
    assert action(position([], {0: (8,)}, piles={0: (9,)}, draws=True)) == DECK + 1
    assert action(position([(0, 5)], piles={1: ()}, draws=True)) == DECK


def test_a_fifth_colour_is_too_many():
    mine = {color: (10,) for color in range(4)}
    piles = {4: (8,)}
    assert action(position([], mine, piles=piles, draws=True)) == DECK
    # Unless the opponent would gain by the card.
    theirs = {4: (WAGER, WAGER, WAGER, 6, 7)}
    assert action(position([], mine, theirs, piles, draws=True)) == DECK + 1 + 4


# The whole player.

SMALL_RULES = (
    LostCities(colors=2, ranks=4, wagers=0, hand_size=3, max_discard_draws=4),
    LostCities(1, 6, 0, 2, hand_size=2, bonus_amount=7, max_discard_draws=4),
    LostCities(4, 2, 2, 1, hand_size=1, bonus_threshold=1, bonus_amount=0, max_discard_draws=4),
)


BATCH = 256  # one size, since every size is compiled


def random_states(game):
    """Return uint8[BATCH, P] and bool[BATCH, A] of unfinished random rounds, then of finished."""
    rounds = game_checks.random_rounds(game)
    lanes, times = np.indices(rounds.player.shape)
    packed = rounds.packed[lanes, times, rounds.player]
    rng = np.random.default_rng(1)
    for chosen in (~rounds.terminal, rounds.terminal):
        rows = rng.choice(np.count_nonzero(chosen), BATCH)
        yield packed[chosen][rows], rounds.legal[chosen][rows]


@pytest.mark.parametrize(
    "game",
    [SMALL_RULES[0], *(pytest.param(game, marks=pytest.mark.slow) for game in SMALL_RULES[1:])],
)
def test_players_act_legally_under_other_rules(game):
    (packed, legal), ended = random_states(game)
    rows, programs = {}, set()
    for name in RULES_BASED:
        rows[name] = np.asarray(probabilities(agents.make(name, game), packed, legal))
        programs.add(probabilities._cache_size())
        assert rows[name].dtype == np.float32
        assert (rows[name][~legal] == 0).all()
        np.testing.assert_allclose(rows[name].sum(axis=1), 1, rtol=1e-6)
    assert len(programs) == 1, "styles and noises are not one program"
    for name in DETERMINISTIC:
        assert set(np.unique(rows[name])) == {0, 1}
    noisy = 0.15 * legal / legal.sum(axis=1, keepdims=True) + 0.85 * rows["heuristic_balanced"]
    np.testing.assert_allclose(rows["heuristic_noisy"], noisy, rtol=1e-6)
    # Nothing is decided after the end.
    assert not np.asarray(probabilities(agents.make("heuristic_noisy", game), *ended)).any()


def test_a_state_is_decided_alike_in_any_batch():
    game = SMALL_RULES[0]
    (packed, legal), (ended, ended_legal) = random_states(game)
    draws = packed[:, game.num_cards + game.hand_size] == 1
    assert 0.2 < draws.mean() < 0.8
    policy = agents.make("heuristic_noisy", game)
    mixed = np.asarray(probabilities(policy, packed, legal))

    def check(rows):
        np.testing.assert_array_equal(probabilities(policy, packed[rows], legal[rows]), mixed[rows])

    for phase in (draws, ~draws):
        check(np.resize(np.flatnonzero(phase), BATCH))
    for row in range(20):
        check(np.full(BATCH, row))
    rows = np.arange(BATCH)
    some_ended = np.where((rows % 2 == 0)[:, None], packed, ended)
    of_some = probabilities(
        policy, some_ended, np.where((rows % 2 == 0)[:, None], legal, ended_legal)
    )
    np.testing.assert_array_equal(of_some[::2], mixed[::2])
    assert not np.asarray(of_some[1::2]).any()


def test_noise_is_played_as_often_as_it_should():
    samples = 20_000
    packed = position([(0, 3), (0, 5), (0, 8), (4, 9)], STARTED)
    legal = np.zeros(CLASSIC.num_actions, bool)
    legal[[0, 1, 2, 3, 4, 5, 7]] = True
    noise = jax.random.uniform(jax.random.key(3), (samples,))
    row = probabilities(agents.make("heuristic_noisy", CLASSIC), packed[None], legal[None])
    actions = sample_action(jnp.broadcast_to(row, (samples, row.shape[1])), noise)
    counts = np.bincount(np.asarray(actions), minlength=len(legal))
    expected = legal * 0.15 / 7
    expected[action(packed)] += 0.85
    deviation = np.sqrt(samples * expected * (1 - expected))
    assert (counts[~legal] == 0).all()
    assert (np.abs(counts - samples * expected)[legal] < 4 * deviation[legal]).all()


def test_thresholds_follow_from_the_rules():
    def thresholds(name, game=CLASSIC):
        return [int(leaf) for leaf in heuristic.make(game, name).style]

    # 16 = 0.8 x 20; 0.65 x 16 = 10.4; 1.4 x 16 = 22.4; 8; then 18.4, 16 and 21.6.
    assert thresholds("balanced") == [3, 16, 11, 23, 8, 3, 19, 12]
    assert thresholds("aggressive") == [2, 16, 11, 23, 8, 2, 16, 7]
    assert thresholds("cautious") == [4, 16, 11, 23, 8, 4, 22, 18]
    # Sum of faces 0 + 1 + 2: half of it is 1.5. At least one number, and one card in the deck.
    tiny = LostCities(colors=1, ranks=3, min_rank=0, wagers=0, hand_size=1)
    assert thresholds("balanced", tiny) == [1, 2, 1, 20, 1, 1, 2, 1]
