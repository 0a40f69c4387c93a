"""How far the means of samples are from what they should be.

I rows of an index of packed states (information states, or whole states), A actions.
"""

from __future__ import annotations

from typing import NamedTuple

import machine_runs as runs
import numpy as np

FEW = 100  # samples, below which their spread says too little about the error of the mean


class Index(NamedTuple):
    """Packed states by number."""

    packed: np.ndarray  # uint8[I, P]
    legal: np.ndarray  # bool[I, A]


def locate(index, packed) -> np.ndarray:
    """Return the rows, int64[n], of uint8[n, P] in an `Index` or a `Tree`."""
    weights = np.random.default_rng(0).integers(1 << 63, size=packed.shape[1], dtype=np.uint64)
    numbers = index.packed.astype(np.uint64) @ weights
    order = np.argsort(numbers)
    place = np.searchsorted(numbers[order], packed.astype(np.uint64) @ weights)
    rows = order[np.minimum(place, len(order) - 1)]
    assert (index.packed[rows] == packed).all()
    return rows


class Moments(NamedTuple):
    """Sums over samples, so that there may be any number of them."""

    count: np.ndarray  # int64[I]
    error: np.ndarray  # float64[I, A], of target minus expected
    square: np.ndarray  # float64[I, A]

    def __add__(self, other: Moments) -> Moments:
        return Moments(*(a + b for a, b in zip(self, other, strict=True)))

    @property
    def mean(self) -> np.ndarray:
        return self.error / np.maximum(self.count, 1)[:, None]

    @property
    def variance(self) -> np.ndarray:
        """Of one sample; unbiased."""
        n = np.maximum(self.count, 2)[:, None]
        return np.maximum(self.square / n - (self.error / n) ** 2, 0) * n / (n - 1)


def moments(index, samples: runs.Samples, expected) -> Moments:
    rows, (states, actions) = locate(index, samples.packed), index.legal.shape
    assert (samples.legal == index.legal[rows]).all()
    error = samples.target.astype(np.float64) - expected[rows]

    def total(columns):
        sums = [np.bincount(rows, columns[:, a], states) for a in range(actions)]
        return np.stack(sums, axis=1)

    return Moments(np.bincount(rows, minlength=states), total(error), total(error**2))


class Verdict(NamedTuple):
    """How far sample means are from what they should be."""

    judged: np.ndarray  # bool[I], enough samples
    z: np.ndarray  # float64[I, A], in standard errors; 0 where all samples are right to 1e-5
    pooled: float  # chi-square of one z of each row, standardised

    @property
    def accepts(self) -> bool:
        return bool(np.abs(self.z).max() < 4 and self.pooled < 4)

    def __str__(self) -> str:
        return (
            f"{self.judged.sum()} judged, |z| to {np.abs(self.z).max():.2f}, "
            f"pooled {self.pooled:.2f}"
        )


def judge(sums: Moments, few: int = FEW) -> Verdict:
    """Compare the mean of each row's samples with the expected one."""
    judged = sums.count >= few
    variance = sums.variance
    constant = variance < 1e-10  # rounding of equal samples
    z = sums.mean / np.sqrt(np.where(constant, 1, variance) / np.maximum(sums.count, 1)[:, None])
    z = np.where(constant, np.where(np.abs(sums.mean) < 1e-5, 0, np.inf), z)
    z = np.where(judged[:, None], z, 0)
    # The advantages of one information state determine one another: count one of them.
    first = np.take_along_axis(z, np.argmax(z != 0, axis=1)[:, None], axis=1)[:, 0]
    squares = first[first != 0] ** 2
    pooled = (squares.sum() - len(squares)) / np.sqrt(2 * max(len(squares), 1))
    return Verdict(judged, z, float(pooled))


def check_counts(counts, expected) -> None:
    """A traversal gives a sample of a state or none: counts are nearly Poisson.

    The bound on a single count is loose, since there are thousands and the small ones are skewed.
    """
    assert (counts[expected == 0] == 0).all()
    many = expected > 20
    z = (counts - expected)[many] / np.sqrt(expected[many])
    assert np.abs(z).max() < 5.5
    assert (np.sum(z**2) - len(z)) / np.sqrt(2 * len(z)) < 4


def distance_to_nearest(state, target, of_state, candidates) -> np.ndarray:
    """Return float64[n], how far each sample is from the nearest candidate of its state.

    Args:
      state: int64[n], of the samples.
      target: float[n, A].
      of_state: int64[m], of the candidates.
      candidates: float64[m, A].
    """
    weights = np.sqrt([2.0, 3.0, 5.0, 7.0, 11.0, 13.0, 17.0])[: target.shape[1]]
    spacing = 1 + 4 * np.abs(candidates @ weights).max()
    keys = of_state * spacing + candidates @ weights
    order = np.argsort(keys)
    place = np.searchsorted(keys[order], state * spacing + target.astype(np.float64) @ weights)
    distance = np.full(len(state), np.inf)
    for shift in (-2, -1, 0, 1):  # candidates may be as near one another as rounding
        near = order[np.clip(place + shift, 0, len(order) - 1)]
        error = np.abs(candidates[near] - target).max(axis=1)
        distance = np.minimum(distance, np.where(of_state[near] == state, error, np.inf))
    return distance
