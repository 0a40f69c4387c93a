"""Doubles in 32-bit integers, against the machine's."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from coorl_jax.agents import doubles

COUNT = 2000
FACTORS = (1.2, 1.5, 0.15, 0.25, 0.8, 0.7, 0.4, 0.18, 0.3, 0.2, 0.05, 0.1)


def low_bits(values):
    """Return the low 32 bits in units of 2^-62, exactly."""
    return np.array([int(v * 2.0**62) % 2**32 for v in values.tolist()], np.uint32).view(np.int32)


def check(number, values):
    np.testing.assert_array_equal(number.low, low_bits(values))
    np.testing.assert_allclose(np.asarray(number.exact) / 2000, values, atol=1e-9)


def test_sums_products_and_signs_round_as_doubles_do():
    rng = np.random.default_rng(0)
    values = np.zeros(COUNT)
    number = doubles.integers(np.zeros(COUNT, np.int32))
    for factor in rng.permutation(np.repeat(FACTORS, 2)).tolist():
        count = rng.integers(0, 60, COUNT).astype(np.int32)
        scaled = doubles.scaled(factor, count)
        check(scaled, factor * count)
        if rng.random() < 0.5:
            number, values = number + scaled, values + factor * count
        else:
            number, values = number - scaled, values - factor * count
        check(number, values)
        whole = rng.integers(0, 200, COUNT).astype(np.int32)
        check(whole * number, whole * values)
        check(number + whole, values + whole)
        check(-number, -values)
        positive = values > 0.04
        for times in (1.2, 0.4, 0.7, 0.1):
            product = doubles.product(times, doubles.where(positive, number, 0))
            check(product, np.where(positive, times * values, 0))
    equal = np.asarray(number.exact)[:, None] == np.asarray(number.exact)
    assert (equal & (values[:, None] > values)).any(), "nothing is decided by rounding"


def test_halves_are_rounded_to_even():
    # 1.2 has an odd last bit, which 3 x 1.2 has to drop: half of them up, half of them down.
    count = np.arange(1, 200, dtype=np.int32)
    check(doubles.scaled(1.2, count), 1.2 * count)
    check(count * doubles.constant(0.1), 0.1 * count)


@pytest.mark.parametrize("power", [1, 2, 16, 1024])
def test_just_below_a_power_of_two_the_step_is_finer(power):
    """Sums that are a power of two but for rounding: the bits of the next terms depend on it."""
    parts = np.arange(1, 20 * power, dtype=np.int32)
    rest = 20 * power - parts
    number = doubles.scaled(0.05, parts) + doubles.scaled(0.05, rest)
    values = 0.05 * parts + 0.05 * rest
    check(number, values)
    check(number + doubles.constant(0.1), values + 0.1)
    check(doubles.product(1.2, number), 1.2 * values)


def test_large_values_keep_their_exponent():
    """2^14 - 0.0005, in units an integer that float32 would round up to 2^14."""
    for up, down in ((0.001, 0.0015), (0.0015, 0.002), (0.002, 0.0025), (0.0025, 0.003)):
        number = doubles.integers(np.array([2**14], np.int32)) + doubles.constant(up)
        values = np.array([2**14 + up - down])
        check(number - doubles.constant(down), values)


def test_comparisons_see_rounding():
    number = doubles.constant(0.1) + doubles.constant(0.7)
    assert 0.1 + 0.7 < 0.8
    difference = number - doubles.constant(0.8)
    assert not (difference > 0)
    assert not (difference >= 0)
    assert (-difference) > 0
    assert (doubles.constant(0.1) + doubles.constant(0.2) - doubles.constant(0.3)) > 0
    assert (number + doubles.constant(0.2)) >= 1
    assert not ((number + doubles.constant(0.2)) > 1)


def test_the_last_of_the_greatest_is_found():
    thirds = [0.1 + 0.2, 0.3, 0.1 + 0.2, 0.3, 7.0]
    assert thirds[0] > thirds[1]
    columns = jnp.array([[0, 3, 3], [1, 2, 3], [2, 1, 3], [3, 0, 3], [4, 4, 4]])
    table = jnp.array([low_bits(np.array(thirds)), [600, 600, 600, 600, 14000]])
    values = doubles.Double(table[1][columns], table[0][columns])
    valid = columns < 4
    assert doubles.last_best(values, valid).tolist() == [2, 3, 3]
    assert doubles.last_best(values, columns < 5).tolist() == [4, 4, 4]
    assert doubles.last_best(-values, valid).tolist() == [3, 2, 3]
    assert doubles.last_best(values, columns == 9).tolist() == [-1, -1, -1]
