"""The rule bots against plain Python ones: on recorded decisions, and under other rules."""

from __future__ import annotations

import dataclasses
import functools
import gzip
import json
import pathlib
import random
from typing import NamedTuple

import jax
import numpy as np
import plain_heuristic
import pytest
from plain_lost_cities import PlainRound

from coorl_jax import agents
from coorl_jax.games.lost_cities import LostCities

DATA = pathlib.Path(__file__).parent / "data"

RULES = {
    "classic": LostCities(),
    "small": LostCities(colors=3, ranks=5, wagers=1, hand_size=4),
    "tiny": LostCities(colors=2, ranks=4, wagers=1, hand_size=3),
    "one_color": LostCities(colors=1, hand_size=4, max_discard_draws=20),
    "no_wagers": LostCities(wagers=0, min_rank=5, bonus_threshold=6),
    # Of 90 cards 35 % are 31.5, which is 31 in doubles and 32 for who rounds the exact number.
    "many_colors": LostCities(colors=9, ranks=8, wagers=2, max_discard_draws=40),
    "early_bonus": LostCities(bonus_threshold=3, bonus_amount=35, max_discard_draws=2),
    "low_faces": LostCities(min_rank=0, wagers=2, bonus_threshold=5, bonus_amount=7),
    "no_penalty": LostCities(expedition_penalty=0, hand_size=5),
    "large_hand": LostCities(
        colors=3, hand_size=14, min_rank=5, bonus_threshold=7, expedition_penalty=-7
    ),
}
# (deck, first actions) that lead to a discard where the two best values are exactly equal, but
# their doubles differ, and so the lower action is the best.
TIES = {
    "early_bonus": (
        "12 22 28 13 0 45 4 39 17 54 29 58 50 37 57 9 15 1 49 34 31 19 48 3 8 21 46 38 44 5 "
        "43 26 10 11 14 56 16 53 42 59 27 33 23 20 7 47 6 30 41 55 24 40 2 52 35 36 18 51 25 "
        "32",
        "8 16 12 16 10 16 14 16 15 16",
    ),
    "low_faces": (
        "2 4 40 44 27 29 38 42 8 12 46 3 47 36 43 39 45 54 22 41 35 26 5 14 49 32 15 16 52 13 "
        "6 1 28 0 48 21 18 24 9 23 10 17 51 19 25 30 7 37 34 50 20 53 11 33 31",
        "6 16 8 16 6 16 8 16 8 16 8 16 9 16 10 16 13 20",
    ),
    "no_penalty": (
        "16 0 26 36 12 44 11 6 37 38 34 5 35 23 24 56 21 3 43 27 57 19 17 33 51 14 25 50 52 4 "
        "41 58 15 59 31 1 40 8 48 10 45 53 47 42 29 9 2 13 28 46 32 54 22 20 39 18 30 49 7 55",
        "4 10 2 10 6 10 6 10 6 10 6 10 7 10 5 13 8 10 6 12 6 10 6 10 8 10 6 10 7 10 1 13 7 10 "
        "7 12 5 10 1 13",
    ),
}
ROUNDS = 24  # of each set of rules
SLOW = ("small", "tiny", "one_color", "low_faces", "large_hand")  # Each compiles for seconds.
NOISE = 0.15  # share of decisions in which heuristic_noisy plays at random


@pytest.mark.parametrize(
    ("name", "rules", "count"), [("classic", "classic", 3000), ("3c5r1h4", "small", 200)]
)
def test_plain_bots_do_what_was_recorded(name, rules, count):
    unlimited = dataclasses.replace(RULES[rules], max_discard_draws=None)
    with gzip.open(DATA / f"bot_decisions_{name}.jsonl.gz", "rt") as lines:
        entries = [json.loads(line) for line in lines]
    assert len(entries) == count
    for entry in entries:
        position = PlainRound(unlimited, entry["deck"])
        for action in entry["prefix"]:
            position.step(action)
        for style in plain_heuristic.STYLES:
            decided = plain_heuristic.action(style, position)
            assert decided == entry["bot_actions"][style], (style, entry)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in RULES],
)
def test_bots_agree_with_the_plain_ones(name):
    """At every decision of rounds among all kinds of players, whoever played."""
    rules = RULES[name]
    rounds = _rounds(rules, TIES.get(name))
    differences = []
    for style in plain_heuristic.STYLES:
        probabilities = _probabilities(rules, rounds, style)
        for each, lane in zip(rounds, probabilities, strict=True):
            for time, (decided, found) in enumerate(zip(each.decided, lane, strict=False)):
                if found[decided[style]] != 1 or np.count_nonzero(found) != 1:
                    before = each.actions[:time]
                    differences.append((style, each.deck, before, decided[style], found))
    assert not differences, (
        f"{len(differences)} differences, the first (style, deck, actions before, action, found): "
        f"{differences[0]}"
    )


def test_the_noisy_bot_is_the_balanced_one_or_plays_at_random():
    rules = RULES["tiny"]
    rounds = _rounds(rules)
    probabilities = _probabilities(rules, rounds, "heuristic_noisy")
    for lane, each in enumerate(rounds):
        for time, (decided, legal) in enumerate(zip(each.decided, each.legal, strict=True)):
            expected = np.zeros(rules.num_actions)
            expected[legal] = NOISE / len(legal)
            expected[decided["heuristic_balanced"]] += 1 - NOISE
            np.testing.assert_allclose(probabilities[lane, time], expected, atol=1e-6)


class Round(NamedTuple):
    """A round of T decisions."""

    deck: list[int]
    actions: list[int]  # T that were taken
    decided: list[dict[str, int]]  # T times what each bot does there
    legal: list[list[int]]  # T times the legal actions


def _rounds(rules, start=None) -> list[Round]:
    """Play rounds; the first one from (deck, first actions) if these are given."""
    chance = random.Random(0)
    starts = [] if start is None else [[[*map(int, part.split())] for part in start]]
    while len(starts) < ROUNDS:
        deck = list(range(rules.num_cards))
        chance.shuffle(deck)
        starts.append([deck, []])
    return [_play(rules, chance, *start) for start in starts]


def _play(rules, chance, deck, first_actions) -> Round:
    """Let two bots go on with a round, with what makes them meet more than good play leads to.

    Either plays at random never, often or always, and may do nothing but discard until late.
    """
    styles = list(plain_heuristic.STYLES)
    players = [chance.choice(styles) for _ in range(2)]
    random_share = [chance.choice([0.0, 0.1, 0.4, 1.0]) for _ in range(2)]
    discards_until = [int(chance.choice([1, 1, 1, 0.3]) * rules.num_cards) for _ in range(2)]
    position = PlainRound(rules, deck)
    played = Round(deck, [], [], [])
    while not position.ended:
        time = len(played.actions)
        seat = position.mover
        legal = position.legal()
        decided = {style: plain_heuristic.action(style, position) for style in styles}
        if time < len(first_actions):
            action = first_actions[time]
        elif position.phase == 0 and len(position.deck) > discards_until[seat]:
            action = chance.choice([action for action in legal if action % 2 == 1])
        elif chance.random() < random_share[seat]:
            action = chance.choice(legal)
        else:
            action = decided[players[seat]]
        played.actions.append(action)
        played.decided.append(decided)
        played.legal.append(legal)
        position.step(action)
    return played


def _probabilities(game, rounds: list[Round], name: str) -> np.ndarray:
    """Return what the engine's bot plays at every decision, float32[B, T, A]."""
    decks = np.array([each.deck for each in rounds], np.uint8)
    actions = np.zeros((len(rounds), game.max_decisions), np.int32)
    for row, each in zip(actions, rounds, strict=True):
        row[: len(each.actions)] = each.actions
    return jax.device_get(_replay(game, agents.make(name, game), decks, actions))


@functools.partial(jax.jit, static_argnames="game")
def _replay(game, bot, decks, actions):
    def step(state, action):
        seen = game.information_state(state, game.player(state)), game.legal_actions(state)
        return game.step(state, action), seen

    def replay_one(deck, taken):
        return jax.lax.scan(step, game.from_deck(deck), taken)[1]

    packed, legal = jax.vmap(replay_one)(decks, actions)
    flat = packed.reshape(-1, packed.shape[-1]), legal.reshape(-1, legal.shape[-1])
    return bot.action_probabilities(*flat).reshape(legal.shape)
