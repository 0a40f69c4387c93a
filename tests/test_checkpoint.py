"""Checkpoints: exact, whole or refused, whatever happened to the files."""

from __future__ import annotations

import resource
import shutil
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from coorl_jax import checkpoint
from coorl_jax.checkpoint import CheckpointStore


class Memory(NamedTuple):
    rows: Any
    seen: Any


class State(NamedTuple):
    params: Any
    optimiser: Any
    memories: Any
    iteration: Any


def make_state(width: int = 4, slots: int = 50, seed: int = 0) -> State:
    params = {"dense": {"kernel": jax.random.normal(jax.random.key(seed), (3, width))}}
    # Has empty states, counters and trees like the parameters.
    optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3)).init(params)
    rows = jax.random.normal(jax.random.key(seed + 1), (slots, 22)).astype(jnp.bfloat16)
    memories = (
        Memory(rows, jnp.array([7, 2**32 - 1], jnp.uint32)),
        Memory(jnp.arange(slots, dtype=jnp.uint8), jnp.zeros(2, jnp.uint32)),
    )
    return State((params,), optimiser, memories, jnp.int32(3))


def unexpected(text: str) -> None:
    raise AssertionError(text)


def damage(path, *, size: int | None = None) -> None:
    """Change one byte in the middle of a file, or cut the file to a size."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content[:size])


def largest_file(directory):
    return max((p for p in directory.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "checkpoints"


def test_restores_exactly(directory):
    state = make_state()
    with CheckpointStore(directory) as store:
        store.save(5, state, {"metrics": {"loss/advantage": 0.1}})
    with CheckpointStore(directory) as store:
        restored = store.restore_latest(checkpoint.abstract(state), report=unexpected)
    assert restored.step == 5
    assert restored.extra == {"metrics": {"loss/advantage": 0.1}}
    chex.assert_trees_all_equal_structs(restored.tree, state)
    chex.assert_trees_all_equal_dtypes(restored.tree, state)
    chex.assert_trees_all_equal(restored.tree, state)


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (make_state(width=5), r"dense/kernel is float32\[3, 4\] in .* float32\[3, 5\] in"),
        (make_state(slots=60), r"memories/0/rows is bfloat16\[50, 22\] in .* bfloat16\[60, 22\]"),
        (make_state()._replace(iteration=jnp.float32(0)), r"iteration is int32\[\] in .* float32"),
        (make_state()._replace(params=()), r"params/0/dense/kernel is .* but absent"),
        (make_state()._replace(iteration=(jnp.int32(0),)), r"iteration is int32\[\] .* absent"),
    ],
)
def test_refuses_other_shapes_dtypes_and_structures(directory, template, name):
    with CheckpointStore(directory) as store:
        store.save(1, make_state(), {})
        with pytest.raises(ValueError, match=name):
            store.restore_latest(template, report=unexpected)


def test_names_no_directory(directory):
    """A checkpoint may be given away, and tells nothing of where it was written."""
    state = make_state()
    with CheckpointStore(directory) as store:
        store.save(3, state, {"best": 1})
    files = [path for path in directory.rglob("*") if path.is_file()]
    assert len(files) > 3
    assert not [path for path in files if str(directory).encode() in path.read_bytes()]
    with CheckpointStore(directory, read_only=True) as store:
        chex.assert_trees_all_equal(store.restore(3, state).tree, state)


def test_keeps_the_latest(directory):
    with CheckpointStore(directory, keep=2) as store:
        for step in (3, 6, 9, 12):
            store.save(step, make_state(), {})
        assert store.steps() == [9, 12]


def test_keeps_all_by_default(directory):
    with CheckpointStore(directory) as store:
        for step in range(4):
            store.save(step, {"w": jnp.zeros(2)}, {})
        assert store.steps() == [0, 1, 2, 3]


def test_replaces_an_existing_step(directory):
    with CheckpointStore(directory) as store:
        store.save(1, {"w": jnp.zeros(2)}, {"n": 1})
        store.save(1, {"w": jnp.ones(2)}, {"n": 2})
        restored = store.restore(1)
    assert restored.extra == {"n": 2}
    np.testing.assert_array_equal(restored.tree["w"], [1, 1])


def test_deletes_what_came_after_a_step(directory):
    with CheckpointStore(directory) as store:
        for step in (1, 2, 4, 7):
            store.save(step, {"w": jnp.ones(3)}, {})
        store.delete_after(2)
        assert store.steps() == [1, 2]
        store.delete_after(2)
    with CheckpointStore(directory, read_only=True) as store:
        assert store.steps() == [1, 2]


@pytest.mark.parametrize("size", [None, 10])
def test_damaged_latest_is_reported_set_aside_and_passed_over(directory, size):
    old, new = make_state(seed=1), make_state(seed=2)
    with CheckpointStore(directory) as store:
        store.save(3, old, {})
        store.save(6, new, {})
    file = largest_file(directory / "6")
    damage(file, size=size)
    reports = []
    with CheckpointStore(directory) as store:
        restored = store.restore_latest(new, report=reports.append)
        assert store.steps() == [3]
        store.save(6, new, {})
        assert store.restore_latest(new, report=unexpected).step == 6
    assert restored.step == 3
    chex.assert_trees_all_equal(restored.tree, old)
    (report,) = reports
    assert str(directory / "6") in report
    assert file.name in report
    assert (directory.with_name("damaged_checkpoints") / "6").is_dir()


def test_missing_file_is_damage(directory):
    with CheckpointStore(directory) as store:
        store.save(3, make_state(), {})
        largest_file(directory / "3").unlink()
        with pytest.raises(checkpoint.DamagedCheckpointError, match="is not as it was written"):
            store.restore(3)


def test_step_without_checksums_is_whole(directory):
    """A kill between the step and its checksums leaves it so."""
    state = make_state()
    with CheckpointStore(directory) as store:
        store.save(3, state, {})
        (directory / "3" / "checksums.json").unlink()
        chex.assert_trees_all_equal(store.restore(3, state).tree, state)


def test_no_whole_checkpoint_is_refused_and_nothing_touched(directory):
    with CheckpointStore(directory) as store:
        for step in (3, 6):
            store.save(step, make_state(), {})
            damage(largest_file(directory / str(step)))
        with pytest.raises(ValueError, match=r"holds no whole checkpoint \(damaged: \[3, 6\]\)"):
            store.restore_latest(make_state(), report=lambda text: None)
        assert store.steps() == [3, 6]
    assert not directory.with_name("damaged_checkpoints").exists()


def test_unfinished_step_of_a_killed_writer_is_no_step_and_removed_by_its_owner(directory):
    with CheckpointStore(directory) as store:
        store.save(3, make_state(), {})
    torn = directory / "6.orbax-checkpoint-tmp"
    shutil.copytree(directory / "3", torn)
    with CheckpointStore(directory, read_only=True) as store:
        assert store.steps() == [3]
    assert torn.exists()
    with CheckpointStore(directory) as store:
        assert store.steps() == [3]
        store.save(6, make_state(), {})
        assert store.steps() == [3, 6]
    assert not torn.exists()


def test_full_disk_is_one_sentence_and_keeps_what_was_there(directory):
    state = make_state(slots=20_000)
    with CheckpointStore(directory, keep=1) as store:
        store.save(3, state, {})
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
        try:
            with pytest.raises(ValueError, match=r"cannot be written .* kept: \[3\]; make room"):
                store.save(6, state, {})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    with CheckpointStore(directory, keep=1) as store:
        assert store.steps() == [3]
        chex.assert_trees_all_equal(store.restore(3, state).tree, state)
        store.save(6, state, {})
        assert store.steps() == [6]


def test_missing_store_is_refused_when_only_read(directory):
    with pytest.raises(ValueError, match="must be an existing directory"):
        CheckpointStore(directory, read_only=True)
    assert not directory.exists()


def test_unknown_step_names_those_there_are(directory):
    with CheckpointStore(directory) as store:
        store.save(3, {"w": jnp.zeros(2)}, {})
        with pytest.raises(ValueError, match=r"no such checkpoint; there are \[3\]"):
            store.restore(4)


class TestPolicies:
    """Policies load by their path alone."""

    @pytest.fixture
    def run(self, tmp_path):
        with CheckpointStore(tmp_path / "policies") as store:
            for iteration in (1, 20):
                params = {"dense": {"kernel": jnp.full((2, 3), iteration, jnp.bfloat16)}}
                tree = {"current": (params,), "average": (params, params)}
                store.save(iteration, tree, {"config": {"name": "a-run"}})
        return tmp_path

    def test_latest_of_a_run(self, run):
        loaded = checkpoint.restore_policies(run, report=unexpected)
        assert (loaded.step, loaded.extra) == (20, {"config": {"name": "a-run"}})
        assert [len(loaded.tree[name]) for name in ("current", "average")] == [1, 2]
        kernel = loaded.tree["average"][1]["dense"]["kernel"]
        assert isinstance(loaded.tree["average"], tuple)
        assert isinstance(kernel, jax.Array)
        assert kernel.dtype == jnp.bfloat16
        np.testing.assert_array_equal(kernel, np.full((2, 3), 20))

    def test_a_step_of_a_run(self, run):
        assert checkpoint.restore_policies(run / "policies" / "1", report=unexpected).step == 1

    def test_damaged_latest_is_passed_over_and_left_there(self, run):
        damage(largest_file(run / "policies" / "20"))
        reports = []
        assert checkpoint.restore_policies(run, report=reports.append).step == 1
        assert len(reports) == 1
        assert (run / "policies" / "20").is_dir()

    @pytest.mark.parametrize("name", ["", "elsewhere", "policies/2", "policies/x"])
    def test_anything_else_is_refused(self, run, name):
        path = run / name if name else run / "policies" / "1" / "tree"
        with pytest.raises(
            ValueError, match=r"^--checkpoint=.*: must be a run directory or one of"
        ):
            checkpoint.restore_policies(path, report=unexpected)


def test_run_without_policies_yet_is_told_so(tmp_path):
    with checkpoint.CheckpointStore(tmp_path / "policies"):
        pass
    with pytest.raises(
        ValueError, match=r"^--checkpoint=.*: holds no policies yet, .* coorl_jax.train --workdir="
    ):
        checkpoint.restore_policies(tmp_path, report=print)
