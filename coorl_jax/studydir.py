"""A study's directory: what a study compares, and the results it has so far.

studies/leduc/
    study.json       seconds, configuration and variants, which may not change
    results.jsonl    one line per variant, seed and iteration at which NashConv was computed
    nash_conv.png    NashConv of the average policy against nodes and seconds
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coorl_jax import config as config_lib
from coorl_jax.metrics import read, replace_text
from coorl_jax.variants import Variants

RESULTS = "results.jsonl"
PICTURE = "nash_conv.png"

Run = list[dict[str, Any]]
"""The lines of one variant and seed, in order: `variant`, `seed`, `iteration`, `nodes`, `seconds`,
`compile_seconds`, `nash_conv` by policy (points a round), and `finished` in the last."""

_FIELDS = {
    "variant", "seed", "iteration", "nodes", "seconds", "compile_seconds", "nash_conv", "finished",
}  # fmt: skip


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Create a study's directory if need be, and keep other studies out of it.

    Raises:
      ValueError: when it cannot be written, or another study is there.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        handle = os.open(directory, os.O_RDONLY)
    except OSError as error:
        raise ValueError(
            f"--directory={directory}: must be a directory that can be written "
            f"({error.strerror}); e.g. studies/leduc"
        ) from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"--directory={directory}: another study is running there; stop it first, or "
                "choose another directory"
            ) from None
        yield
    finally:
        os.close(handle)


def check_same(
    directory: Path, settings: config_lib.Settings, variants: Variants, seconds: float
) -> None:
    """Record what a study compares, or check that it is what was recorded.

    Args:
      directory: of the study.
      settings: what the variants are variants of.
      variants: all that there are.
      seconds: of training for each variant and seed.

    Raises:
      ValueError: naming what differs: results would not be comparable.
    """
    file = directory / "study.json"
    if file.exists():
        try:
            saved = json.loads(file.read_text(encoding="utf-8"))
            changes = config_lib.differences(config_lib.from_dict(saved["config"]), settings)
            fields = {
                f"config.{field}": change
                for field, change in changes.items()
                # Seeds are given apart, and the rest of what a run may change has no effect here.
                if field != "seed" and not config_lib.may_change(field)
            }
            fields["--seconds"] = (saved["seconds"], seconds)
            for name in saved["variants"].keys() & variants.keys():
                fields[f"variant {name}"] = (saved["variants"][name], variants[name])
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(
                f"{file}: must be what a study wrote there ({error}); choose another --directory"
            ) from error
        for field, (old, new) in fields.items():
            if old != new:
                raise ValueError(
                    f"--directory={directory}: holds a study with {field} {old!r}, not {new!r}; "
                    "choose another directory"
                )
        variants = saved["variants"] | variants
    content = {
        "seconds": seconds,
        "config": config_lib.to_dict(settings),
        "variants": variants,
    }
    replace_text(file, json.dumps(content, indent=2) + "\n")


def finished(directory: Path) -> dict[tuple[str, int], Run]:
    """Return the finished runs by variant and seed, and drop the others from the file.

    Raises:
      ValueError: for a line that no study wrote.
    """
    results = directory / RESULTS
    runs: dict[tuple[str, int], Run] = {}
    for number, line in enumerate(read(results) if results.exists() else (), start=1):
        if missing := _FIELDS - line.keys():
            raise ValueError(
                f"{results}:{number}: must have {min(missing)}, as every line that a study wrote; "
                "delete the line"
            )
        runs.setdefault((line["variant"], line["seed"]), []).append(line)
    whole = {key: run for key, run in runs.items() if run[-1]["finished"]}
    lines = [json.dumps(line) + "\n" for run in whole.values() for line in run]
    replace_text(results, "".join(lines))
    return whole
