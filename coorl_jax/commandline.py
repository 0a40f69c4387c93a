"""The frame of every command line: flags, one-sentence errors, exit codes.

A command's module is its flags, a `main` and

    if __name__ == "__main__":
        commandline.run(main)

Exit codes: 0 done, 1 a fault of the program (with a traceback), 2 a mistake of the user (one
sentence), 130 interrupted, 141 nobody reads the output any more. A mistake is a `ValueError`
raised by this package's own code, whose text is the sentence: the flag, field or file, its value,
the rule and an example; or an `OSError` that names a file. A `ValueError` raised inside a library
is a fault and keeps its traceback.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import importlib
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_collections
from absl import flags, logging
from ml_collections import config_flags

from coorl_jax import config as config_lib
from coorl_jax.progress import silence, tell

# The flag --config belongs to the command that asks for it, not to this module.
flags.disclaim_key_flags()

_PACKAGE = Path(__file__).resolve().parent
# The directory that holds configs/: the checkout, or the package itself where it was installed.
_PROJECT = _PACKAGE if (_PACKAGE / "configs").is_dir() else _PACKAGE.parent
_DEFAULT_CONFIG = "configs/default.py"
_OUT_OF_MEMORY = (
    "the device has not enough memory for this configuration; choose smaller memories, fewer lanes "
    "or smaller batches, e.g. --config.memory.advantage_capacity=100000"
)
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
      SystemExit: with code 2 after a mistake of the user, 141 when the reader of the output is
        gone. After an interrupt the process ends with code 130.
    """
    command = Path(sys.argv[0]).stem
    try:
        if any(argument in _HELP for argument in sys.argv[1:]):
            tell(_help(with_config=config))
            return
        positional = _parse(sys.argv, with_config=config)
        if positional and not arguments:
            raise ValueError(f"{positional[0]!r}: not understood; flags are written --name=value")
        main(positional)
    except BrokenPipeError:
        # The reader, `head` for one, has seen enough.
        silence()
        sys.exit(141)
    except (ValueError, OSError) as error:
        sentence = _mistake(error)
        if sentence is None:
            raise
        print(f"{command}: {' '.join(sentence.split())}", file=sys.stderr)
        sys.exit(2)
    except RuntimeError as error:
        # jax's own exception class would have to be imported to be named.
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        print(f"{command}: {_OUT_OF_MEMORY}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print(f"{command}: interrupted", file=sys.stderr)
        # A program of XLA may still run in a thread of its own: Python, shutting down, would wait
        # for its end and then die of a segmentation fault.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        os._exit(130)


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


def preset_settings(preset: str) -> config_lib.Settings:
    """Return the settings of a shipped preset, with the overrides that were given."""
    shipped = importlib.import_module("configs.default")
    settings = config_lib.from_config_dict(shipped.get_config(preset))
    return config_lib.override(settings, config_overrides())


def config_overrides() -> dict[str, Any]:
    """Return the values given as --config.<field>=<value>, by dotted field."""
    flag: Any = flags.FLAGS["config"]
    return dict(flag.override_values)


def _mistake(error: ValueError | OSError) -> str | None:
    """Return the sentence for the user, or None when the error is a fault of the program."""
    if isinstance(error, OSError):
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            where = error.filename or "a file"
            return f"{where} cannot be written ({error.strerror}); make room and try again"
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
                "deep_cfr, ppo, exploit, predecessor; the file explains all fields",
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
