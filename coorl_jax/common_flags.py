"""Flags that several commands have."""

from __future__ import annotations

from absl import flags

SEED = flags.DEFINE_integer("seed", 0, "seed of decks and action noise")
JSON = flags.DEFINE_boolean("json", False, "print JSON, one object a line, in place of a table")

_MOST_ROUNDS = 10_000_000  # An hour or more, and errors of a hundredth of a point.


def check_seed() -> None:
    """Refuse a seed that is none.

    Raises:
      ValueError: naming the flag.
    """
    if not 0 <= SEED.value < 2**32:
        raise ValueError(f"--seed={SEED.value}: must be an integer from 0 to 2^32 - 1; e.g. 0")


def check_rounds(rounds: int) -> int:
    """Return the deals of a match of so many rounds.

    Raises:
      ValueError: naming the flag.
    """
    if not 4 <= rounds <= _MOST_ROUNDS or rounds % 2:
        raise ValueError(
            f"--rounds={rounds}: must be even, since every deal is played twice, and from 4, for a "
            f"standard error, to {_MOST_ROUNDS}; e.g. 4000"
        )
    return rounds // 2
