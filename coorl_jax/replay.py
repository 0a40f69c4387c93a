"""Replay recorded games of Lost Cities and name every disagreement with the engine.

    python -m coorl_jax.replay FILE...

FILE holds one game or position a line, as JSON, gzipped or not, under any rule parameters; it is
what `python -m coorl_jax.evaluate --record=FILE` writes. Exit codes: 0 everything agrees,
1 something disagrees, 2 a file is no file of recorded games.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from coorl_jax import commandline
from coorl_jax.games.lost_cities import records

_SHOWN = 20  # disagreements printed for each file


class _Counted:
    """The records that pass through, counted."""

    def __init__(self, source: Iterable[records.Record]) -> None:
        self._source = source
        self.records = 0
        self.decisions = 0

    def __iter__(self) -> Iterator[records.Record]:
        for record in self._source:
            self.records += 1
            self.decisions += len(record.actions)
            yield record


def replay_file(path: str) -> int:
    """Replay one file and print its disagreements and a summary.

    Args:
      path: the file.

    Returns:
      The number of disagreements.

    Raises:
      records.RecordError: if it is no file of records.
    """
    counted = _Counted(records.read_records(path))
    disagreements = 0
    for disagreement in records.replay(counted):
        disagreements += 1
        if disagreements <= _SHOWN:
            print(f"{path}: {disagreement}")
    if disagreements > _SHOWN:
        print(f"{path}: {disagreements - _SHOWN} more disagreements, not shown")
    verdict = f"{disagreements} disagreements" if disagreements else "all agree"
    print(
        f"{path}: {counted.records} records, {counted.decisions} decisions: {verdict}", flush=True
    )
    return disagreements


def main(paths: list[str]) -> None:
    """Replay the files.

    Args:
      paths: at least one.

    Raises:
      ValueError: without a file, or for one that holds no records.
      SystemExit: with code 1 if anything disagrees.
    """
    if not paths:
        raise ValueError("FILE: must name at least one file of recorded games; e.g. games.jsonl.gz")
    disagreements = [replay_file(path) for path in paths]
    if any(disagreements):
        sys.exit(1)


if __name__ == "__main__":
    commandline.run(main, arguments=True)
