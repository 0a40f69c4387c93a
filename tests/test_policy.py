import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import kuhn
from coorl_jax import config
from coorl_jax.cfr.regret_matching import regret_matching
from coorl_jax.games.kuhn_poker import KuhnPoker
from coorl_jax.networks import Network, NetworkSpec
from coorl_jax.policy import (
    EitherKindPolicy,
    MixturePolicy,
    NetworkPolicy,
    PolicySpec,
    decide,
    make_network,
    make_policies,
    tempered,
)

GAME = KuhnPoker()
NETWORK = Network(GAME, NetworkSpec("mlp", width=8, depth=1))
PARAMS = tuple(NETWORK.init(jax.random.key(seed)) for seed in (0, 1))
# Own card, history, seat.
PACKED = jnp.array([[0, 0, 0], [1, 1, 1], [2, 2, 1], [2, 4, 0]], jnp.uint8)
LEGAL = jnp.array([[True, True], [True, True], [False, True], [False, False]])


def test_advantage_policy_is_regret_matching_on_the_network():
    outputs = NETWORK.apply(PARAMS[0], PACKED)
    for fallback in ("argmax", "uniform"):
        policy = NetworkPolicy(NETWORK, PolicySpec("advantage", fallback), PARAMS[:1])
        np.testing.assert_allclose(
            policy.action_probabilities(PACKED, LEGAL), regret_matching(outputs, LEGAL, fallback)[0]
        )


def test_strategy_policy_is_a_softmax_over_legal_actions():
    outputs = np.asarray(NETWORK.apply(PARAMS[0], PACKED))
    policy = NetworkPolicy(NETWORK, PolicySpec("strategy"), PARAMS[:1])
    probabilities = policy.action_probabilities(PACKED, LEGAL)
    expected = np.exp(outputs[:2]) / np.exp(outputs[:2]).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(probabilities[:2], expected, rtol=1e-5)
    assert probabilities[2:].tolist() == [[0, 1], [0, 0]]


def test_each_seat_has_its_own_parameters():
    spec = PolicySpec("strategy")
    both = NetworkPolicy(NETWORK, spec, PARAMS).action_probabilities(PACKED, LEGAL)
    for row, seat in enumerate((0, 1)):
        own = NetworkPolicy(NETWORK, spec, (PARAMS[seat],))
        np.testing.assert_allclose(both[row], own.action_probabilities(PACKED, LEGAL)[row])
        other = NetworkPolicy(NETWORK, spec, (PARAMS[1 - seat],))
        assert not np.allclose(both[row], other.action_probabilities(PACKED, LEGAL)[row])


@pytest.mark.parametrize("seat", [0, 1])
def test_states_of_one_seat_alone_get_the_same_as_among_others(seat):
    policy = NetworkPolicy(NETWORK, PolicySpec("strategy"), PARAMS)
    rows = np.flatnonzero(np.asarray(PACKED)[:, 2] == seat)
    alone = policy.action_probabilities(PACKED[rows], LEGAL[rows])
    among = policy.action_probabilities(PACKED, LEGAL)[rows]
    np.testing.assert_allclose(alone, among, rtol=1e-6)


def test_policies_tell_where_they_fall_back():
    zeros = jax.tree.map(jnp.zeros_like, PARAMS[:1])
    for kind, expected in (("advantage", [True, True, True, False]), ("strategy", [False] * 4)):
        policy = NetworkPolicy(NETWORK, PolicySpec(kind), zeros)
        probabilities, fallback = decide(policy, PACKED, LEGAL)
        assert fallback.tolist() == expected
        np.testing.assert_array_equal(probabilities, policy.action_probabilities(PACKED, LEGAL))


def test_temperature_sharpens_by_powers():
    probabilities = jnp.array([[0.5, 0.3, 0.2], [0.0, 0.4, 0.6], [0.0, 0.0, 0.0]], jnp.float32)
    assert tempered(probabilities, 1.0) is probabilities
    squares = [[25 / 38, 9 / 38, 4 / 38], [0, 4 / 13, 9 / 13], [0, 0, 0]]
    np.testing.assert_allclose(tempered(probabilities, 0.5), squares, rtol=1e-5)
    assert tempered(probabilities, 0.0).tolist() == [[1, 0, 0], [0, 0, 1], [0, 0, 0]]
    np.testing.assert_allclose(tempered(probabilities, 1e-4), tempered(probabilities, 0.0))
    flat = tempered(probabilities, 1e4)
    np.testing.assert_allclose(flat, [[1 / 3] * 3, [0, 0.5, 0.5], [0] * 3], atol=1e-4)


def test_policies_of_a_network_have_a_temperature():
    for spec in (PolicySpec("strategy"), PolicySpec("advantage")):
        plain = NetworkPolicy(NETWORK, spec, PARAMS[:1])
        greedy = NetworkPolicy(NETWORK, spec, PARAMS[:1], temperature=0.0)
        np.testing.assert_array_equal(
            greedy.action_probabilities(PACKED, LEGAL),
            tempered(plain.action_probabilities(PACKED, LEGAL), 0.0),
        )
    mixture = dataclasses.replace(mixture_of(spec, [0.5, 0.5]), temperature=0.5)
    assert mixture.member(1).temperature == 0.5
    assert mixture.draw(jax.random.key(0)).temperature == 0.5


def test_parameters_are_leaves_and_the_rest_is_static():
    traces = []

    @jax.jit
    def probabilities(policy):
        traces.append(policy.spec.kind)
        return policy.action_probabilities(PACKED, LEGAL)

    for kind in ("strategy", "advantage"):
        for params in PARAMS:
            probabilities(NetworkPolicy(NETWORK, PolicySpec(kind), (params,)))
    assert traces == ["strategy", "advantage"]


def test_either_kind_plays_as_it_would_and_is_one_program():
    traces = []

    @jax.jit
    def decide_either(policy):
        traces.append(policy)
        return policy.decide(PACKED, LEGAL)

    for kind in ("strategy", "advantage"):
        for params in PARAMS:
            policy = NetworkPolicy(NETWORK, PolicySpec(kind), (params,))
            for found, expected in zip(
                decide_either(EitherKindPolicy.of(policy)),
                policy.decide(PACKED, LEGAL),
                strict=True,
            ):
                np.testing.assert_allclose(found, expected, atol=1e-6)
    assert len(traces) == 1


def mixture_of(spec, weights, per_player=False):
    """A mixture of PARAMS, whose seats have them in opposite orders if it has two."""
    orders = (PARAMS, PARAMS[::-1])[: 1 + per_player]
    stacked = tuple(jax.tree.map(lambda *leaves: jnp.stack(leaves), *order) for order in orders)
    return MixturePolicy(NETWORK, spec, stacked, jnp.asarray(weights, jnp.float32))


@pytest.mark.parametrize("per_player", [False, True])
def test_members_of_a_mixture_are_its_policies(per_player):
    spec = PolicySpec("advantage", "uniform")
    mixture = mixture_of(spec, [0.5, 0.5], per_player)
    for index in (0, 1):
        params = (PARAMS[index], PARAMS[1 - index])[: 1 + per_player]
        np.testing.assert_allclose(
            mixture.member(index).action_probabilities(PACKED, LEGAL),
            NetworkPolicy(NETWORK, spec, params).action_probabilities(PACKED, LEGAL),
            rtol=1e-5,
        )


def test_members_are_drawn_by_their_weights():
    keys = jax.random.split(jax.random.key(0), 4000)

    def share(*weights):
        """Return how often the first member is drawn, told by one of its parameters."""
        drawn = jax.vmap(mixture_of(PolicySpec("strategy"), weights).draw)(keys)
        leaf = np.asarray(jax.tree.leaves(drawn.params)[1])
        first = np.asarray(jax.tree.leaves(PARAMS[0])[1])
        same = (leaf == first).reshape(len(keys), -1).all(axis=1)
        return float(same.mean())

    assert not np.array_equal(jax.tree.leaves(PARAMS[0])[1], jax.tree.leaves(PARAMS[1])[1])
    assert share(0.2, 0.8) == pytest.approx(0.2, abs=4 * np.sqrt(0.16 / 4000))
    assert (share(1.0, 0.0), share(0.0, 1.0)) == (1.0, 0.0)


def test_policies_of_a_run():
    settings = config.from_config_dict(kuhn.get_config())
    network = make_network(settings)
    assert network.game == GAME
    assert network.spec.width == settings.network.width
    policies = make_policies(settings, network, {"average": PARAMS, "current": PARAMS[:1]})
    assert policies["current"].spec == PolicySpec("advantage", settings.traversal.fallback)
    assert policies["average"].spec == PolicySpec("strategy")
    assert policies["average"].params is PARAMS
    assert set(policies) == {"current", "average"}
    weights = jnp.array([0.25, 0.75])
    mixture = make_policies(
        settings,
        network,
        {"average": PARAMS, "current": PARAMS, "mixture": {"params": PARAMS, "weights": weights}},
    )["mixture"]
    assert mixture == MixturePolicy(network, policies["current"].spec, PARAMS, weights)


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("max_discard_draws", None, "config.game.max_discard_draws=None: rounds without"),
        ("hand_size", 0, "config.game.hand_size=0: must be"),
    ],
)
def test_rules_that_make_no_game_are_named(field, value, sentence):
    settings = config.from_dict(
        config.to_dict(config.from_config_dict(kuhn.get_config()))
        | {"game": {"name": "lost_cities", field: value}}
    )
    with pytest.raises(ValueError, match=sentence):
        make_network(settings)
