"""What benchmarks work on: positions of a game, samples of them, and networks without features.

B batch, P packed bytes. A *resident* network reads features that were computed beforehand: what is
left of it is its matrices, the arithmetic that no arrangement of the work can avoid.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from coorl_jax.cfr import reservoir, samples
from coorl_jax.cfr.regret_matching import sample_action, uniform_policy
from coorl_jax.cfr.reservoir import Reservoir
from coorl_jax.cfr.samples import Sample
from coorl_jax.games.game import CardGame, Game, State
from coorl_jax.networks import Network, Params, ValueNetwork

_DISTINCT = 1024  # positions; more are the same ones again
_INSERTED = 1 << 16  # rows at once


@dataclasses.dataclass(frozen=True)
class Resident:
    """A game as networks see it, whose packed states are the features themselves."""

    game: Any

    @property
    def num_actions(self) -> int:
        """A."""
        return self.game.num_actions

    @property
    def num_suits(self) -> int:
        """C, of a game with cards."""
        return self.game.num_suits

    @property
    def suit_logits(self) -> int:
        """L, of a game with cards."""
        return self.game.suit_logits

    @property
    def shared_logits(self) -> int:
        """Logits that belong to no suit, of a game with cards."""
        return self.game.shared_logits

    def features(self, packed: Any) -> Any:
        """Return the features, as they are."""
        return packed

    whole_features = card_view = whole_card_view = features


def without_features(network: Network) -> Network:
    """Return the network on features that `features` computed."""
    resident: Any = Resident(network.game)
    return dataclasses.replace(network, game=resident)


@partial(jax.jit, static_argnames="network")
def parameters(network: Network, key: jax.Array) -> Params:
    """Return new parameters; consumes the key."""
    return network.init(key)


@partial(jax.jit, static_argnames="network")
def features(network: Network, packed: jax.Array) -> Any:
    """Compute what the network reads from uint8[B, P]; leaves [B, ...]."""
    game, of_whole = network.game, isinstance(network, ValueNetwork)
    if network.spec.kind == "cards" and isinstance(game, CardGame):
        view = game.whole_card_view if of_whole else game.card_view
    else:
        view = game.whole_features if of_whole else game.features
    return jax.vmap(view)(packed)


def random_actions(legal: jax.Array, key: jax.Array) -> jax.Array:
    """Return int32[B], a legal action for each row of bool[B, A]; consumes the key."""
    return sample_action(uniform_policy(legal), jax.random.uniform(key, legal.shape[:1]))


@partial(jax.jit, static_argnames=("game", "count"))
def positions(game: Game, count: int, key: jax.Array) -> State:
    """Return decisions of random play, early and late in their rounds.

    Args:
      game: the rules.
      count: B.
      key: consumed.

    Returns:
      States with leading axis B, none of them terminal.
    """
    deal_key, play_key = jax.random.split(key)
    distinct = min(count, _DISTINCT)
    dealt = jax.vmap(game.init)(jax.random.split(deal_key, distinct))
    decisions = jnp.arange(distinct) % game.max_player_decisions

    def advance(number: jax.Array, states: State) -> State:
        legal = jax.vmap(game.legal_actions)(states)
        action = random_actions(legal, jax.random.fold_in(play_key, number))
        moved = jax.vmap(game.step)(states, action)
        goes_on = (number < decisions) & ~jax.vmap(game.is_terminal)(moved)
        return choose(goes_on, moved, states)

    states = jax.lax.fori_loop(0, game.max_player_decisions - 1, advance, dealt)
    return jax.tree.map(lambda leaf: leaf[jnp.arange(count) % distinct], states)


def choose(mask: jax.Array, a: Any, b: Any) -> Any:
    """Select rows of two trees with leaves [B, ...] by bool[B]."""
    return jax.tree.map(
        lambda x, y: jnp.where(mask.reshape(mask.shape + (1,) * (x.ndim - 1)), x, y), a, b
    )


@partial(jax.jit, static_argnames="network")
def packed(network: Network, states: State) -> jax.Array:
    """Return what the network reads of states, uint8[B, P], or [B, W] for a value network."""
    game = network.game
    if isinstance(network, ValueNetwork):
        return jax.vmap(game.whole_state)(states)
    return jax.vmap(game.information_state)(states, jax.vmap(game.player)(states))


def batches(network: Network, batch: int, count: int, key: jax.Array) -> tuple[jax.Array, ...]:
    """Return `count` different batches uint8[B, P] of decisions; consumes the key."""
    return tuple(
        packed(network, positions(network.game, batch, each))
        for each in jax.random.split(key, count)
    )


@partial(jax.jit, static_argnames=("network", "count", "dtype"))
def sample_batch(network: Network, count: int, dtype: Any, key: jax.Array) -> Sample:
    """Return samples as a traversal could have given.

    Args:
      network: what is to learn from them.
      count: B.
      dtype: of the targets.
      key: consumed.

    Returns:
      `Sample` with leading axis B; the targets are a policy over the legal actions, which serves as
      advantages as well.
    """
    states = positions(network.game, count, key)
    if isinstance(network, ValueNetwork):
        legal = jnp.ones((count, 1), jnp.bool_)
    else:
        legal = jax.vmap(network.game.legal_actions)(states)
    return Sample(
        packed=packed(network, states),
        legal=samples.pack_legal(legal),
        target=uniform_policy(legal).astype(dtype),
        iteration=jnp.ones(count, jnp.int32),
    )


def empty_memory(network: Network, capacity: int, dtype: Any) -> Reservoir:
    """Return an empty memory for a network's samples, with targets of a dtype."""
    row = samples.example(network.input_size, network.num_outputs, jnp.dtype(dtype))
    return reservoir.create(row, capacity)


def full_memory(network: Network, capacity: int, dtype: Any, key: jax.Array) -> Reservoir:
    """Return a full memory of samples; consumes the key."""
    rows = sample_batch(network, min(capacity, _INSERTED), dtype, key)
    count = len(rows.iteration)
    return insert_repeatedly(
        empty_memory(network, capacity, dtype), rows, jnp.int32(-(-capacity // count)), key
    )


@partial(jax.jit, donate_argnames="memory")
def insert_repeatedly(
    memory: Reservoir, rows: Sample, times: jax.Array, key: jax.Array
) -> Reservoir:
    """Insert a batch of rows int32 `times` times; consumes the key."""
    valid = jnp.ones(rows.iteration.shape, jnp.bool_)
    return jax.lax.fori_loop(
        0,
        times,
        lambda number, memory: reservoir.insert(
            memory, rows, valid, jax.random.fold_in(key, number)
        ),
        memory,
    )


class Inserting:
    """A call inserts a batch of rows a few times into a memory that it keeps."""

    def __init__(self, memory: Reservoir, rows: Sample, times: int, *, seen: int | None = None):
        """Take a memory.

        Args:
          memory: donated.
          rows: the batch.
          times: how often a call inserts it.
          seen: rows that the memory is told to have seen before each call; None lets it count on.
        """
        self.memory = memory
        self._rows, self._times = rows, jnp.int32(times)
        self._seen = None if seen is None else jnp.array([seen, 0], jnp.uint32)

    def __call__(self) -> jax.Array:
        """Insert, and return what shows that it is done."""
        memory = self.memory
        if self._seen is not None:
            memory = memory._replace(seen=self._seen.copy())
        self.memory = insert_repeatedly(memory, self._rows, self._times, jax.random.key(0))
        jax.block_until_ready(self.memory)
        return self.memory.seen
