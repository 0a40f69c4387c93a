"""The best policies of a run so far, by a test that each full evaluation holds.

They are in memory as soon as they are accepted, and on disk with the next checkpoint, which says
whose they are: a resumed run has the best policies that it had at that checkpoint, whatever was
accepted between it and a kill.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from coorl_jax import config as config_lib
from coorl_jax.checkpoint import Checkpoint, CheckpointStore, DamagedCheckpointError
from coorl_jax.evaluation import gate
from coorl_jax.networks import Network
from coorl_jax.policy import make_policies
from coorl_jax.settings import Settings


class BestPolicies:
    """The best policies so far, in memory and on disk."""

    def __init__(self, directory: Path, settings: Settings, network: Network) -> None:
        """Begin with none.

        Args:
          directory: of the store, made when there is something to write.
          settings: of the run.
          network: of its policies.

        Raises:
          ValueError: where the directory is something else.
        """
        if directory.exists() and not directory.is_dir():
            raise ValueError(
                f"{directory}: must be the directory of a run's best policies, but is a file; move "
                "it away"
            )
        self._directory = directory
        self._settings = settings
        self._network = network
        self._best: Checkpoint | None = None
        self._is_saved = True

    @property
    def iteration(self) -> int:
        """The iteration that the best policies are of; 0 while there are none."""
        return 0 if self._best is None else self._best.step

    def restore(self, iteration: int, report: Callable[[str], None]) -> None:
        """Take up the best policies that there were at a checkpoint, and delete later ones.

        If they are damaged or missing, those before them stand in.

        Args:
          iteration: that the checkpoint says the best policies are of; 0 for none.
          report: told of policies that are damaged or missing.
        """
        if self._directory.is_dir():
            with self._open() as store:
                store.delete_after(iteration)
                for step in reversed(store.steps()):
                    try:
                        restored = store.restore(step)
                    except DamagedCheckpointError as error:
                        report(str(error))
                        continue
                    if self._is_of_this_run(restored):
                        self._best = _on_host(restored)
                        break
                    report(f"{self._directory / str(step)}: these policies are of another run")
        if self.iteration != iteration:
            instead = (
                f"those of iteration {self.iteration} stand in for them"
                if self.iteration
                else "the next ones are kept without a test"
            )
            report(
                f"{self._directory}: the best policies, those of iteration {iteration}, are lost; "
                f"{instead}"
            )

    def _is_of_this_run(self, restored: Checkpoint) -> bool:
        """Tell whether policies have the run's game and networks, so that they can be played."""
        saved, own = restored.extra["config"], config_lib.to_dict(self._settings)
        return all(saved.get(section) == own[section] for section in ("game", "network"))

    def challenge(self, iteration: int, parameters: dict[str, Any]) -> dict[str, float]:
        """Test policies against the best so far, and let them take their place if they are better.

        The first ones are the best without a test.

        Args:
          iteration: that the policies are of.
          parameters: of the policies, as `Trainer.policy_parameters` returns them.

        Returns:
          The metrics gate/accepted, 0 or 1; gate/best_iteration, that of the best policies now; and
          of a test gate/points_per_round, against the best before, and gate/points_per_round_se.
        """
        verdict = None if self._best is None else self._test(iteration, parameters, self._best.tree)
        points = {} if verdict is None else verdict._asdict()
        accepted = points.pop("accepted", True)
        if accepted:
            about = {
                "policy": self._settings.gate.policy,
                "previous_iteration": self.iteration,
                **points,
            }
            extra = {"config": config_lib.to_dict(self._settings), "gate": about}
            self._best = _on_host(Checkpoint(iteration, parameters, extra))
            self._is_saved = False
        return {
            "gate/accepted": float(accepted),
            "gate/best_iteration": self.iteration,
            **{f"gate/{name}": value for name, value in points.items()},
        }

    def save(self) -> None:
        """Write the best policies, unless they are already there; before the checkpoint.

        Raises:
          ValueError: when they cannot be written.
        """
        if self._best is not None and not self._is_saved:
            with self._open() as store:
                store.save(self._best.step, self._best.tree, self._best.extra)
            self._is_saved = True

    def _test(
        self, iteration: int, parameters: dict[str, Any], best_parameters: dict[str, Any]
    ) -> gate.Verdict:
        spec = self._settings.gate
        candidate, best = (
            make_policies(self._settings, self._network, tree)[spec.policy]
            for tree in (parameters, best_parameters)
        )
        key = gate.gate_key(self._settings.seed, iteration)
        return gate.challenge(
            self._network.game, candidate, best, spec.pairs, spec.significance, key
        )

    def _open(self) -> CheckpointStore:
        # Every state that is kept is to find its own. One is written before each state, and one
        # more where a run was stopped between a state and the test of its iteration.
        return CheckpointStore(self._directory, keep=2 * self._settings.checkpoint.keep + 1)


def _on_host(checkpoint: Checkpoint) -> Checkpoint:
    """Return a checkpoint with a copy of its tree, since training donates what it was made of."""
    return dataclasses.replace(checkpoint, tree=jax.tree.map(np.array, checkpoint.tree))
