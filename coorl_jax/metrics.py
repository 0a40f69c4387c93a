"""Where the numbers of a run go: `metrics.jsonl`, and TensorBoard if asked for."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any

Metrics = Mapping[str, float]
"""Numbers by name; a slash makes a group, e.g. "loss/advantage"."""


class MetricsWriter:
    """Appends one JSON object a line, flushed, so that a killed run loses at most one line.

    A context manager. The first field of a line is `iteration`; NaN and infinities, which JSON
    cannot hold, become null.
    """

    def __init__(self, path: Path, *, tensorboard_directory: Path | None = None) -> None:
        """Open the file for appending, with TensorBoard files in another directory if asked for.

        Raises:
          ValueError: when tensorboardX is asked for but not installed.
        """
        self._path = path
        # First, since it may be missing: nothing is to be left open then.
        self._tensorboard = _open_tensorboard(tensorboard_directory)
        self._file = path.open("a", encoding="utf-8")

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(self, *exception: object) -> None:
        # A line that a full disk refused is still buffered, and has been complained about.
        with contextlib.suppress(OSError):
            self._file.close()
        if self._tensorboard is not None:
            self._tensorboard.close()

    def write(self, iteration: int, metrics: Metrics) -> None:
        """Append the line of an iteration.

        Raises:
          ValueError: when the line cannot be written, e.g. because the disk is full.
        """
        line = {"iteration": iteration, **{name: _finite(metrics[name]) for name in metrics}}
        try:
            self._file.write(json.dumps(line, allow_nan=False) + "\n")
            self._file.flush()
        except OSError as error:
            raise ValueError(f"{self._path}: cannot be written ({error.strerror})") from error
        if self._tensorboard is not None:
            for name, value in metrics.items():
                self._tensorboard.add_scalar(name, value, iteration)
            self._tensorboard.flush()

    def truncate_after(self, iteration: int) -> int:
        """Drop the lines of later iterations and a torn last line, atomically.

        A resumed run repeats what came after its checkpoint and writes those lines again.

        Returns:
          The last iteration that has a line; 0 when none has.
        """
        kept = [line for line in read(self._path) if line["iteration"] <= iteration]
        replace_text(self._path, "".join(json.dumps(line) + "\n" for line in kept))
        self._file.close()
        self._file = self._path.open("a", encoding="utf-8")
        return kept[-1]["iteration"] if kept else 0


def read(path: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a metrics file; a last line torn by a kill is left out.

    Raises:
      ValueError: naming the first line, other than a torn last one, that is no metrics line.
    """
    *whole, _ = path.read_text(encoding="utf-8", errors="replace").split("\n")
    lines = []
    for number, text in enumerate(whole, start=1):
        try:
            line = json.loads(text)
            if type(line["iteration"]) is not int:
                raise TypeError("iteration")
        except (ValueError, TypeError, KeyError, RecursionError):
            raise ValueError(
                f"{path}:{number}: must be a JSON object with an iteration; delete the line"
            ) from None
        lines.append(line)
    return lines


def replace_text(path: Path, text: str) -> None:
    """Write a file so that a kill at any moment leaves the old text or the new one."""
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


@contextlib.contextmanager
def timed(metrics: MutableMapping[str, float], name: str) -> Iterator[None]:
    """Add the seconds the block takes to `metrics[name]`."""
    start = time.perf_counter()
    yield
    metrics[name] = metrics.get(name, 0.0) + time.perf_counter() - start


def _open_tensorboard(directory: Path | None) -> Any:
    """Return a tensorboardX writer, or None without a directory."""
    if directory is None:
        return None
    try:
        import tensorboardX
    except ImportError:
        raise ValueError(
            "config.log.tensorboard=True: needs the extra `tensorboard`; "
            "e.g. pip install 'coorl-jax[tensorboard]'"
        ) from None
    return tensorboardX.SummaryWriter(str(directory))


def _finite(value: float) -> float | None:
    """Return the number as JSON can hold it."""
    number = value if isinstance(value, int) else float(value)
    return number if math.isfinite(number) else None
