"""Faults planted in the machine, and the criteria that must find them.

| fault | where | found by |
|---|---|---|
| 0 instead of -v for actions that were not sampled | `backup.pop` | means of samples |
| exploration at the opponent's nodes | `descent.decide` | means of samples |
| the best action's value instead of the expected one | `backup.pop` | means of samples |
| a ring buffer instead of reservoir sampling | `reservoir` | chi-square of the rows kept |

The means are those of Kuhn poker at each information state and action, judged as in
test_traversal_exact.py: four standard errors, and a pooled chi-square. The first two faults are
those that kept the predecessor of this project from learning.
"""

import inspect

import exact_values as exact
import jax
import jax.numpy as jnp
import machine_runs as runs
import numpy as np
import pytest
from sample_means import judge, moments
from test_reservoir import test_every_position_of_the_stream_is_kept_equally_often as kept_equally

from coorl_jax.cfr import backup, descent, reservoir, traversal
from coorl_jax.cfr.machine import TraversalSpec
from coorl_jax.cfr.sampling import External, Outcome
from coorl_jax.games.kuhn_poker import KuhnPoker

KUHN = KuhnPoker()
SPEC = TraversalSpec(1 << 15, 64, 2, "uniform", utility_scale=4.0)
OUTCOME = Outcome(exploration=0.5)
EXTERNAL = External(exploration=0.5, max_branching_nodes=1000)

# (where it is looked up, the function, right, wrong)
UNSAMPLED = (
    backup,
    backup._give_samples,
    "jnp.where(frames.legal, frames.utility - returns.value[:, :, None], 0.0)",
    "jnp.where(frames.legal & _explored(frames), frames.utility - returns.value[:, :, None], 0.0)",
)
OPPONENT_EXPLORES = (
    traversal,
    descent.decide,
    "exploration = jnp.where(own, plan.exploration, 0.0)[:, None]",
    "exploration = plan.exploration[:, None]",
)
BEST_ACTION = (
    backup,
    backup._hand_up,
    "expected = jnp.sum(frames.sigma * frames.utility, axis=2)",
    "expected = jnp.max(jnp.where(frames.legal, frames.utility, -jnp.inf), axis=2)",
)


def with_fault(function, right, wrong):
    """Return the function with one expression of its source replaced."""
    source = inspect.getsource(function)
    assert source.count(right) == 1, f"{function.__name__} has changed: adapt the fault"
    names = dict(vars(inspect.getmodule(function)))
    exec(source.replace(right, wrong), names)
    return names[function.__name__]


@pytest.mark.parametrize(
    ("fault", "scheme"),
    [
        (None, OUTCOME),
        (None, EXTERNAL),
        (UNSAMPLED, OUTCOME),
        (OPPONENT_EXPLORES, OUTCOME),
        (BEST_ACTION, EXTERNAL),
    ],
    ids=["none-outcome", "none-external", "unsampled", "opponent_explores", "best_action"],
)
def test_the_means_find_a_wrong_estimator(fault, scheme, monkeypatch):
    if fault is not None:
        module, function, right, wrong = fault
        assert getattr(module, function.__name__) is function
        monkeypatch.setattr(module, function.__name__, with_fault(function, right, wrong))
    # A function of its own, so that nothing traced without the fault is used again.
    function = jax.jit(lambda *arguments: traversal.traverse.__wrapped__(*arguments))
    network = runs.HashNetwork(KUHN)
    result = runs.run_once(KUHN, network, scheme, SPEC, capacity=1 << 17, function=function)
    known = exact.solved(KUHN, SPEC)
    verdict = judge(moments(known.tree, result.advantage[0], known.advantage))
    assert verdict.judged.sum() >= 11
    assert verdict.accepts == (fault is None), str(verdict)


def ring(seen, capacity, valid, key):
    """Choose the slots as a ring buffer would, the oldest first."""
    number = seen[0] + jnp.cumsum(valid, dtype=jnp.uint32) - valid
    slots = jnp.where(valid, (number % capacity).astype(jnp.int32), capacity)
    return slots, seen.at[0].add(jnp.sum(valid, dtype=jnp.uint32))


def test_the_chi_square_finds_a_ring_buffer(monkeypatch):
    kept_equally(batch=7)
    insert = reservoir.insert.__wrapped__
    monkeypatch.setattr(reservoir, "_choose_slots", ring)
    monkeypatch.setattr(reservoir, "insert", jax.jit(lambda *rows: insert(*rows)))
    with pytest.raises(AssertionError):
        kept_equally(batch=7)


def test_the_ring_that_is_planted_is_one(monkeypatch):
    monkeypatch.setattr(reservoir, "_choose_slots", ring)
    memory = reservoir.create(jnp.int32(0), 4)
    rows = jnp.arange(10, dtype=jnp.int32)
    for start in (0, 5):
        batch = rows[start : start + 5]
        memory = reservoir.insert.__wrapped__(memory, batch, jnp.ones(5, bool), jax.random.key(0))
    assert np.asarray(memory.rows).tolist() == [8, 9, 6, 7]
