"""A run directory: what a training run leaves on disk, and the rules of resuming it.

runs/2026-01-31_120000_lost-cities/
    config.json      the resolved configuration
    metrics.jsonl    one line per iteration
    checkpoints/     the last full states, by completed stages
    policies/        the policies alone, by iteration
    best/            the last ones that beat the best before them
    tensorboard/     if asked for
    exploit.json     of a responder (exploit.py), with exploit.png
    lock             held while a trainer runs; the system releases it with the process
"""

from __future__ import annotations

import dataclasses
import datetime
import fcntl
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from coorl_jax import config as config_lib
from coorl_jax.metrics import replace_text

_CONFIG = "config.json"
_LOCK = "lock"
_ROOT = Path("runs")


@dataclasses.dataclass(frozen=True)
class RunDirectory:
    """An open run directory, locked until it is closed; a context manager."""

    path: Path
    _lock: TextIO

    @property
    def checkpoints(self) -> Path:
        """Directory of the full states."""
        return self.path / "checkpoints"

    @property
    def policies(self) -> Path:
        """Directory of the policies."""
        return self.path / "policies"

    @property
    def best(self) -> Path:
        """Directory of the best policies so far."""
        return self.path / "best"

    @property
    def metrics(self) -> Path:
        """The metrics file."""
        return self.path / "metrics.jsonl"

    @property
    def tensorboard(self) -> Path:
        """Directory of the TensorBoard files."""
        return self.path / "tensorboard"

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *exception: object) -> None:
        self._lock.close()


def new_path(name: str) -> Path:
    """Return the path of a new run directory, `runs/<date and time>_<name>`, that is not there."""
    stamp = _now()
    path, copies = _ROOT / f"{stamp}_{name}", 1
    while path.exists():
        copies += 1
        path = _ROOT / f"{stamp}_{name}_{copies}"
    return path


def parse_settings(values: Mapping[str, Any], origin: str) -> config_lib.Settings:
    """Return the settings that a run saved.

    Args:
      values: nested plain values, as `config.to_dict` gave them.
      origin: where they were saved, for the message.

    Raises:
      ValueError: when they are none: fields come and go between versions of this package.
    """
    try:
        return config_lib.from_dict(values)
    except config_lib.ConfigError as error:
        # What follows the semicolon is advice for who writes a configuration.
        reason = str(error).partition(";")[0]
        raise ValueError(
            f"{origin}: was written by another version of coorl_jax, or changed since ({reason}); "
            "use the version that wrote it, or start a new run"
        ) from error


def saved_settings(path: Path) -> config_lib.Settings | None:
    """Return the settings a run directory was started with; None when it is new or empty.

    Raises:
      ValueError: when it holds something else than a run, a damaged configuration, or one that
        this version of the package cannot read.
    """
    file = path / _CONFIG
    if file.is_file():
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
            if not isinstance(values, dict):
                raise TypeError("it holds no JSON object")
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"{file}: must be the configuration that a run wrote there ({error}); restore it, "
                "or start a new run"
            ) from error
        return parse_settings(values, f"--workdir={path}")
    if path.is_dir():
        # A run that was killed as it started has left no more than this.
        others = {entry.name for entry in path.iterdir()} - {_LOCK, f".{_CONFIG}.tmp"}
        if others:
            raise ValueError(
                f"--workdir={path}: must be a run, or a new or empty directory, but it holds "
                f"{min(others)} and no {_CONFIG}; e.g. {_ROOT}/my-run"
            )
    elif path.exists():
        raise ValueError(f"--workdir={path}: must be a directory; e.g. {_ROOT}/my-run")
    return None


def check_resume(path: Path, settings: config_lib.Settings) -> None:
    """Check that a run may go on in this directory with these settings; changes nothing.

    Raises:
      ValueError: naming every field that differs from the saved one and may not.
    """
    saved = saved_settings(path)
    if saved is None or not has_trained(path):
        return
    refused = [
        f"config.{field} is {new!r}, was {old!r}"
        for field, (old, new) in config_lib.differences(saved, settings).items()
        if not config_lib.may_change(field)
    ]
    if refused:
        raise ValueError(
            f"--workdir={path}: a run resumes with the configuration it was started with, but "
            f"{'; '.join(refused)}; leave --config out to take the saved one"
        )


def has_trained(path: Path) -> bool:
    """Return whether a run has left anything that a changed configuration would spoil.

    One that failed or was stopped before its first checkpoint has not.
    """
    metrics, checkpoints = path / "metrics.jsonl", path / "checkpoints"
    return (metrics.exists() and metrics.stat().st_size > 0) or (
        checkpoints.is_dir() and any(entry.name.isdecimal() for entry in checkpoints.iterdir())
    )


def open_run(path: Path, settings: config_lib.Settings) -> RunDirectory:
    """Create or reopen a run directory, lock it and record the settings.

    Raises:
      ValueError: when it is in use, cannot be written, or may not go on with these settings.
    """
    check_resume(path, settings)
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = (path / _LOCK).open("a")
    except OSError as error:
        raise ValueError(
            f"--workdir={path}: must be a directory that can be written ({error.strerror}); "
            f"e.g. {_ROOT}/my-run"
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Once more: another trainer may have started here before the lock was ours.
        check_resume(path, settings)
        text = json.dumps(config_lib.to_dict(settings), indent=2) + "\n"
        replace_text(path / _CONFIG, text)
    except BlockingIOError:
        lock.close()
        raise ValueError(
            f"--workdir={path}: another trainer is running there; stop it first, or choose "
            "another directory"
        ) from None
    except (OSError, ValueError):
        lock.close()
        raise
    return RunDirectory(path, lock)


def _now() -> str:
    return datetime.datetime.now().strftime("%Y-%m-%d_%H%M%S")
