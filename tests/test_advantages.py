"""Advantages against a plain recursion.

L lanes, T decisions of a segment.
"""

from __future__ import annotations

import jax
import numpy as np
import pytest

from coorl_jax.ppo.advantages import estimate


def random_rounds(rng, decisions, lanes):
    """Return the arguments of `estimate` but the last, of rounds as lanes play them.

    Players are drawn at every decision, so that they may move twice. What has no meaning, such as
    the utility where no round ends, is noise.
    """
    shape = (decisions, lanes)
    value, utility = rng.normal(size=shape), rng.normal(size=shape)
    player = rng.integers(2, size=shape)
    is_learner, ends = rng.random(shape) < 0.6, rng.random(shape) < 0.2
    for lane in range(lanes):
        waits = 0  # for a new round, after the last one has ended
        for t in range(decisions):
            if waits:
                is_learner[t, lane] = ends[t, lane] = False
                waits -= 1
            elif ends[t, lane]:
                waits = int(rng.integers(3))
    after = rng.normal(size=lanes), rng.random(lanes) < 0.5
    floats = [np.float32(x) for x in (value, utility, after[0])]
    return (floats[0], player.astype(np.int32), is_learner, ends, *floats[1:], after[1])


def plain_estimates(
    value, player, is_learner, ends, utility, value_after, after_is_learner, trace_decay
):
    """Follow the docstring of `estimate` from decision to decision, one lane at a time."""
    decisions, lanes = value.shape
    advantage, known = np.zeros(value.shape), np.zeros(value.shape, bool)

    def to_first(t, lane):
        return value[t, lane] * (1 if player[t, lane] == 0 else -1)

    for lane in range(lanes):
        to_player_0 = {}  # the advantages, in the view of player 0
        for t in reversed(np.flatnonzero(is_learner[:, lane]).tolist()):
            # What comes next: the round's end, or the learner's next decision.
            for u in range(t, decisions):
                if u > t and is_learner[u, lane]:
                    following = to_first(u, lane), to_player_0[u]
                    break
                if ends[u, lane]:
                    following = utility[u, lane], 0.0
                    break
            else:
                following = (value_after[lane], 0.0) if after_is_learner[lane] else None
            to_player_0[t] = 0.0
            if following is not None:
                gain = following[0] - to_first(t, lane)
                to_player_0[t] = gain + trace_decay * following[1]
                advantage[t, lane] = to_player_0[t] * (1 if player[t, lane] == 0 else -1)
                known[t, lane] = True
    return advantage, known


@pytest.mark.parametrize("trace_decay", [0.0, 0.5, 1.0])
def test_advantages_are_those_of_a_plain_recursion(trace_decay):
    rounds = random_rounds(np.random.default_rng(0), 13, 60)
    _, player, is_learner, ends, *_ = rounds
    # The cases there are: a player who moves twice, an end on the opponent's decision.
    assert np.any(is_learner[1:] & is_learner[:-1] & (player[1:] == player[:-1]) & ~ends[:-1])
    assert np.any(ends & ~is_learner)
    found = jax.jit(estimate)(*rounds, trace_decay)
    advantage, known = plain_estimates(*rounds, trace_decay)
    assert np.any(is_learner & ~known)  # Nor is a tail always known.
    np.testing.assert_array_equal(found.is_known, known)
    np.testing.assert_allclose(np.where(known, found.advantage, 0), advantage, atol=1e-5)
    np.testing.assert_allclose(
        np.where(known, found.value, 0), np.where(known, rounds[0] + advantage, 0), atol=1e-5
    )
    assert np.all(np.isfinite(found.advantage) & np.isfinite(found.value))


def test_without_decay_the_value_is_the_utility_that_the_round_ends_with():
    rounds = random_rounds(np.random.default_rng(1), 13, 60)
    value, player, is_learner, ends, utility, *_ = rounds
    found = estimate(*rounds, 1.0)
    checked = 0
    for t, lane in zip(*np.nonzero(is_learner), strict=True):
        end = next((u for u in range(t, len(ends)) if ends[u, lane]), None)
        if end is not None:
            expected = utility[end, lane] * (1 if player[t, lane] == 0 else -1)
            assert found.advantage[t, lane] + value[t, lane] == pytest.approx(expected, abs=1e-5)
            assert found.value[t, lane] == pytest.approx(expected, abs=1e-5)
            checked += 1
    assert checked > 100
