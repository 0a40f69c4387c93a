"""The trained agents that a command looks at: what was saved of them, and the policies they play.

A *player* is given as the name of a bot, or as PATH[:POLICY][:greedy|:temperature=T][:search=K],
where PATH is a run directory, its RUN/best, one step, RUN/policies/20, or `pretrained` for the
agent that the package ships, and POLICY is current, average (if none is given) or mixture. With
search=K the player tries every action in K deals, see `agents/search.py`.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import jax

from coorl_jax import agents, checkpoint, rundir
from coorl_jax.agents.search import SearchPolicy
from coorl_jax.checkpoint import PRETRAINED, Checkpoint
from coorl_jax.config import Settings
from coorl_jax.games.game import Game
from coorl_jax.games.lost_cities import LostCities
from coorl_jax.policy import (
    AnyPolicy,
    MixturePolicy,
    NetworkPolicy,
    Policy,
    make_network,
    make_policies,
)

_POLICY_NAMES = ("current", "average", "mixture")
_DEFAULT_POLICY = "average"
_MOST_SAMPLES = 1024  # of a search
_SEARCH_SEED = 1
_BOTS = agents.names(LostCities())  # of any game: some of them play others, too
_EXAMPLE = "heuristic_cautious, runs/my-run or runs/my-run:current:greedy"


@dataclasses.dataclass(frozen=True)
class TrainedAgent:
    """The policies of one run after one iteration."""

    path: Path
    iteration: int
    game: Game
    policies: dict[str, AnyPolicy]


@dataclasses.dataclass(frozen=True)
class SavedAgent:
    """What is saved of the trained agent that a player's spec means."""

    path: Path  # of these policies, absolute; or `pretrained`
    spec: str  # with that path: the same player wherever it is read, and however a run goes on
    settings: Settings


def saved_agent(spec: str, flag: str) -> SavedAgent | None:
    """Return what is saved of the agent that a player's spec means as it is now; None for a bot.

    Raises:
      ValueError: for a spec that names no player.
    """
    if agents.canonical(spec) in _BOTS:
        return None
    given = _path(spec, flag)
    settings, restored = restore(Path(given), flag)
    path = checkpoint.path_of_policies(Path(given), restored.step)
    return SavedAgent(path, f"{path}{spec.removeprefix(given)}", settings)


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
    name, temperature, samples, path = _DEFAULT_POLICY, 1.0, 0, _path(spec, flag)
    if path != spec:
        options = spec.removeprefix(path)[1:].split(":")
        kinds = [_kind(option) for option in options]
        if len(set(kinds)) < len(kinds):
            raise ValueError(
                f"{flag}={spec}: must have one policy and one temperature at most, and one search; "
                f"e.g. {path}:average:greedy"
            )
        for kind, option in zip(kinds, options, strict=True):
            if kind == "policy":
                name = option
            elif kind == "search":
                samples = _samples(option, spec, flag)
            else:
                temperature = _temperature(option, spec, flag)
    agent = load(Path(path), flag)
    if name not in agent.policies:
        raise ValueError(
            f"{flag}={spec}: must have a policy among {', '.join(agent.policies)}; "
            f"e.g. {path}:average"
        )
    policy = with_temperature(agent.policies[name], temperature)
    if samples:
        try:
            # It refuses a mixture itself.
            single = cast(Policy, policy)
            policy = SearchPolicy(agent.game, single, jax.random.key(_SEARCH_SEED), samples)
        except ValueError as error:
            raise ValueError(f"{flag}={spec}: {error}") from error
    return agent, policy


def _path(spec: str, flag: str) -> str:
    """Return the path in a trained agent's spec."""
    path = spec if _exists(spec) else spec.split(":")[0]
    if not path or not _exists(path):
        raise ValueError(
            f"{flag}={spec}: must be a bot ({', '.join(_BOTS)}) or a trained agent that "
            f"exists; e.g. {_EXAMPLE}"
        )
    return path


def _exists(path: str) -> bool:
    return Path(path) == PRETRAINED or Path(path).exists()


def _kind(option: str) -> str:
    """Return what an option says, of which a player has one each: "policy", "search" or another."""
    if option in _POLICY_NAMES:
        return "policy"
    return "search" if option.startswith("search=") else "temperature"


def _samples(option: str, spec: str, flag: str) -> int:
    number = option.removeprefix("search=")
    # Digits only: int() also reads signs, spaces and underscores.
    if re.fullmatch("[0-9]{1,4}", number) and 1 <= (samples := int(number)) <= _MOST_SAMPLES:
        return samples
    raise ValueError(
        f"{flag}={spec}: {option!r} must be search=K with an integer K from 2 to {_MOST_SAMPLES}; "
        "e.g. runs/my-run:average:search=64"
    )


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
        f"temperature=T with T from 0 to 1e6, or search=K with K from 2 to {_MOST_SAMPLES}; "
        "e.g. runs/my-run:average:temperature=0.5"
    )
