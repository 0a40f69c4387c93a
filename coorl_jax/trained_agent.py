"""The trained agent that a command looks at: the flags that name it, and what was saved of it."""

from __future__ import annotations

import sys
from pathlib import Path

from absl import flags

from coorl_jax import checkpoint, rundir, runtime
from coorl_jax.checkpoint import Checkpoint
from coorl_jax.config import Settings

CHECKPOINT = flags.DEFINE_string(
    "checkpoint", None, "run directory, or one of its policies, e.g. runs/my-run/policies/20"
)
SEED = flags.DEFINE_integer("seed", 0, "seed of decks and action noise")
JSON = flags.DEFINE_boolean("json", False, "print JSON, one object a line, in place of a table")


def checked_path() -> Path:
    """Return where the agent is; refuse a command without one, or with a seed that is none.

    Raises:
      ValueError: naming the flag.
    """
    if CHECKPOINT.value is None:
        raise ValueError(
            "--checkpoint: must be given, a run directory or one of its policies; "
            "e.g. --checkpoint=runs/my-run"
        )
    if not 0 <= SEED.value < 2**32:
        raise ValueError(f"--seed={SEED.value}: must be an integer from 0 to 2^32 - 1; e.g. 0")
    return Path(CHECKPOINT.value)


def restore(path: Path) -> tuple[Settings, Checkpoint]:
    """Read what a run saved for play, and configure jax as the run did.

    Args:
      path: run directory, or one of its policies.

    Returns:
      The run's settings, and its policies' parameters as `checkpoint.restore_policies` gives them.

    Raises:
      ValueError: where there are none that are whole, or another version of the package saved
        them.
    """
    restored = checkpoint.restore_policies(path, report=lambda text: print(text, file=sys.stderr))
    settings = rundir.parse_settings(restored.extra["config"], f"--checkpoint={path}")
    runtime.configure(settings.matmul_precision)
    return settings, restored
