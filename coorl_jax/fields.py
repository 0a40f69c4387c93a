"""What a field of a configuration may hold: rules that parse one value, or say what it must be."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any, Protocol

# Iterations, capacities and indices are int32 on the device.
INT32_MAX = 2**31 - 1


class Rule(Protocol):
    """What a field may hold: `parse` returns the value, or raises ValueError with the rule."""

    @property
    def example(self) -> Any:
        """A good value, for messages."""
        ...

    def parse(self, value: Any) -> Any:
        """Return what the field holds when given `value`."""
        ...


@dataclasses.dataclass(frozen=True)
class Integer:
    """An integer in [low, high]."""

    low: int
    example: int
    high: int = INT32_MAX

    def parse(self, value: Any) -> int:
        """Return the value, or raise ValueError with the rule."""
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        if not is_integer or not self.low <= value <= self.high:
            raise ValueError(f"must be an integer from {self.low} to {self.high}, in digits")
        return value


@dataclasses.dataclass(frozen=True)
class Real:
    """A finite number above `above`, or from `low` to `high`."""

    example: float
    above: float = -math.inf
    low: float = -math.inf
    high: float = math.inf

    def parse(self, value: Any) -> float:
        """Return the value, or raise ValueError with the rule."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and self.above < value < math.inf and self.low <= value <= self.high:
            return float(value)
        if self.above > -math.inf:
            raise ValueError(f"must be a finite number above {self.above:g}")
        raise ValueError(f"must be a number from {self.low:g} to {self.high:g}")


@dataclasses.dataclass(frozen=True)
class Choice:
    """One of a few values, and of its type: 1 is not True."""

    options: tuple[Any, ...]

    @property
    def example(self) -> Any:
        """The first of them."""
        return self.options[0]

    def parse(self, value: Any) -> Any:
        """Return the value, or raise ValueError with the rule."""
        if type(value) is not type(self.example) or value not in self.options:
            raise ValueError(f"must be one of {', '.join(map(str, self.options))}")
        return value


@dataclasses.dataclass(frozen=True)
class Name:
    """A word that is also safe as a part of a file name."""

    example: str

    def parse(self, value: Any) -> str:
        """Return the value, or raise ValueError with the rule."""
        if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", value):
            raise ValueError("must be a word of letters, digits and . _ - that starts with one")
        return value


@dataclasses.dataclass(frozen=True)
class Player:
    """What names a player or a directory: anything on a line, without commas."""

    example: str

    def parse(self, value: Any) -> str:
        """Return the value, or raise ValueError with the rule."""
        if not isinstance(value, str) or not re.fullmatch(r"[^\n,]+", value):
            raise ValueError("must be a name or a path without commas")
        return value


@dataclasses.dataclass(frozen=True)
class Names:
    """A non-empty tuple of distinct words, each accepted by `item`; commas separate too."""

    item: Rule
    example: tuple[str, ...]

    def parse(self, value: Any) -> tuple[str, ...]:
        """Return the value, or raise ValueError with the rule."""
        if not isinstance(value, tuple | list):
            raise ValueError("must be a tuple of names")
        words = [word.strip() for item in value for word in str(item).split(",")]
        if not words or len(set(words)) < len(words):
            raise ValueError("must be a non-empty tuple of different names")
        return tuple(self.item.parse(word) for word in words)
