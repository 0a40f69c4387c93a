import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from coorl_jax.cfr import fit as fits
from coorl_jax.cfr import reservoir, samples
from coorl_jax.cfr.fit import FitSpec, fit, init, loss_value
from coorl_jax.games.kuhn_poker import KuhnPoker
from coorl_jax.networks import Network, NetworkSpec
from coorl_jax.optimizer import learning_rate

GAME = KuhnPoker()
NETWORK = Network(GAME, NetworkSpec("mlp", width=16, depth=1))
SPEC = FitSpec("scratch", 300, 64, 1e-2, 0, False, 1.0, 1.0)
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
        Rows(), 1.0, "squared_error", TABLE, BATCH, jnp.int32(4)
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
        Rows(), 0.0, "cross_entropy", TABLE, batch, jnp.int32(4)
    )
    policy = np.exp([0.25, 0.0]) / np.sum(np.exp([0.25, 0.0]))
    entropy = -(0.75 * np.log(policy[0]) + 0.25 * np.log(policy[1]))
    np.testing.assert_allclose(value, (entropy + 0) / 2, rtol=1e-5)
    # The gradient of a cross entropy is softmax - target; with one legal action it is zero.
    expected = np.array([policy - [0.75, 0.25], [0, 0], [0, 0]]) / 2
    np.testing.assert_allclose(gradient, expected, atol=1e-6)


@pytest.mark.parametrize("loss", ["squared_error", "cross_entropy"])
def test_illegal_actions_do_not_matter(loss):
    def value(target, table):
        batch = BATCH._replace(target=BATCH.target.at[1, 0].set(target))
        return jax.value_and_grad(loss_value, argnums=3)(
            Rows(), 0.0, loss, table, batch, jnp.int32(4)
        )

    plain, gradient = value(0.0, TABLE)
    changed, changed_gradient = value(50.0, TABLE.at[2, 0].set(7.0))
    np.testing.assert_allclose(changed, plain)
    np.testing.assert_allclose(changed_gradient, gradient)
    assert gradient[2, 0] == 0


def test_weights_are_powers_of_the_iteration_and_average_about_one():
    iterations = np.arange(1, 2001)
    for exponent in (0.0, 1.0, 1.5, 2.0):
        weights = fits.sample_weights(exponent, jnp.asarray(iterations), jnp.int32(2000))
        expected = (exponent + 1) * (iterations / 2000) ** exponent
        np.testing.assert_allclose(weights, expected, rtol=1e-5)
        assert float(jnp.mean(weights)) == pytest.approx(1, abs=2e-3)


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0])
def test_repeated_steps_make_a_weighted_mean(exponent):
    # The weights of iterations 1, 2, 3, 4: all alike, t, and t (t + 1) for exponents 0, 1, 2.
    weights = {0.0: [1, 1, 1, 1], 1.0: [1, 2, 3, 4], 2.0: [2, 6, 12, 20]}[exponent]
    values, mean = [3.0, -1.0, 4.0, 1.5], 99.0
    for t, value in enumerate(values, start=1):
        step = float(fits.bootstrap_step(exponent, 0.0, jnp.int32(t)))
        mean = (1 - step) * mean + step * value
    assert mean == pytest.approx(np.average(values, weights=weights), rel=1e-5)
    assert fits.bootstrap_step(exponent, 0.25, jnp.int32(1000)) == 0.25


@pytest.mark.parametrize("keep_negative", [False, True])
def test_bootstrapped_fits_follow_the_recursion_of_the_cumulative_advantages(keep_negative):
    """A table has a parameter for each state and action, so that every fit finds its target."""
    spec = FitSpec("warm", 400, 16, 0.05, 0, False, 10.0, 0.0, keep_negative)
    params, opt_state = fits.init(Rows(), spec, jax.random.key(0))
    start = params
    memory = memory_of(BATCH)
    cumulative = np.zeros((3, 2))
    rng = np.random.default_rng(0)
    for t in (1, 2, 3, 4):
        # In iteration 2 both actions of card 0 turn negative: without `keep_negative`
        # iteration 3 starts them from zero.
        regrets = rng.normal(size=(2, 2)) - np.array([[4.0], [0.0]]) * (t == 2)
        batch = BATCH._replace(
            target=jnp.asarray(regrets, jnp.float32), iteration=jnp.full(2, t, jnp.int32)
        )
        memory = reservoir.insert(
            reservoir.emptied(memory), batch, jnp.ones(2, bool), jax.random.key(t)
        )
        params, opt_state, _ = fit(
            Rows(), spec, "squared_error", params, opt_state, memory, jax.random.key(t),
            jnp.int32(t), fits.bootstrap_step(1.0, 0.0, jnp.int32(t)),
        )  # fmt: skip
        step = 2 / (t + 1)
        for row, card in enumerate((0, 2)):
            kept = cumulative[card] if keep_negative else np.maximum(cumulative[card], 0)
            cumulative[card] = (1 - step) * kept + step * regrets[row]
        if t == 2:
            assert (cumulative[0] < 0).all()
        np.testing.assert_allclose(params[0], cumulative[0], atol=5e-3)
        np.testing.assert_allclose(params[2, 1], cumulative[2, 1], atol=5e-3)
        # Without samples of a card, or where an action is illegal, the table keeps what it has.
        np.testing.assert_array_equal(params[1], start[1])
        assert params[2, 0] == start[2, 0]


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
        NETWORK, SPEC, "squared_error", None, None, memory_of(batch, dtype), jax.random.key(0),
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
        NETWORK, SPEC, "cross_entropy", None, None, memory_of(batch), jax.random.key(0), ONE
    )
    policy = jax.nn.softmax(NETWORK.apply(params, batch.packed))
    np.testing.assert_allclose(policy, batch.target, atol=0.02)


def test_warm_start_continues_and_scratch_forgets():
    memory = memory_of(BATCH)
    warm = dataclasses.replace(SPEC, start="warm", updates=1)
    params, opt_state = fits.init(NETWORK, warm, jax.random.key(5))
    after, opt_after, _ = fit(
        NETWORK, warm, "squared_error", params, opt_state, memory, jax.random.key(0), ONE
    )
    change = optax.tree.norm(jax.tree.map(jnp.subtract, after, params))
    assert 0 < float(change) < 1
    assert int(optax.tree.get(opt_after, "count")) == 1

    scratch = dataclasses.replace(warm, start="scratch")
    one, _, _ = fit(
        NETWORK, scratch, "squared_error", params, opt_after, memory, jax.random.key(0), ONE
    )
    other, _, _ = fit(
        NETWORK, scratch, "squared_error", after, opt_state, memory, jax.random.key(0), ONE
    )
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_gradient_is_clipped():
    spec = FitSpec("warm", 1, 8, 1e-2, 0, False, 1e-12, 0.0)
    params, opt_state = fits.init(NETWORK, spec, jax.random.key(0))
    after, _, _ = fit(
        NETWORK, spec, "squared_error", params, opt_state, memory_of(BATCH), jax.random.key(0), ONE
    )
    # Adam's step is lr * g / (|g| + 1e-8): with a gradient norm of 1e-12 almost nothing moves.
    change = optax.tree.norm(jax.tree.map(jnp.subtract, after, params))
    assert float(change) < 1e-5


def test_non_finite_gradients_are_skipped_and_counted():
    batch = BATCH._replace(target=jnp.full((2, 2), jnp.nan))
    spec = dataclasses.replace(SPEC, start="warm", updates=7)
    params, opt_state = fits.init(NETWORK, spec, jax.random.key(0))
    after, opt_after, metrics = fit(
        NETWORK, spec, "squared_error", params, opt_state, memory_of(batch), jax.random.key(0), ONE
    )
    assert int(metrics.skipped) == 7
    jax.tree.map(np.testing.assert_array_equal, (after, opt_after), (params, opt_state))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_fit_goes_on_beside_a_sample_that_is_not_finite(precision):
    network = dataclasses.replace(NETWORK, precision=precision)
    targets = np.tile([[1.0, -1.0], [-2.0, 0.5], [0.25, 2.0]], (8, 1))
    good = batch_of([0, 1, 2] * 8, [[True, True]] * 24, targets, [1] * 24)
    memory = memory_of(good._replace(target=good.target.at[5, 1].set(jnp.inf)))
    spec = dataclasses.replace(SPEC, start="warm", updates=200, batch_size=8)
    params, opt_state = fits.init(network, spec, jax.random.key(0))
    key = jax.random.key(1)
    after, opt_after, metrics = fit(
        network, spec, "squared_error", params, opt_state, memory, key, ONE
    )
    # The batches, drawn as `fit` draws them.
    batches = [
        reservoir.sample(memory, batch_key, spec.batch_size)
        for batch_key in jax.random.split(jax.random.split(key)[1], spec.updates)
    ]
    spoilt = [not np.isfinite(batch.target).all() for batch in batches]
    assert 20 < sum(spoilt) < 100
    assert int(metrics.skipped) == sum(spoilt)
    assert int(optax.tree.get(opt_after, "count")) == spec.updates - sum(spoilt)
    losses = [
        float(loss_value(network, 1.0, "squared_error", tree, good, ONE))
        for tree in (params, after)
    ]
    assert losses[1] < 0.02 * losses[0]
    # The last tenth without what was skipped there, of which there is some.
    assert any(spoilt[-20:])
    assert 0 < float(metrics.loss) < 0.1 * losses[0]
    assert {leaf.dtype for leaf in jax.tree.leaves(after)} == {jnp.dtype(jnp.float32)}


def test_a_network_that_has_diverged_ends_the_run_with_a_sentence():
    spec = dataclasses.replace(SPEC, start="warm", updates=20)
    params, opt_state = fits.init(NETWORK, spec, jax.random.key(0))
    fitted = fits.Fitted((params,), (opt_state,))
    memory = memory_of(BATCH._replace(target=jnp.full((2, 2), jnp.nan)))
    with pytest.raises(ValueError, match="has diverged") as error:
        fits.fit_networks(
            "advantage", NETWORK, spec, "squared_error", fitted, (memory,), jax.random.key(0), 1
        )
    assert str(error.value) == (
        "config.advantage.learning_rate=0.01: must be lower, as the advantage network has "
        "diverged: none of its last gradients is finite; e.g. 0.001"
    )


@pytest.mark.parametrize("loss", ["squared_error", "cross_entropy"])
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
            NETWORK, spec, "squared_error", None, None, memory, jax.random.key(iteration),
            jnp.int32(iteration),
        )  # fmt: skip
    assert fits._update._cache_size() == before + 1


def test_the_learning_rate_halves_after_as_many_iterations_as_given():
    rates = [float(learning_rate(0.8, 10, jnp.int32(t))) for t in (1, 11, 31)]
    np.testing.assert_allclose(rates, [0.8, 0.4, 0.2], rtol=1e-6)
    assert float(learning_rate(0.8, 0, jnp.int32(1000))) == pytest.approx(0.8)


def test_a_smaller_learning_rate_takes_smaller_steps():
    """Adam's first step moves every parameter by the learning rate, whatever the gradient."""
    spec = FitSpec("warm", 1, 16, 1e-2, 1, False, 10.0, 0.0)
    params, opt_state = init(Rows(), spec, jax.random.key(0))
    moved = []
    for t in (1, 4):
        after, _, _ = fit(
            Rows(),
            spec,
            "squared_error",
            params,
            opt_state,
            memory_of(BATCH),
            jax.random.key(1),
            jnp.int32(t),
        )
        moved.append(float(jnp.max(jnp.abs(after - params))))
    np.testing.assert_allclose(moved, [1e-2, 1e-2 / 4], rtol=1e-3)


def test_an_annealed_fit_ends_where_its_batches_agree():
    """Noisy targets: with a constant rate the last updates follow the last batches."""
    noisy = batch_of(
        cards=[0] * 32,
        legal=[[True, True]] * 32,
        targets=np.random.default_rng(0).normal(size=(32, 2)),
        iterations=[1] * 32,
    )
    mean = np.mean(np.asarray(noisy.target), axis=0)
    errors = {}
    for annealed in (False, True):
        spec = FitSpec("warm", 400, 4, 0.2, 0, annealed, 10.0, 0.0)
        found = []
        for seed in range(10):
            params, opt_state = init(Rows(), spec, jax.random.key(0))
            key = jax.random.key(seed)
            memory = memory_of(noisy)
            params, _, _ = fit(Rows(), spec, "squared_error", params, opt_state, memory, key, ONE)
            found.append(np.square(params[0] - mean))
        errors[annealed] = np.sqrt(np.mean(found))
    assert errors[True] < 0.5 * errors[False]
