"""Time to a NashConv on Leduc poker: this package against OpenSpiel's Deep CFR.

    pip install -e '.[openspiel]' torch dm-tree matplotlib
    python tests/openspiel_comparison.py --minutes=60

A study, run by hand, on Linux. The solvers run one after the other, each in a process of its own on
the same cores: this package with configs/leduc.py (or another --config, and --config.<field>),
OpenSpiel's PyTorch and jax solvers with the settings that its examples recommend. Results go to
--directory: a file of JSON lines for each solver, replaced when it is run again, and a plot of all
that are there.

Times are those of iterations and of one fit of the average policy, without evaluation and without
starting Python; this package fits that policy in its iterations, and all those fits count. The time
to a NashConv is that of the first probe at or below it.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import openspiel_solvers as solvers
from absl import flags
from openspiel_solvers import NAMES, OURS, Probe

from coorl_jax import commandline
from coorl_jax.progress import tell

_LEVELS = (1.0, 0.5, 0.3, 0.2)  # NashConv, antes

_MINUTES = flags.DEFINE_float(
    "minutes", 60.0, "minutes of iterations for each solver; probes come on top", lower_bound=0.0
)
_SOLVERS = flags.DEFINE_list("solvers", list(NAMES), "solvers to run, in this order")
_THREADS = flags.DEFINE_integer(
    "threads", len(os.sched_getaffinity(0)), "processor cores for each solver", lower_bound=1
)
_RATIO = flags.DEFINE_float(
    "probe_ratio",
    1.2,
    "the policy is evaluated when there are so many times the iterations of the last time",
    lower_bound=1.0,
)
_DIRECTORY = flags.DEFINE_string(
    "directory", "runs/openspiel_comparison", "directory of the results"
)


def main(argv: list[str]) -> None:
    """Run the solvers that were asked for, and report on all that have been run."""
    del argv
    check_solvers(_SOLVERS.value)
    import matplotlib.pyplot as plt

    settings = commandline.config_settings()
    directory = Path(_DIRECTORY.value)
    directory.mkdir(parents=True, exist_ok=True)
    for name in dict.fromkeys(_SOLVERS.value):
        # A new interpreter: threads and devices are another library's in each.
        process = multiprocessing.get_context("spawn").Process(
            target=solvers.run,
            args=(
                name,
                settings,
                _MINUTES.value,
                _THREADS.value,
                _RATIO.value,
                directory / f"{name}.jsonl",
            ),
        )
        process.start()
        process.join()
        if process.exitcode:
            raise RuntimeError(f"{name} ended with exit code {process.exitcode}; see above")
    files = [directory / f"{name}.jsonl" for name in NAMES]
    curves = dict(solvers.read(file) for file in files if file.exists())
    curves = {name: probes for name, probes in curves.items() if probes}
    for line in [*table(curves), *ratios(curves)]:
        tell(line)
    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for name, probes in curves.items():
        seconds = [probe.seconds for probe in probes]
        axes.plot(seconds, [probe.nash_conv for probe in probes], marker=".", label=name)
    axes.set(xscale="log", yscale="log", xlabel="seconds", ylabel="NashConv, antes")
    axes.set_title("Leduc poker: NashConv of the average policy")
    axes.grid(which="both", alpha=0.3)
    axes.legend()
    figure.savefig(directory / "nash_conv.png", dpi=150)
    tell(f"results in {directory}")


def check_solvers(names: Sequence[str]) -> None:
    """End at once, rather than in an hour, over a solver that is unknown or cannot run."""
    for name in names:
        if name not in NAMES:
            sys.exit(f"--solvers={name}: must be of {', '.join(NAMES)}; e.g. {OURS}")
        for module, package in (("matplotlib", "matplotlib"), *solvers.NEEDS[name]):
            if importlib.util.find_spec(module) is None:
                sys.exit(f"--solvers={name}: needs a package; pip install {package}")


def table(curves: Mapping[str, Sequence[Probe]]) -> list[str]:
    """Return a line for each solver.

    Seconds per iteration and nodes per second, decision nodes over whole iterations, are without
    compilation, as are seconds in brackets. Fewer cores used than given mean that the solver did
    not need them or that other programs had them.
    """
    heads = ["iterations", "cores used", "s/iteration", "nodes/s", "last NashConv"]
    heads += [f"s to {level:.2f}" for level in _LEVELS]
    lines = [f"{'solver':18}" + "".join(f"{head:>16}" for head in heads)]
    for name, probes in curves.items():
        last = probes[-1]
        running = last.iteration_seconds - last.compile_seconds
        cells = [
            f"{last.iteration}",
            f"{last.processor_seconds / last.seconds:.2f}",
            f"{running / last.iteration:.3g}",
            f"{last.nodes / running:,.0f}",
            f"{last.nash_conv:.3f}",
        ]
        for level in _LEVELS:
            probe = first_below(probes, level)
            cells.append(
                f"> {last.seconds:.0f}"
                if probe is None
                else f"{probe.seconds:.0f} ({probe.seconds - probe.compile_seconds:.0f})"
            )
        lines.append(f"{name:18}" + "".join(f"{cell:>16}" for cell in cells))
    return lines


def ratios(curves: Mapping[str, Sequence[Probe]]) -> list[str]:
    """Return how many times sooner this package reaches each level that it reaches."""
    lines = []
    for name, probes in curves.items():
        for level in _LEVELS:
            ours = first_below(curves.get(OURS, ()), level)
            if name == OURS or ours is None:
                continue
            theirs = first_below(probes, level)
            least = "" if theirs else "more than "
            seconds = (theirs or probes[-1]).seconds
            without = ours.seconds - ours.compile_seconds
            lines.append(
                f"NashConv {level:.2f}: {OURS} is {least}{seconds / ours.seconds:.3g} times as "
                f"fast as {name} ({seconds / without:.3g} times without its own compilation)"
            )
    return lines


def first_below(probes: Sequence[Probe], level: float) -> Probe | None:
    """Return the first probe with a NashConv of at most so much."""
    return next((probe for probe in probes if probe.nash_conv <= level), None)


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    if not any(re.match(r"--?config(=|$)", argument) for argument in sys.argv[1:]):
        sys.argv.insert(1, "--config=configs/leduc.py")
    commandline.run(main, config=True)
