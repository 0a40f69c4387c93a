import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coorl_jax.cfr import reservoir, samples


def empty(capacity, seen=0):
    """A reservoir of int32 rows (-1 = never written) that has seen `seen` rows."""
    store = jnp.full(capacity, -1, jnp.int32)
    return reservoir.Reservoir(store, jnp.array([seen % 2**32, seen >> 32], jnp.uint32))


def stream(total, batch, capacity, key):
    """Insert rows 0 .. total-1 in batches and return the kept ones."""
    padded = -(-total // batch) * batch
    rows = jnp.arange(padded, dtype=jnp.int32).reshape(-1, batch)

    def body(memory, chunk):
        values, chunk_key = chunk
        return reservoir.insert(memory, values, values < total, chunk_key), None

    memory, _ = jax.lax.scan(body, empty(capacity), (rows, jax.random.split(key, len(rows))))
    return memory.rows


def chi_square_z(counts, expected):
    """Standardised chi-square: mean 0 and variance 1 if the counts have equal expectations."""
    counts = np.asarray(counts, np.float64)
    freedom = counts.size - 1
    return (np.sum((counts - expected) ** 2 / expected) - freedom) / np.sqrt(2 * freedom)


@pytest.mark.parametrize("batch", [1, 7, 60, 200], ids="batch={}".format)
def test_every_position_of_the_stream_is_kept_equally_often(batch):
    total, capacity, repeats = 200, 16, 4000
    keys = jax.random.split(jax.random.key(batch), repeats)
    kept = jax.jit(jax.vmap(lambda key: stream(total, batch, capacity, key)))(keys)
    counts = np.bincount(np.ravel(kept), minlength=total)
    # Kept rows of one run are negatively correlated: the variance of a count is smaller by
    # (1 - N/total) * total / (total - 1), so the statistic is scaled back to a chi-square.
    scale = (1 - capacity / total) * total / (total - 1)
    chi_square = np.sum((counts - repeats * capacity / total) ** 2) / (
        repeats * capacity / total * scale
    )
    assert abs(chi_square - (total - 1)) < 4 * np.sqrt(2 * (total - 1))
    assert all(len(set(row)) == capacity for row in np.asarray(kept).tolist())


def test_slots_are_chosen_uniformly_and_independently_of_the_row():
    total, capacity, repeats = 100, 5, 20_000
    keys = jax.random.split(jax.random.key(0), repeats)
    kept = jax.jit(jax.vmap(lambda key: stream(total, 50, capacity, key)))(keys)
    where = np.argmax(np.asarray(kept) == total - 1, axis=1)[np.any(kept == total - 1, axis=1)]
    assert abs(chi_square_z(np.bincount(where, minlength=capacity), len(where) / capacity)) < 4


def test_fills_in_order_and_counts_only_valid_rows():
    memory = empty(8)
    valid = jnp.array([True, False, True, False])
    memory = reservoir.insert(memory, jnp.arange(4, dtype=jnp.int32), valid, jax.random.key(0))
    assert memory.rows.tolist() == [0, 2, -1, -1, -1, -1, -1, -1]
    assert int(reservoir.size(memory)) == 2
    rows = 10 + jnp.arange(4, dtype=jnp.int32)
    memory = reservoir.insert(memory, rows, ~valid, jax.random.key(1))
    assert memory.rows.tolist() == [0, 2, 11, 13, -1, -1, -1, -1]
    assert reservoir.num_seen(memory) == 4


def test_batch_without_valid_rows_changes_nothing():
    for seen in (0, 3, 1000):
        before = empty(4, seen)._replace(rows=jnp.arange(4, dtype=jnp.int32))
        after = reservoir.insert(
            before, jnp.full(9, 99, jnp.int32), jnp.zeros(9, bool), jax.random.key(0)
        )
        assert after.rows.tolist() == [0, 1, 2, 3]
        assert reservoir.num_seen(after) == seen


def test_batch_larger_than_capacity_keeps_distinct_rows():
    memory = reservoir.insert(
        empty(4), jnp.arange(1000, dtype=jnp.int32), jnp.ones(1000, bool), jax.random.key(0)
    )
    assert len(set(memory.rows.tolist())) == 4
    assert min(memory.rows.tolist()) >= 0
    assert int(reservoir.size(memory)) == 4
    assert reservoir.num_seen(memory) == 1000


def test_the_last_of_equal_slots_wins_and_all_indices_are_distinct():
    slots = reservoir._last_writer(jnp.array([2, 1, 2, 4, 1, 0, 4], jnp.int32), 4)
    assert slots[jnp.array([2, 4, 5])].tolist() == [2, 1, 0]
    assert len(set(slots.tolist())) == 7
    assert min(slots[jnp.array([0, 1, 3, 6])].tolist()) >= 4


@pytest.mark.parametrize("seen", [2**31 - 3, 2**32 - 3, 2**40 - 1], ids="seen={}".format)
def test_counter_carries_beyond_32_bits(seen):
    memory = empty(4, seen)
    assert int(reservoir.size(memory)) == 4
    memory = reservoir.insert(
        memory, jnp.arange(8, dtype=jnp.int32), jnp.arange(8) != 2, jax.random.key(0)
    )
    assert reservoir.num_seen(memory) == seen + 7


@pytest.mark.parametrize("factor", [16, 4096], ids="rows_seen={}*capacity".format)
def test_acceptance_probability_near_2_to_the_32(factor):
    # Counting the rows kept (slots never clash often enough to matter at these capacities).
    seen = 2**32 - 5000
    capacity = seen // factor
    batch, repeats = 10_000, 200
    key = jax.random.key(1)
    low_high = jnp.array([seen, 0], jnp.uint32)
    choose = jax.jit(
        jax.vmap(lambda k: reservoir._choose_slots(low_high, capacity, jnp.ones(batch, bool), k)[0])
    )
    slots = np.asarray(choose(jax.random.split(key, repeats)))
    kept = slots[slots < capacity]
    expected = batch * repeats / factor
    assert abs(kept.size - expected) < 4 * np.sqrt(expected)
    halves = np.bincount(kept // -(-capacity // 8), minlength=8)
    assert abs(chi_square_z(halves, kept.size / 8)) < 4


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_samples_come_back_as_they_were(dtype):
    row = samples.example(3, 10, dtype)
    memory = reservoir.create(row, 4)
    assert memory.capacity == 4
    legal = jnp.arange(10) % 3 == 0
    batch = samples.Sample(
        packed=jnp.array([[1, 2, 255]], jnp.uint8),
        legal=samples.pack_legal(legal)[None],
        target=jnp.linspace(-1, 1, 10, dtype=jnp.float32)[None],
        iteration=jnp.array([7], jnp.int32),
    )
    memory = reservoir.insert(memory, batch, jnp.ones(1, bool), jax.random.key(0))
    drawn = reservoir.sample(memory, jax.random.key(1), 5)
    assert drawn.target.dtype == dtype
    assert drawn.target.tolist() == [batch.target[0].astype(dtype).tolist()] * 5
    assert drawn.packed.tolist() == [[1, 2, 255]] * 5
    assert drawn.iteration.tolist() == [7] * 5
    assert samples.unpack_legal(drawn.legal, 10).tolist() == [legal.tolist()] * 5


def test_sampling_is_uniform_over_the_filled_slots_only():
    memory = empty(100)
    memory = reservoir.insert(
        memory, jnp.arange(10, dtype=jnp.int32), jnp.ones(10, bool), jax.random.key(0)
    )
    drawn = np.asarray(reservoir.sample(memory, jax.random.key(1), 20_000))
    assert abs(chi_square_z(np.bincount(drawn, minlength=10), 2000)) < 4


def test_an_emptied_reservoir_has_no_rows_and_fills_again():
    memory = reservoir.create({"x": jnp.bfloat16(0), "flag": jnp.bool_(False)}, 4)
    rows = {"x": jnp.arange(5.0, 9.0, dtype=jnp.bfloat16), "flag": jnp.ones(4, bool)}
    memory = reservoir.insert(memory, rows, jnp.ones(4, bool), jax.random.key(0))
    memory = reservoir.emptied(memory)
    assert (int(reservoir.size(memory)), reservoir.num_seen(memory)) == (0, 0)
    drawn = reservoir.sample(memory, jax.random.key(1), 8)
    assert not jnp.any(drawn["x"])
    assert not jnp.any(drawn["flag"])
    memory = reservoir.insert(
        memory, rows, jnp.array([False, True, False, False]), jax.random.key(2)
    )
    drawn = reservoir.sample(memory, jax.random.key(3), 8)
    np.testing.assert_array_equal(drawn["x"], 6)
    assert jnp.all(drawn["flag"])


def test_insertion_reuses_the_buffers():
    memory = empty(1000)
    rows, valid = jnp.arange(4, dtype=jnp.int32), jnp.ones(4, bool)
    address = memory.rows.unsafe_buffer_pointer()
    after = reservoir.insert(memory, rows, valid, jax.random.key(0))
    assert memory.rows.is_deleted()
    assert after.rows.unsafe_buffer_pointer() == address


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32])
def test_insertion_converts_no_store(dtype):
    # XLA on a CPU scatters into bfloat16 by way of a float32 copy of the whole store.
    memory = reservoir.create(samples.example(3, 10, dtype), 12_345)
    batch = reservoir.sample(memory, jax.random.key(0), 4)
    insert = reservoir.insert.lower(memory, batch, jnp.ones(4, bool), jax.random.key(0)).compile()
    assert ("f32[12345,10]" in insert.as_text()) == (dtype == jnp.float32)


@pytest.mark.parametrize("capacity", [0, -1, 2**31])
def test_capacity_out_of_range_is_refused(capacity):
    with pytest.raises(ValueError, match=f"capacity={capacity}: must be"):
        reservoir.create(jnp.zeros((), jnp.int32), capacity)
