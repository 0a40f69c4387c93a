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
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coorl_jax import config as config_lib
from coorl_jax.fields import Choice, Integer, Name, Real, Rule
from coorl_jax.metrics import read, replace_text
from coorl_jax.variants import Variants

RESULTS = "results.jsonl"
PICTURE = "nash_conv.png"

POLICIES = ("average", "mixture", "current")
"""Whose NashConv is computed."""

Run = list[dict[str, Any]]
"""The lines of one variant and seed, in order: `variant`, `seed`, `iteration`, `nodes`, `seconds`,
`compile_seconds`, `nash_conv` by policy (points a round), and `finished` in the last."""

_RULES: dict[str, Rule] = {
    "variant": Name("external"),
    "seed": Integer(0, example=0),
    "iteration": Integer(1, example=1),
    "nodes": Integer(0, example=1000, high=2**63 - 1),
    "seconds": Real(low=0.0, example=1.0),
    "compile_seconds": Real(low=0.0, example=1.0),
    **{f"nash_conv.{policy}": Real(example=0.1) for policy in POLICIES},
    "finished": Choice((True, False)),
}
# It took some time: nodes are divided by it.
_END_RULES = _RULES | {"seconds": Real(above=0.0, example=1.0)}

_ADVICE = "remove the directory, or give another --directory"


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Create a study's directory if need be, and keep other studies out of it.

    Raises:
      ValueError: when it cannot be written, or another study is there.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        # One that is there already need not take files.
        with tempfile.TemporaryFile(dir=directory):
            pass
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
      ValueError: naming what differs, as results would not be comparable; or when the record is
        damaged, or of another version of this package.
    """
    file = directory / "study.json"
    if file.exists():
        try:
            saved = json.loads(file.read_text(encoding="utf-8"))
            for name, kind in (("seconds", int | float), ("config", dict), ("variants", dict)):
                if not isinstance(saved, dict) or not isinstance(saved.get(name), kind):
                    raise TypeError(f"{name} missing, or of another kind")
            saved_settings = config_lib.from_dict(saved["config"])
        except (ValueError, TypeError) as error:
            reason = str(error).partition(";")[0]
            raise ValueError(
                f"{file}: must be what a study by this version of coorl_jax wrote there "
                f"({reason}); {_ADVICE}"
            ) from error
        fields = {
            f"config.{field}": change
            for field, change in config_lib.differences(saved_settings, settings).items()
            # Seeds are given apart, and the rest of what a run may change has no effect here.
            if field != "seed" and not config_lib.may_change(field)
        }
        fields["--seconds"] = (saved["seconds"], seconds)
        for name in saved["variants"].keys() & variants.keys():
            fields[f"variant {name}"] = (saved["variants"][name], variants[name])
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
        try:
            _check_line(line)
            run = runs.setdefault((line["variant"], line["seed"]), [])
            if run and line["iteration"] <= run[-1]["iteration"]:
                raise ValueError(f"iteration={line['iteration']}: must be a later one than before")
        except ValueError as error:
            raise ValueError(f"{results}:{number}: {error}; {_ADVICE}") from error
        run.append(line)
    whole = {key: run for key, run in runs.items() if run[-1]["finished"]}
    lines = [json.dumps(line) + "\n" for run in whole.values() for line in run]
    replace_text(results, "".join(lines))
    return whole


def _check_line(line: dict[str, Any]) -> None:
    """Check that a line of results has every field, and that each holds what it may.

    Raises:
      ValueError: naming the first that does not.
    """
    nash_conv = line.get("nash_conv")
    by_policy = nash_conv if isinstance(nash_conv, dict) else {}
    values = line | {f"nash_conv.{policy}": value for policy, value in by_policy.items()}
    for field, rule in (_END_RULES if line.get("finished") is True else _RULES).items():
        try:
            rule.parse(values.get(field))
        except ValueError as error:
            found = f"={values[field]!r}" if field in values else " is missing"
            raise ValueError(f"{field}{found}: {error}") from error
