"""What the commands that look at a trained agent have in common."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

from configs import kuhn
from coorl_jax import config, evaluate, variance
from coorl_jax.checkpoint import CheckpointStore


@pytest.mark.parametrize("load", [evaluate.load, variance.load], ids=["evaluate", "variance"])
def test_policies_of_another_version_are_told_from_damaged_ones(load, tmp_path):
    values = config.to_dict(config.from_config_dict(kuhn.get_config()))
    del values["traversal"]["alternating"]
    with CheckpointStore(tmp_path / "policies") as store:
        store.save(1, {"current": (jnp.zeros(2),)}, {"config": values})
    with pytest.raises(ValueError, match=r"traversal\.alternating: missing") as error:
        load(tmp_path)
    assert str(error.value).startswith(
        f"--checkpoint={tmp_path}: was written by another version of coorl_jax"
    )
