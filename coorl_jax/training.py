"""The loop of a training run: stages, evaluations, tests against the best, checkpoints.

What an iteration is, the loop leaves to a `Learner`; which one, the settings say.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from coorl_jax import config as config_lib
from coorl_jax import progress as progress_lib
from coorl_jax import rundir
from coorl_jax.metrics import MetricsWriter, read, timed
from coorl_jax.progress import Progress, best_line, evaluation_lines, tell
from coorl_jax.settings import FROM_SCRATCH, SELF_PLAY
from coorl_jax.signals import StopRequest

# What loads jax is imported where it is used, so that mistakes are answered at once.
if TYPE_CHECKING:
    from coorl_jax.best import BestPolicies
    from coorl_jax.checkpoint import CheckpointStore
    from coorl_jax.evaluation.schedule import Evaluation, Schedule
    from coorl_jax.games.game import Game
    from coorl_jax.networks import Network
    from coorl_jax.policy import AnyPolicy
    from coorl_jax.runtime import CompileCounter

_STOPPING = "stopping after this stage; Ctrl-C once more stops at once, without a checkpoint"


class Learner(Protocol):
    """What learns: the stages of an iteration, each from one state of the run to the next.

    A state is a pytree of arrays, and all that the run needs to go on from there.
    """

    @property
    def stages(self) -> tuple[str, ...]:
        """Their names, in the order of an iteration."""
        ...

    @property
    def network(self) -> Network:
        """The network of its policies."""
        ...

    @property
    def game(self) -> Game:
        """What is learnt."""
        ...

    def memory_report(self) -> str:
        """Return one line on the bytes of states, samples and memories."""
        ...

    def init(self) -> Any:
        """Return the state before the first iteration."""
        ...

    def position(self, state: Any) -> tuple[int, int]:
        """Return the iterations completed and the index in `stages` of the next stage."""
        ...

    def run_stage(self, state: Any) -> tuple[Any, dict[str, float]]:
        """Return the state after the next stage, and what it measured; the old one is donated."""
        ...

    def policy_parameters(self, state: Any) -> dict[str, Any]:
        """Return what is saved for play, see `policy.make_policies`."""
        ...

    def policies(self, state: Any) -> Mapping[str, AnyPolicy]:
        """Return the policies themselves."""
        ...


def train(
    settings: config_lib.Settings, workdir: Path, *, command: str = "coorl_jax.train"
) -> Path:
    """Train, or go on training, in a run directory.

    Args:
      settings: of the run.
      workdir: the run directory, existing or not.
      command: what the user is told to go on with.

    Returns:
      The run directory.

    Raises:
      ValueError: for a mistake in the settings, or a directory where they cannot be used.
    """
    # Before jax is loaded: a library's callback may swallow Python's own KeyboardInterrupt.
    with StopRequest(lambda name: tell(f"{name}: {_STOPPING}")) as stop:
        return _train(settings, workdir, stop, command)


def _train(settings: config_lib.Settings, workdir: Path, stop: StopRequest, command: str) -> Path:
    """Train as `train` does, until asked to stop."""
    from coorl_jax import runtime
    from coorl_jax.best import BestPolicies
    from coorl_jax.checkpoint import CheckpointStore
    from coorl_jax.evaluation.schedule import Schedule

    rundir.check_resume(workdir, settings)
    runtime.configure()
    opponent = _opponent(settings)
    # What a run began with is not looked at again once it has begun.
    learner = _learner(settings, opponent, starts=not rundir.has_trained(workdir))
    schedule = Schedule(settings, learner.game, opponent)

    keep = settings.checkpoint
    with (
        rundir.open_run(workdir, settings) as run,
        progress_lib.progress(settings.iterations) as progress,
        runtime.CompileCounter() as compilations,
        CheckpointStore(run.checkpoints, keep=keep.keep) as states,
        CheckpointStore(run.policies, keep=keep.keep_policies) as policies,
        MetricsWriter(
            run.metrics,
            tensorboard_directory=run.tensorboard if settings.log.tensorboard else None,
        ) as writer,
    ):
        progress.say(f"run directory {run.path}; {runtime.describe_device()}")
        progress.say(learner.memory_report())
        if settings.gate.policy != "none" and settings.evaluation.every == 0:
            progress.say("no full evaluations, and so no test of which policies are the best")
        best = BestPolicies(run.best, settings, learner.network)
        training = Training(
            settings,
            learner,
            schedule,
            states,
            policies,
            best,
            writer,
            progress,
            compilations,
        )
        training.restore(read(run.metrics))
        progress.say("the first iteration takes longer: it compiles, for a minute or two on a CPU")
        completed = training.run(stop)
    _tell_outcome(run, settings, completed, command)
    return run.path


def _opponent(settings: config_lib.Settings) -> AnyPolicy | None:
    """Return the fixed player that the run learns to answer, if there is one."""
    from coorl_jax import trained_agent
    from coorl_jax.policy import make_network

    spec = settings.ppo.opponent
    if settings.algorithm != "ppo" or spec == SELF_PLAY:
        return None
    game = make_network(settings).game
    _, players = trained_agent.players([spec], "--config.ppo.opponent", game)
    return players[spec]


def _learner(settings: config_lib.Settings, opponent: AnyPolicy | None, *, starts: bool) -> Learner:
    """Return what learns by the algorithm of the settings; `starts` if from the beginning."""
    from coorl_jax import trained_agent
    from coorl_jax.cfr.iteration import Trainer
    from coorl_jax.ppo.trainer import PpoTrainer, Start

    if settings.algorithm == "cfr":
        return Trainer(settings)
    path = settings.ppo.start
    if path == FROM_SCRATCH or not starts:
        return PpoTrainer(settings, opponent)
    flag = "--config.ppo.start"
    theirs, restored = trained_agent.restore(Path(path), flag)
    if theirs.network.per_player:
        raise ValueError(
            f"{flag}={path}: must be an agent with one network for both seats, but has one for "
            f"each; e.g. {flag}={FROM_SCRATCH}"
        )
    for field, (saved, own) in config_lib.differences(theirs, settings).items():
        if field.startswith(("game.", "network.")) or field == "utility_scale":
            raise ValueError(
                f"{flag}={path}: must be an agent with the same game and networks, but has "
                f"config.{field}={saved}, not {own}; e.g. {flag}={FROM_SCRATCH}"
            )
    (policy,), value = restored.tree["average"], restored.tree.get("value")
    return PpoTrainer(settings, opponent, Start(policy, value[0] if value else None))


class Training:
    """A run in progress.

    One turn of its loop is a stage, an evaluation, a test against the best so far, or the end of an
    iteration; a request to stop is heeded between two turns. What an iteration has measured so far
    is in every checkpoint, so its line in the metrics is the same whether or not the run was
    stopped within it.
    """

    def __init__(
        self,
        settings: config_lib.Settings,
        learner: Learner,
        schedule: Schedule,
        states: CheckpointStore,
        policies: CheckpointStore,
        best: BestPolicies,
        writer: MetricsWriter,
        progress: Progress,
        compilations: CompileCounter,
    ) -> None:
        self._settings = settings
        self._learner = learner
        self._schedule = schedule
        self._states = states
        self._policies = policies
        self._best = best
        self._writer = writer
        self._progress = progress
        self._compilations = compilations
        self._state: Any = None
        # Metrics of the iteration the state is in, or has just completed without a line yet.
        self._pending: dict[str, Any] = {}
        # Completed stages in the latest checkpoint; None without one.
        self._saved_step: int | None = None
        # The last iteration in the metrics file.
        self._last_line = 0

    def restore(self, lines: list[dict[str, Any]]) -> None:
        """Take up the latest whole checkpoint, if there is one, and cut the metrics to it.

        Args:
          lines: the metrics file.

        Raises:
          ValueError: when no checkpoint is whole, or all are missing though there are metrics.
        """
        from coorl_jax.checkpoint import abstract

        best_iteration = 0
        if self._states.steps() or lines:
            checkpoint = self._states.restore_latest(
                # The shapes alone: the memories need not be there twice.
                abstract(self._learner.init()),
                report=lambda text: self._progress.say(f"WARNING: {text}; trying an earlier one"),
            )
            self._state, self._saved_step = checkpoint.tree, checkpoint.step
            self._pending = checkpoint.extra["metrics"]
            best_iteration = checkpoint.extra["best"]
        else:
            self._state = self._learner.init()
        self._best.restore(best_iteration, lambda text: self._progress.say(f"WARNING: {text}"))
        iteration, stage = self._learner.position(self._state)
        if self._saved_step is not None:
            self._progress.say(
                f"resuming after iteration {iteration}, at {self._learner.stages[stage]}"
            )
            self._progress.resume(iteration)
        self._last_line = self._writer.truncate_after(iteration)

    def run(self, stop: StopRequest) -> int:
        """Train to the last iteration or until asked to stop, and leave a checkpoint.

        Returns:
          The iterations completed.
        """
        settings = self._settings
        while not stop.requested:
            iteration, stage = self._learner.position(self._state)
            evaluation = self._schedule.due(iteration)
            if stage > 0 or not self._pending:
                if iteration >= settings.iterations:
                    break
                self._turn(self._learner.stages[stage], iteration + 1, self._run_stage)
            elif evaluation and "evaluation_seconds" not in self._pending:
                self._turn("evaluate", iteration, partial(self._evaluate, evaluation))
            elif (
                evaluation == "full"
                and settings.gate.policy != "none"
                and "gate_seconds" not in self._pending
            ):
                self._turn("test against the best", iteration, self._challenge)
            else:
                if settings.is_due(settings.checkpoint.every, iteration):
                    self._turn("checkpoint", iteration, self._save)
                self._end_iteration(iteration)
        self._save()
        return self._learner.position(self._state)[0]

    def _turn(self, name: str, iteration: int, work: Callable[[], None]) -> None:
        """Do some work, and note in the pending metrics what it took."""
        self._progress.stage(iteration, name)
        with timed(self._pending, "iteration_seconds"):
            work()
        self._add(self._compilations.take())

    def _add(self, metrics: dict[str, float]) -> None:
        """Add what was measured to what the iteration has measured before."""
        for name, value in metrics.items():
            self._pending[name] = self._pending.get(name, 0) + value

    def _run_stage(self) -> None:
        self._state, metrics = self._learner.run_stage(self._state)
        self._add(metrics)

    def _evaluate(self, evaluation: Evaluation) -> None:
        policies = self._learner.policies(self._state)
        with timed(self._pending, "evaluation_seconds"):
            self._pending |= self._schedule.evaluate(evaluation, policies)

    def _challenge(self) -> None:
        iteration, _ = self._learner.position(self._state)
        parameters = self._learner.policy_parameters(self._state)
        with timed(self._pending, "gate_seconds"):
            self._pending |= self._best.challenge(iteration, parameters)

    def _save(self) -> None:
        """Write the policies, after whole iterations, and the state, unless already there."""
        iteration, stage = self._learner.position(self._state)
        step = iteration * len(self._learner.stages) + stage
        pending = dict(self._pending)
        with timed(self._pending, "checkpoint_seconds"):
            # The policies first: where there is a state, there are its policies and the best.
            self._best.save()
            if step == self._saved_step:
                return
            if stage == 0:
                self._policies.save(
                    iteration,
                    self._learner.policy_parameters(self._state),
                    {"config": config_lib.to_dict(self._settings)},
                )
            self._states.save(step, self._state, {"metrics": pending, "best": self._best.iteration})
        self._saved_step = step

    def _end_iteration(self, iteration: int) -> None:
        """Write the iteration's line, unless it was there before a kill."""
        if iteration > self._last_line:
            self._writer.write(iteration, self._pending)
            self._last_line = iteration
            self._progress.iteration(iteration, self._pending)
        self._pending = {}


def _tell_outcome(
    run: rundir.RunDirectory, settings: config_lib.Settings, completed: int, command: str
) -> None:
    """Print the last evaluation, and the commands to evaluate and to go on."""
    lines = read(run.metrics)
    path = shlex.quote(str(run.path))
    resume = f"python -m {command} --workdir={path}"
    if completed < settings.iterations or not lines or lines[-1]["iteration"] < completed:
        tell(
            f"stopped after {completed} of {settings.iterations} iterations; to go on:\n  {resume}"
        )
        return
    tell(f"finished {completed} iterations")
    evaluations = [text for line in lines if (text := evaluation_lines(line))]
    for text in evaluations[-1] if evaluations else ():
        tell(f"  {text}")
    tell(f"to evaluate:\n  python -m coorl_jax.evaluate --checkpoint={path}")
    if (best := best_line(lines)) is not None:
        best_path = shlex.quote(str(run.best))
        tell(f"{best}; to evaluate it:\n  python -m coorl_jax.evaluate --checkpoint={best_path}")
    tell(f"to train on:\n  {resume} --config.iterations={2 * settings.iterations}")
