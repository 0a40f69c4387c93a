"""Flags that the commands which look at a trained agent have in common."""

from __future__ import annotations

from absl import flags

CHECKPOINT = flags.DEFINE_string(
    "checkpoint", None, "run directory, or one of its policies, e.g. runs/my-run/policies/20"
)
SEED = flags.DEFINE_integer("seed", 0, "seed of decks and action noise")
JSON = flags.DEFINE_boolean("json", False, "print JSON, one object a line, in place of a table")
