"""Measure how noisy the advantage samples of every scheme are, on Lost Cities.

    python -m coorl_jax.variance --checkpoint=runs/my-run

Plays rounds by the current policy of a run, takes decisions from their first, middle and last
third, and draws advantage samples at these very decisions by the traversal machine: the history
is given, with both hands, the order of the deck is not. Prints the standard deviation of a sample
in points, how large the advantages themselves are, and how many nodes a sample costs in traversals
from the deal.

The schemes `baseline` and `critic` need a run with a value network. The samples of `critic` are
those of the network's opinion: its error is their distance from the means of `branch`.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import rich.box
import rich.console
import rich.table
from absl import flags

from coorl_jax import checkpoint_flag, commandline, common_flags, runtime, trained_agent
from coorl_jax import policy as policy_lib
from coorl_jax.cfr import reservoir, samples
from coorl_jax.cfr.machine import Critic as ValueCritic
from coorl_jax.cfr.machine import Memories, Statistics, TraversalSpec
from coorl_jax.cfr.sampling import Baseline, Branch, Critic, External, Outcome, Robust, Scheme
from coorl_jax.cfr.traversal import make_program, traverse
from coorl_jax.common_flags import JSON, SEED, check_seed
from coorl_jax.evaluation.resumed import THIRDS, Decisions, ResumedLostCities, collect
from coorl_jax.games.game import NUM_PLAYERS, Game
from coorl_jax.games.lost_cities import LostCities

flags.adopt_module_key_flags(checkpoint_flag)
flags.adopt_module_key_flags(common_flags)
_STATES = flags.DEFINE_integer("states", 64, "decisions of each third of a round")
_SAMPLES = flags.DEFINE_integer(
    "samples", 256, "samples of each decision and scheme, on average, at least"
)

_EXPLORATION = 0.1
_TRAVERSALS = 1024  # a call of the machine, at a decision
_ORDINARY_TRAVERSALS = 512  # from the deal
_LANES = 256
_POPS_PER_PASS = 16
_CAPACITY = 1 << 18  # advantage samples of one call; if there are more, a random choice is kept
_FEWEST_SAMPLES = 16  # so that hardly a decision gets fewer than the two that a variance needs


@dataclasses.dataclass(frozen=True)
class BranchAtOnce(Branch):
    """`branch` with its target at the traverser's first decision, which is where a round resumes.

    What comes before the target changes no sample, so that these are the samples of `branch`.
    """

    def target(self, game: Game, stratum: jax.Array) -> jax.Array:
        """Return 0."""
        del game, stratum
        return jnp.int32(0)


SCHEMES: dict[str, tuple[Scheme, Scheme]] = {
    "branch": (Branch(_EXPLORATION), BranchAtOnce(_EXPLORATION)),
    **{
        name: (scheme, scheme)
        for name, scheme in {
            "external": External(_EXPLORATION, 1),
            "robust": Robust(_EXPLORATION, 1, 2),
            "outcome": Outcome(_EXPLORATION),
            "baseline": Baseline(_EXPLORATION, 1.0),
            "critic": Critic(_EXPLORATION, 1.0),
        }.items()
    },
}
"""By name, as they walk from the deal and as they are sampled at a decision. `external` and
`robust` branch at one node of a path: without a bound no traversal of this game would end."""


class Subject(NamedTuple):
    """What is measured: the policy of a run."""

    game: LostCities
    policy: policy_lib.NetworkPolicy
    critic: ValueCritic | None
    utility_scale: float  # points
    iteration: int


class Moments(NamedTuple):
    """Of the samples at S decisions, in points."""

    drawn: np.ndarray  # int64[S], how many
    mean: np.ndarray  # float64[S, A]
    variance: np.ndarray  # float64[S, A], unbiased; nan where there are fewer than two samples


def main(argv: list[str]) -> None:
    """Measure by the flags."""
    del argv
    path = checkpoint_flag.checked_path()
    check_seed()
    for flag, least in ((_STATES, 2), (_SAMPLES, _FEWEST_SAMPLES)):
        if flag.value < least:
            raise ValueError(
                f"--{flag.name}={flag.value}: must be at least {least}; e.g. {flag.default}"
            )
    runtime.configure()
    subject = load(path)
    if not JSON.value:
        print(f"policy of iteration {subject.iteration}, points", flush=True)
    rows = []
    with rich.console.Console(stderr=True).status("compiling and sampling"):
        for row in measure(subject, _STATES.value, _SAMPLES.value, SEED.value):
            rows.append(row)
            if JSON.value:
                print(json.dumps({"iteration": subject.iteration} | row), flush=True)
    if not JSON.value:
        _print_table(rows)


def load(path: Path) -> Subject:
    """Load the current policy of a run and its value network, in the precision of traversals.

    Args:
      path: run directory, or one of its policies.

    Raises:
      ValueError: where there is none that is whole, another version of the package saved it, or it
        plays another game than Lost Cities.
    """
    settings, restored = trained_agent.restore(path)
    precision = settings.precision.traversal
    network = dataclasses.replace(policy_lib.make_network(settings), precision=precision)
    if not isinstance(network.game, LostCities):
        raise ValueError(
            f"--checkpoint={path}: must be a run on lost_cities, not on {network.game.name}; "
            "e.g. --checkpoint=runs/my-run"
        )
    spec = policy_lib.PolicySpec("advantage", settings.traversal.fallback)
    critic = None
    if "value" in restored.tree:
        (params,) = restored.tree["value"]
        value_network = policy_lib.make_value_network(settings)
        critic = ValueCritic(dataclasses.replace(value_network, precision=precision), params)
    return Subject(
        game=network.game,
        policy=policy_lib.NetworkPolicy(network, spec, restored.tree["current"]),
        critic=critic,
        utility_scale=settings.utility_scale,
        iteration=restored.step,
    )


def measure(subject: Subject, states: int, count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Measure every scheme that the run allows.

    Args:
      subject: the policy.
      states: decisions of each third of a round.
      count: samples of each decision, on average, at least.
      seed: of all random numbers.

    Yields:
      For each `scheme` its `standard deviation` and the nodes that a sample costs,
      `nodes_per_sample`; then the root mean square of the `advantage` by `branch`, and that of the
      `error` of `critic`. The `quantity` is given in points for each of THIRDS, with its standard
      error over decisions, e.g. `early_se`.
    """
    keys = jax.random.split(jax.random.key(seed))
    decisions = collect(subject.game, subject.policy, states, keys[0])
    game = ResumedLostCities(**dataclasses.asdict(subject.game), states=decisions.states)
    found: dict[str, Moments] = {}
    for number, (name, (walking, at_decision)) in enumerate(SCHEMES.items()):
        if walking.reads_values and subject.critic is None:
            continue
        key, ordinary_key = jax.random.split(jax.random.fold_in(keys[1], number))
        place, target = samples_at(game, subject, at_decision, decisions, count, key)
        found[name] = moments(place, target, len(decisions.third))
        traverser = jnp.arange(_ORDINARY_TRAVERSALS) % NUM_PLAYERS
        _, statistics = _run(subject.game, subject, walking, traverser, ordinary_key)
        deviation = root_mean_square(decisions, found[name].variance)
        cost = {"nodes_per_sample": int(statistics.nodes) / int(statistics.advantage_samples)}
        yield {"quantity": "standard deviation", "scheme": name} | deviation | cost
    branch = found["branch"]
    squares = branch.mean**2 - _variance_of_mean(branch)
    yield {"quantity": "advantage", "scheme": "branch"} | root_mean_square(decisions, squares)
    if "critic" in found:
        critic = found["critic"]
        squares = (critic.mean - branch.mean) ** 2
        squares -= _variance_of_mean(critic) + _variance_of_mean(branch)
        yield {"quantity": "error", "scheme": "critic"} | root_mean_square(decisions, squares)


def samples_at(
    game: ResumedLostCities,
    subject: Subject,
    scheme: Scheme,
    decisions: Decisions,
    count: int,
    key: jax.Array,
) -> tuple[np.ndarray, np.ndarray]:
    """Draw advantage samples at decisions.

    The traverser is the player who moves there. Samples of nodes below are told apart by their
    packed information state, and left out. (A round comes to another of the decisions only if that
    is a later one of the round it resumes, and the same cards are drawn.)

    Args:
      game: begins at the decisions.
      subject: the policy.
      scheme: how samples are drawn.
      decisions: S of them.
      count: samples of each, on average, at least.
      key: consumed.

    Returns:
      int64[n], the decision of each sample, and float64[n, A], the sample in points.
    """
    number = {row.tobytes(): place for place, row in enumerate(decisions.packed)}
    places, targets = [], []
    mover = jnp.zeros(_TRAVERSALS, jnp.int32)
    calls = -(-count * len(number) // _TRAVERSALS)
    for call_key in jax.random.split(key, calls):
        memories, _ = _run(game, subject, scheme, mover, call_key)
        for memory in memories.advantage:
            size = int(reservoir.size(memory))
            packed = np.asarray(memory.rows.packed)[:size]
            place = np.array([number.get(row.tobytes(), -1) for row in packed], np.int64)
            places.append(place[place >= 0])
            targets.append(np.asarray(memory.rows.target)[:size][place >= 0])
    target = np.concatenate(targets).astype(np.float64) * subject.utility_scale
    return np.concatenate(places), target


def _run(
    game: LostCities, subject: Subject, scheme: Scheme, traverser: jax.Array, key: jax.Array
) -> tuple[Memories, Statistics]:
    """Traverse for given traversers into new memories; only that of advantages has room."""
    policy, network = subject.policy, subject.policy.network
    spec = TraversalSpec(
        len(traverser), _LANES, _POPS_PER_PASS, policy.spec.fallback, subject.utility_scale
    )

    def memory(packed_size: int, actions: int, capacity: int) -> reservoir.Reservoir:
        row = samples.example(packed_size, actions, jnp.dtype(jnp.float32))
        return reservoir.create(row, capacity)

    sizes = game.packed_size, game.num_actions
    critic = subject.critic if scheme.reads_values else None
    memories = Memories(
        advantage=tuple(memory(*sizes, _CAPACITY) for _ in policy.params),
        strategy=tuple(memory(*sizes, 1) for _ in policy.params),
        value=() if critic is None else (memory(game.whole_size, 1, 1),),
    )
    program = make_program(
        game,
        network,
        scheme,
        spec,
        policy.params,
        key,
        jnp.int32(1),
        None if critic is None else critic.network,
        None if critic is None else critic.params,
        traverser,
    )
    return traverse(program, memories)


def moments(place: np.ndarray, target: np.ndarray, decisions: int) -> Moments:
    """Compute mean and variance of the samples at each decision.

    Args:
      place: int64[n], the decision of each sample.
      target: float64[n, A].
      decisions: S.
    """
    count = np.bincount(place, minlength=decisions)

    def total(rows: np.ndarray) -> np.ndarray:
        return np.stack([np.bincount(place, row, decisions) for row in rows.T], axis=1)

    mean = total(target) / np.maximum(count, 1)[:, None]
    squares = total((target - mean[place]) ** 2)
    divisor = np.where(count > 1, count - 1.0, np.nan)[:, None]
    return Moments(count, mean, squares / divisor)


def root_mean_square(decisions: Decisions, squares: np.ndarray) -> dict[str, float]:
    """Average squares over legal actions, then over the decisions of a third, and take the root.

    Args:
      decisions: S of them.
      squares: float64[S, A], estimates, which may be negative; nan for a decision to leave out.

    Returns:
      The root for each of THIRDS (of 0, where the mean is negative) and its standard error.
    """
    of_decision = np.mean(squares, axis=1, where=decisions.legal)
    row = {}
    for number, name in enumerate(THIRDS):
        values = of_decision[(decisions.third == number) & ~np.isnan(of_decision)]
        root = float(np.sqrt(max(np.mean(values), 0.0)))
        error = float(np.std(values, ddof=1) / np.sqrt(len(values)))
        row |= {name: root, f"{name}_se": error / (2 * root) if root else float(np.sqrt(error))}
    return row


def _variance_of_mean(found: Moments) -> np.ndarray:
    return found.variance / np.maximum(found.drawn, 1)[:, None]


def _print_table(rows: Iterable[dict[str, Any]]) -> None:
    """Print the figures, with lines and colours on a terminal only."""
    console = rich.console.Console(width=None if sys.stdout.isatty() else 120)
    box = rich.box.SIMPLE if console.is_terminal else None
    table = rich.table.Table(box=box, padding=(0, 2, 0, 0))
    table.add_column("quantity")
    table.add_column("scheme")
    for heading in (*THIRDS, "nodes per sample"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            row["quantity"],
            row["scheme"],
            *(f"{row[third]:.1f} +- {row[f'{third}_se']:.1f}" for third in THIRDS),
            f"{row['nodes_per_sample']:.1f}" if "nodes_per_sample" in row else "",
        )
    console.print(table)


if __name__ == "__main__":
    commandline.run(main)
