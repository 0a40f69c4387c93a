"""Policies for exact computations: uint8[B, P] and bool[B, A] to probabilities [B, A]."""

from __future__ import annotations

import numpy as np


def uniform(packed, legal):
    return legal / legal.sum(axis=1, keepdims=True)


def uneven(packed, legal):
    """Return other probabilities in every information state, some of them 0."""
    rng = np.random.default_rng(5)
    weights = rng.random(legal.shape) * legal
    weights[rng.random(legal.shape) < 0.1] = 0
    weights[weights.sum(axis=1) == 0] = legal[weights.sum(axis=1) == 0]
    return weights / weights.sum(axis=1, keepdims=True)
