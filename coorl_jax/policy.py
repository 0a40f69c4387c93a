"""Policies: packed information states to action probabilities.

B batch, A actions, P packed bytes, K members of a mixture.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, Protocol, TypeAlias

import jax
import jax.numpy as jnp

from coorl_jax.cfr.regret_matching import Fallback, regret_matching
from coorl_jax.config import Settings
from coorl_jax.games import registry
from coorl_jax.networks import (
    Network,
    NetworkSpec,
    Params,
    ValueNetwork,
    apply_per_player,
    mask_illegal,
)


class Policy(Protocol):
    """What plays a game: a pytree whose arrays are parameters and whose rest is static."""

    def action_probabilities(self, packed: jax.Array, legal: jax.Array) -> jax.Array:
        """Return float32[B, A] for uint8[B, P] and bool[B, A].

        Exactly zero on illegal actions; all zero where nothing is legal.
        """
        ...


@dataclasses.dataclass(frozen=True)
class PolicySpec:
    """What the outputs of a policy's network mean.

    "advantage": regret matching turns them into the policy of the current iteration, with
    `fallback` where none is positive. "strategy": they are logits of the average policy.
    """

    kind: Literal["advantage", "strategy"]
    fallback: Fallback = "argmax"


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class NetworkPolicy:
    """A trained policy: the parameters are its leaves."""

    network: Network = dataclasses.field(metadata={"static": True})
    spec: PolicySpec = dataclasses.field(metadata={"static": True})
    params: tuple[Params, ...]  # one tree for both seats, or one for each

    def action_probabilities(self, packed: jax.Array, legal: jax.Array) -> jax.Array:
        """Return the probabilities of the legal actions.

        Args:
          packed: uint8[B, P].
          legal: bool[B, A].

        Returns:
          float32[B, A], zero on illegal actions.
        """
        player = jax.vmap(self.network.game.seat)(packed)
        outputs = apply_per_player(self.network, self.params, packed, player)
        if self.spec.kind == "advantage":
            return regret_matching(outputs, legal, self.spec.fallback)[0]
        return jax.nn.softmax(mask_illegal(outputs, legal), axis=-1) * legal


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class MixturePolicy:
    """At the start of a round one of K policies, drawn by their weights and kept to its end.

    Two players who both use the mixture draw independently. The mean of the members' probabilities
    does not play like it: what the player has done in the round tells which member it drew.
    """

    network: Network = dataclasses.field(metadata={"static": True})
    spec: PolicySpec = dataclasses.field(metadata={"static": True})
    params: tuple[Params, ...]  # one tree for both seats or one for each; leaves [K, ...]
    weights: jax.Array  # float32[K], at least one above 0; members of weight 0 are never drawn

    def member(self, index: int | jax.Array) -> NetworkPolicy:
        """Return one of the policies, by its number from 0 to K - 1."""
        params = jax.tree.map(lambda leaf: leaf[index], self.params)
        return NetworkPolicy(self.network, self.spec, params)

    def draw(self, key: jax.Array) -> NetworkPolicy:
        """Return the policy of one player for one round; consumes the key."""
        return self.member(jax.random.categorical(key, jnp.log(self.weights)))


AnyPolicy: TypeAlias = Policy | MixturePolicy


def make_network(settings: Settings) -> Network:
    """Return the network, with its game, that a run's settings describe.

    Raises:
      ValueError: for rules that make no game, rounds that need not end, or a network that cannot
        read the game.
    """
    try:
        game = registry.make(settings.game.name, dict(settings.game.rules))
        _ = game.max_decisions
    except ValueError as error:
        raise ValueError(f"config.game.{error}") from error
    shape = settings.network
    return Network(
        game,
        NetworkSpec(shape.kind, shape.width, shape.depth, shape.layer_norm, shape.residual),
    )


def make_value_network(settings: Settings) -> ValueNetwork:
    """Return the value network that a run's settings describe; raises as `make_network`."""
    network = make_network(settings)
    return ValueNetwork(network.game, network.spec)


def make_policies(
    settings: Settings, network: Network, parameters: Mapping[str, Any]
) -> dict[str, AnyPolicy]:
    """Return a run's policies by name.

    Args:
      settings: of the run.
      network: from `make_network`.
      parameters: "current", the advantage network's, and "average", those of the network fitted
        to the average policy, one tree for both seats or one for each; and, if the run keeps the
        policies of its iterations, "mixture", the `params` and `weights` of a `MixturePolicy`.
        Anything else is passed over.
    """
    advantage = PolicySpec("advantage", settings.traversal.fallback)
    policies: dict[str, AnyPolicy] = {
        "current": NetworkPolicy(network, advantage, parameters["current"]),
        "average": NetworkPolicy(network, PolicySpec("strategy"), parameters["average"]),
    }
    if "mixture" in parameters:
        policies["mixture"] = MixturePolicy(network, advantage, **parameters["mixture"])
    return policies
