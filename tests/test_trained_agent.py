"""What the commands that look at a trained agent have in common."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import kuhn, mini_lost_cities
from coorl_jax import config, trained_agent, variance
from coorl_jax.agents.search import SearchPolicy
from coorl_jax.checkpoint import CheckpointStore
from coorl_jax.evaluation.match import play
from coorl_jax.games.kuhn_poker import KuhnPoker
from coorl_jax.games.lost_cities import LostCities
from coorl_jax.policy import PolicySpec, make_network


@pytest.mark.parametrize(
    "load", [trained_agent.load, variance.load], ids=["trained_agent", "variance"]
)
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


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run on Kuhn poker with policies after iterations 1 and 2, and the first of them as best."""
    path = tmp_path_factory.mktemp("run")
    settings = config.from_config_dict(kuhn.get_config())
    init = make_network(settings).init
    for name, iterations in (("policies", (1, 2)), ("best", (1,))):
        with CheckpointStore(path / name) as store:
            for iteration in iterations:
                params = (init(jax.random.key(iteration)),) * 2
                store.save(
                    iteration,
                    {"current": params, "average": params},
                    {"config": config.to_dict(settings)},
                )
    return path


def test_a_player_is_a_path_with_options(run):
    specs = [
        "random",
        f"{run}",
        f"{run}:current:greedy",
        f"{run}/policies/1:average:temperature=0.5",
        f"{run}/best",
    ]
    game, players = trained_agent.players(specs, "--players")
    assert game == KuhnPoker()
    assert list(players) == specs
    _, latest, greedy, first, best = players.values()
    assert latest.spec == PolicySpec("strategy")
    assert latest.temperature == 1.0
    assert (greedy.spec.kind, greedy.temperature) == ("advantage", 0.0)
    assert first.temperature == 0.5
    for one, other, same in ((latest, first, False), (first, best, True), (latest, greedy, True)):
        leaves = zip(*(jax.tree.leaves(policy.params) for policy in (one, other)), strict=True)
        assert all(np.array_equal(a, b) for a, b in leaves) == same


def save_run(path, settings, *names):
    """Save what a run saves for play, with policies of these names, after its first iteration."""
    params = (make_network(settings).init(jax.random.key(0)),)
    trees = dict.fromkeys(("current", "average"), params)
    if "mixture" in names:
        members = jax.tree.map(lambda leaf: leaf[None], params)
        trees["mixture"] = {"params": members, "weights": jnp.ones(1)}
    with CheckpointStore(path / "policies") as store:
        store.save(1, trees, {"config": config.to_dict(settings)})
    return path


def test_a_player_may_search(tmp_path):
    settings = config.from_config_dict(mini_lost_cities.get_config())
    run = save_run(tmp_path, settings, "mixture")
    spec = f"{run}:search=3:current:greedy"
    game, players = trained_agent.players([spec, f"{run}:search=2"], "--players")
    searching = players[spec]
    assert isinstance(searching, SearchPolicy)
    assert (searching.game, searching.samples) == (game, 3)
    assert searching.policy.spec.kind == "advantage"
    assert searching.policy.temperature == 0.0
    result = play(game, *players.values(), 2, jax.random.key(0))
    assert (result.decisions >= 2).all()
    with pytest.raises(ValueError, match=r"^[^\n]*:search=8: search: must be with a single policy"):
        trained_agent.players([f"{run}:mixture:search=8"], "--players")


def test_players_without_a_trained_one_play_classic_lost_cities():
    game, players = trained_agent.players(["safe_heuristic", "random"], "--players")
    assert game == LostCities()
    assert list(players) == ["safe_heuristic", "random"]


@pytest.mark.parametrize(
    ("specs", "sentence"),
    [
        ([], "--players=: must be players by name; e.g. heuristic_cautious"),
        (["random", "random"], "--players=random,random: must be different players"),
        (["bob"], "--players=bob: must be a bot (random, discard_only, "),
        (["{run}:best"], ":best: 'best' must be one of current, average, mixture, greedy or"),
        (["{run}:temperature=x"], "'temperature=x' must be one of"),
        (["{run}:temperature=nan"], "'temperature=nan' must be one of"),
        ([":average"], "--players=:average: must be a bot (random, "),
        (["{run}:greedy:temperature=5"], "must have one policy and one temperature at most"),
        (["{run}:search=x"], ":search=x: 'search=x' must be search=K with an integer K from 2 to"),
        (["{run}:search=0"], "'search=0' must be search=K with an integer K from 2 to 1024; e.g. "),
        (["{run}:search=1025"], "'search=1025' must be search=K"),
        (["{run}:search=+8"], "'search=+8' must be search=K"),
        (["{run}:search="], "'search=' must be search=K"),
        (["{run}:search"], "'search' must be one of current, average, mixture, greedy or"),
        (["{run}:search=2:search=4"], "must have one policy and one temperature at most, and one"),
        (["{run}:search=8"], "{run}:search=8: search: must be in a game that can deal again"),
        (["safe_heuristic", "heuristic_balanced"], "must be different players; e.g. "),
        (["{run}:mixture"], "must have a policy among current, average; e.g. "),
        (["{run}/policies"], "must be a run directory or one of its policies"),
        (["{run}/policies/7"], "--players={run}/policies/7: must be a bot ("),
        (["{run}", "discard_only"], "--players: opponent 'discard_only': plays lost_cities only"),
    ],
)
def test_mistaken_players_are_one_sentence(run, specs, sentence):
    with pytest.raises(ValueError, match=r"^[^\n]+$") as error:
        trained_agent.players([spec.format(run=run) for spec in specs], "--players")
    assert sentence.format(run=run) in str(error.value)


def test_players_of_different_rules_are_refused(run):
    with pytest.raises(ValueError, match="must play the same game by the same rules"):
        trained_agent.players([f"{run}"], "--players", LostCities())
