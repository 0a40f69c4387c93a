"""The flag --checkpoint, which names the trained agents that a command looks at."""

from __future__ import annotations

from pathlib import Path

from absl import flags

CHECKPOINT = flags.DEFINE_list(
    "checkpoint",
    None,
    "trained agents: run directories, their best/ or one of their policies, or the one shipped; "
    "e.g. runs/my-run,runs/my-run/policies/20,pretrained",
)
_EXAMPLE = "--checkpoint=runs/my-run"


def checked_paths() -> list[Path]:
    """Return where the agents are.

    Raises:
      ValueError: where none is given, or one twice.
    """
    given = CHECKPOINT.value
    if not given or "" in given:
        raise ValueError(
            "--checkpoint: must be given, a run directory, one of its policies or pretrained; "
            f"e.g. {_EXAMPLE}"
        )
    paths = [Path(path) for path in given]
    if len(set(paths)) < len(paths):
        raise ValueError(f"--checkpoint={','.join(given)}: must be different; e.g. {_EXAMPLE}")
    return paths


def checked_path() -> Path:
    """Return where the agent is, for a command that looks at a single one.

    Raises:
      ValueError: where none is given, or several.
    """
    paths = checked_paths()
    if len(paths) > 1:
        raise ValueError(
            f"--checkpoint={','.join(map(str, paths))}: must be a single agent; e.g. {_EXAMPLE}"
        )
    return paths[0]
