"""Which evaluation is due after an iteration of training, and its numbers.

The full one is held rarely, the light one often: fewer opponents, fewer deals. Both play on the
same decks every time, those of the run's seed, so that iterations can be compared; training never
sees them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from coorl_jax import agents
from coorl_jax.evaluation import suite
from coorl_jax.games.game import Game
from coorl_jax.policy import AnyPolicy
from coorl_jax.settings import OPPONENT, EvaluationSettings, Settings

Evaluation = Literal["full", "light"]

_SECTIONS: dict[Evaluation, str] = {"full": "evaluation", "light": "light_evaluation"}


class Schedule:
    """The evaluations of a run."""

    def __init__(self, settings: Settings, game: Game, opponent: AnyPolicy | None = None) -> None:
        """Prepare the evaluations.

        Args:
          settings: of the run.
          game: the rules.
          opponent: the player that they call `opponent`, if they have one.

        Raises:
          ValueError: for opponents that do not play the game or are the same, or an exact NashConv
            of a game that is too large.
        """
        self._settings = settings
        self._game = game
        self._specs: dict[Evaluation, EvaluationSettings] = {
            name: getattr(settings, section) for name, section in _SECTIONS.items()
        }
        self._opponents = {
            name: _opponents(section, self._specs[name].opponents, game, opponent)
            for name, section in _SECTIONS.items()
        }
        if settings.evaluation.nash_conv:
            try:
                suite.enumerated(game)
            except ValueError as error:
                raise ValueError(f"config.evaluation.nash_conv=True: {error}") from error

    def due(self, iteration: int) -> Evaluation | None:
        """Return the evaluation that is due after an iteration: where both are, the full one."""
        for name, spec in self._specs.items():
            if self._settings.is_due(spec.every, iteration):
                return name
        return None

    def evaluate(self, name: Evaluation, policies: Mapping[str, AnyPolicy]) -> dict[str, float]:
        """Hold an evaluation.

        Args:
          name: which one.
          policies: of the run, by name.

        Returns:
          The metrics `eval/<opponent>/<policy>/<name of suite.matches>`; `eval/nash_conv/<policy>`
          and `eval/exploitability/<policy>`, points a round, if the full evaluation has them.
        """
        spec = self._specs[name]
        chosen = {policy: policies[policy] for policy in spec.policies}
        rows = suite.evaluate(
            self._game,
            chosen,
            self._opponents[name],
            spec.pairs,
            self._settings.seed,
            spec.diagnostics,
        )
        metrics = {
            f"eval/{row['opponent']}/{row['policy']}/{key}": value
            for row in rows
            for key, value in row.items()
            if key not in ("opponent", "policy")
        }
        if name == "full" and self._settings.evaluation.nash_conv:
            for policy, nash_conv in suite.nash_convs(self._game, chosen).items():
                metrics[f"eval/nash_conv/{policy}"] = nash_conv
                metrics[f"eval/exploitability/{policy}"] = nash_conv / 2
        return metrics


def _opponents(
    section: str, names: tuple[str, ...], game: Game, opponent: AnyPolicy | None
) -> dict[str, AnyPolicy]:
    """Return opponents by the names that they have in the metrics."""
    try:
        opponents: dict[str, AnyPolicy] = {
            agents.canonical(name): opponent
            if name == OPPONENT and opponent is not None
            else agents.make(name, game)
            for name in names
        }
    except ValueError as error:
        raise ValueError(f"config.{section}.opponents: {error}") from error
    if len(opponents) < len(names):
        raise ValueError(
            f"config.{section}.opponents={names!r}: must be different players, but under older "
            f"names some are the same; e.g. {tuple(opponents)!r}"
        )
    return opponents
