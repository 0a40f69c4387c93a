"""Double precision in 32-bit integers, for sums of decimal fractions whose ties must be as in C.

IEEE doubles round 0.8 + 0.7 * 3 and the like; where two such sums are equal without rounding, it
decides which one is greater. Accelerators differ in what they offer of doubles, so they are
imitated here, exactly, with few integer operations:

A number is held as its value without any rounding, in units of 1/2000, and as the low 32 bits of
the rounded double, in units of 2^-62. Rounding errors are far below 1/2000, so the first part
tells the order of numbers unless it is equal, and also where a double of that size is rounded; the
second part is all that rounding changes. Both are right as long as values stay below 2^19, no
rounded value other than 0 is less than 2^-9, and errors add up to less than 2^-32.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

Array: TypeAlias = jax.Array | np.ndarray

_UNITS = 2000  # `exact` counts these parts of 1
_LOW_BIT = 62  # `low` counts 2^-62
_MANTISSA = 53  # bits of a double
_FLOAT32_MANTISSA = 23  # bits stored of a float32
_LIMB = 16  # bits
_LIMB_MASK = (1 << _LIMB) - 1
_LEAST = -(2**31)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Double:
    """An array of doubles; the operators round as IEEE doubles do, to nearest, ties to even."""

    exact: Array  # int32, value before any rounding, in 1/2000
    low: Array  # int32, low bits of the double in units of 2^-62

    __array_ufunc__ = None  # numpy leaves an array times a Double to `__rmul__`

    def __add__(self, other: Double | Array | int) -> Double:
        """Return the sum; integers may be added."""
        other = _double(other)
        return _rounded(self.exact + other.exact, self.low + other.low)

    def __sub__(self, other: Double | Array | int) -> Double:
        """Return the difference; integers may be subtracted."""
        return self + -_double(other)

    def __neg__(self) -> Double:
        """Return the number with the other sign."""
        return Double(-self.exact, -self.low)

    def __rmul__(self, count: Array | int) -> Double:
        """Return an integer times this number."""
        return _rounded(count * self.exact, count * self.low)

    def __gt__(self, bound: int) -> jax.Array:
        """Return where the number is greater than an integer."""
        return self._compare(bound, self.low > 0)

    def __ge__(self, bound: int) -> jax.Array:
        """Return where the number is at least an integer."""
        return self._compare(bound, self.low >= 0)

    def _compare(self, bound: int, if_equal: Array) -> jax.Array:
        # The low bits of an integer are 0.
        exact = jnp.asarray(self.exact)
        return jnp.where(exact == _UNITS * bound, if_equal, exact > _UNITS * bound)


def integers(value: Array | int) -> Double:
    """Return integers as doubles."""
    exact = _UNITS * jnp.asarray(value, jnp.int32)
    return Double(exact, jnp.zeros_like(exact))


def constant(value: float) -> Double:
    """Return a scalar: a decimal fraction in 1/2000 as its nearest double."""
    low = np.array(int(value * 2.0**_LOW_BIT) % 2**32, np.uint32)  # exact: a shift of the exponent
    return Double(np.array(round(value * _UNITS), np.int32), low.astype(np.int32))


def scaled(factor: float, count: Array) -> Double:
    """Return a decimal fraction times integers."""
    number = constant(factor)
    if number.low == 0:  # a short binary fraction: nothing to round
        exact = jnp.asarray(count * number.exact)
        return Double(exact, jnp.zeros_like(exact))
    return count * number


def where(condition: Array, if_true: Double, if_false: Double | int) -> Double:
    """Return numbers chosen by a condition."""
    other = _double(if_false)
    return Double(
        jnp.where(condition, if_true.exact, other.exact),
        jnp.where(condition, if_true.low, other.low),
    )


def product(factor: float, number: Double) -> Double:
    """Return numbers, none of them negative, times a decimal fraction from 0.1 to 2."""
    # All bits of the factor are an integer in units of 2^-k, all of the number are one in units
    # of 2^-62; limbs of 16 bits are multiplied as by hand. The lowest k bits of the product are
    # dropped, but the lowest bit that is kept, far below those of a double, tells if any was set.
    mantissa, exponent = math.frexp(factor)
    bits = int(mantissa * 2.0**_MANTISSA)
    first, shift = divmod(_MANTISSA - exponent, _LIMB)
    factor_limbs = [np.uint32(bits >> i & _LIMB_MASK) for i in range(0, _MANTISSA, _LIMB)]
    limbs = _limbs(number)
    totals = [jnp.zeros_like(limbs[0])] * (first + 4)
    for i, factor_limb in enumerate(factor_limbs):
        for j, limb in enumerate(limbs[: first + 3 - i]):
            part = factor_limb * limb
            totals[i + j] += part & _LIMB_MASK
            totals[i + j + 1] += part >> _LIMB
    for i in range(first + 3):
        totals[i + 1] += totals[i] >> _LIMB
        totals[i] &= _LIMB_MASK
    low = totals[first] >> shift
    low |= totals[first + 1] << (_LIMB - shift)
    low |= totals[first + 2] << (2 * _LIMB - shift)
    dropped = functools.reduce(jnp.bitwise_or, totals[:first], totals[first] & ((1 << shift) - 1))
    low |= dropped != 0
    return _rounded(number.exact * round(10 * factor) // 10, low.astype(jnp.int32))


def last_best(values: Double, valid: Array) -> jax.Array:
    """Return where along the first axis the greatest valid number is, the last of equal ones."""
    exact, low = jnp.asarray(values.exact), jnp.asarray(values.low)
    best = valid & (exact == jnp.max(jnp.where(valid, exact, _LEAST), axis=0, keepdims=True))
    # Low bits are compared by their difference, which does not overflow.
    some = jnp.max(jnp.where(best, low, _LEAST), axis=0, keepdims=True)
    above = jnp.where(best, low - some, _LEAST)
    best = best & (above == jnp.max(above, axis=0, keepdims=True))
    indices = np.arange(exact.shape[0], dtype=np.int32)[:, None]
    return jnp.max(jnp.where(best, indices, -1), axis=0)


def _double(value: Double | Array | int) -> Double:
    return value if isinstance(value, Double) else integers(value)


def _rounded(exact: Array, low: Array) -> Double:
    """Return the double nearest to a number whose low bits are given without rounding."""
    shift = jnp.maximum(_exponent(exact, low) + (_LOW_BIT - _MANTISSA + 1), 1)
    unit = jnp.left_shift(jnp.int32(1), shift)
    odd = (low >> shift) & 1
    return Double(exact, (low + (unit >> 1) - 1 + odd) & -unit)


def _exponent(exact: Array, low: Array) -> jax.Array:
    """Return the binary exponent of a number; far below 0 for 0.

    A number that is nearly 0 since others cancelled has no bits to round, so that is right too.
    """
    # A power of two has low bits 0, but for errors: one towards zero makes it less than that.
    towards_zero = ((low ^ exact) < 0).astype(jnp.int32)
    size = jnp.maximum(jnp.abs(exact) - towards_zero, 0)
    # Beyond 24 bits conversion to float32 must not round up.
    size = jnp.where(size >= 2**24, size & -256, size)
    # The bits of float32 as integers: 2000 and 2^e 2000 differ by 2^23 e, and order is kept.
    bits = jax.lax.bitcast_convert_type(size.astype(jnp.float32), jnp.int32)
    return (bits - int(np.float32(_UNITS).view(np.int32))) >> _FLOAT32_MANTISSA


def _limbs(number: Double) -> list[jax.Array]:
    """Return all bits of numbers in units of 2^-62, as uint32 limbs of 16 bits, lowest first."""
    exact, low = jnp.asarray(number.exact), jnp.asarray(number.low).astype(jnp.uint32)
    # Without rounding the bits are exact / 2000 * 2^62 = 2^32 * 2^26 * (a + r / 125).
    a, r = exact // 125, (exact % 125).astype(jnp.uint32)
    above, r = r * (2**26 // 125) + r * (2**26 % 125) // 125, r * (2**26 % 125) % 125
    unrounded = r * (2**32 // 125) + r * (2**32 % 125) // 125
    # Rounding may have carried into the bits above `low`, or borrowed from them.
    error = (low - unrounded).astype(jnp.int32)
    wrapped = (error >= 0) == (low < unrounded)
    middle = above.astype(jnp.int32) + jnp.where(wrapped, jnp.where(error >= 0, 1, -1), 0)
    a = (a + (middle >> 26)).astype(jnp.uint32)
    middle = (middle & (2**26 - 1)).astype(jnp.uint32) | a << 26
    words = low, middle, a >> 6
    return [limb for word in words for limb in (word & _LIMB_MASK, word >> _LIMB)]
