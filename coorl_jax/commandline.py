"""The frame of every command line: flags, one-sentence errors, exit codes, progress.

A command's module is its flags, a `main` and

    if __name__ == "__main__":
        commandline.run(main)

Exit codes: 0 done, 1 a fault of the program (with a traceback), 2 a mistake of the user (one
sentence), 130 interrupted. A mistake is a `ValueError` raised by this package's own code, whose
text is the sentence: the flag, field or file, its value, the rule and an example; or an `OSError`
that names a file. A `ValueError` raised inside a library is a fault and keeps its traceback.
"""

from __future__ import annotations

import datetime
import difflib
import re
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_collections
import rich.live
import rich.progress_bar
import rich.table
from absl import flags, logging
from ml_collections import config_flags

from coorl_jax import config as config_lib
from coorl_jax.metrics import Metrics

# The flag --config belongs to the command that asks for it, not to this module.
flags.disclaim_key_flags()

_PACKAGE = Path(__file__).resolve().parent
# The directory that holds configs/: the checkout, or the package itself where it was installed.
_PROJECT = _PACKAGE if (_PACKAGE / "configs").is_dir() else _PACKAGE.parent
_DEFAULT_CONFIG = "configs/default.py"
_RECENT_ITERATIONS = 20
_PHASES = {
    "traversal_seconds": "traversal",
    "advantage_train_seconds": "advantage",
    "strategy_train_seconds": "strategy",
    "evaluation_seconds": "evaluation",
    "checkpoint_seconds": "checkpoint",
}
_HELP = ("-h", "-help", "--help", "-?", "--helpshort", "--helpfull")


def run(
    main: Callable[[list[str]], None], *, config: bool = False, arguments: bool = False
) -> None:
    """Parse the command line, run `main`, and explain mistakes in one sentence.

    Args:
      main: takes the positional arguments.
      config: whether the command has the flag --config and its overrides --config.<field>.
      arguments: whether the command takes positional arguments.

    Raises:
      SystemExit: with code 2 after a mistake of the user, 130 after an interrupt.
    """
    command = Path(sys.argv[0]).stem
    try:
        if any(argument in _HELP for argument in sys.argv[1:]):
            print(_help(with_config=config))
            return
        positional = _parse(sys.argv, with_config=config)
        if positional and not arguments:
            raise ValueError(f"{positional[0]!r}: not understood; flags are written --name=value")
        main(positional)
    except (ValueError, OSError) as error:
        sentence = _mistake(error)
        if sentence is None:
            raise
        print(f"{command}: {' '.join(sentence.split())}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print(f"{command}: interrupted", file=sys.stderr)
        sys.exit(130)


def config_path() -> str | None:
    """Return what --config was given as, e.g. "configs/default.py:smoke"; None when it was not."""
    flag: Any = flags.FLAGS["config"]
    return flag.config_filename if flag.present else None


def config_settings() -> config_lib.Settings:
    """Return the settings that --config and its overrides make.

    Raises:
      ValueError: when they make none.
    """
    config = flags.FLAGS.config
    if not isinstance(config, ml_collections.ConfigDict):
        raise ValueError(f"--config={config_path()}: must return a ConfigDict, not {config!r}")
    return config_lib.from_config_dict(config)


def config_overrides() -> dict[str, Any]:
    """Return the values given as --config.<field>=<value>, by dotted field."""
    flag: Any = flags.FLAGS["config"]
    return dict(flag.override_values)


def _mistake(error: ValueError | OSError) -> str | None:
    """Return the sentence for the user, or None when the error is a fault of the program."""
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename else None
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    own = Path(frame.f_code.co_filename).resolve().is_relative_to(_PACKAGE)
    return str(error) if own else None


def _parse(argv: Sequence[str], *, with_config: bool) -> list[str]:
    """Parse the flags and return the positional arguments."""
    # Libraries warn of matters that are no concern of a user.
    logging.set_verbosity(logging.ERROR)
    if with_config:
        argv = _config_first(argv)
        for argument in argv[1:]:
            if override := re.match(r"--?(?:no)?config\.([^=]*)", argument):
                config_lib.check_field(override[1])
        # A configuration file may `from configs import default`, wherever it and the user are.
        sys.path.append(str(_PROJECT))
    try:
        if with_config:
            config_flags.DEFINE_config_file(
                "config",
                default=str(_PROJECT / _DEFAULT_CONFIG),
                help_string="configuration file, with a preset after a colon",
                sys_argv=list(argv),
            )
        return flags.FLAGS(list(argv))[1:]
    except Exception as error:
        # What goes wrong here comes from a flag or from the user's own configuration file.
        raise ValueError(_explain(error, argv)) from error


def _config_first(argv: Sequence[str]) -> list[str]:
    """Return the arguments with --config=FILE, if given, before its overrides, and FILE found.

    ml_collections reads the overrides against the file and so wants the file first. A relative
    path is looked for where the user is, then in the project.
    """
    command, *arguments = argv
    others: list[str] = []
    given: str | None = None
    remaining = iter(arguments)
    for argument in remaining:
        match = re.fullmatch(r"--?config(?:=(.*))?", argument, re.DOTALL)
        if match:
            given = next(remaining, "") if match[1] is None else match[1]
        else:
            others.append(argument)
    if given is None:
        return [command, *others]
    path, colon, preset = given.partition(":")
    for candidate in (Path(path), _PROJECT / path):
        if candidate.is_file():
            return [command, f"--config={candidate}{colon}{preset}", *others]
    raise ValueError(
        f"--config={given}: must be an existing configuration file; e.g. {_DEFAULT_CONFIG}:smoke"
    )


def _explain(error: Exception, argv: Sequence[str]) -> str:
    """Return one sentence for the exception that parsing the flags ended in."""
    cause: BaseException = error
    while isinstance(cause.__context__, Exception):
        cause = cause.__context__
    if isinstance(error, flags.UnrecognizedFlagError):
        unknown, known = str(error.flagname), [flag.name for flag in _command_flags()]
        close = difflib.get_close_matches(unknown, known, n=1)
        hint = f"did you mean --{close[0]}?" if close else f"there are --{', --'.join(known)}"
        return f"--{unknown}: no such flag; {hint}"
    if isinstance(error, flags.Error) and not isinstance(error, flags.IllegalFlagValueError):
        return f"{error}; flags are written --name=value"
    # A failure inside the configuration file arrives as an illegal value of --config itself.
    match = re.match(r"flag --(?!config=)(config\.)?([\w.]+)=(.*?): ", str(error), re.DOTALL)
    if match:
        field_prefix, name, value = match.groups()
        if field_prefix and not name.startswith("game."):
            config_lib.check_value(name, value)
        number = (
            "a number; e.g. 0.5" if "float" in str(cause) else "an integer in digits; e.g. 1000"
        )
        rule = f"must be {number}" if type(cause) is ValueError else str(cause)
        return f"{field_prefix or '--'}{name}={value!r}: {rule}"
    if isinstance(error, AttributeError | KeyError) and isinstance(cause, KeyError):
        return f"config.game.{cause.args[0]}: this configuration's game has no such rule parameter"
    reason = str(cause) if type(cause) is ValueError else f"{type(cause).__name__}: {cause}"
    return f"{argv[1]}: cannot be used: {reason}"


def _command_flags() -> list[flags.Flag]:
    """Return the flags that the command itself defines."""
    return flags.FLAGS.get_key_flags_for_module(sys.argv[0])


def _help(*, with_config: bool) -> str:
    """Return the command's docstring and its flags."""
    lines = [(sys.modules["__main__"].__doc__ or "").strip()]
    shown = [(flag.name, flag.help or "", flag.default) for flag in _command_flags()]
    if with_config:
        shown += [
            (
                "config",
                "configuration file, after a colon one of its presets: smoke, cpu, gpu, large, "
                "predecessor; the file explains all fields",
                _DEFAULT_CONFIG,
            ),
            ("config.<field>", "another value for a field of that file", None),
        ]
    lines += ["", "Flags:"] if shown else []
    for name, text, default in sorted(shown):
        default = ",".join(default) if isinstance(default, list) else default
        suffix = "" if default is None else f" (default: {default})"
        lines.append(f"  --{name}: {text}{suffix}")
    return "\n".join(lines)


class Progress:
    """Tells how a training run gets on: plain lines. A context manager."""

    def __init__(self, iterations: int) -> None:
        """Args: iterations: how many the run has in all."""
        self._iterations = iterations
        self._iteration_seconds: list[float] = []

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *exception: object) -> None:
        sys.stdout.flush()

    def say(self, text: str) -> None:
        """Print a line."""
        print(text, flush=True)

    def resume(self, iteration: int) -> None:
        """Take note that so many iterations were done before."""

    def stage(self, iteration: int, stage: str) -> None:
        """Take note that a stage of an iteration, counted from 1, begins."""

    def iteration(self, iteration: int, metrics: Metrics) -> None:
        """Tell the numbers of a complete iteration."""
        self._note_seconds(metrics)
        parts = [f"iteration {iteration}/{self._iterations}", *summary(metrics).values()]
        self.say("; ".join([*parts, f"{self._time_left(iteration)} left"]))
        for line in evaluation_lines(metrics):
            self.say(f"  {line}")

    def _note_seconds(self, metrics: Metrics) -> None:
        """Remember what an iteration took, without compilations, which do not come again."""
        self._iteration_seconds.append(
            metrics["iteration_seconds"] - metrics.get("compile_seconds", 0.0)
        )

    def _time_left(self, iteration: int) -> str:
        recent = self._iteration_seconds[-_RECENT_ITERATIONS:]
        seconds = (self._iterations - iteration) * sum(recent) / max(len(recent), 1)
        return str(datetime.timedelta(seconds=round(seconds)))


class LiveProgress(Progress):
    """Tells how a training run gets on: a panel at the foot of a terminal."""

    def __init__(self, iterations: int) -> None:
        """Args: iterations: how many the run has in all."""
        super().__init__(iterations)
        self._done = 0
        self._stage, self._stage_start = "starting", time.monotonic()
        self._rows: dict[str, str] = {}
        self._evaluation: list[str] = []
        self._live = rich.live.Live(get_renderable=self._panel, refresh_per_second=2)

    def __enter__(self) -> Progress:
        self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        """Print a line above the panel."""
        self._live.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def resume(self, iteration: int) -> None:
        """Show that so many iterations were done before."""
        self._done = iteration

    def stage(self, iteration: int, stage: str) -> None:
        """Show which stage of which iteration, counted from 1, runs."""
        self._stage, self._stage_start = f"{stage} of iteration {iteration}", time.monotonic()

    def iteration(self, iteration: int, metrics: Metrics) -> None:
        """Show the numbers of a complete iteration."""
        self._note_seconds(metrics)
        self._done, self._rows = iteration, summary(metrics)
        self._evaluation = evaluation_lines(metrics) or self._evaluation

    def _panel(self) -> rich.table.Table:
        table = rich.table.Table.grid(padding=(0, 2))
        bar = rich.progress_bar.ProgressBar(self._iterations, self._done, width=40)
        left = f"{self._time_left(self._done)} left" if self._iteration_seconds else ""
        table.add_row("iteration", f"{self._done}/{self._iterations}  {left}")
        table.add_row("", bar)
        table.add_row("stage", f"{self._stage}, {time.monotonic() - self._stage_start:.0f} s")
        for name, text in self._rows.items():
            table.add_row(name, text)
        for number, line in enumerate(self._evaluation):
            table.add_row("" if number else "evaluation", line)
        return table


def progress(iterations: int) -> Progress:
    """Return the progress display that suits standard output."""
    return LiveProgress(iterations) if sys.stdout.isatty() else Progress(iterations)


def summary(metrics: Metrics) -> dict[str, str]:
    """Return an iteration's seconds, speed and losses in words, by topic."""
    phases = [
        f"{label} {metrics[name]:.1f}"
        for name, label in _PHASES.items()
        if metrics.get(name) is not None
    ]
    texts = {"seconds": f"{metrics['iteration_seconds']:.1f} s ({', '.join(phases)})"}
    if "traversal/nodes_per_second" in metrics:
        texts["speed"] = (
            f"{metrics['traversal/nodes_per_second']:,.0f} nodes/s, "
            f"occupancy {metrics['traversal/lane_occupancy']:.2f}"
        )
    losses = [
        f"{name.removeprefix('loss/')} {value:.4g}"
        for name, value in metrics.items()
        if name.startswith("loss/")
    ]
    if losses:
        texts["loss"] = f"loss {', '.join(losses)}"
    return texts


def evaluation_lines(metrics: Metrics) -> list[str]:
    """Return one line per policy and opponent met, from `eval/<opponent>/<policy>/<metric>`."""
    pairs = dict.fromkeys(
        tuple(name.split("/")[1:3]) for name in metrics if re.fullmatch("eval/[^/]+/[^/]+/.+", name)
    )
    lines = []
    for opponent, policy in pairs:
        points, points_error, wins, wins_error = (
            metrics[f"eval/{opponent}/{policy}/{metric}"]
            for metric in ("points_per_round", "points_per_round_se", "win_rate", "win_rate_se")
        )
        lines.append(
            f"{policy} against {opponent}: {points:+.2f} +- {points_error:.2f} points a round, "
            f"wins {100 * wins:.1f} +- {100 * wins_error:.1f} %"
        )
    return lines
