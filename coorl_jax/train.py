"""Train an agent.

    python -m coorl_jax.train --config=configs/default.py:smoke --config.seed=1

The run's configuration, metrics, checkpoints and policies go to a new directory below runs/, or
to --workdir. With the --workdir of an earlier run, that run goes on exactly where it stopped; its
length, evaluation, gate, checkpoints and logging may be changed, e.g. --config.iterations=400.
Ctrl-C or SIGTERM stops at the end of the current stage, with a checkpoint.
"""

from __future__ import annotations

from pathlib import Path

from absl import flags

from coorl_jax import commandline, rundir, training
from coorl_jax import config as config_lib
from coorl_jax.progress import tell

_WORKDIR = flags.DEFINE_string(
    "workdir", None, "run directory to create or to resume; if not given, a new one below runs/"
)


def main(argv: list[str]) -> None:
    """Train by the flags."""
    del argv
    workdir = None if _WORKDIR.value is None else Path(_WORKDIR.value)
    saved = None if workdir is None else rundir.saved_settings(workdir)
    if saved is not None and commandline.config_path() is None:
        settings = config_lib.override(saved, commandline.config_overrides())
    else:
        settings = commandline.config_settings()
        if commandline.config_path() is None:
            tell(
                f"preset {settings.preset}, chosen for the device found; "
                "for another: --config=configs/default.py:smoke"
            )
    training.train(settings, workdir or rundir.new_path(settings.name))


if __name__ == "__main__":
    commandline.run(main, config=True)
