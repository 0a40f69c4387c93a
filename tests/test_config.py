"""Settings: what is accepted, and the sentence that refuses everything else."""

from __future__ import annotations

import dataclasses
import json

import pytest

from configs import default, kuhn, leduc
from coorl_jax import config

PRESETS = ("smoke", "cpu", "gpu", "large", "deep_cfr", "ppo", "exploit", "predecessor")


def settings(preset: str = "deep_cfr") -> config.Settings:
    return config.from_config_dict(default.get_config(preset))


def with_value(field: str, value: object) -> dict:
    values = config.to_dict(settings())
    section, _, name = field.rpartition(".")
    (values[section] if section else values)[name] = value
    return values


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_valid_and_recorded(preset):
    assert settings(preset).preset == preset


@pytest.mark.parametrize(("file", "game"), [(kuhn, "kuhn_poker"), (leduc, "leduc_poker")])
def test_poker_is_valid(file, game):
    made = config.from_config_dict(file.get_config())
    assert made.game == config.GameSettings(game, ())


def test_bare_default_chooses_by_device():
    assert config.from_config_dict(default.get_config()).preset == "cpu"


def test_predecessor_has_the_predecessors_workload():
    made = settings("predecessor")
    network, memory = made.network, made.memory
    assert (network.kind, network.width, network.depth) == ("mlp", 512, 3)
    assert (network.layer_norm, network.residual) == (False, False)
    assert (made.traversal.scheme, made.traversal.traversals) == ("outcome", 280)
    assert memory.advantage_capacity == memory.strategy_capacity == 2_000_000
    for fit in (made.advantage, made.strategy):
        assert (fit.updates, fit.batch_size, fit.weighting) == (512, 1024, "linear")


@pytest.mark.parametrize("preset", PRESETS)
def test_survives_json(preset):
    made = settings(preset)
    assert config.from_dict(json.loads(json.dumps(config.to_dict(made)))) == made


def test_is_hashable_and_frozen():
    made = settings()
    assert hash(made) == hash(settings())
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.seed = 1


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("traversal.lanes", 0, "must be an integer from 1 to 16777216, in digits; e.g. 4096"),
        ("traversal.lanes", 1e6, "must be an integer from 1"),
        ("traversal.lanes", True, "must be an integer from 1"),
        ("memory.advantage_capacity", -5, "must be an integer from 1"),
        ("memory.strategy_capacity", 2**31, "must be an integer from 1"),
        ("memory.target_dtype", "int8", "must be one of bfloat16, float16, float32"),
        ("seed", -1, "must be an integer from 0"),
        ("evaluation.every", -1, "must be an integer from 0"),
        ("traversal.exploration", 1.5, "must be a number from 0 to 1; e.g. 0.1"),
        ("traversal.exploration", float("nan"), "must be a number from 0 to 1"),
        ("advantage.learning_rate", 0.0, "must be a finite number above 0"),
        ("advantage.learning_rate", float("inf"), "must be a finite number above 0"),
        ("utility_scale", "fifty", "must be a finite number above 0; e.g. 50"),
        ("network.kind", "transformer", "must be one of cards, mlp"),
        ("network.residual", 1, "must be one of True, False"),
        ("precision.fit", "float16", "must be one of float32, tf32, bfloat16; e.g. float32"),
        ("name", "a/b", "must be a word"),
        ("name", "", "must be a word"),
        ("evaluation.opponents", (), "must be a non-empty tuple"),
        ("evaluation.opponents", ("random", "random"), "must be a non-empty tuple of different"),
        ("evaluation.opponents", "random", "must be a tuple of names"),
        ("evaluation.policies", ("best",), "must be one of current, average, mixture"),
        ("evaluation.diagnostics", "some", "must be one of full, light"),
        ("light_evaluation.every", -1, "must be an integer from 0"),
        ("light_evaluation.pairs", 1, "must be an integer from 2"),
        ("gate.policy", None, "must be one of current, average, mixture, none"),
        ("gate.pairs", 99, "must be an integer from 100 to 16777216, in digits; e.g. 500"),
        ("gate.significance", 0.0, "must be a number from 1e-06 to 0.5; e.g. 0.05"),
        ("advantage.weighting", "quadratic", "must be one of uniform, linear, discounted"),
        ("strategy.discount", -1.0, "must be a number from 0 to 100; e.g. 2.0"),
        ("advantage.cumulative", "ring", "must be one of reservoir, bootstrapped"),
        ("advantage.min_step", 1.5, "must be a number from 0 to 1; e.g. 0.1"),
        ("mixture.capacity", -1, "must be an integer from 0"),
        (
            "traversal.scheme",
            "escher",
            "must be one of branch, outcome, external, robust, baseline, critic",
        ),
        ("traversal.alternating", 1, "must be one of True, False"),
        ("traversal.branching_actions", 0, "must be an integer from 1"),
        ("memory.value_capacity", 0, "must be an integer from 1"),
        ("strategy.decay_iterations", -1, "must be an integer from 0"),
        ("strategy.annealed", 0, "must be one of True, False"),
        ("value.start", "cold", "must be one of scratch, warm"),
        ("value.trace_decay", 1.5, "must be a number from 0 to 1; e.g. 0.9"),
        ("game.name", 3, "must be a word"),
        ("game.colors", [5], "must be a number or a word"),
        ("network", 3, "must be a section"),
    ],
)
def test_refuses_bad_values(field, value, rule):
    with pytest.raises(config.ConfigError) as error:
        config.from_dict(with_value(field, value))
    assert f"config.{field}={value!r}: {rule}" in str(error.value)


@pytest.mark.parametrize("scheme", ["outcome", "baseline", "external", "robust"])
def test_sampling_what_the_policy_does_not_play_needs_exploration(scheme):
    values = with_value("traversal.scheme", scheme)
    values["traversal"]["exploration"] = 0.0
    with pytest.raises(config.ConfigError) as error:
        config.from_dict(values)
    sentence = f"config.traversal.exploration=0.0: must be above 0 with scheme {scheme}, "
    assert str(error.value).startswith(sentence)


def test_a_critic_does_not_need_exploration():
    both = {"traversal.scheme": "critic", "traversal.exploration": 0.0}
    assert config.override(settings(), both).traversal.exploration == 0.0


def test_turns_with_bootstrapped_advantages_need_a_network_per_player():
    values = {
        "traversal.alternating": True,
        "advantage.cumulative": "bootstrapped",
        "advantage.start": "warm",
    }
    with pytest.raises(config.ConfigError, match=r"network\.per_player=False: must be True with"):
        config.override(settings(), values)
    # Either goes with a shared network, and both with one for each player.
    config.override(settings(), {"traversal.alternating": True})
    config.override(settings(), values | {"traversal.alternating": False})
    config.override(settings(), values | {"network.per_player": True})


def test_bootstrapped_advantages_need_a_warm_start():
    with pytest.raises(config.ConfigError, match=r"advantage.start='scratch': must be warm"):
        config.from_dict(with_value("advantage.cumulative", "bootstrapped"))
    both = {"advantage.cumulative": "bootstrapped", "advantage.start": "warm"}
    assert config.override(settings(), both).advantage.cumulative == "bootstrapped"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("evaluation.policies", ("average", "mixture")),
        ("light_evaluation.policies", ("mixture",)),
        ("gate.policy", "mixture"),
    ],
)
def test_a_mixture_that_plays_has_to_be_kept(field, value):
    with pytest.raises(config.ConfigError) as error:
        config.from_dict(with_value(field, value))
    assert str(error.value) == (
        f"config.mixture.capacity=0: must be at least 1 where config.{field} has mixture; e.g. 1000"
    )
    both = {field: value, "mixture.capacity": 3, "gate.pairs": 1000}
    assert config.override(settings(), both).mixture.capacity == 3


def test_a_mixture_is_tested_on_many_deals():
    values = {"gate.policy": "mixture", "mixture.capacity": 3, "gate.pairs": 999}
    with pytest.raises(config.ConfigError) as error:
        config.override(settings(), values)
    assert str(error.value) == (
        "config.gate.pairs=999: must be at least 1000 with policy mixture, of which 16 pairs share "
        "a draw; e.g. 1000"
    )


@pytest.mark.parametrize(
    ("every", "due"), [(3, [1, 3, 6, 7, 8]), (1, range(1, 9)), (100, [1, 7, 8]), (0, [])]
)
def test_what_is_done_every_so_often_is_also_done_at_first_and_at_last(every, due):
    made = config.override(settings(), {"iterations": 7})
    assert [i for i in range(1, 9) if made.is_due(every, i)] == [*due]


@pytest.mark.parametrize(
    ("weighting", "exponent"), [("uniform", 0.0), ("linear", 1.0), ("discounted", 2.5)]
)
def test_weightings_are_powers_of_the_iteration(weighting, exponent):
    both = {"strategy.weighting": weighting, "strategy.discount": 2.5}
    assert config.override(settings(), both).strategy.exponent == exponent


def test_unknown_fields_are_named_with_the_closest_known_one():
    with pytest.raises(
        config.ConfigError, match=r"lane=3: .*did you mean config.traversal.lanes\?"
    ):
        config.from_dict(with_value("traversal.lane", 3))
    with pytest.raises(config.ConfigError, match=r"config.lanes: .* config.traversal.lanes\?"):
        config.check_field("lanes")
    with pytest.raises(config.ConfigError, match=r"config.network: .* config.network.kind\?"):
        config.check_field("network")
    config.check_field("network.width")
    config.check_field("game.any_rule")


def test_missing_fields_are_named():
    values = config.to_dict(settings())
    del values["memory"]["target_dtype"]
    with pytest.raises(config.ConfigError, match=r"config\.memory\.target_dtype: missing"):
        config.from_dict(values)
    del values["memory"]
    with pytest.raises(config.ConfigError, match=r"config\.memory: missing"):
        config.from_dict(values)


def test_integers_serve_as_reals_and_lists_and_commas_as_tuples():
    assert config.from_dict(with_value("utility_scale", 20)).utility_scale == 20.0
    for value in (["random", "discard_only"], ("random, discard_only",)):
        made = config.from_dict(with_value("evaluation.opponents", value))
        assert made.evaluation.opponents == ("random", "discard_only")


def test_override_changes_fields_of_any_level():
    made = config.override(settings(), {"seed": 3, "traversal.lanes": 7, "game.colors": 3})
    assert (made.seed, made.traversal.lanes, dict(made.game.rules)["colors"]) == (3, 7, 3)
    with pytest.raises(config.ConfigError, match=r"config\.traversal\.lanes=0"):
        config.override(settings(), {"traversal.lanes": 0})


def test_differences_name_fields_with_both_values():
    saved = settings()
    assert config.differences(saved, saved) == {}
    new = config.override(saved, {"iterations": 7, "network.width": 128, "game.colors": 4})
    assert config.differences(saved, new) == {
        "iterations": (200, 7),
        "network.width": (64, 128),
        "game.colors": (5, 4),
    }
    kuhn_settings = config.from_config_dict(kuhn.get_config())
    assert config.differences(saved, kuhn_settings)["game.colors"] == (5, None)


@pytest.mark.parametrize(
    ("field", "allowed"),
    [
        ("iterations", True),
        ("evaluation.pairs", True),
        ("light_evaluation.every", True),
        ("gate.policy", True),
        ("checkpoint.keep", True),
        ("log.tensorboard", True),
        ("precision.evaluation", True),
        ("name", True),
        ("preset", True),
        ("seed", False),
        ("game.name", False),
        ("traversal.lanes", False),
        ("precision.traversal", False),
        ("precision.fit", False),
        ("strategy.every", False),
        ("mixture.capacity", False),
        ("traversal.alternating", False),
        ("value.updates", False),
    ],
)
def test_what_may_change_on_resume(field, allowed):
    assert config.may_change(field) is allowed
