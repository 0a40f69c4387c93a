import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coorl_jax.cfr.regret_matching import regret_matching, sample_action


def test_positive_parts_over_legal_actions():
    sigma, fell_back = regret_matching(
        jnp.array([3.0, -5.0, 1.0, 100.0]), jnp.array([True, True, True, False])
    )
    assert sigma.tolist() == [0.75, 0.0, 0.25, 0.0]
    assert not fell_back


@pytest.mark.parametrize(
    ("fallback", "expected"), [("argmax", [0, 0, 1, 0]), ("uniform", [0.5, 0, 0.5, 0])]
)
def test_fallback_without_positive_advantage(fallback, expected):
    legal = jnp.array([True, False, True, False])
    sigma, fell_back = regret_matching(jnp.array([-3.0, 9.0, -1.0, -0.5]), legal, fallback)
    assert sigma.tolist() == expected
    assert fell_back


@pytest.mark.parametrize("scale", [1e-44, 1e-37, 1e-30, 1.0, 1e38])
@pytest.mark.parametrize("fallback", ["argmax", "uniform"])
def test_is_a_distribution_at_every_scale(scale, fallback):
    advantages = jnp.float32(scale) * jnp.array([1.0, 3.0, 2.0, -1.0], jnp.float32)
    sigma, _ = regret_matching(advantages, jnp.array([True, True, False, True]), fallback)
    assert sigma[2] == 0
    np.testing.assert_allclose(jnp.sum(sigma), 1, rtol=1e-6)
    if 1e-37 <= scale <= 1e29:
        np.testing.assert_allclose(sigma, [0.25, 0.75, 0, 0], rtol=1e-6)


def test_non_finite_advantages_still_give_a_distribution():
    legal = jnp.array([[True, True, False], [True, True, True], [True, True, True]])
    advantages = jnp.array([[jnp.nan, -1.0, jnp.nan], [jnp.inf, 1.0, jnp.inf], [jnp.nan] * 3])
    sigma, fell_back = regret_matching(advantages, legal)
    np.testing.assert_allclose(sigma, [[0, 1, 0], [0.5, 0, 0.5], [1, 0, 0]], atol=1e-6)
    assert fell_back.tolist() == [True, False, True]


def test_nothing_legal_gives_zeros():
    for fallback in ("argmax", "uniform"):
        sigma, fell_back = regret_matching(jnp.ones((2, 3)), jnp.zeros((2, 3), bool), fallback)
        assert not sigma.any()
        assert not fell_back.any()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=5, max_size=5), st.integers(1, 31))
def test_is_invariant_to_scale_and_zero_off_the_legal_set(advantages, bits):
    legal = jnp.array([bool(bits >> i & 1) for i in range(5)])
    advantages = jnp.array(advantages, jnp.float32)
    sigma, _ = regret_matching(advantages, legal)
    doubled, _ = regret_matching(2 * advantages, legal)
    np.testing.assert_array_equal(sigma, doubled)
    assert not (sigma[~np.asarray(legal)]).any()
    np.testing.assert_allclose(jnp.sum(sigma), 1, rtol=1e-6)


def test_frequencies_of_sampled_actions():
    probabilities = jnp.array([0.0, 0.2, 0.0, 0.5, 0.3, 0.0])
    uniform = (jnp.arange(10_000, dtype=jnp.float32) + 0.5) / 10_000
    actions = sample_action(jnp.tile(probabilities, (10_000, 1)), uniform)
    assert actions.dtype == jnp.int32
    np.testing.assert_allclose(np.bincount(actions, minlength=6) / 10_000, probabilities, atol=2e-4)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31 - 1))
def test_never_an_action_of_probability_zero(seed):
    rng = np.random.default_rng(seed)
    weights = rng.random((64, 22), np.float32) ** 8 * (rng.random((64, 22)) < 0.3)
    weights[np.arange(64), rng.integers(22, size=64)] = 1
    probabilities = jnp.asarray(weights / weights.sum(-1, keepdims=True), jnp.float32)
    edge = np.nextafter(np.float32(1), np.float32(0))
    cumulative = np.cumsum(np.asarray(probabilities), axis=-1)[:, rng.integers(22)]
    for uniform in (0.0, edge, np.minimum(cumulative, edge)):
        uniform = jnp.broadcast_to(jnp.float32(uniform), 64)
        actions = jax.jit(sample_action)(probabilities, uniform)
        assert (np.take_along_axis(np.asarray(probabilities), actions[:, None], -1) > 0).all()
