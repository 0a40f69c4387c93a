import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from coorl_jax import networks
from coorl_jax.games.kuhn_poker import KuhnPoker
from coorl_jax.games.lost_cities import LostCities
from coorl_jax.networks import Network, NetworkSpec

CARDS = NetworkSpec("cards", width=16, depth=3)
SMALL = LostCities(colors=3, ranks=5, wagers=1, hand_size=4, max_discard_draws=4)


def init(network, key):
    return jax.jit(network.init)(key)


def evaluate(network, params, packed):
    return jax.jit(network.apply)(params, packed)


def some_states(game, batch, decisions=9):
    """Packed information states after random play."""

    def play(key):
        def body(state, step_key):
            logits = jnp.where(game.legal_actions(state), 0.0, -jnp.inf)
            return game.step(state, jax.random.categorical(step_key, logits)), None

        state, _ = jax.lax.scan(body, game.init(key), jax.random.split(key, decisions))
        return game.information_state(state, game.player(state))

    return jax.jit(jax.vmap(play))(jax.random.split(jax.random.key(1), batch))


def test_mlp_equals_the_same_layers_by_hand():
    game = KuhnPoker()
    network = Network(game, NetworkSpec("mlp", width=5, depth=2))
    params = init(network, jax.random.key(0))
    packed = some_states(game, 4, decisions=1)
    x = np.asarray(jax.jit(jax.vmap(game.features))(packed))
    outputs = evaluate(network, params, packed)
    params = jax.tree.map(np.asarray, params)
    for layer in ("Dense_0", "Dense_1"):
        x = np.maximum(x @ params[layer]["kernel"] + params[layer]["bias"], 0)
    expected = x @ params["Dense_2"]["kernel"] + params["Dense_2"]["bias"]
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)


def test_residual_and_layer_norm_change_the_mlp():
    game, key = KuhnPoker(), jax.random.key(0)
    packed = some_states(game, 4, decisions=1)
    outputs = []
    for layer_norm, residual in itertools.product((False, True), repeat=2):
        network = Network(game, NetworkSpec("mlp", 8, 3, layer_norm, residual))
        params = init(network, key)
        assert ("LayerNorm_2" in params) == layer_norm
        outputs.append(np.asarray(evaluate(network, params, packed)))
    for one, other in itertools.combinations(outputs, 2):
        assert np.abs(one - other).max() > 1e-4


def layer_norm(x, params):
    x = x - x.mean(-1, keepdims=True)
    return (
        x / np.sqrt(np.square(x).mean(-1, keepdims=True) + 1e-6) * params["scale"] + params["bias"]
    )


def test_cards_equals_the_recipe_with_plain_concatenations():
    network = Network(SMALL, CARDS)
    noise = iter(jax.random.split(jax.random.key(2), 100))
    params = jax.tree.map(
        lambda leaf: leaf + 0.1 * jax.random.normal(next(noise), leaf.shape),
        init(network, jax.random.key(0)),
    )
    packed = some_states(SMALL, 1)
    view = jax.tree.map(
        lambda leaf: np.asarray(leaf[0]), jax.jit(jax.vmap(SMALL.card_view))(packed)
    )
    outputs = evaluate(network, params, packed)[0]
    params = jax.tree.map(np.asarray, params)
    dense, norm = iter(range(20)), iter(range(20))

    def kernel():
        return params[f"Dense_{next(dense)}"]

    def layer(*parts):  # LN(relu(W [parts]))
        weights = [kernel() for _ in parts]
        joined = np.concatenate([w["kernel"] for w in weights])
        x = np.concatenate(parts, axis=-1) @ joined + weights[0]["bias"]
        return layer_norm(np.maximum(x, 0), params[f"LayerNorm_{next(norm)}"])

    def per_suit(shared):
        return np.broadcast_to(shared, (SMALL.colors, shared.size))

    e = layer(layer(view.suits, per_suit(view.shared)))
    pooled = layer(e.mean(0), e.max(0), view.shared)
    h = layer(e, per_suit(pooled))
    w = kernel()
    h = layer_norm(
        h + np.maximum(h @ w["kernel"] + w["bias"], 0), params[f"LayerNorm_{next(norm)}"]
    )
    w = kernel()
    suit_logits = h @ w["kernel"] + w["bias"]
    last = layer(h.mean(0), h.max(0), pooled)
    w = kernel()
    logits = np.concatenate([suit_logits.reshape(-1), last @ w["kernel"] + w["bias"]])
    expected = logits[view.action_index]
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-5)


def test_cards_is_equivariant_to_the_suits():
    network = Network(SMALL, CARDS)
    params = init(network, jax.random.key(0))
    view = jax.jit(jax.vmap(SMALL.card_view))(some_states(SMALL, 8))
    order = jnp.array([2, 0, 1])
    flat = jnp.broadcast_to(
        jnp.arange(SMALL.num_suits * SMALL.suit_logits + SMALL.shared_logits), (8, 40)
    )
    apply = jax.jit(network._module().apply)
    plain = apply({"params": params}, view.suits, view.shared, flat)
    permuted = apply({"params": params}, view.suits[:, order], view.shared, flat)
    suits = plain[:, :-1].reshape(8, SMALL.num_suits, SMALL.suit_logits)
    np.testing.assert_allclose(permuted[:, :-1], suits[:, order].reshape(8, -1), atol=1e-6)
    np.testing.assert_allclose(permuted[:, -1], plain[:, -1], atol=1e-6)
    assert np.abs(suits[:, 0] - suits[:, 1]).max() > 1e-3


def test_a_card_has_the_same_output_wherever_it_is_held():
    game = LostCities(colors=1, ranks=6, wagers=3, hand_size=4, max_discard_draws=4)
    network = Network(game, CARDS)
    params = init(network, jax.random.key(0))
    deck = jnp.array([0, 3, 1, 4, 2, 5, 6, 7, 8], jnp.uint8)  # player 0: three wagers and a number
    state = game.from_deck(deck)
    output = evaluate(network, params, game.information_state(state, jnp.int32(0))[None])[0]
    assert output[0] == output[2] == output[4] != output[6]
    assert output[1] == output[3] == output[5] != output[7]


def test_first_outputs_are_small():
    network = Network(SMALL, CARDS)
    output = evaluate(network, init(network, jax.random.key(0)), some_states(SMALL, 64))
    assert output.shape == (64, SMALL.num_actions)
    assert output.dtype == jnp.float32
    assert 1e-3 < float(jnp.std(output)) < 0.5


def test_width_and_depth_count():
    def size(width, depth):
        network = Network(SMALL, NetworkSpec("cards", width, depth))
        return networks.num_parameters(jax.eval_shape(network.init, jax.random.key(0)))

    assert size(16, 3) - size(16, 2) == 16 * 16 + 3 * 16
    assert size(32, 3) > 2 * size(16, 3)


def test_parameters_for_each_player():
    game = KuhnPoker()
    network = Network(game, NetworkSpec("mlp", 8, 1))
    first, second = (init(network, jax.random.key(seed)) for seed in (0, 1))
    packed = some_states(game, 4, decisions=1)
    player = jnp.array([0, 1, 1, 0], jnp.int32)
    shared = networks.apply_per_player(network, (first,), packed, player)
    np.testing.assert_array_equal(shared, evaluate(network, first, packed))
    own = networks.apply_per_player(network, (first, second), packed, player)
    np.testing.assert_array_equal(own[0::3], evaluate(network, first, packed)[0::3])
    np.testing.assert_array_equal(own[1:3], evaluate(network, second, packed)[1:3])


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Network(KuhnPoker(), CARDS), "config.network.kind=cards: kuhn_poker has no suits"),
        (
            lambda: Network(SMALL, CARDS, "float16"),
            "precision='float16': must be one of float32, tf32, bfloat16; e.g. float32",
        ),
        (lambda: NetworkSpec("cnn", 8, 3), "config.network.kind='cnn': must be mlp or cards"),
        (lambda: NetworkSpec("mlp", 0, 3), "config.network.width=0: must be at least 1"),
        (lambda: NetworkSpec("cards", 8, 1), "config.network.depth=1: must be at least 2"),
    ],
)
def test_bad_specifications(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()
