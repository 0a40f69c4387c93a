"""The agent that the package ships."""

from pathlib import Path

import pytest

from coorl_jax import agents, checkpoint, trained_agent
from coorl_jax.checkpoint import PRETRAINED
from coorl_jax.evaluation import suite
from coorl_jax.games.lost_cities import LostCities
from coorl_jax.policy import NetworkPolicy

LARGEST = 4_000_000  # bytes
PATH = Path(checkpoint.__file__).parent / "pretrained"
BOTS = ("random", "heuristic_balanced", "heuristic_aggressive", "heuristic_cautious")


@pytest.fixture(scope="module")
def agent():
    return trained_agent.load(PRETRAINED)


def test_it_plays_the_classic_game(agent):
    assert agent.game == LostCities()
    assert {"current", "average"} <= set(agent.policies)


def test_it_is_a_player_by_its_name():
    _, players = trained_agent.players(
        ["pretrained", "pretrained:current:greedy", "random"], "--players"
    )
    greedy = players["pretrained:current:greedy"]
    assert isinstance(greedy, NetworkPolicy)
    assert (greedy.spec.kind, greedy.temperature) == ("advantage", 0.0)


def test_it_beats_bots_that_know_the_game(agent):
    bots = {name: agents.make(name, agent.game) for name in BOTS}
    rows = suite.evaluate(agent.game, {"current": agent.policies["current"]}, bots, 500, seed=3)
    for row in rows:
        assert row["win_rate"] > 0.85, row
        assert row["points_per_round"] > 30, row


def test_it_is_small_and_names_no_directory():
    files = [file for file in PATH.glob("*/**/*") if file.is_file()]
    contents = [file.read_bytes() for file in files]
    assert 0 < sum(map(len, contents)) <= LARGEST
    assert not [
        file for file, content in zip(files, contents, strict=True) if b"/policies" in content
    ]
    assert (PATH / "README.md").exists()
