"""The rule bots of Lost Cities in plain Python, from their description, for any rule parameters.

What the engine's bots are compared with. All values are doubles and terms are added in the order
of the description, because exact ties decide some actions. A method is one paragraph of it, under
its number; p is the player to move, o the other one.
"""

from __future__ import annotations

import dataclasses

from plain_lost_cities import Card, PlainRound


@dataclasses.dataclass(frozen=True)
class Style:
    """In which the three bots differ."""

    open_sum: float  # a1, share of the full colour sum wanted to open
    open_count: float  # a2, share of the hand size wanted as numbers to open
    wager_sum: float  # a3, multiplier on the opening target before a wager is played
    wager_count: float  # a4, share of the hand size wanted as numbers before a wager is played
    block: float  # a5, deck share at or under which no new colour is opened
    late: float = 0.20  # a6, deck share that counts as late
    middle: float = 0.35  # a7, deck share that counts as mid-game


STYLES = {
    "heuristic_balanced": Style(0.50, 0.40, 1.15, 0.34, 0.20),
    "heuristic_aggressive": Style(0.42, 0.30, 1.00, 0.25, 0.12),
    "heuristic_cautious": Style(0.62, 0.50, 1.35, 0.45, 0.30),
}


def action(style: str, position: PlainRound) -> int:
    """Return what the bot of that name does for the player to move."""
    bot = _Bot(STYLES[style], position)
    return bot.card_action() if position.phase == 0 else bot.draw_action()


class _Bot:
    def __init__(self, style: Style, position: PlainRound):
        # 1. Notation
        self.position = position
        self.rules = rules = position.rules
        self.p = position.mover
        self.o = 1 - self.p
        self.hand = position.hands[self.p]
        self.deck_left = len(position.deck)  # D
        self.opened = sum(len(ranks) > 0 for ranks in position.expeditions[self.p])  # k
        scores = [sum(side) for side in position.expedition_scores()]
        self.diff = scores[self.p] - scores[self.o]
        self.max_face = rules.min_rank + rules.ranks - 1

        # 3. Derived constants; Python's round is half to even, as is meant
        n = rules.colors * (rules.ranks + rules.wagers)
        self.full = sum(self.face(rank) for rank in range(1, rules.ranks + 1))
        self.even = -rules.expedition_penalty
        self.target = min(0.8 * self.even, style.open_sum * self.full)
        self.min_open = min(max(round(rules.hand_size * style.open_count), 1), rules.hand_size)
        self.min_wager = min(max(round(rules.hand_size * style.wager_count), 1), rules.hand_size)
        self.wager_target = self.target * style.wager_sum
        self.late = max(1, round(n * style.late))
        self.middle = max(self.late + 1, round(n * style.middle))
        self.block = max(1, round(n * style.block))
        self.middle_rank = (rules.ranks + 1) // 2
        self.bonus_possible = rules.ranks + rules.wagers >= rules.bonus_threshold

    # 1. Notation

    def face(self, rank: int) -> int:
        return self.rules.min_rank + rank - 1 if rank > 0 else 0

    def faces(self, ranks: list[int]) -> int:
        return sum(self.face(rank) for rank in ranks)

    def length(self, q: int, c: int) -> int:  # L
        return len(self.position.expeditions[q][c])

    def played_wagers(self, q: int, c: int) -> int:  # W
        return self.position.expeditions[q][c].count(0)

    def total(self, q: int, c: int) -> int:  # S
        return self.faces(self.position.expeditions[q][c])

    def highest(self, q: int, c: int) -> int:  # T
        return max(self.position.expeditions[q][c], default=0)

    def fits(self, q: int, card: Card) -> bool:
        c, rank = card
        return self.highest(q, c) == 0 if rank == 0 else rank > self.highest(q, c)

    def numbers(self, c: int, lowest: int = 1) -> list[int]:
        """Ranks of the hand numbers of a colour from a rank on."""
        return [rank for color, rank in self.hand if color == c and rank >= max(1, lowest)]

    def wagers(self, c: int) -> int:
        return self.hand.count((c, 0))

    # 4. Shared evaluation terms

    def bonus_outlook(self, c: int, extra: int, committed: int, left_out: Card | None) -> float:
        # 4.1 Bonus outlook B
        if not self.bonus_possible:
            return 0.0
        need = self.rules.bonus_threshold - (self.length(self.p, c) + committed)
        if need <= 0:
            return self.rules.bonus_amount
        m = sum(card[0] == c and card != left_out and self.fits(self.p, card) for card in self.hand)
        return 0.4 * self.rules.bonus_amount if m + extra >= need else 0.0

    def late_cost(self) -> int:
        # 4.2 Late cost
        return 15 if self.deck_left <= self.late else 8 if self.deck_left <= self.middle else 0

    def new_color_cost(self) -> int:
        # 4.3 New-colour cost pen
        return {0: 0, 1: 0, 2: 6, 3: 14}.get(self.opened, 28)

    def plan(self, card: Card) -> float:
        # 4.4 Opening plan
        c, rank = card
        ranks = self.numbers(c, rank)
        n, s = len(ranks), self.faces(ranks)
        g = sum(other >= self.middle_rank for other in ranks)
        h = self.wagers(c)
        k = self.opened
        v = self.face(rank)
        pen = self.new_color_cost()
        if k <= 3 and n >= self.min_open and s >= self.target and (g > 0 or s >= 0.85 * self.full):
            return 6 + 0.25 * s + 0.8 * n + 0.5 * h - pen
        if k <= 2 and n >= 2 and s >= 0.65 * self.target and g > 0:
            return 3 + 0.18 * s + 0.7 * n + 0.4 * h - pen
        if k == 3:
            return 0
        if (
            n >= self.min_open + 1
            and s >= max(self.even, 1.4 * self.target)
            and g >= 2
            and self.deck_left > self.middle
        ):
            return 10 + 0.3 * s + n + 0.7 * g - pen
        if k <= 3 and self.deck_left <= self.middle and n >= 1 and v >= 8:
            return 1.5 + 0.2 * v - pen
        return 0

    def interest(self, c: int) -> float:
        # 4.5 Own interest in a colour, I
        fitting = [rank for color, rank in self.hand if color == c and self.fits(self.p, (c, rank))]
        numbers = [rank for rank in fitting if rank > 0]
        value = 0.0
        if self.length(self.p, c) > 0:
            value += 5
        value += 2 * self.played_wagers(self.p, c)
        value += 0.25 * self.total(self.p, c)
        value += 1.2 * len(numbers)
        value += 1.5 * fitting.count(0)
        value += 0.15 * self.faces(numbers)
        value += 0.05 * self.bonus_outlook(c, 0, 0, None)
        return value

    def public_interest(self, c: int) -> float:
        # 4.6 Opponent's public interest, J
        value = 0.0
        if self.length(self.o, c) > 0:
            value += 5
        value += 2 * self.played_wagers(self.o, c)
        value += 0.25 * self.total(self.o, c)
        if self.highest(self.o, c) > 0:
            value += 0.4 * self.face(self.highest(self.o, c))
        pile = self.position.piles[c]
        if pile and self.fits(self.o, (c, pile[-1])):
            value += 1.5 if pile[-1] == 0 else 1.0 + 0.1 * self.face(pile[-1])
        if self.bonus_possible and self.length(self.o, c) + 1 >= self.rules.bonus_threshold:
            value += 0.2 * self.rules.bonus_amount
        return value

    def mine(self, card: Card) -> float:
        # 4.7 Value of a card to me
        c, rank = card
        if not self.fits(self.p, card):
            return 0.0
        i = self.interest(c)
        if rank == 0:
            return 7 + 1.2 * i
        value = 0.8 * self.face(rank) + i
        if self.length(self.p, c) > 0:
            value += 4
            value += 3
        if i >= 6 and rank <= self.middle_rank:
            value += 5
        return value

    def theirs(self, card: Card) -> float:
        # 4.8 Value of a card to the opponent
        c, rank = card
        if not self.fits(self.o, card):
            return 0.0
        j = self.public_interest(c)
        return 8 + 1.5 * j if rank == 0 else self.face(rank) * (0.4 + 0.25 * j)

    # 5. Card phase

    def card_action(self) -> int:
        """Return the action of the first check that has a candidate; the high action wins ties."""
        for check in (self.wager_plays, self.number_plays, self.first_openings, self.discards):
            candidates = check()
            if candidates:
                return max(candidates)[1]
        raise AssertionError("a hand in the card phase holds a card")

    def wager_plays(self) -> list[tuple[float, int]]:
        # 5.1 Handshake play
        candidates = []
        for slot, card in enumerate(self.hand):
            c, rank = card
            if rank > 0 or not self.fits(self.p, card):
                continue
            ranks = self.numbers(c)
            n, s = len(ranks), self.faces(ranks)
            if n >= self.min_wager and s >= self.wager_target and self.deck_left > self.block:
                value = s + 2 * n + self.bonus_outlook(c, 0, 1, card) - self.late_cost()
                candidates.append((value, 2 * slot))
        return candidates

    def number_plays(self) -> list[tuple[float, int]]:
        # 5.2 Number play
        candidates = []
        for slot, card in enumerate(self.hand):
            c, rank = card
            if rank == 0 or not self.fits(self.p, card):
                continue
            f = self.face(rank)
            if self.length(self.p, c) > 0:
                value = 7.0
                value += self.max_face + 1 - f
                if self.deck_left <= self.late:
                    value += 2 * f
                elif self.deck_left <= self.middle:
                    value += 0.8 * f
                if self.total(self.p, c) + f + self.faces(self.numbers(c, rank + 1)) < self.target:
                    value -= 6
                value += 3 * self.played_wagers(self.p, c)
                value += self.bonus_outlook(c, 0, 1, card)
            elif self.deck_left > self.block and self.plan(card) > 0:
                ranks = self.numbers(c, rank)
                n, s, h = len(ranks), self.faces(ranks), self.wagers(c)
                value = s + 2 * n + 1.5 * h
                value += self.plan(card)
                value += self.rules.expedition_penalty
                value += max(0, self.middle_rank - rank)
                value += self.bonus_outlook(c, 0, 1, card)
                value -= self.late_cost()
            else:
                continue
            candidates.append((value, 2 * slot))
        return candidates

    def first_openings(self) -> list[tuple[float, int]]:
        # 5.3 Forced first opening
        candidates = []
        for slot, card in enumerate(self.hand):
            c, rank = card
            if self.opened > 0 or rank == 0:
                continue
            plan = self.plan(card)
            ranks = self.numbers(c)
            n, s = len(ranks), self.faces(ranks)
            if plan <= 0 and n < 2 and s < 0.5 * self.target and self.deck_left > self.middle:
                continue
            value = plan + 0.2 * s
            value += self.max_face + 1 - self.face(rank)
            candidates.append((value, 2 * slot))
        return candidates

    def discards(self) -> list[tuple[float, int]]:
        # 5.4 Discard
        candidates = []
        for slot, card in enumerate(self.hand):
            value = 0 - self.mine(card) - self.theirs(card)
            if not self.fits(self.p, card):
                value += 20
            if not self.fits(self.o, card):
                value += 6
            if card[1] == 0 and self.fits(self.p, card):
                value -= 4
            candidates.append((value, 2 * slot + 1))
        return candidates

    # 6. Draw phase

    def draw_action(self) -> int:
        """Return the best draw; in a tie the deck beats every pile and a high colour a low one."""
        deck = 2 * self.rules.hand_size
        piles = [draw - deck - 1 for draw in self.position.legal() if draw != deck]
        draws = [(self.deck_value(), True, deck)]
        draws += [(self.pile_value(c), False, deck + 1 + c) for c in piles]
        return max(draws)[2]

    def deck_value(self) -> float:
        # 6.1 Deck
        value = 2 if self.deck_left > self.middle else 1 if self.deck_left > self.late else -1
        return value + 0.75 if self.diff > 0 else value - 1.25

    def pile_value(self, c: int) -> float:
        # 6.2 Top card x of discard pile c
        x = c, self.position.piles[c][-1]
        rank = x[1]
        i, t = self.interest(c), self.theirs(x)
        unopened = self.length(self.p, c) == 0
        # 6.2, step 1
        v = 0.4 * t
        if self.diff <= 0:
            v += 1.5
        if unopened:
            v -= 20 if self.opened >= 4 else 10 if self.opened == 3 else 0
        u = self.support(x)
        fifth_color = self.opened >= 4 and u < 6 and t < 10 and self.diff > -15
        # 6.2, step 2
        if rank == 0:
            ranks = self.numbers(c)
            n, s = len(ranks), self.faces(ranks)
            if self.highest(self.p, c) > 0:
                return v - 2
            if unopened and (n < self.min_wager or s < self.wager_target):
                return -8 if fifth_color else v + u - 0.5
            return v + 6 + i
        # 6.2, step 3
        if self.fits(self.p, x):
            v += self.face(rank)
            v += 0.7 * i
            v += u if unopened else 5
        else:
            v -= 2
        # 6.2, step 4
        if unopened and fifth_color:
            return -8
        # 6.2, step 5
        return v + self.bonus_outlook(c, 1, 0, None)

    def support(self, x: Card) -> float:
        # 6.3 support(x)
        c, rank = x
        ranks = self.numbers(c, rank)
        q, h = len(ranks), self.wagers(c)
        value = 0.8 * q + h
        if rank <= self.middle_rank:
            value += 1.5
        with_x = [*ranks, rank]
        if (
            len(with_x) >= self.min_open
            and self.faces(with_x) >= self.target
            and any(other >= self.middle_rank for other in with_x)
        ):
            value += 4
        elif self.opened <= 2 and (q > 0 or h > 0):
            value += 1.5
        if self.opened <= 2:
            value += 0.25 * self.plan(x)
        if self.opened == 3:
            value += 0.1 * max(0, self.plan(x))
        return value
