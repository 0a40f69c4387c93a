"""Replay recorded games of Lost Cities and name every disagreement with the engine.

    python -m coorl_jax.replay FILE...

FILE holds one game or position a line, as JSON, gzipped or not, under any rule parameters; it is
what `python -m coorl_jax.evaluate --record=FILE` writes. What a position says that a bot does, the
bot of that name (`agents/`) has to do here; of bots that play by chance, `random` and
`heuristic_noisy`, the action has only to be legal. Exit codes: 0 everything agrees, 1 something
disagrees, 2 a file is no file of recorded games, or names an unknown bot.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import jax
import numpy as np

from coorl_jax import agents, commandline
from coorl_jax.games.lost_cities import LostCities, records
from coorl_jax.policy import Policy

_SHOWN = 20  # disagreements printed for each file


class _Counted:
    """The records of a file that pass through, counted."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.records = 0
        self.decisions = 0
        self.bot_decisions = 0

    def __iter__(self) -> Iterator[records.Record]:
        for record in records.read_records(self._path):
            known = agents.names(record.rules)
            for bot in record.bots:
                if agents.canonical(bot) not in known:
                    raise records.RecordError(
                        f"{self._path}, line {record.line}: bot_actions has the unknown bot "
                        f"{bot!r}; must be one of {', '.join(known)}"
                    )
            self.records += 1
            self.decisions += len(record.actions)
            self.bot_decisions += len(record.bots)
            yield record


def replay_file(path: str) -> int:
    """Replay one file and print its disagreements and a summary.

    Args:
      path: the file.

    Returns:
      The number of disagreements.

    Raises:
      records.RecordError: if it is no file of records, or names an unknown bot.
    """
    counted = _Counted(path)
    disagreements = 0
    for disagreement in records.replay(counted, _plays):
        disagreements += 1
        if disagreements <= _SHOWN:
            print(f"{path}: {disagreement}")
    if disagreements > _SHOWN:
        print(f"{path}: {disagreements - _SHOWN} more disagreements, not shown")
    verdict = f"{disagreements} disagreements" if disagreements else "all agree"
    bots = f", {counted.bot_decisions} decisions of bots" if counted.bot_decisions else ""
    print(
        f"{path}: {counted.records} records, {counted.decisions} decisions{bots}: {verdict}",
        flush=True,
    )
    return disagreements


def _plays(bot: str, game: LostCities, packed: np.ndarray, legal: np.ndarray) -> np.ndarray:
    """Return which actions, bool[B, A], a bot takes with a probability above 0."""
    # Padded to powers of two, so that few different sizes are compiled.
    padding = ((0, (1 << (len(packed) - 1).bit_length()) - len(packed)), (0, 0))
    probabilities = _probabilities(
        agents.make(bot, game), np.pad(packed, padding), np.pad(legal, padding)
    )
    return np.asarray(probabilities)[: len(packed)] > 0


@jax.jit
def _probabilities(policy: Policy, packed: jax.Array, legal: jax.Array) -> jax.Array:
    return policy.action_probabilities(packed, legal)


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
