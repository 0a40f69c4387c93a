"""Every deal of a small game of Lost Cities."""

from __future__ import annotations

import itertools
import math

import numpy as np

_MAX_DEALS = 50_000


def enumerate_decks(num_cards: int, hand_size: int) -> np.ndarray:
    """Return one deck for each deal: which cards either hand holds, and the order of the others.

    Args:
      num_cards: N.
      hand_size: H.

    Returns:
      uint8[M, N], decks in draw order, of which the first 2 H cards are dealt in turn.

    Raises:
      ValueError: for more than 50,000 deals.
    """
    # Compared as integers: the factorials of large decks are beyond floating point.
    if math.factorial(num_cards) > _MAX_DEALS * math.factorial(hand_size) ** 2:
        raise ValueError(
            f"hand_size={hand_size}: {num_cards} cards have more than {_MAX_DEALS:,} deals, too "
            "many to enumerate; e.g. hand_size=3 with colors=2, ranks=4, wagers=0"
        )
    cards = set(range(num_cards))
    decks = []
    for first in itertools.combinations(sorted(cards), hand_size):
        for second in itertools.combinations(sorted(cards - {*first}), hand_size):
            dealt = [card for pair in zip(first, second, strict=True) for card in pair]
            for rest in itertools.permutations(sorted(cards - {*dealt})):
                decks.append((*dealt, *rest))
    return np.array(decks, np.uint8)
