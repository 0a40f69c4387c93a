import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from coorl_jax.cfr import fit as fits
from coorl_jax.cfr import reservoir, samples
from coorl_jax.cfr.fit import FitSpec, fit, loss_value
from coorl_jax.games.kuhn_poker import KuhnPoker
from coorl_jax.networks import Network, NetworkSpec

GAME = KuhnPoker()
NETWORK = Network(GAME, NetworkSpec("mlp", width=16, depth=1))
SPEC = FitSpec("scratch", 300, 64, 1e-2, 1.0, "linear")
ONE = jnp.int32(1)


@dataclasses.dataclass(frozen=True)
class Rows:
    """The simplest network: a table of outputs per own card, so gradients are easy by hand."""

    game: KuhnPoker = GAME

    def init(self, key):
        return jax.random.normal(key, (3, 2))

    def apply(self, params, packed):
        return params[packed[:, 0]]


def batch_of(cards, legal, targets, iterations):
    cards = jnp.asarray(cards, jnp.uint8)
    zeros = jnp.zeros_like(cards)
    return samples.Sample(
        packed=jnp.stack([cards, zeros, zeros], axis=1),
        legal=samples.pack_legal(jnp.asarray(legal, bool)),
        target=jnp.asarray(targets, jnp.float32),
        iteration=jnp.asarray(iterations, jnp.int32),
    )


def memory_of(batch, dtype=jnp.float32):
    row = samples.example(GAME.packed_size, GAME.num_actions, dtype)
    count = batch.iteration.shape[0]
    return reservoir.insert(
        reservoir.create(row, 32), batch, jnp.ones(count, bool), jax.random.key(0)
    )


BATCH = batch_of(
    cards=[0, 2],
    legal=[[True, True], [False, True]],
    targets=[[0.5, -1.0], [100.0, 1.0]],
    iterations=[1, 4],
)
TABLE = jnp.array([[0.25, 0.0], [9.0, 9.0], [-3.0, 2.0]])


def test_advantage_loss_and_gradient_by_hand():
    # T = 4: weights 2/4 and 8/4. Losses (0.25^2 + 1) / 2 = 0.53125 and (1 - 2)^2 = 1.
    value, gradient = jax.value_and_grad(loss_value, argnums=3)(
        Rows(), "linear", "advantage", TABLE, BATCH, jnp.int32(4)
    )
    np.testing.assert_allclose(value, (0.5 * 0.53125 + 2 * 1) / 2, rtol=1e-6)
    # d/dV = weight / B * 2 (V - r) / legal actions.
    expected = [
        [0.5 / 2 * 2 * -0.25 / 2, 0.5 / 2 * 2 * 1.0 / 2],
        [0, 0],
        [0, 2 / 2 * 2 * 1.0 / 1],
    ]
    np.testing.assert_allclose(gradient, expected, rtol=1e-6)


def test_strategy_loss_and_gradient_by_hand():
    batch = BATCH._replace(target=jnp.array([[0.75, 0.25], [0.0, 1.0]]))
    value, gradient = jax.value_and_grad(loss_value, argnums=3)(
        Rows(), "uniform", "strategy", TABLE, batch, jnp.int32(4)
    )
    policy = np.exp([0.25, 0.0]) / np.sum(np.exp([0.25, 0.0]))
    entropy = -(0.75 * np.log(policy[0]) + 0.25 * np.log(policy[1]))
    np.testing.assert_allclose(value, (entropy + 0) / 2, rtol=1e-5)
    # The gradient of a cross entropy is softmax - target; with one legal action it is zero.
    expected = np.array([policy - [0.75, 0.25], [0, 0], [0, 0]]) / 2
    np.testing.assert_allclose(gradient, expected, atol=1e-6)


@pytest.mark.parametrize("loss", ["advantage", "strategy"])
def test_illegal_actions_do_not_matter(loss):
    def value(target, table):
        batch = BATCH._replace(target=BATCH.target.at[1, 0].set(target))
        return jax.value_and_grad(loss_value, argnums=3)(
            Rows(), "uniform", loss, table, batch, jnp.int32(4)
        )

    plain, gradient = value(0.0, TABLE)
    changed, changed_gradient = value(50.0, TABLE.at[2, 0].set(7.0))
    np.testing.assert_allclose(changed, plain)
    np.testing.assert_allclose(changed_gradient, gradient)
    assert gradient[2, 0] == 0


def test_linear_weights_average_about_one():
    weights = fits.sample_weights("linear", jnp.arange(1, 10, dtype=jnp.int32), jnp.int32(9))
    np.testing.assert_allclose(weights, np.arange(1, 10) * 2 / 9, rtol=1e-6)
    np.testing.assert_allclose(
        fits.sample_weights("uniform", jnp.arange(3, dtype=jnp.int32), jnp.int32(9)), 1
    )


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_recovers_the_weighted_mean_of_the_targets(dtype):
    # Card 0 has two samples of weights 1 : 3, so its advantages are their weighted mean.
    batch = batch_of(
        cards=[0, 0, 1, 2],
        legal=[[True, True]] * 4,
        targets=[[1.0, 0.0], [-1.0, 2.0], [0.5, 0.25], [0.0, -2.0]],
        iterations=[1, 3, 2, 3],
    )
    params, _, metrics = fit(
        NETWORK, SPEC, "advantage", None, None, memory_of(batch, dtype), jax.random.key(0),
        jnp.int32(3),
    )  # fmt: skip
    output = NETWORK.apply(params, batch.packed)
    expected = [[-0.5, 1.5], [-0.5, 1.5], [0.5, 0.25], [0.0, -2.0]]
    np.testing.assert_allclose(output, expected, atol=0.25)
    assert 0.1 < float(metrics.loss) < 1.0
    assert int(metrics.skipped) == 0


def test_strategy_fit_recovers_the_target_policy():
    batch = batch_of([0, 1], [[True, True]] * 2, [[0.9, 0.1], [0.25, 0.75]], [1, 1])
    params, _, _ = fit(
        NETWORK, SPEC, "strategy", None, None, memory_of(batch), jax.random.key(0), ONE
    )
    policy = jax.nn.softmax(NETWORK.apply(params, batch.packed))
    np.testing.assert_allclose(policy, batch.target, atol=0.02)


def test_warm_start_continues_and_scratch_forgets():
    memory = memory_of(BATCH)
    warm = dataclasses.replace(SPEC, start="warm", updates=1)
    params, opt_state = fits.init(NETWORK, warm, jax.random.key(5))
    after, opt_after, _ = fit(
        NETWORK, warm, "advantage", params, opt_state, memory, jax.random.key(0), ONE
    )
    change = optax.tree.norm(jax.tree.map(jnp.subtract, after, params))
    assert 0 < float(change) < 1
    assert int(optax.tree.get(opt_after, "count")) == 1

    scratch = dataclasses.replace(warm, start="scratch")
    one, _, _ = fit(
        NETWORK, scratch, "advantage", params, opt_after, memory, jax.random.key(0), ONE
    )
    other, _, _ = fit(
        NETWORK, scratch, "advantage", after, opt_state, memory, jax.random.key(0), ONE
    )
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_gradient_is_clipped():
    spec = FitSpec("warm", 1, 8, 1e-2, 1e-12, "uniform")
    params, opt_state = fits.init(NETWORK, spec, jax.random.key(0))
    after, _, _ = fit(
        NETWORK, spec, "advantage", params, opt_state, memory_of(BATCH), jax.random.key(0), ONE
    )
    # Adam's step is lr * g / (|g| + 1e-8): with a gradient norm of 1e-12 almost nothing moves.
    change = optax.tree.norm(jax.tree.map(jnp.subtract, after, params))
    assert float(change) < 1e-5


def test_non_finite_gradients_are_skipped_and_counted():
    batch = BATCH._replace(target=jnp.full((2, 2), jnp.nan))
    spec = dataclasses.replace(SPEC, start="warm", updates=7)
    params, opt_state = fits.init(NETWORK, spec, jax.random.key(0))
    after, opt_after, metrics = fit(
        NETWORK, spec, "advantage", params, opt_state, memory_of(batch), jax.random.key(0), ONE
    )
    assert int(metrics.skipped) == 7
    jax.tree.map(np.testing.assert_array_equal, (after, opt_after), (params, opt_state))


@pytest.mark.parametrize("loss", ["advantage", "strategy"])
def test_empty_memory_leaves_the_parameters_alone(loss):
    memory = reservoir.create(samples.example(GAME.packed_size, GAME.num_actions, jnp.float32), 8)
    spec = dataclasses.replace(SPEC, start="warm", updates=3)
    params, opt_state = fits.init(NETWORK, spec, jax.random.key(0))
    after, _, metrics = fit(NETWORK, spec, loss, params, opt_state, memory, jax.random.key(0), ONE)
    jax.tree.map(np.testing.assert_array_equal, after, params)
    assert float(metrics.loss) == 0


def test_one_trace_for_all_iterations():
    spec = dataclasses.replace(SPEC, updates=2)
    memory = memory_of(BATCH)
    before = fits._update._cache_size()
    for iteration in (1, 2, 3):
        fit(
            NETWORK, spec, "advantage", None, None, memory, jax.random.key(iteration),
            jnp.int32(iteration),
        )  # fmt: skip
    assert fits._update._cache_size() == before + 1
