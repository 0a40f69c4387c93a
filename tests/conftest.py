"""Settings of every test: the CPU, no implicit rank promotion, full matrix precision."""

from __future__ import annotations

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import hypothesis
import jax

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
