"""Which evaluation is held when, against whom, under which names, and on which decks."""

from __future__ import annotations

import collections
import json

import jax
import pytest
import tiny_trainer
import trainers

from configs import default
from coorl_jax import agents, config, training
from coorl_jax.cfr import iteration as iteration_lib
from coorl_jax.evaluation.schedule import Schedule
from coorl_jax.games.lost_cities import LostCities
from coorl_jax.policy import make_network

POLICIES = ("current", "average")


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch):
    monkeypatch.setenv("COORL_JAX_CACHE_DIR", "off")


def lost_cities_settings(**overrides):
    evaluations = {
        "evaluation.every": 0,
        "evaluation.opponents": ("random",),
        "light_evaluation.every": 0,
        "light_evaluation.opponents": ("random",),
        "gate.policy": "none",
    }
    return trainers.lost_cities_settings(**evaluations | overrides)


@pytest.mark.parametrize(
    ("full", "light", "due"),
    [
        (4, 2, ["full", "light", None, "full", None, "light", None, "full", "full"]),
        (4, 0, ["full", None, None, "full", None, None, None, "full", "full"]),
        (0, 4, ["light", None, None, "light", None, None, None, "light", "light"]),
        (0, 0, [None] * 9),
        (1, 1, ["full"] * 9),
    ],
)
def test_full_and_light_take_turns(full, light, due):
    settings = lost_cities_settings(
        **{"iterations": 9, "evaluation.every": full, "light_evaluation.every": light}
    )
    schedule = Schedule(settings, make_network(settings).game)
    assert [schedule.due(iteration) for iteration in range(1, 10)] == due


@pytest.mark.parametrize("preset", ["smoke", "cpu", "gpu", "large", "deep_cfr", "predecessor"])
def test_opponents_of_presets_play_the_game(preset):
    settings = config.from_config_dict(default.get_config(preset))
    schedule = Schedule(settings, LostCities())
    met = (settings.evaluation.opponents, settings.light_evaluation.opponents)
    assert schedule.due(1) == "full"
    assert {*met[0], *met[1]} <= set(agents.names(LostCities()))


@pytest.mark.parametrize("preset", ["cpu", "deep_cfr", "predecessor"])
def test_full_evaluation_meets_everyone(preset):
    settings = config.from_config_dict(default.get_config(preset))
    assert settings.evaluation.opponents == agents.names(LostCities())


@pytest.mark.parametrize("section", ["evaluation", "light_evaluation"])
def test_opponents_are_checked_at_once(section):
    def refused(*opponents):
        settings = lost_cities_settings(**{f"{section}.opponents": opponents})
        with pytest.raises(ValueError, match=rf"^config\.{section}\.opponents") as error:
            Schedule(settings, LostCities())
        return str(error.value)

    assert "opponent 'gandalf': must be one of random, " in refused("random", "gandalf")
    assert "=('discard_only', 'passive_discard'): must be different players" in refused(
        "discard_only", "passive_discard"
    )


def test_each_has_its_opponents_policies_pairs_and_diagnostics():
    settings = lost_cities_settings(
        **{
            "evaluation.pairs": 8,
            "evaluation.opponents": ("random", "passive_discard"),
            "evaluation.policies": ("average",),
            "evaluation.diagnostics": "full",
            "light_evaluation.pairs": 5,
            "light_evaluation.policies": POLICIES,
            "light_evaluation.diagnostics": "light",
        }
    )
    game = make_network(settings).game
    policies = dict.fromkeys(POLICIES, agents.make("random", game))
    schedule = Schedule(settings, game)
    full, light = (schedule.evaluate(name, policies) for name in ("full", "light"))

    def played(metrics):
        return {tuple(name.split("/")[1:3]) for name in metrics}

    # Under the name of today, whatever it was given as.
    assert played(full) == {("random", "average"), ("discard_only", "average")}
    assert played(light) == {("random", "current"), ("random", "average")}
    assert full["eval/random/average/rounds"] == 16
    assert light["eval/random/average/rounds"] == 10
    assert full["eval/random/average/elapsed_seconds"] > 0
    assert "eval/discard_only/average/opened_colors" in full
    assert "eval/random/average/opened_colors" not in light
    assert not [name for name in full if "nash_conv" in name]
    # The light deals are the first of the full ones.
    alone = Schedule(config.override(settings, {"evaluation.pairs": 5}), game)
    name = "eval/random/average/points_per_round"
    assert alone.evaluate("full", policies)[name] == light[name]


def test_metrics_have_the_evaluation_that_was_due(monkeypatch, tmp_path):
    monkeypatch.setattr(iteration_lib, "Trainer", tiny_trainer.TinyTrainer)
    monkeypatch.setattr(tiny_trainer, "STAGE_SECONDS", 0.0)
    settings = trainers.kuhn_settings(
        **{
            "iterations": 5,
            "evaluation.every": 3,
            "evaluation.policies": ("average",),
            "evaluation.nash_conv": False,
            "light_evaluation.every": 2,
            "light_evaluation.pairs": 4,
            "light_evaluation.policies": ("current",),
        }
    )
    path = training.train(settings, tmp_path / "run")
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    met = [{name.split("/")[2] for name in line if name.startswith("eval/")} for line in lines]
    assert met == [{"average"}, {"current"}, {"average"}, {"current"}, {"average"}]


def test_no_deck_of_training_is_met_again(monkeypatch, tmp_path):
    """Decks of 18 cards, which are never the same by chance, of a real run."""
    decks, stage = collections.defaultdict(list), [""]
    init, turn = LostCities.init, training.Training._turn

    def recording_init(self, key):
        state = init(self, key)
        jax.debug.callback(lambda deck: decks[stage[0]].append(tuple(deck.tolist())), state.deck)
        return state

    def noted_turn(self, name, iteration, work):
        stage[0] = f"{name} {iteration}"
        turn(self, name, iteration, work)
        jax.effects_barrier()

    monkeypatch.setattr(LostCities, "init", recording_init)
    monkeypatch.setattr(training.Training, "_turn", noted_turn)
    rules = {"colors": 3, "ranks": 5, "wagers": 1, "hand_size": 4, "max_discard_draws": 2}
    settings = lost_cities_settings(
        **{f"game.{name}": value for name, value in rules.items()},
        **{"iterations": 3, "evaluation.every": 2, "evaluation.policies": ("average",)},
        **{"evaluation.pairs": 16, "light_evaluation.every": 0, "gate.policy": "average"},
        **{"gate.pairs": 100, "network.kind": "mlp", "checkpoint.every": 100},
    )
    training.train(settings, tmp_path / "run")

    def of(stage, *iterations):
        return [{*decks[f"{stage} {iteration}"]} for iteration in iterations]

    trained, evaluated = of("traverse", 1, 2, 3), of("evaluate", 1, 2, 3)
    tested = of("test against the best", 2, 3)
    # Each iteration trains and tests on decks of its own; all are evaluated on the same.
    assert [len(each) for each in trained] == [32, 32, 32]
    assert [len(each) for each in evaluated] == [16, 16, 16]
    assert [len(each) >= 100 for each in tested] == [True, True]
    assert len(set.union(*evaluated)) == 16
    apart = [*trained, evaluated[0], *tested]
    assert len(set.union(*apart)) == sum(map(len, apart))
