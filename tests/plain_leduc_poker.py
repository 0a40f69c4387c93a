"""Leduc poker one history at a time, chips counted as at a table, without the package."""

from __future__ import annotations

import dataclasses
import itertools

FOLD, CALL, RAISE = range(3)


@dataclasses.dataclass(frozen=True)
class Betting:
    """Who has put in what, and what was done; cards play no part before the end."""

    chips: tuple[int, int] = (1, 1)
    round: int = 0
    player: int = 0
    raises: int = 0
    calls: int = 0
    folded: int | None = None
    sequence: str = ""

    @property
    def over(self):
        return self.folded is not None or self.round == 2

    def legal(self):
        if self.over:
            return []
        facing = self.chips[self.player] < max(self.chips)
        return [FOLD] * facing + [CALL] + [RAISE] * (self.raises < 2)

    def after(self, action):
        sequence = self.sequence + "fcr"[action]
        if action == FOLD:
            return dataclasses.replace(self, folded=self.player, sequence=sequence)
        chips = list(self.chips)
        chips[self.player] = max(chips)
        if action == RAISE:
            chips[self.player] += (2, 4)[self.round]
            return dataclasses.replace(
                self, chips=tuple(chips), player=1 - self.player, raises=self.raises + 1,
                calls=0, sequence=sequence,
            )  # fmt: skip
        # A call after a raise ends the round; without one both have to check.
        if self.raises or self.calls:
            return Betting(tuple(chips), self.round + 1, sequence=sequence + "/")
        return dataclasses.replace(self, player=1 - self.player, calls=1, sequence=sequence)

    def returns(self, cards):
        """Return the chips won by player 0, given both private cards and the public card."""
        if self.folded is not None:
            return self.chips[1] if self.folded == 1 else -self.chips[0]
        first, second, public = (card // 2 for card in cards)
        if first == second:
            return 0
        wins = first == public or (second != public and first > second)
        return self.chips[1] if wins else -self.chips[0]


def best_response(player, probabilities):
    """Return the value of a player's best response, by a walk over what the player sees.

    At a time all deals are followed that look the same to the player, with the probability that
    chance and the opponent bring them there.

    Args:
      player: 0 or 1.
      probabilities: (own card, public card or None, Betting) -> [fold, call, raise] of the other.
    """

    def walk(betting, reach):
        if betting.over:
            sign = 1 if player == 0 else -1
            return sum(sign * weight * betting.returns(cards) for cards, weight in reach.items())
        if betting.player == player:
            return max(follow(betting.after(action), reach) for action in betting.legal())
        total = 0.0
        for action in betting.legal():
            below = {
                cards: weight
                * probabilities(cards[1 - player], cards[2] if betting.round else None, betting)[
                    action
                ]
                for cards, weight in reach.items()
            }
            total += follow(betting.after(action), below)
        return total

    def follow(betting, reach):
        """Go on; the public card is turned up where the first round has just ended."""
        if betting.sequence.endswith("/") and not betting.over:
            return sum(walk(betting, group) for group in split(reach, 2))
        return walk(betting, reach)

    deals = dict.fromkeys(itertools.permutations(range(6), 3), 1 / 120)
    return sum(walk(Betting(), group) for group in split(deals, player))


def split(reach, position):
    """Return the deals grouped by one of their cards."""
    return [
        {cards: weight for cards, weight in reach.items() if cards[position] == card}
        for card in range(6)
    ]
