"""Kuhn and Leduc poker and NashConv against OpenSpiel's, history by history.

Needs the extra `openspiel`; skipped without it.
"""

from __future__ import annotations

import dataclasses
import importlib

import jax
import numpy as np
import pytest
from policies import uneven, uniform

from coorl_jax.evaluation.exploitability import as_policy_fn, nash_conv
from coorl_jax.games import tree as trees
from coorl_jax.games.game import Game
from coorl_jax.games.kuhn_poker import KuhnPoker
from coorl_jax.games.leduc_poker import LeducPoker
from coorl_jax.games.tree import Tree
from coorl_jax.networks import Network, NetworkSpec
from coorl_jax.policy import NetworkPolicy, PolicySpec

# Where the extra is missing the tests are skipped; where it is there, its parts must be, too.
pyspiel = pytest.importorskip("pyspiel")
spiel_policy = importlib.import_module("open_spiel.python.policy")
expected_game_score = importlib.import_module("open_spiel.python.algorithms.expected_game_score")
spiel_exploitability = importlib.import_module("open_spiel.python.algorithms.exploitability")

INFORMATION_STATES = {"kuhn_poker": 12, "leduc_poker": 936}


@dataclasses.dataclass(frozen=True)
class Reached:
    """The same history in OpenSpiel, and the chance nodes on the way."""

    state: pyspiel.State
    undealt: tuple[int, ...]  # cards that OpenSpiel has not turned up yet, in order
    chance: float  # the probability of those that it has

    def dealt(self):
        """Return the history after the cards that are due."""
        reached = self
        while reached.state.is_chance_node():
            card, *undealt = reached.undealt
            probability = dict(reached.state.chance_outcomes())[card]
            reached = Reached(
                reached.state.child(card), tuple(undealt), reached.chance * probability
            )
        return reached

    def after(self, action):
        return dataclasses.replace(self, state=self.state.child(action)).dealt()


@dataclasses.dataclass(frozen=True)
class Walk:
    """A game here and in OpenSpiel, walked together."""

    game: Game
    spiel: pyspiel.Game
    tree: Tree
    reached: tuple[list[Reached], ...]  # by level, as Tree.levels

    def histories(self):
        """Yield every history's level, row in it and counterpart."""
        for level, reached in zip(self.tree.levels, self.reached, strict=True):
            for row, counterpart in enumerate(reached):
                yield level, row, counterpart

    def information_states(self):
        """Return OpenSpiel's names of the tree's information states, a set for each."""
        names = [set() for _ in self.tree.packed]
        for level, row, reached in self.histories():
            if not reached.state.is_terminal():
                names[level.information_state[row]].add(reached.state.information_state_string())
        return names

    def tabular(self, probabilities):
        """Return float64[I, A] as a policy of OpenSpiel's."""
        table = spiel_policy.TabularPolicy(self.spiel)
        for (name,), row in zip(self.information_states(), probabilities, strict=True):
            table.action_probability_array[table.state_lookup[name]] = row
        return table


@pytest.fixture(scope="module", params=[KuhnPoker(), LeducPoker()], ids=lambda game: game.name)
def walk(request):
    game = request.param
    spiel = pyspiel.load_game(game.name)
    tree = trees.enumerate_game(game)
    deals = np.asarray(game.enumerate_deals()[0].cards).tolist()
    levels = [[Reached(spiel.new_initial_state(), tuple(deal), 1.0).dealt() for deal in deals]]
    for level in tree.levels[1:]:
        steps = zip(level.parent, level.action.tolist(), strict=True)
        levels.append([levels[-1][parent].after(action) for parent, action in steps])
    return Walk(game, spiel, tree, tuple(levels))


def test_every_history_is_the_same(walk):
    for level, row, reached in walk.histories():
        state = reached.state
        over = level.information_state[row] < 0
        assert state.is_terminal() == over
        if over:
            assert state.returns() == [level.returns[row], -level.returns[row]]
        else:
            assert state.current_player() == level.player[row]
            legal = np.flatnonzero(walk.tree.legal[level.information_state[row]])
            assert state.legal_actions() == legal.tolist()
    # None is missing: OpenSpiel's end in as many ways, some of them with fewer cards turned up.
    ends = {str(r.state.history()) for _, _, r in walk.histories() if r.state.is_terminal()}
    assert len(ends) == count_ends(walk.spiel.new_initial_state())


def count_ends(state):
    if state.is_terminal():
        return 1
    return sum(count_ends(state.child(action)) for action in state.legal_actions())


def test_deals_have_the_same_probabilities(walk):
    """A history here fixes all cards; in OpenSpiel only those that have been turned up."""
    for level, reached in zip(walk.tree.levels, walk.reached, strict=True):
        ours: dict[str, float] = {}
        for row, counterpart in enumerate(reached):
            name = str(counterpart.state.history())
            ours[name] = ours.get(name, 0.0) + level.chance[row]
        for counterpart in reached:
            name = str(counterpart.state.history())
            assert ours[name] == pytest.approx(counterpart.chance, abs=1e-12)


def test_information_states_are_the_same(walk):
    names = walk.information_states()
    assert {len(name) for name in names} == {1}
    assert len(set.union(*names)) == len(names) == INFORMATION_STATES[walk.game.name]
    assert set.union(*names) == {*spiel_policy.TabularPolicy(walk.spiel).state_lookup}


def network_policy(kind):
    def policy(game):
        network = Network(game, NetworkSpec("mlp", 16, 2, False, False))
        params = (network.init(jax.random.key(3)),)
        return as_policy_fn(NetworkPolicy(network, PolicySpec(kind), params))

    return policy


@pytest.mark.parametrize(
    "policy_of",
    [
        pytest.param(lambda game: uniform, id="uniform"),
        pytest.param(lambda game: uneven, id="uneven"),
        pytest.param(network_policy("advantage"), id="advantage_network"),
        pytest.param(network_policy("strategy"), id="strategy_network"),
    ],
)
def test_nash_conv_is_the_same(walk, policy_of):
    policy = trees.evaluate_policy(walk.tree, policy_of(walk.game))
    policy /= policy.sum(axis=1, keepdims=True)  # A network's, in float32, are nearly so.
    found = nash_conv(walk.tree, lambda packed, legal: policy)
    table = walk.tabular(policy)
    expected = spiel_exploitability.nash_conv(walk.spiel, table)
    assert found.nash_conv == pytest.approx(expected, abs=1e-6)
    assert found.exploitability == pytest.approx(
        spiel_exploitability.exploitability(walk.spiel, table), abs=1e-6
    )
    for player in (0, 1):
        response = spiel_exploitability.best_response(walk.spiel, table, player)
        assert found.best_response[player] == pytest.approx(
            response["best_response_value"], abs=1e-6
        )
    root = walk.spiel.new_initial_state()
    value = expected_game_score.policy_value(root, [table, table])
    assert [found.value, -found.value] == pytest.approx(value, abs=1e-6)
