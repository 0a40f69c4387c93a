"""Checkpoints on disk: pytrees of arrays with a JSON object beside each; the only user of orbax.

A store is a directory with one subdirectory per step. Orbax writes a step under a temporary name
and renames it when it is whole, so a kill never leaves a torn one. On top of that a store

* refuses to restore into other shapes or dtypes (orbax casts silently),
* keeps the size and checksum of every file beside a step, and so tells a damaged step from a
  whole one before any of it is used,
* restores onto the devices there are, not those the step was saved from,
* writes synchronously: on a CPU an array's host copy may be the array itself, which the next
  iteration donates.
"""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from coorl_jax.metrics import replace_text

POLICIES = "policies"
"""Name of the directory of policies in a run directory."""
BEST = "best"
"""Name of the directory of the best policies so far."""
PRETRAINED = Path("pretrained")
"""Stands for the agent that the package ships, wherever a run directory may be given: one that has
this name is given with more of its path."""

_SHIPPED = Path(__file__).parent / "pretrained"  # a directory of policies, like a run's
_CHECKSUMS = "checksums.json"
_COMMITTED = "commit_success.txt"
_READ_BYTES = 1 << 22


class DamagedCheckpointError(ValueError):
    """A step whose files are not as they were written."""


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A restored step."""

    step: int
    tree: Any
    """Pytree of jax arrays."""
    extra: dict[str, Any]
    """The JSON object saved with it."""


class CheckpointStore:
    """The steps in one directory; a context manager."""

    def __init__(self, directory: Path, *, keep: int = 0, read_only: bool = False) -> None:
        """Open a store, creating the directory unless it is only to be read.

        Args:
          directory: of the store.
          keep: how many of the latest steps to keep; 0 = all.
          read_only: leave the directory as it is; needed wherever another process may write.

        Raises:
          ValueError: when the directory is missing or cannot be written.
        """
        self._directory = directory.absolute()
        self._read_only = read_only
        if read_only and not directory.is_dir():
            raise ValueError(f"{directory}: must be an existing directory of checkpoints")
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep or None,
            create=not read_only,
            read_only=read_only,
            # Left by a kill during a write. Only the owner may: another's write looks the same.
            cleanup_tmp_directories=not read_only,
            enable_async_checkpointing=False,
            lightweight_initialize=True,
        )
        try:
            self._manager = ocp.CheckpointManager(
                self._directory,
                options=options,
                # Named here, since a reader that has not saved knows no handler for metadata.
                item_handlers={
                    "tree": ocp.StandardCheckpointHandler(),
                    "extra": ocp.JsonCheckpointHandler(),
                },
            )
        except OSError as error:
            raise ValueError(f"{directory}: cannot be opened ({error})") from error

    def __enter__(self) -> CheckpointStore:
        return self

    def __exit__(self, *exception: object) -> None:
        self._manager.close()

    def steps(self) -> list[int]:
        """Return the steps there are, ascending."""
        return sorted(self._manager.all_steps())

    def save(self, step: int, tree: Any, extra: Mapping[str, Any]) -> None:
        """Write a step, whole when this returns, and then delete those no longer kept.

        Args:
          step: its number; an existing step of that number is replaced.
          tree: pytree of jax arrays.
          extra: JSON object.

        Raises:
          ValueError: when it cannot be written, e.g. because the disk is full; earlier steps are
            still there.
        """
        try:
            # Orbax would leave the old step in place and say so in the returned value only.
            if step in self._manager.all_steps():
                self._manager.delete(step)
            self._manager.save(
                step,
                args=ocp.args.Composite(
                    tree=ocp.args.StandardSave(tree), extra=ocp.args.JsonSave(dict(extra))
                ),
                force=True,
            )
            self._manager.wait_until_finished()
            path = self._path(step)
            # Orbax reads these on object stores alone; they name the directory, and a checkpoint
            # may be given away.
            for file in list(path.rglob(_COMMITTED)):
                file.unlink()
            replace_text(path / _CHECKSUMS, json.dumps(_checksums(path)))
        except Exception as error:
            # Orbax lets each of its backends' exceptions through: OSError, ValueError and others.
            raise ValueError(
                f"{self._path(step)}: the checkpoint cannot be written ({_first_line(error)}); "
                f"kept: {self.steps() or 'none'}; make room and resume the run"
            ) from error

    def restore(self, step: int, template: Any = None) -> Checkpoint:
        """Read one step.

        Args:
          step: its number.
          template: pytree of arrays, or `abstract` of one, whose structure, shapes, dtypes and
            shardings the result is to have; None: as saved, on the default device, with
            dictionaries for named tuples.

        Raises:
          DamagedCheckpointError: when it is not as it was written.
          ValueError: when it does not fit the template.
        """
        self._verify(step)
        try:
            metadata = self._manager.item_metadata(step)["tree"].tree
        except Exception as error:
            raise self._damaged(step, error) from error
        if template is None:
            device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
            target = jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=device), metadata
            )
        else:
            self._refuse_mismatch(step, _signatures(metadata), _signatures(template))
            target = abstract(template)
        try:
            restored = self._manager.restore(
                step,
                args=ocp.args.Composite(
                    tree=ocp.args.StandardRestore(target), extra=ocp.args.JsonRestore()
                ),
            )
        except Exception as error:
            raise self._damaged(step, error) from error
        tree = restored["tree"]
        return Checkpoint(step, tree if template is not None else _tuples(tree), restored["extra"])

    def restore_latest(self, template: Any = None, *, report: Callable[[str], None]) -> Checkpoint:
        """Read the latest whole step; set damaged later ones aside unless read-only.

        Args:
          template: as for `restore`.
          report: told of every damaged step.

        Raises:
          ValueError: when no step is whole, or the latest whole one does not fit the template.
        """
        damaged: list[int] = []
        for step in reversed(self.steps()):
            try:
                checkpoint = self.restore(step, template)
            except DamagedCheckpointError as error:
                report(str(error))
                damaged.append(step)
            else:
                if not self._read_only:
                    self._set_aside(damaged)
                return checkpoint
        raise ValueError(
            f"{self._directory}: holds no whole checkpoint (damaged: {sorted(damaged) or 'none'}); "
            "restore one from a copy, or start a new run"
        )

    def delete_after(self, step: int) -> None:
        """Delete the steps after this one."""
        for later in self.steps():
            if later > step:
                self._manager.delete(later)

    def _path(self, step: int) -> Path:
        return self._directory / str(step)

    def _verify(self, step: int) -> None:
        """Compare the files of a step with their checksums, if it has them.

        It has none when a kill came between the step and its checksums: then it is whole.
        """
        path = self._path(step)
        if step not in self._manager.all_steps():
            raise ValueError(f"{path}: no such checkpoint; there are {self.steps() or 'none'}")
        file = path / _CHECKSUMS
        if not file.exists():
            return
        try:
            expected, found = json.loads(file.read_text()), _checksums(path)
        except (OSError, ValueError) as error:
            raise self._damaged(step, error) from error
        if not isinstance(expected, dict):
            raise self._damaged(step, f"{_CHECKSUMS} holds no checksums")
        changed = [name for name in expected if found.get(name) != expected[name]]
        if changed:
            raise self._damaged(step, f"{changed[0]} is not as it was written")

    def _damaged(self, step: int, reason: Exception | str) -> DamagedCheckpointError:
        detail = reason if isinstance(reason, str) else _first_line(reason)
        return DamagedCheckpointError(f"{self._path(step)}: the checkpoint is damaged ({detail})")

    def _refuse_mismatch(self, step: int, saved: dict[str, str], needed: dict[str, str]) -> None:
        for name in sorted({*saved, *needed}):
            have, need = saved.get(name, "missing"), needed.get(name, "absent")
            if have != need:
                raise ValueError(
                    f"{self._path(step)}: {name} is {have} in the checkpoint but {need} in this "
                    "configuration; resume with the configuration the run was started with"
                )

    def _set_aside(self, steps: list[int]) -> None:
        """Move damaged steps out of the way, to where their owner can look at them."""
        for step in steps:
            aside = self._directory.with_name(f"damaged_{self._directory.name}")
            aside.mkdir(exist_ok=True)
            target, copies = aside / str(step), 1
            while target.exists():
                copies += 1
                target = aside / f"{step}_{copies}"
            self._path(step).rename(target)
        if steps:
            self._manager.reload()


def abstract(tree: Any) -> Any:
    """Return the shapes, dtypes and shardings of a pytree of arrays, which itself may go."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding), tree
    )


def restore_policies(
    path: Path, *, report: Callable[[str], None], flag: str = "--checkpoint"
) -> Checkpoint:
    """Read the policies of a run, without its trainer.

    Args:
      path: a run directory, for its latest policies; RUN/best, for the best; one of the steps
        below, e.g. RUN/policies/20; or `PRETRAINED`.
      report: told of damaged steps that are passed over.
      flag: what the user gave the path as, for messages.

    Returns:
      The step is the iteration; the tree has the parameters that `policy.make_policies` takes;
      `extra["config"]` is the configuration, for `config.from_dict`.

    Raises:
      ValueError: when there are no such policies, or none is whole.
    """
    directory = _policies_directory(path)
    if directory.is_dir():
        with CheckpointStore(directory, read_only=True) as store:
            if not store.steps() and directory.name == BEST:
                raise ValueError(
                    f"{flag}={path}: must hold the best policies of a run, but is empty; "
                    f"e.g. {directory.parent}"
                )
            if not store.steps():
                raise ValueError(
                    f"{flag}={path}: holds no policies yet, since none of its iterations was "
                    f"completed; go on with python -m coorl_jax.train "
                    f"--workdir={directory.parent}"
                )
            return store.restore_latest(report=report)
    if path.parent.name in (POLICIES, BEST) and path.name.isdecimal() and path.is_dir():
        with CheckpointStore(path.parent, read_only=True) as store:
            return store.restore(int(path.name))
    raise ValueError(
        f"{flag}={path}: must be a run directory or one of its policies; "
        f"e.g. runs/my-run, runs/my-run/{BEST} or runs/my-run/{POLICIES}/20"
    )


def path_of_policies(path: Path, step: int) -> Path:
    """Return the absolute path of what `restore_policies` found: as it is, whatever is saved later.

    Args:
      path: as it was given; `PRETRAINED` stays what it is.
      step: that was found.
    """
    directory = _policies_directory(path)
    if path == PRETRAINED:
        return path
    return (directory / str(step) if directory.is_dir() else path).resolve()


def _policies_directory(path: Path) -> Path:
    """Return the directory of steps that a path means, if it means more than one step."""
    directory = _SHIPPED if path == PRETRAINED else path / POLICIES
    return path if path.name == BEST and not directory.is_dir() else directory


def _checksums(directory: Path) -> dict[str, list[int]]:
    """Return size and CRC-32 of every file below a directory, by relative name."""
    checksums = {}
    for path in sorted(directory.rglob("*")):
        if path.is_file() and path.name != _CHECKSUMS:
            size = crc = 0
            with path.open("rb") as file:
                while block := file.read(_READ_BYTES):
                    size += len(block)
                    crc = zlib.crc32(block, crc)
            checksums[str(path.relative_to(directory))] = [size, crc]
    return checksums


def _signatures(tree: Any) -> dict[str, str]:
    """Return dtype and shape of every leaf by its path, the same for tuples and dictionaries."""
    signatures = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = "/".join(jax.tree_util.keystr((key,), simple=True) for key in path)
        signatures[name] = f"{np.dtype(leaf.dtype).name}{list(leaf.shape)}"
    return signatures


def _tuples(tree: Any) -> Any:
    """Return the tree with its lists, which is what orbax gives for tuples, made tuples."""
    if isinstance(tree, dict):
        return {name: _tuples(branch) for name, branch in tree.items()}
    if isinstance(tree, list | tuple):
        return tuple(_tuples(branch) for branch in tree)
    return tree


def _first_line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:200]
