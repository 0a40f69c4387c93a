"""Traversals: their speed beside the network's own, and where their time goes.

B lanes, T traversals. A traversal is one program, which cannot be timed in parts, so the parts are
found by ablation: the same traversal with networks that cost nothing, the rules alone on as many
lanes for as many passes, and the insertion of as many samples alone. What remains is the stack:
regret matching, frames, returns, refills. All take turns with each other and with the bare network.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from coorl_jax import config as config_lib
from coorl_jax.benchmarks import forward, resident
from coorl_jax.benchmarks.timing import Effort, Spread, interleave
from coorl_jax.cfr.critic import action_values
from coorl_jax.cfr.machine import Memories, Statistics, TraversalSpec
from coorl_jax.cfr.sampling import Scheme, make_scheme
from coorl_jax.cfr.side_by_side import traversal_spec, traverse
from coorl_jax.cfr.traversal import make_program
from coorl_jax.games.game import Game, State
from coorl_jax.networks import Network, Params, ValueNetwork
from coorl_jax.policy import make_network, make_value_network
from coorl_jax.settings import Settings

SCHEMES = ("outcome", "branch", "baseline", "critic", "external", "robust")
LANES = (64, 256, 1024)
PER_LANE = {"outcome": 16, "branch": 4, "baseline": 4, "critic": 4, "external": 1, "robust": 1}
"""Traversals of a lane, so many that the tail, in which lanes run dry, hardly counts; where one
traversal is hundreds of rounds long, it is the rounds that are many."""

_CAPACITY = 200_000  # samples of a memory
_INSERTED_PER_LANE = 8  # samples inserted at once, as an outbox has room for


@dataclasses.dataclass(frozen=True)
class Traversal:
    """A scheme with a number of lanes, which so many machines share; passes are of all of them.

    `forward` are the states a second of the advantage network on packed states, `bare` those of its
    matrices alone; the ratios are nodes a second to either, medians over rounds. The value network
    of baseline and critic is in neither. Shares are of the time, in all 1; `network` is what the
    networks and their features cost, `stack` what no other part explains.
    """

    table: ClassVar[str] = "traversal"

    scheme: str
    machines: int
    lanes: int
    traversals: int
    nodes: int
    passes: int
    occupancy: float
    nodes_per_second: Spread
    traversals_per_second: Spread
    forward_per_second: Spread
    bare_per_second: Spread
    ratio_to_forward: float
    ratio_to_bare: float
    network_share: float
    game_share: float
    insert_share: float
    stack_share: float


class FreeNetwork(Network):
    """A `Network` that costs next to nothing."""

    def apply(self, params: Params, packed: jax.Array) -> jax.Array:
        """Return float32[B, A], see `_hashed`."""
        del params
        return _hashed(packed, self.num_outputs)


class FreeValueNetwork(ValueNetwork):
    """A `ValueNetwork` that costs next to nothing."""

    def apply(self, params: Params, packed: jax.Array) -> jax.Array:
        """Return float32[B, 1], see `_hashed`."""
        del params
        return _hashed(packed, self.num_outputs)


def _hashed(packed: jax.Array, num_outputs: int) -> jax.Array:
    """Return numbers in [-1, 1) that depend on all that is read, so that play is as varied."""
    odd = jnp.arange(packed.shape[1], dtype=jnp.uint32) * jnp.uint32(0x9E3779B2) + 1
    code = jnp.sum(packed.astype(jnp.uint32) * odd[None], axis=1, dtype=jnp.uint32)
    output = jnp.arange(num_outputs, dtype=jnp.uint32) * jnp.uint32(0x85EBCA6B)
    mixed = (code[:, None] ^ output[None]) * jnp.uint32(0xC2B2AE35)
    mixed = (mixed ^ (mixed >> 15)) * jnp.uint32(0x27D4EB2F)
    return mixed.astype(jnp.float32) / 2.0**31 - 1.0


class Walks:
    """A call traverses, with memories that are kept from call to call.

    Attributes:
      statistics: of the last call; the same for each, since the random numbers are.
    """

    def __init__(
        self,
        network: Network,
        scheme: Scheme,
        spec: TraversalSpec,
        params: tuple[Params, ...],
        target_dtype: str,
        value_network: ValueNetwork | None = None,
        value_params: Params | None = None,
    ):
        """Take what `make_program` takes."""
        self._arguments = network.game, network, scheme, spec, params
        self._value = value_network, value_params
        self._memories = Memories(
            advantage=tuple(
                resident.empty_memory(network, _CAPACITY, target_dtype) for _ in params
            ),
            strategy=tuple(resident.empty_memory(network, _CAPACITY, target_dtype) for _ in params),
            value=()
            if value_network is None
            else (resident.empty_memory(value_network, _CAPACITY, jnp.float32),),
        )
        self.statistics: Statistics | None = None

    def __call__(self) -> Statistics:
        """Traverse."""
        key, iteration = jax.random.key(0), jnp.int32(1)
        program = make_program(*self._arguments, key, iteration, *self._value)
        self._memories, statistics = traverse(program, self._memories)
        self.statistics = jax.block_until_ready(statistics)
        return statistics


def measure(
    settings: Settings,
    effort: Effort,
    key: jax.Array,
    schemes: Sequence[str] = SCHEMES,
    lanes: Sequence[int] = LANES,
) -> Iterator[Traversal]:
    """Time schemes with one network that serves both seats.

    `external` and `robust` branch at one node of a path: in Lost Cities a traversal has thousands
    of nodes then, and many times as many with a second one.

    Args:
      settings: of the game, the shape of the network and the traversal.
      effort: of every row.
      key: consumed.
      schemes: names.
      lanes: numbers to try with the first scheme; the others have the one that is best with it.

    Yields:
      A row for each of the lanes, then one for every other scheme.
    """
    first, *others = schemes
    rows = []
    for count in lanes:
        rows.append(measure_one(settings, first, count, effort, key))
        yield rows[-1]
    best = max(rows, key=lambda row: row.nodes_per_second.median)
    for name in others:
        yield measure_one(settings, name, best.lanes, effort, key)


def measure_one(
    settings: Settings, scheme_name: str, lanes: int, effort: Effort, key: jax.Array
) -> Traversal:
    """Time one scheme; arguments as for `measure`."""
    settings = config_lib.override(
        settings,
        {
            "traversal.scheme": scheme_name,
            "traversal.lanes": lanes,
            "traversal.max_branching_nodes": 1,
        },
    )
    precision, scheme = settings.precision.traversal, make_scheme(settings)
    network = dataclasses.replace(make_network(settings), precision=precision)
    value_network = None
    if scheme.reads_values:
        value_network = dataclasses.replace(make_value_network(settings), precision=precision)
    spec = traversal_spec(settings, PER_LANE[scheme_name] * lanes)
    params, dtype = resident.parameters(network, key), settings.memory.target_dtype
    value: Any = ()
    free_value: Any = ()
    if value_network is not None:
        value = value_network, resident.parameters(value_network, key)
        free_value = FreeValueNetwork(value_network.game, value_network.spec), ()
    walks = Walks(network, scheme, spec, (params,), dtype, *value)
    free_network = FreeNetwork(network.game, network.spec)
    free = Walks(free_network, scheme, spec, ((),), dtype, *free_value)
    statistics: Any = jax.device_get(walks())

    states = resident.positions(network.game, lanes, key)
    critic = free_value[0] if free_value else None
    inserted = statistics.advantage_samples + statistics.strategy_samples + statistics.value_samples
    batch = _INSERTED_PER_LANE * lanes
    samples = resident.sample_batch(network, batch, jnp.float32, key)
    memory = resident.empty_memory(network, _CAPACITY, dtype)
    passes_of_lanes = statistics.passes // spec.machines
    inputs = resident.batches(network, lanes, forward.PASSES, key)
    times = interleave(
        {
            "traversal": walks,
            "free": free,
            "game": partial(
                rules_alone, network.game, critic, states, jnp.int32(passes_of_lanes), key
            ),
            "insert": resident.Inserting(memory, samples, -(-int(inserted) // batch)),
            "forward": partial(forward.passes, network, params, inputs),
            "bare": forward.bare_passes(network, params, lanes, key),
        },
        effort,
    )
    assert free.statistics is not None
    whole, nodes = times["traversal"], int(statistics.nodes)
    # The free networks' policy plays rounds of another length.
    without_network = times["free"].over(whole) * nodes / int(free.statistics.nodes)
    game, insert = times["game"].over(whole), times["insert"].over(whole)
    states_per_call = forward.PASSES * lanes
    return Traversal(
        scheme=scheme_name,
        machines=spec.machines,
        lanes=lanes,
        traversals=spec.traversals,
        nodes=nodes,
        passes=int(statistics.passes),
        occupancy=nodes / int(statistics.evaluated),
        nodes_per_second=whole.rate(nodes),
        traversals_per_second=whole.rate(spec.traversals),
        forward_per_second=times["forward"].rate(states_per_call),
        bare_per_second=times["bare"].rate(states_per_call),
        ratio_to_forward=times["forward"].over(whole) * nodes / states_per_call,
        ratio_to_bare=times["bare"].over(whole) * nodes / states_per_call,
        network_share=1.0 - without_network,
        game_share=game,
        insert_share=insert,
        stack_share=without_network - game - insert,
    )


@partial(jax.jit, static_argnames=("game", "critic"))
def rules_alone(
    game: Game, critic: ValueNetwork | None, states: State, passes: jax.Array, key: jax.Array
) -> Any:
    """Do what the rules do in a traversal: random play in all lanes.

    Args:
      game: the rules.
      critic: for a scheme that reads values, a network that costs nothing; the rules are then
        asked for the successors of all legal actions, too.
      states: leaves [B, ...], where to begin, and to begin again.
      passes: int32, decisions of every lane.
      key: consumed.

    Returns:
      What was computed last.
    """

    def look(states: State) -> Any:
        mover = jax.vmap(game.player)(states)
        legal = jax.vmap(game.legal_actions)(states)
        values = None
        if critic is not None:
            values = action_values(game, critic, (), states, legal, 1.0)
        seen = jax.vmap(game.information_state)(states, mover)
        return seen, legal, jax.vmap(game.returns)(states), values

    def play(number: jax.Array, carry: Any) -> Any:
        now, (_, legal, _, _) = carry
        action = resident.random_actions(legal, jax.random.fold_in(key, number))
        now = jax.vmap(game.step)(now, action)
        now = resident.choose(jax.vmap(game.is_terminal)(now), states, now)
        return now, look(now)

    return jax.lax.fori_loop(0, passes, play, (states, look(states)))
