"""Settings of every test: the CPU, no implicit rank promotion, one cache."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import sys
import tempfile

os.environ.setdefault("JAX_PLATFORMS", "cpu")

# Most of the time is compilation, and small programs need not be fast. (At level 0 XLA's code for
# a CPU gives gradients of LayerNorm that are not finite.)
os.environ["XLA_FLAGS"] = f"--xla_backend_optimization_level=1 {os.environ.get('XLA_FLAGS', '')}"

# What one test compiled, another one or a command that it starts need not compile again. It is a
# new directory, so that no test depends on what the user ran before.
os.environ["COORL_JAX_CACHE_DIR"] = tempfile.mkdtemp(prefix="coorl_jax_tests_")

import hypothesis
import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")
_CACHE = os.environ["COORL_JAX_CACHE_DIR"]
atexit.register(shutil.rmtree, _CACHE, ignore_errors=True)
jax.config.update("jax_compilation_cache_dir", _CACHE)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)

# A new rule set compiles for seconds on its first use, which is no sign of a hanging test.
hypothesis.settings.register_profile(
    "coorl_jax",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    print_blob=True,
)
hypothesis.settings.load_profile("coorl_jax")


@pytest.fixture(scope="module", autouse=True)
def _release_programs():
    """Let go of a module's compiled programs when its tests are over.

    Every one takes a few memory maps, of which Linux grants a process 65,530; beyond that XLA dies
    of a segmentation fault while it compiles.
    """
    yield
    machine_runs = sys.modules.get("machine_runs")
    if machine_runs is not None:
        machine_runs.forget()
    jax.clear_caches()
    gc.collect()
