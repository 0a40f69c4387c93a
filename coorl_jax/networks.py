"""The networks: information states to one number per action, whole states to their value.

The only importer of flax.

B batch, A actions, P packed bytes of an information state, W of a whole state. A policy network's
output is an advantage in units of the utility scale, or a logit: what it means is up to the loss.
A value network's output is the utility that the player to move can expect, in the same units.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.linen.dtypes import promote_dtype

from coorl_jax.games.game import CardGame, Game
from coorl_jax.settings import Precision

Params: TypeAlias = Any
"""A network's parameters: a pytree of float32 arrays."""

_ILLEGAL = -1e9  # logit of an illegal action

_he = nn.initializers.he_normal()
# Outputs start near zero, so that the first average policy is nearly uniform and the first
# squared errors are those of the targets. Regret matching does not see how small they are.
_small = nn.initializers.variance_scaling(0.01, "fan_in", "truncated_normal")


@dataclasses.dataclass(frozen=True)
class NetworkSpec:
    """The shape of a network.

    `mlp` reads `Game.features` through `depth` ReLU layers of `width` units, optionally with
    layer normalisation and residual connections.

    `cards` reads `CardGame.card_view` and is equivariant to permutations of the suits: two layers
    per suit, an exchange through pooled features, `depth - 2` residual layers per suit. It is
    always normalised and residual: `layer_norm` and `residual` are for `mlp`.

    Raises:
      ValueError: for an unknown kind, or a width or depth that is too small.
    """

    kind: str  # "mlp" or "cards"
    width: int
    depth: int
    layer_norm: bool = False
    residual: bool = False

    def __post_init__(self):
        if self.kind not in ("mlp", "cards"):
            raise ValueError(f"config.network.kind={self.kind!r}: must be mlp or cards; e.g. cards")
        if self.width < 1:
            raise ValueError(f"config.network.width={self.width}: must be at least 1; e.g. 64")
        least = 2 if self.kind == "cards" else 1
        if self.depth < least:
            raise ValueError(
                f"config.network.depth={self.depth}: must be at least {least} for "
                f"config.network.kind={self.kind}; e.g. 3"
            )


@dataclasses.dataclass(frozen=True)
class Network:
    """A network for the decisions of a game; hashable, a static argument of `jit`.

    The precision is how it computes: the parameters are the same float32 arrays whatever it is, and
    outputs are float32. `float32` multiplies float32 numbers. `tf32` does, too, but as the device
    does it fastest: a recent NVIDIA GPU rounds them to TF32, a TPU to bfloat16, a CPU not at all.
    With `bfloat16` activations have that type and what is multiplied is rounded to it, while sums,
    those in products, means and normalisations as well, are float32.

    Raises:
      ValueError: if the game offers no view of its cards and the kind is `cards`, or for an unknown
        precision.
    """

    game: Game
    spec: NetworkSpec
    precision: Precision = "float32"

    def __post_init__(self):
        if self.precision not in get_args(Precision):
            raise ValueError(
                f"precision={self.precision!r}: must be one of {', '.join(get_args(Precision))}; "
                "e.g. float32"
            )
        if self.spec.kind == "cards" and not isinstance(self.game, CardGame):
            raise ValueError(
                f"config.network.kind=cards: {self.game.name} has no suits for it to read; use "
                "config.network.kind=mlp"
            )

    @property
    def input_size(self) -> int:
        """P, bytes of what it reads."""
        return self.game.packed_size

    @property
    def num_outputs(self) -> int:
        """A, one number per action, legal or not."""
        return self.game.num_actions

    def init(self, key: jax.Array) -> Params:
        """Return new parameters; consumes the key."""
        packed = jnp.zeros((1, self.input_size), jnp.uint8)
        return self._module().init(key, *self._inputs(packed))["params"]

    def apply(self, params: Params, packed: jax.Array) -> jax.Array:
        """Evaluate a batch of information states.

        Args:
          params: from `init`.
          packed: uint8[B, P].

        Returns:
          float32[B, A].
        """
        outputs: Any = self._module().apply({"params": params}, *self._inputs(packed))
        return outputs

    def _module(self) -> nn.Module:
        if isinstance(self.game, CardGame) and self.spec.kind == "cards":
            return _Cards(self.spec, self.precision, self.game.suit_logits, self.game.shared_logits)
        return _Mlp(self.spec, self.precision, self.num_outputs)

    def _inputs(self, packed: jax.Array) -> tuple[jax.Array, ...]:
        if isinstance(self.game, CardGame) and self.spec.kind == "cards":
            return tuple(jax.vmap(self.game.card_view)(packed))
        return (jax.vmap(self.game.features)(packed),)


@dataclasses.dataclass(frozen=True)
class ValueNetwork(Network):
    """A network that reads whole states, uint8[B, W], and gives their values, float32[B, 1]."""

    @property
    def input_size(self) -> int:
        """W, bytes of a whole state."""
        return self.game.whole_size

    @property
    def num_outputs(self) -> int:
        """One value."""
        return 1

    def _module(self) -> nn.Module:
        if self.spec.kind == "cards":
            return _Cards(self.spec, self.precision, suit_logits=0, shared_logits=1)
        return _Mlp(self.spec, self.precision, self.num_outputs)

    def _inputs(self, packed: jax.Array) -> tuple[jax.Array, ...]:
        if isinstance(self.game, CardGame) and self.spec.kind == "cards":
            view = jax.vmap(self.game.whole_card_view)(packed)
            return view.suits, view.shared
        return (jax.vmap(self.game.whole_features)(packed),)


def apply_per_player(
    network: Network, params: tuple[Params, ...], packed: jax.Array, player: jax.Array
) -> jax.Array:
    """Evaluate information states of both players.

    Args:
      network: the network of either player.
      params: one parameter tree that serves both seats, or one for each seat.
      packed: uint8[B, P].
      player: int32[B], the seat that each state belongs to.

    Returns:
      float32[B, A].
    """
    if len(params) == 1:
        return network.apply(params[0], packed)

    def of_one_seat() -> jax.Array:
        tree = jax.tree.map(lambda *leaves: jnp.where(player[0] == 0, *leaves), *params)
        return network.apply(tree, packed)

    def of_both_seats() -> jax.Array:
        outputs = [network.apply(tree, packed) for tree in params]
        return jnp.where((player == 0)[:, None], *outputs)

    # Where players take strict turns, all states may be of one seat: half the work.
    return jax.lax.cond(jnp.all(player == player[0]), of_one_seat, of_both_seats)


def mask_illegal(logits: jax.Array, legal: jax.Array) -> jax.Array:
    """Return logits whose softmax is zero on illegal actions.

    Args:
      logits: float32[..., A].
      legal: bool[..., A].

    Returns:
      float32[..., A]; finite everywhere, so that a state without legal actions makes no NaN.
    """
    return jnp.where(legal, logits, _ILLEGAL)


def num_parameters(params: Params) -> int:
    """Return the number of scalars in a parameter tree."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))


class _Mlp(nn.Module):
    """Fully connected layers on flat features."""

    spec: NetworkSpec
    precision: Precision
    num_outputs: int

    @nn.compact
    def __call__(self, features: jax.Array) -> jax.Array:
        x = features
        for layer in range(self.spec.depth):
            y = nn.relu(_dense(self.spec.width, self.precision, _he)(x))
            # The first layer changes the width and has nothing to be added to.
            x = x + y if self.spec.residual and layer > 0 else y
            if self.spec.layer_norm:
                x = nn.LayerNorm()(x)
            x = x.astype(_dtype(self.precision))
        return _dense(self.num_outputs, self.precision, _small, is_last=True)(x)


class _Cards(nn.Module):
    """A colour-equivariant network: weights shared over suits, exchange by pooling.

    With f_c the features of suit c, g the shared ones, LN layer normalisation:

        e_c = LN(relu(W1 [f_c, g]));  e_c = LN(relu(W2 e_c))
        G   = LN(relu(W3 [mean_c e, max_c e, g]))                    twice the width
        h_c = LN(relu(W4 [e_c, G]));  h_c = LN(h_c + relu(W5 h_c))   depth - 2 times
        suit logits = W6 h_c;  shared logits = W8 LN(relu(W7 [mean_c h, max_c h, G]))

    With `action_index` the result is one logit per action, without it all of them. A layer W [x, y]
    on a concatenation is computed as W_x x + W_y y: what all suits share is multiplied once and not
    C times, and nothing is copied.
    """

    spec: NetworkSpec
    precision: Precision
    suit_logits: int
    shared_logits: int

    @nn.compact
    def __call__(
        self, suits: jax.Array, shared: jax.Array, action_index: jax.Array | None = None
    ) -> jax.Array:
        width, precision = self.spec.width, self.precision
        e = _layer_of((suits, shared[:, None]), width, precision)
        e = _layer_of((e,), width, precision)
        pooled = _layer_of((*_pool(e), shared), 2 * width, precision)
        h = _layer_of((e, pooled[:, None]), width, precision)
        for _ in range(self.spec.depth - 2):
            h = nn.LayerNorm()(h + nn.relu(_dense(width, precision, _he)(h)))
            h = h.astype(_dtype(precision))
        logits = []
        if self.suit_logits:
            suit_logits = _dense(self.suit_logits, precision, _small, is_last=True)(h)
            logits.append(suit_logits.reshape(suit_logits.shape[0], -1))
        last = _layer_of((*_pool(h), pooled), width, precision)
        logits.append(_dense(self.shared_logits, precision, _small, is_last=True)(last))
        flat = jnp.concatenate(logits, axis=1)
        return flat if action_index is None else jnp.take_along_axis(flat, action_index, axis=1)


def _layer_of(parts: tuple[jax.Array, ...], width: int, precision: Precision) -> jax.Array:
    """Return LN(relu(W parts + b)), W acting on the concatenation of the parts' last axes."""
    fan_in = sum(part.shape[-1] for part in parts)
    kernel_init = nn.initializers.normal(np.sqrt(2 / fan_in))
    first, *rest = (
        _dense(width, precision, kernel_init, use_bias=part is parts[0])(part) for part in parts
    )
    return nn.LayerNorm()(nn.relu(sum(rest, start=first))).astype(_dtype(precision))


def _pool(suits: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return mean (float32) and maximum over the suits, [B, width] each, from [B, C, width]."""
    return jnp.mean(suits, axis=1, dtype=jnp.float32), jnp.max(suits, axis=1)


def _dtype(precision: Precision) -> Any:
    """Return the dtype of activations and of the factors of products."""
    return jnp.bfloat16 if precision == "bfloat16" else jnp.float32


def _dense(
    width: int,
    precision: Precision,
    kernel_init: Callable[..., Any],
    *,
    use_bias: bool = True,
    is_last: bool = False,
) -> nn.Dense:
    """Return a layer W x + b, float32; W x is rounded as W and x are, except in a last layer."""
    product_dtype = jnp.float32 if is_last else _dtype(precision)
    return nn.Dense(
        width,
        use_bias=use_bias,
        dtype=_dtype(precision),
        precision="highest" if precision == "float32" else "default",
        kernel_init=kernel_init,
        promote_dtype=_round_factors,
        dot_general=partial(jax.lax.dot_general, preferred_element_type=product_dtype),
    )


def _round_factors(
    *arguments: jax.Array | None, dtype: Any = None, inexact: bool = True
) -> list[jax.Array | None]:
    """Return x, W and b of a layer W x + b, with x and W rounded to a dtype.

    b is not: its gradient is a sum over the batch, which is to be one of float32 numbers.
    """
    *factors, bias = arguments
    return [*promote_dtype(*factors, dtype=dtype, inexact=inexact), bias]
