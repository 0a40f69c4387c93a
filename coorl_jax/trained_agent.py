"""The trained agents that a command looks at: what was saved of them, and the policies they play.

A *player* is given as the name of a bot, or as PATH[:POLICY][:greedy|:temperature=T], where PATH is
a run directory, its RUN/best, one step, RUN/policies/20, or `pretrained` for the agent that the
package ships, and POLICY is current, average (if none is given) or mixture.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from coorl_jax import agents, checkpoint, rundir
from coorl_jax.checkpoint import PRETRAINED, Checkpoint
from coorl_jax.config import Settings
from coorl_jax.games.game import Game
from coorl_jax.games.lost_cities import LostCities
from coorl_jax.policy import AnyPolicy, MixturePolicy, NetworkPolicy, make_network, make_policies

_POLICY_NAMES = ("current", "average", "mixture")
_DEFAULT_POLICY = "average"
_BOTS = agents.names(LostCities())  # of any game: some of them play others, too
_EXAMPLE = "heuristic_cautious, runs/my-run or runs/my-run:current:greedy"


@dataclasses.dataclass(frozen=True)
class TrainedAgent:
    """The policies of one run after one iteration."""

    path: Path
    iteration: int
    game: Game
    policies: dict[str, AnyPolicy]


def restore(path: Path, flag: str = "--checkpoint") -> tuple[Settings, Checkpoint]:
    """Read what a run saved for play.

    Args:
      path: see `checkpoint.restore_policies`.
      flag: what the user gave the path as, for messages.

    Returns:
      The run's settings, and its policies' parameters as `checkpoint.restore_policies` gives them.

    Raises:
      ValueError: where there are none that are whole, or another version of the package saved
        them.
    """
    restored = checkpoint.restore_policies(
        path, report=lambda text: print(text, file=sys.stderr), flag=flag
    )
    settings = rundir.parse_settings(restored.extra["config"], f"{flag}={path}")
    return settings, restored


def load(path: Path, flag: str = "--checkpoint") -> TrainedAgent:
    """Load a trained agent, without its trainer; see `restore`."""
    settings, restored = restore(path, flag)
    network = make_network(settings)
    policies = make_policies(settings, network, restored.tree)
    return TrainedAgent(path, restored.step, network.game, policies)


def with_temperature(policy: AnyPolicy, temperature: float) -> AnyPolicy:
    """Return a trained policy at a temperature; 0 is greedy.

    Raises:
      ValueError: for a policy that is no network's.
    """
    if not isinstance(policy, NetworkPolicy | MixturePolicy):
        raise ValueError(f"{type(policy).__name__}: only policies of networks have a temperature")
    return dataclasses.replace(policy, temperature=temperature)


def players(
    specs: Sequence[str], flag: str, game: Game | None = None
) -> tuple[Game, dict[str, AnyPolicy]]:
    """Load the players of a command.

    Args:
      specs: the players, see above.
      flag: what they were given as, e.g. "--players", for messages.
      game: what they have to play; None: what the trained ones among them play, or the classic
        Lost Cities if none is.

    Returns:
      The game and the policies by spec.

    Raises:
      ValueError: for a spec that names no player or is given twice, two names of one bot, or a
        player of another game.
    """
    if not specs or "" in specs:
        raise ValueError(f"{flag}={','.join(specs)}: must be players by name; e.g. {_EXAMPLE}")
    loaded: dict[str, AnyPolicy | None] = dict.fromkeys(specs)
    if len({agents.canonical(spec) for spec in specs}) < len(specs):
        raise ValueError(f"{flag}={','.join(specs)}: must be different players; e.g. {_EXAMPLE}")
    for spec in specs:
        if agents.canonical(spec) not in _BOTS:
            agent, loaded[spec] = _trained_player(spec, flag)
            if game is not None and agent.game != game:
                raise ValueError(
                    f"{flag}={spec}: must play the same game by the same rules as the others, "
                    f"{game}, but plays {agent.game}; e.g. {_EXAMPLE}"
                )
            game = agent.game
    game = LostCities() if game is None else game
    for spec, policy in loaded.items():
        if policy is None:
            try:
                loaded[spec] = agents.make(spec, game)
            except ValueError as error:
                raise ValueError(f"{flag}: {error}") from error
    return game, {spec: policy for spec, policy in loaded.items() if policy is not None}


def _trained_player(spec: str, flag: str) -> tuple[TrainedAgent, AnyPolicy]:
    """Return a trained agent and the policy of it that a spec means."""
    name, temperature, path = _DEFAULT_POLICY, 1.0, spec
    if not _exists(spec):
        path, *options = spec.split(":")
        if not path or not _exists(path):
            raise ValueError(
                f"{flag}={spec}: must be a bot ({', '.join(_BOTS)}) or a trained agent that "
                f"exists; e.g. {_EXAMPLE}"
            )
        kinds = [option in _POLICY_NAMES for option in options]
        if len(set(kinds)) < len(kinds):
            raise ValueError(
                f"{flag}={spec}: must have one policy and one temperature at most; "
                f"e.g. {path}:average:greedy"
            )
        for option in options:
            if option in _POLICY_NAMES:
                name = option
            else:
                temperature = _temperature(option, spec, flag)
    agent = load(Path(path), flag)
    if name not in agent.policies:
        raise ValueError(
            f"{flag}={spec}: must have a policy among {', '.join(agent.policies)}; "
            f"e.g. {path}:average"
        )
    return agent, with_temperature(agent.policies[name], temperature)


def _exists(path: str) -> bool:
    return Path(path) == PRETRAINED or Path(path).exists()


def _temperature(option: str, spec: str, flag: str) -> float:
    if option == "greedy":
        return 0.0
    kind, _, number = option.partition("=")
    try:
        if kind == "temperature" and 0.0 <= (temperature := float(number)) <= 1e6:
            return temperature
    except ValueError:
        pass
    raise ValueError(
        f"{flag}={spec}: {option!r} must be one of {', '.join(_POLICY_NAMES)}, greedy or "
        "temperature=T with T from 0 to 1e6; e.g. runs/my-run:average:temperature=0.5"
    )
