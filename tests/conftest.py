"""Settings of every test: the CPU, no implicit rank promotion, full matrix precision."""

from __future__ import annotations

import gc
import os
import sys

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import hypothesis
import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_default_matmul_precision", "highest")

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
