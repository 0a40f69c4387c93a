"""Requests to stop. Loads nothing heavy, so that a run can listen before it loads jax."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType
from typing import Any


class StopRequest:
    """Turns SIGINT and SIGTERM into a flag that a loop polls.

    A context manager; leaving it restores the former handlers. A second SIGINT raises
    `KeyboardInterrupt` at once.
    """

    def __init__(self, announce: Callable[[str], None]) -> None:
        """Args: announce: told the name of the signal that asks to stop."""
        self._announce = announce
        self._requested = False
        self._previous: dict[signal.Signals, Any] = {}

    @property
    def requested(self) -> bool:
        """Whether a signal has asked to stop."""
        return self._requested

    def __enter__(self) -> StopRequest:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        if not self._requested:
            self._requested = True
            self._announce(signal.Signals(number).name)
