"""What the precision of networks changes, and what it leaves alone."""

from __future__ import annotations

import dataclasses
import json
import re

import chex
import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from test_networks import CARDS, SMALL, some_states
from trainers import SETTINGS, advance, kuhn_settings

from configs import leduc
from coorl_jax import config, trained_agent, training
from coorl_jax.cfr import iteration as iteration_lib
from coorl_jax.cfr.iteration import Trainer
from coorl_jax.checkpoint import CheckpointStore
from coorl_jax.evaluation import suite
from coorl_jax.networks import Network, NetworkSpec, ValueNetwork
from coorl_jax.policy import make_network
from coorl_jax.runtime import CACHE_VARIABLE

PURPOSES = ("traversal", "evaluation", "fit")
NETWORKS = {
    "mlp": Network(SMALL, NetworkSpec("mlp", 32, 3)),
    "residual": Network(SMALL, NetworkSpec("mlp", 32, 3, layer_norm=True, residual=True)),
    "cards": Network(SMALL, CARDS),
    "value": ValueNetwork(SMALL, CARDS),
}
# Layers that give outputs: cards has one for the suits' logits and one for the others.
LAST_LAYERS = {"mlp": 1, "residual": 1, "cards": 2, "value": 1}
every_network = pytest.mark.parametrize("name", NETWORKS)


def in_precision(network, precision):
    return dataclasses.replace(network, precision=precision)


def inputs(network, batch):
    """Information states after random play; for a value network, whole states after the deal."""
    if not isinstance(network, ValueNetwork):
        return some_states(SMALL, batch)
    states = jax.vmap(SMALL.init)(jax.random.split(jax.random.key(3), batch))
    return jax.vmap(SMALL.whole_state)(states)


def noisy_params(network):
    """New parameters with noise, so that none of them is zero and outputs are not small."""
    params = network.init(jax.random.key(0))
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    return tree.unflatten(
        [
            leaf + 0.1 * jax.random.normal(key, leaf.shape)
            for leaf, key in zip(leaves, keys, strict=True)
        ]
    )


def equations(jaxpr):
    """Yield the equations of a jaxpr and of those inside it."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from equations(inner)


def dtypes_of(equation):
    return [var.aval.dtype for var in equation.invars], equation.outvars[0].aval.dtype


def products(function, *arguments):
    """Return the dtypes of the factors of every product, of its result, and its precision."""
    return [
        (*dtypes_of(equation), equation.params["precision"])
        for equation in equations(jax.make_jaxpr(function)(*arguments).jaxpr)
        if equation.primitive.name == "dot_general"
    ]


@every_network
def test_the_precision_of_every_product(name):
    network, last = NETWORKS[name], LAST_LAYERS[name]
    params, packed = noisy_params(network), inputs(network, 4)
    asked = jax.lax.Precision
    for precision, dtype, multiplied in (
        ("float32", jnp.float32, asked.HIGHEST),
        ("tf32", jnp.float32, asked.DEFAULT),
        ("bfloat16", jnp.bfloat16, asked.DEFAULT),
    ):
        found = products(in_precision(network, precision).apply, params, packed)
        assert len(found) > last
        for factors, _, how in found:
            assert factors == [dtype, dtype]
            assert how == (multiplied, multiplied)
        # What is rounded, if anything is, are the sums that are no outputs.
        results = [result for _, result, _ in found]
        if dtype == jnp.bfloat16:
            assert results.count(jnp.float32) == last
            assert results.count(jnp.bfloat16) == len(found) - last
        else:
            assert set(results) == {jnp.dtype(jnp.float32)}


@every_network
def test_bfloat16_sums_in_float32(name):
    network = in_precision(NETWORKS[name], "bfloat16")
    params, packed = noisy_params(network), inputs(network, 4)

    def loss(params):
        return jnp.mean(jnp.square(network.apply(params, packed)))

    # Sums over the batch: the loss, and the gradients of biases.
    sums = [
        equation
        for equation in equations(jax.make_jaxpr(jax.grad(loss))(params).jaxpr)
        if equation.primitive.name == "reduce_sum" and 0 in equation.params["axes"]
    ]
    assert len(sums) > network.spec.depth + 1
    for equation in sums:
        assert dtypes_of(equation) == ([jnp.float32], jnp.float32)
    factors = [factors for factors, _, _ in products(jax.grad(loss), params)]
    # Backward, the products of a last layer have the gradient of its outputs as a factor.
    mixed = 2 * LAST_LAYERS[name]
    assert sum(jnp.dtype(jnp.float32) in pair for pair in factors) == mixed
    assert factors.count([jnp.bfloat16] * 2) == len(factors) - mixed > mixed


def test_a_product_of_ones_is_exact_in_bfloat16():
    """A sum in bfloat16 would stop at 256, where adding 1 no longer changes it."""
    width = 1024
    network = Network(SMALL, NetworkSpec("mlp", width, 2), "bfloat16")
    packed = some_states(SMALL, 2)
    params = jax.tree.map(jnp.zeros_like, network.init(jax.random.key(0)))
    params["Dense_0"]["bias"] += 1.0
    params["Dense_1"]["kernel"] += 1.0
    params["Dense_2"]["kernel"] += 1.0 / width
    np.testing.assert_array_equal(jax.jit(network.apply)(params, packed), width)


@every_network
def test_parameters_gradients_and_outputs_are_float32(name):
    network, packed = NETWORKS[name], inputs(NETWORKS[name], 4)
    params = network.init(jax.random.key(0))
    for precision in ("tf32", "bfloat16"):
        other = in_precision(network, precision)
        chex.assert_trees_all_equal(other.init(jax.random.key(0)), params)
        assert other.apply(params, packed).dtype == jnp.float32
        gradient = jax.grad(lambda tree, net=other: jnp.sum(net.apply(tree, packed)))(params)
        assert {leaf.dtype for leaf in jax.tree.leaves(gradient)} == {jnp.dtype(jnp.float32)}


@every_network
def test_outputs_are_close_in_bfloat16(name):
    network, packed = NETWORKS[name], inputs(NETWORKS[name], 256)
    params = noisy_params(network)
    outputs = {
        precision: np.asarray(jax.jit(in_precision(network, precision).apply)(params, packed))
        for precision in ("float32", "tf32", "bfloat16")
    }
    np.testing.assert_array_equal(outputs["tf32"], outputs["float32"])  # on a CPU
    errors = outputs["bfloat16"] - outputs["float32"]
    spread = outputs["float32"].std()
    # A number in bfloat16 is off by up to 1/512 of itself; 0.4 (mlp) to 1.8 % (value) of the
    # outputs are usual.
    assert 1e-3 * spread < np.sqrt(np.mean(errors**2)) < 0.03 * spread
    assert np.abs(errors).max() < 0.15 * spread


# Of a run.


def precisions(traversal, evaluation, fit):
    return {
        f"precision.{purpose}": precision
        for purpose, precision in zip(PURPOSES, (traversal, evaluation, fit), strict=True)
    }


MIXED = precisions("bfloat16", "float32", "tf32")
BFLOAT16 = precisions(*["bfloat16"] * 3)


def spy(monkeypatch, name, position):
    """Return a list that collects the precisions of a function's networks, at some positions."""
    function, found = getattr(iteration_lib, name), []

    def spying(*arguments):
        found.append([arguments[n].precision for n in position])
        return function(*arguments)

    monkeypatch.setattr(iteration_lib, name, spying)
    return found


def test_every_purpose_has_its_precision(monkeypatch):
    traversals = spy(monkeypatch, "make_program", (1, 7))
    fits = spy(monkeypatch, "fit_networks", (1,))
    trainer = Trainer(config.override(SETTINGS["baseline"], MIXED | {"mixture.capacity": 2}))
    state, _ = advance(trainer, trainer.init())
    assert traversals == [["bfloat16", "bfloat16"]]
    assert fits == [["tf32"]] * 3  # value, advantage, strategy
    policies = trainer.policies(state)
    assert len(policies) == 3
    assert {policy.network.precision for policy in policies.values()} == {"float32"}
    # What the test against the best is given.
    assert trainer.network.precision == "float32"


def test_saved_policies_play_in_the_precision_of_evaluation(tmp_path):
    settings = kuhn_settings(**MIXED)
    params = (make_network(settings).init(jax.random.key(0)),)
    with CheckpointStore(tmp_path / "policies") as store:
        tree = {"current": params, "average": params}
        store.save(1, tree, {"config": config.to_dict(settings)})
    agent = trained_agent.load(tmp_path)
    assert {policy.network.precision for policy in agent.policies.values()} == {"float32"}


def lines_of(run):
    """Return the metrics lines without what differs from run to run."""
    varying = re.compile("seconds|per_second|compil")
    return [
        {name: value for name, value in json.loads(line).items() if not varying.search(name)}
        for line in (run / "metrics.jsonl").read_text().splitlines()
    ]


@pytest.mark.slow
def test_a_run_in_bfloat16_goes_on_as_if_it_had_not_stopped(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, "off")
    base = kuhn_settings(**BFLOAT16, **{"gate.policy": "average", "gate.pairs": 100})
    runs = {}
    for name, lengths in (("whole", (4,)), ("stopped", (2, 4))):
        for iterations in lengths:
            # All that an iteration can have is in every one, as the last one differs otherwise.
            values = {"iterations": iterations, "evaluation.every": 1, "checkpoint.every": 1}
            runs[name] = training.train(config.override(base, values), tmp_path / name)
    lines = lines_of(runs["whole"])
    assert lines == lines_of(runs["stopped"])
    assert len(lines) == 4
    assert all(line["precision/nonfinite_steps"] == 0 for line in lines)
    agents = [trained_agent.load(run) for run in runs.values()]
    chex.assert_trees_all_equal(*(agent.policies for agent in agents))
    found = suite.nash_convs(agents[0].game, agents[0].policies)
    for policy in ("current", "average"):
        assert lines[-1][f"eval/nash_conv/{policy}"] == pytest.approx(found[policy], rel=1e-6)
    # A run in float32 differs, if not by much in so few updates.
    other = config.override(base, precisions(*["float32"] * 3) | {"iterations": 1})
    (line,) = lines_of(training.train(other, tmp_path / "float32"))
    assert (
        0 < abs(line["loss/advantage"] - lines[0]["loss/advantage"]) < 0.05 * line["loss/advantage"]
    )


def test_skipped_steps_of_all_networks_add_up(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, "off")
    fit_networks, skipped = iteration_lib.fit_networks, {"value": 1, "advantage": 2, "strategy": 4}

    def skipping(name, *arguments):
        fitted, metrics = fit_networks(name, *arguments)
        assert metrics["precision/nonfinite_steps"] == 0
        return fitted, metrics | {"precision/nonfinite_steps": skipped[name]}

    monkeypatch.setattr(iteration_lib, "fit_networks", skipping)
    settings = config.override(SETTINGS["baseline"], {"iterations": 2, "evaluation.every": 0})
    lines = lines_of(training.train(settings, tmp_path / "run"))
    assert [line["precision/nonfinite_steps"] for line in lines] == [7, 7]


def test_advantages_that_are_no_numbers_end_the_run():
    """Regret matching makes a policy even of those, so that a traversal ends, and learns of it."""
    settings = config.override(SETTINGS["kuhn"], {"advantage.start": "warm"})
    trainer = Trainer(settings)
    state = trainer.init()
    nothing = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.nan), state.advantage.params)
    state = state._replace(advantage=state.advantage._replace(params=nothing))
    state, metrics = trainer.run_stage(state)
    assert metrics["traversal/fallback_rate"] == 1
    state, _ = trainer.run_stage(state)
    with pytest.raises(ValueError, match=r"^config\.advantage\.learning_rate=.*has diverged"):
        trainer.run_stage(state)


@pytest.mark.slow  # two or three minutes
def test_leduc_poker_is_learnt_as_well_in_bfloat16():
    """The average policies of three seeds after 50 iterations of configs/leduc.py.

    0.63 antes (float32) and 0.55 (bfloat16) are usual, 0.13 from seed to seed; random play: 4.75.
    """
    found = {}
    for precision in ("float32", "bfloat16"):
        given = precisions(precision, "float32", precision)
        nash_convs = []
        for seed in (1, 2, 3):
            base = config.from_config_dict(leduc.get_config())
            trainer = Trainer(config.override(base, given | {"seed": seed}))
            state, _ = advance(trainer, trainer.init(), 50)
            average = trainer.policies(state)["average"]
            nash_convs.append(suite.nash_convs(trainer.game, {"average": average})["average"])
        found[precision] = np.mean(nash_convs)
    assert found["float32"] < 0.9
    assert found["bfloat16"] < 1.3 * found["float32"]
