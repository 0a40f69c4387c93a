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
    temperature: float = dataclasses.field(default=1.0, metadata={"static": True})

    def action_probabilities(self, packed: jax.Array, legal: jax.Array) -> jax.Array:
        """Return float32[B, A] for uint8[B, P] and bool[B, A], see `decide`."""
        return self.decide(packed, legal)[0]

    def decide(self, packed: jax.Array, legal: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return what to play, and where regret matching had nothing to go by.

        Args:
          packed: uint8[B, P].
          legal: bool[B, A].

        Returns:
          Probabilities float32[B, A], zero on illegal actions; and bool[B], where no advantage was
          positive, never so for "strategy".
        """
        outputs = self.outputs(packed)
        if self.spec.kind == "advantage":
            probabilities, fallback = regret_matching(outputs, legal, self.spec.fallback)
        else:
            probabilities, fallback = (
                softmax_policy(outputs, legal),
                jnp.zeros(len(legal), jnp.bool_),
            )
        return tempered(probabilities, self.temperature), fallback

    def outputs(self, packed: jax.Array) -> jax.Array:
        """Return the network's outputs, float32[B, A]."""
        seat = jax.vmap(self.network.game.seat)(packed)
        return apply_per_player(self.network, self.params, packed, seat)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class EitherKindPolicy:
    """A network's policy that is told by an array, and not statically, which kind it is.

    It plays as the policy that it is made from does, and a program is compiled once for both kinds.
    """

    policy: NetworkPolicy  # of the kind "advantage", whatever it was
    is_advantage: jax.Array  # bool, whether it was

    @classmethod
    def of(cls, policy: NetworkPolicy) -> EitherKindPolicy:
        """Return it for a policy of either kind."""
        is_advantage = jnp.bool_(policy.spec.kind == "advantage")
        spec = dataclasses.replace(policy.spec, kind="advantage")
        return cls(dataclasses.replace(policy, spec=spec), is_advantage)

    def action_probabilities(self, packed: jax.Array, legal: jax.Array) -> jax.Array:
        """Return float32[B, A] for uint8[B, P] and bool[B, A]."""
        return self.decide(packed, legal)[0]

    def decide(self, packed: jax.Array, legal: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return what `NetworkPolicy.decide` does."""
        outputs = self.policy.outputs(packed)
        matched, fallback = regret_matching(outputs, legal, self.policy.spec.fallback)
        probabilities = jnp.where(self.is_advantage, matched, softmax_policy(outputs, legal))
        return tempered(probabilities, self.policy.temperature), fallback & self.is_advantage


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
    temperature: float = dataclasses.field(default=1.0, metadata={"static": True})

    def member(self, index: int | jax.Array) -> NetworkPolicy:
        """Return one of the policies, by its number from 0 to K - 1."""
        params = jax.tree.map(lambda leaf: leaf[index], self.params)
        return NetworkPolicy(self.network, self.spec, params, self.temperature)

    def draw(self, key: jax.Array) -> NetworkPolicy:
        """Return the policy of one player for one round; consumes the key."""
        return self.member(jax.random.categorical(key, jnp.log(self.weights)))


AnyPolicy: TypeAlias = Policy | MixturePolicy


def decide(policy: Policy, packed: jax.Array, legal: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return what `NetworkPolicy.decide` does; policies of another kind never fall back."""
    if isinstance(policy, NetworkPolicy | EitherKindPolicy):
        return policy.decide(packed, legal)
    return policy.action_probabilities(packed, legal), jnp.zeros(legal.shape[0], jnp.bool_)


def tempered(probabilities: jax.Array, temperature: float) -> jax.Array:
    """Return probabilities to the power 1 / temperature, normalised.

    Args:
      probabilities: float32[..., A]; where all are zero, so is the result.
      temperature: 1 leaves them as they are, less makes them greedier; 0 plays the most probable
        action, the lowest number among equals.

    Returns:
      float32[..., A], zero where `probabilities` is.
    """
    if temperature == 1.0:
        return probabilities
    peak = jnp.max(probabilities, axis=-1, keepdims=True)
    if temperature == 0.0:
        best = jnp.argmax(probabilities, axis=-1)
        return jax.nn.one_hot(best, probabilities.shape[-1], dtype=jnp.float32) * (peak > 0)
    # Relative to the largest, so that no power underflows to all zeros.
    relative = jnp.where(peak > 0, probabilities / jnp.where(peak > 0, peak, 1.0), 0.0)
    powers = jnp.where(relative > 0, relative ** (1.0 / temperature), 0.0)
    total = jnp.sum(powers, axis=-1, keepdims=True)
    return powers / jnp.where(total > 0, total, 1.0)


def softmax_policy(logits: jax.Array, legal: jax.Array) -> jax.Array:
    """Return float32[B, A], zero on illegal actions, from float32[B, A] and bool[B, A]."""
    return jax.nn.softmax(mask_illegal(logits, legal), axis=-1) * legal


def make_network(settings: Settings) -> Network:
    """Return the network, with its game, that a run's settings describe.

    It is as policies have it, in the precision of evaluation.

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
        settings.precision.evaluation,
    )


def make_value_network(settings: Settings) -> ValueNetwork:
    """Return the value network that a run's settings describe; see `make_network`."""
    network = make_network(settings)
    return ValueNetwork(network.game, network.spec, network.precision)


def make_policies(
    settings: Settings, network: Network, parameters: Mapping[str, Any]
) -> dict[str, AnyPolicy]:
    """Return a run's policies by name.

    Args:
      settings: of the run.
      network: from `make_network`.
      parameters: "current", the advantage network's (with the algorithm ppo, that of the logits),
        and "average", those of the network fitted to the average policy, one tree for both seats or
        one for each; and, if the run keeps the policies of its iterations, "mixture", the `params`
        and `weights` of a `MixturePolicy`. Anything else is passed over.
    """
    advantage, logits = PolicySpec("advantage", settings.traversal.fallback), PolicySpec("strategy")
    current = logits if settings.algorithm == "ppo" else advantage
    policies: dict[str, AnyPolicy] = {
        "current": NetworkPolicy(network, current, parameters["current"]),
        "average": NetworkPolicy(network, logits, parameters["average"]),
    }
    if "mixture" in parameters:
        policies["mixture"] = MixturePolicy(network, advantage, **parameters["mixture"])
    return policies
