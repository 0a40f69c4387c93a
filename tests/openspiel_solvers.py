"""Deep CFR on Leduc poker by this package and by OpenSpiel, measured in the same way.

For `openspiel_comparison.py`. OpenSpiel's solvers are driven one iteration at a time by their own
methods, in the order of their `solve`. What differs from it:

* Decision nodes are counted.
* Their average policy, which `solve` fits once at the end, is fitted anew for every probe.
* The jax solver fits it for `policy_network_train_steps`; OpenSpiel 2.0.2 reads the number of steps
  of the advantage network there.
* Probabilities are divided by their sum over the legal actions: the PyTorch solver's network gives
  illegal ones their share too, and without them it would be no policy.
"""

from __future__ import annotations

import importlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from coorl_jax.config import Settings, to_dict
from coorl_jax.progress import tell

OURS = "coorl_jax"
# The solvers' names, with the modules that each needs and the packages that have them.
NEEDS = {
    OURS: (),
    "openspiel_pytorch": (("pyspiel", "open_spiel"), ("torch", "torch"), ("tree", "dm-tree")),
    "openspiel_jax": (("pyspiel", "open_spiel"),),
}
NAMES = tuple(NEEDS)

# "Recommended parameters" of open_spiel/python/examples/deep_cfr_pytorch.py and deep_cfr_jax.py
# (2.0.2), from github.com/aicenter/openspiel_reproductions.
RECOMMENDED = {
    "num_traversals": 1500,
    "batch_size_advantage": 2048,
    "batch_size_strategy": 2048,
    "policy_network_layers": (64, 64, 64),
    "advantage_network_layers": (64, 64, 64),
    "reinitialize_advantage_networks": True,
    "learning_rate": 1e-3,
    "memory_capacity": 1_000_000,
    "policy_network_train_steps": 5000,
    "advantage_network_train_steps": 750,
}


class Probe(NamedTuple):
    """What a solver has reached after some iterations; times without evaluation."""

    iteration: int
    iteration_seconds: float  # all iterations so far
    policy_seconds: float  # fitting the average policy once, where the iterations do not
    compile_seconds: float  # the part of both that went into compilation
    processor_seconds: float  # of both, over all cores: few if other programs had them
    nodes: int  # decision nodes of all traversals so far
    nash_conv: float  # of the average policy, in antes

    @property
    def seconds(self) -> float:
        """From nothing to this policy."""
        return self.iteration_seconds + self.policy_seconds


class Solver(Protocol):
    """A solver of Leduc poker."""

    nodes: int

    def iterate(self) -> None:
        """Traverse for both players and fit the advantage networks."""
        ...

    def fit_policy(self) -> None:
        """Fit the network of the average policy, unless iterations do."""
        ...

    def nash_conv(self) -> float:
        """Return the NashConv of the average policy."""
        ...


def run(
    name: str, settings: Settings, minutes: float, threads: int, ratio: float, file: Path
) -> None:
    """Run a solver in this process, which it should have to itself, and write its probes.

    Args:
      name: one of `NAMES`.
      settings: of this package's run; OpenSpiel's solvers take the seed only.
      minutes: of iterations; the probes come on top.
      threads: processor cores to use.
      ratio: a probe comes when there are so many times the iterations of the last one.
      file: JSON lines, replaced: what was run, then a probe a line.
    """
    # Before the libraries start: they take as many threads as they find cores.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    os.environ["COORL_JAX_CACHE_DIR"] = "off"  # Compilation is part of what is measured.
    framework = name.removeprefix("openspiel_")
    solver = Ours(settings) if name == OURS else openspiel_solver(framework, settings.seed)
    with file.open("w", encoding="utf-8") as lines:
        used = to_dict(settings) if name == OURS else {**RECOMMENDED, "seed": settings.seed}
        lines.write(json.dumps({"solver": name, "threads": threads, "settings": used}) + "\n")
        lines.flush()
        for probe in probes(solver, 60 * minutes, ratio):
            lines.write(json.dumps(probe._asdict()) + "\n")
            lines.flush()
            tell(
                f"{name}: iteration {probe.iteration}, {probe.iteration_seconds:.0f} s "
                f"+ {probe.policy_seconds:.0f} s, NashConv {probe.nash_conv:.3f}"
            )


def read(file: Path) -> tuple[str, list[Probe]]:
    """Return the solver's name and the probes that `run` wrote."""
    head, *lines = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    return head["solver"], [Probe(**line) for line in lines]


def probes(solver: Solver, limit: float, ratio: float) -> Iterator[Probe]:
    """Iterate for so many seconds, and probe the policy now and then and at the end."""
    from coorl_jax.runtime import CompileCounter

    seconds = compiling = processor = 0.0
    iteration = probed = 0
    with CompileCounter() as compilations:
        while seconds < limit:
            started, used = time.perf_counter(), time.process_time()
            solver.iterate()
            seconds += time.perf_counter() - started
            processor += time.process_time() - used
            compiling += compilations.take()["compile_seconds"]
            iteration += 1
            if iteration < ratio * probed and seconds < limit:
                continue
            probed = iteration
            started, used = time.perf_counter(), time.process_time()
            solver.fit_policy()
            fitting = time.perf_counter() - started
            fitting_processor = time.process_time() - used
            compiled = compiling + compilations.take()["compile_seconds"]
            nash_conv = solver.nash_conv()
            compilations.take()
            yield Probe(
                iteration=iteration,
                iteration_seconds=seconds,
                policy_seconds=fitting,
                compile_seconds=compiled,
                processor_seconds=processor + fitting_processor,
                nodes=solver.nodes,
                nash_conv=nash_conv,
            )


class Ours:
    """This package's trainer, which fits the average policy in its iterations."""

    def __init__(self, settings: Settings) -> None:
        from coorl_jax import runtime
        from coorl_jax.cfr.iteration import STAGES, Trainer

        runtime.configure()
        self._stages = STAGES
        self._trainer = Trainer(settings)
        self._state: Any = None
        self.nodes = 0

    def iterate(self) -> None:
        if self._state is None:  # Here, since it compiles.
            self._state = self._trainer.init()
        for _ in self._stages:
            self._state, metrics = self._trainer.run_stage(self._state)
            self.nodes += int(metrics.get("traversal/nodes", 0))

    def fit_policy(self) -> None:
        pass

    def nash_conv(self) -> float:
        from coorl_jax.evaluation import suite

        average = self._trainer.policies(self._state)["average"]
        return suite.nash_convs(self._trainer.game, {"average": average})["average"]


def openspiel_solver(framework: str, seed: int) -> Solver:
    """Return OpenSpiel's solver for "pytorch" or "jax", with the recommended settings."""
    import numpy as np
    import pyspiel
    from open_spiel.python.algorithms import exploitability
    from open_spiel.python.policy import tabular_policy_from_callable

    module = importlib.import_module(f"open_spiel.python.{framework}.deep_cfr")

    class Driven(module.DeepCFRSolver):
        nodes = 0

        def iterate(self) -> None:
            for player in range(self._num_players):
                for _ in range(self._num_traversals):
                    self._traverse_game_tree(self._root_node, player)
                self._reinitialize_advantage_network(player)
                self._learned(self._learn_advantage_network(player))
            self._iteration += 1

        def fit_policy(self) -> None:
            self._reinitialize_policy_network()
            if framework == "pytorch":
                self._learned(self._learn_strategy_network())
                return
            self._cached_policy.clear()
            steps = self._advantage_network_train_steps
            self._advantage_network_train_steps = self._policy_network_train_steps
            self._learned(self._learn_strategy_network())
            self._advantage_network_train_steps = steps

        def nash_conv(self) -> float:
            table = tabular_policy_from_callable(self._game, self.action_probabilities)
            probabilities = table.action_probability_array
            probabilities /= probabilities.sum(axis=1, keepdims=True)
            return float(exploitability.nash_conv(self._game, table))

        def _sample_action_from_advantage(self, state: Any, player: int) -> Any:
            """Count: the solver comes here once for each decision node."""
            self.nodes += 1
            return super()._sample_action_from_advantage(state, player)

        def _learned(self, loss: Any) -> None:
            """Wait for a fit to end; with fewer samples than a batch there is none."""
            if loss is None:
                raise RuntimeError("OpenSpiel's solver skipped a fit: too few samples for a batch")
            float(loss)

    np.random.seed(seed)  # Its traversals draw from here, whatever the framework.
    return Driven(pyspiel.load_game("leduc_poker"), seed=seed, **RECOMMENDED)
