"""Lost Cities in plain Python from the printed rules: what the engine is compared with.

A card is `(colour, rank)`, rank 0 for a wager. The wagers of a colour are the same card: if one
leaves a hand that is known to hold one, the known one has left.
"""

from __future__ import annotations

import collections

import numpy as np

from coorl_jax.games.lost_cities import LostCities

Card = tuple[int, int]


def card(rules: LostCities, number: int) -> Card:
    color, k = divmod(int(number), rules.wagers + rules.ranks)
    return color, max(0, k - rules.wagers + 1)


class PlainRound:
    def __init__(self, rules: LostCities, deck):
        self.rules = rules
        self.deck = [card(rules, number) for number in deck]
        self.hands: list[list[Card]] = [[], []]
        for _ in range(rules.hand_size):
            for hand in self.hands:
                hand.append(self.deck.pop(0))
        self.known = [collections.Counter(), collections.Counter()]
        self.expeditions = [[[] for _ in range(rules.colors)] for _ in range(2)]
        self.piles: list[list[int]] = [[] for _ in range(rules.colors)]
        self.mover = 0
        self.phase = 0
        self.barred = None
        self.discard_draws = 0
        self._sort()

    def _sort(self) -> None:
        for hand in self.hands:
            hand.sort()

    @property
    def ended(self) -> bool:
        return not self.deck

    @property
    def discard_draws_left(self):
        limit = self.rules.max_discard_draws
        return None if limit is None else limit - self.discard_draws

    def fits(self, seat: int, candidate: Card) -> bool:
        color, rank = candidate
        highest = max(self.expeditions[seat][color], default=0)
        return highest == 0 if rank == 0 else rank > highest

    def legal(self) -> list[int]:
        slots = 2 * self.rules.hand_size
        if self.phase == 0:
            actions = []
            for slot, held in enumerate(self.hands[self.mover]):
                actions += [2 * slot] * self.fits(self.mover, held) + [2 * slot + 1]
            return actions
        piles = [c for c, pile in enumerate(self.piles) if pile and c != self.barred]
        if self.discard_draws_left == 0:
            piles = []
        return [slots, *(slots + 1 + color for color in piles)]

    def step(self, action: int) -> None:
        hand = self.hands[self.mover]
        if self.phase == 0:
            color, rank = moved = hand.pop(action // 2)
            self.known[self.mover] -= collections.Counter([moved])
            discards = action % 2 == 1
            (self.piles if discards else self.expeditions[self.mover])[color].append(rank)
            self.barred = color if discards else None
            self.phase = 1
            return
        pile = action - 2 * self.rules.hand_size - 1
        if pile < 0:
            hand.append(self.deck.pop(0))
        else:
            drawn = pile, self.piles[pile].pop()
            hand.append(drawn)
            self.known[self.mover][drawn] += 1
            self.discard_draws += 1
        self._sort()
        self.barred = None
        self.phase = 0
        self.mover = 1 - self.mover

    def expedition_scores(self) -> list[list[int]]:
        def points(ranks: list[int]) -> int:
            if not ranks:
                return 0
            total = sum(self.rules.min_rank + rank - 1 for rank in ranks if rank)
            bonus = self.rules.bonus_amount if len(ranks) >= self.rules.bonus_threshold else 0
            return (total + self.rules.expedition_penalty) * (1 + ranks.count(0)) + bonus

        return [[points(ranks) for ranks in side] for side in self.expeditions]

    def view(self, seat: int):
        """All that one player knows, hashable."""
        return (
            seat,
            seat == self.mover,
            tuple(self.hands[seat]),
            *(
                tuple(sorted(known.elements()))
                for known in (self.known[seat], self.known[1 - seat])
            ),
            *(
                tuple(map(tuple, side))
                for side in (self.expeditions[seat], self.expeditions[1 - seat], self.piles)
            ),
            len(self.deck),
            self.phase,
            self.barred,
            self.discard_draws_left,
        )


def assert_same(plain: PlainRound, state) -> None:
    """Compare everything with one engine state, fields as numpy arrays."""
    rules = plain.rules
    cards = [card(rules, number) for number in range(rules.num_cards)]
    at = collections.defaultdict(list)
    for number, place in enumerate(state.location.tolist()):
        at[place].append(cards[number])
    assert (plain.mover, plain.phase) == (state.mover, state.phase)
    assert state.barred == (rules.colors if plain.barred is None else plain.barred)
    if plain.discard_draws_left is not None:
        assert state.discard_draws_left == plain.discard_draws_left
    assert state.deck_left == len(plain.deck)
    left = state.deck[rules.num_cards - int(state.deck_left) :]
    assert [cards[number] for number in left] == plain.deck
    assert sorted(at[0]) == sorted(plain.deck)
    for seat in (0, 1):
        held = state.hands[seat][state.hands[seat] < rules.num_cards]
        assert [cards[number] for number in held] == plain.hands[seat]
        assert sorted(at[1 + seat] + at[3 + seat]) == plain.hands[seat]
        assert collections.Counter(at[3 + seat]) == plain.known[seat]
        assert sorted(at[5 + seat]) == sorted(
            (color, rank) for color, ranks in enumerate(plain.expeditions[seat]) for rank in ranks
        )
    for color, pile in enumerate(plain.piles):
        heights = {
            place - 7: held[1]
            for place, helds in at.items()
            if place >= 7
            for held in helds
            if held[0] == color
        }
        assert [heights[height] for height in range(len(heights))] == pile


def permute_cards(rules: LostCities, state, order: np.ndarray, colors: np.ndarray | None = None):
    """Return one state with card i renamed to order[i] (and colour c to colors[c])."""
    renamed = np.append(order, rules.num_cards).astype(np.uint8)
    location = np.empty_like(state.location)
    location[order] = state.location
    barred = state.barred
    if colors is not None:
        barred = np.append(colors, rules.colors)[barred].astype(barred.dtype)
    return state._replace(
        location=location,
        hands=np.sort(renamed[state.hands], axis=1),
        deck=renamed[state.deck],
        barred=barred,
    )
