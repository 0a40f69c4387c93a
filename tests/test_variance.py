import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver

from configs import default, kuhn
from coorl_jax import config, runtime, variance
from coorl_jax.cfr.machine import Critic as ValueCritic
from coorl_jax.cfr.sampling import Baseline, External, Outcome
from coorl_jax.checkpoint import CheckpointStore
from coorl_jax.evaluation.resumed import THIRDS, Decisions, ResumedLostCities, collect
from coorl_jax.games.lost_cities import LostCities
from coorl_jax.networks import Network, NetworkSpec, ValueNetwork
from coorl_jax.policy import NetworkPolicy, PolicySpec, make_network, make_value_network

# Nine cards in the deck, few enough ways to play on from two left to write them all out.
GAME = LostCities(colors=2, ranks=5, wagers=1, hand_size=2, max_discard_draws=2)
NETWORK = NetworkSpec("mlp", width=8, depth=1)
SCALE = 4.0
COUNT = 1000  # samples of each decision


@pytest.fixture(scope="module", autouse=True)
def _quick_compilation():
    """Unoptimised code compiles much faster, and there is little to run."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def new_policy(game):
    network = Network(game, NETWORK)
    params = (network.init(jax.random.key(1)),)
    return NetworkPolicy(network, PolicySpec("advantage", "uniform"), params)


@pytest.fixture(scope="module")
def policy():
    return new_policy(GAME)


@pytest.fixture(scope="module")
def decisions(policy):
    """Three late decisions, none of which can lead to another: all have the same deck left."""
    found = collect(GAME, policy, 40, jax.random.key(0))
    late = np.flatnonzero((found.third == 2) & (found.states.deck_left == 2))
    draws = found.states.phase[late] == 1
    chosen = [*late[draws][:1], *late[~draws][:2]]
    assert len(chosen) == 3
    packed = found.packed[chosen]
    states = jax.tree.map(lambda leaf: leaf[chosen], found.states)
    return Decisions(states, packed, found.legal[chosen], found.third[chosen])


@pytest.fixture(scope="module")
def resumed(decisions):
    return ResumedLostCities(
        **{name: getattr(GAME, name) for name in GAME.__dataclass_fields__}, states=decisions.states
    )


@pytest.fixture(scope="module")
def draw(resumed, decisions, policy):
    """Sample at the decisions by a scheme."""
    network = ValueNetwork(GAME, NETWORK)
    critic = ValueCritic(network, network.init(jax.random.key(2)))
    subject = variance.Subject(GAME, policy, critic, SCALE, 1)

    def call(scheme, count=COUNT, seed=0):
        key = jax.random.key(seed)
        return variance.samples_at(resumed, subject, scheme, decisions, count, key)

    return call


def exact_advantages(game, policy, state):
    """Return the advantages at a state in points, by playing on in every way and on every deck."""

    def probabilities(state):
        packed = game.information_state(state, state.mover)[None]
        return policy.action_probabilities(packed, game.legal_actions(state)[None])[0]

    look = jax.jit(lambda state: (game.is_terminal(state), game.returns(state)[0], state.mover))
    probabilities, step = jax.jit(probabilities), jax.jit(game.step)

    def value(state):
        """Return points of player 0."""
        terminal, returns, _ = look(state)
        if terminal:
            return float(returns)
        sigma = np.asarray(probabilities(state))
        return sum(sigma[a] * value(step(state, jnp.int32(a))) for a in np.flatnonzero(sigma))

    legal = np.flatnonzero(game.legal_actions(state))
    drawn = game.num_cards - int(state.deck_left)
    orders = list(itertools.permutations(np.asarray(state.deck)[drawn:]))
    gain = np.zeros(game.num_actions)
    for order in orders:
        deck = np.concatenate([np.asarray(state.deck)[:drawn], order])
        at = state._replace(deck=jnp.asarray(deck))
        for action in legal:
            gain[action] += value(step(at, jnp.int32(action))) / len(orders)
    gain *= 1 - 2 * int(state.mover)
    base = float(np.asarray(probabilities(state)) @ gain)
    return np.where(np.isin(np.arange(len(gain)), legal), gain - base, 0.0)


@pytest.mark.parametrize(
    "scheme",
    [variance.BranchAtOnce(0.1), Outcome(0.5), Baseline(0.5, 1.0)],
    ids=["branch", "outcome", "baseline"],
)
def test_samples_at_a_decision_have_the_exact_advantages_for_their_means(
    decisions, policy, draw, scheme
):
    place, target = draw(scheme)
    found = variance.moments(place, target, len(decisions.third))
    # Every decision comes up equally often.
    np.testing.assert_allclose(found.drawn, COUNT, rtol=0.1)
    for number in range(len(decisions.third)):
        state = jax.tree.map(lambda leaf, n=number: jnp.asarray(leaf[n]), decisions.states)
        exact = exact_advantages(GAME, policy, state)
        assert np.abs(exact).max() > 0.5
        error = np.sqrt(found.variance[number] / found.drawn[number])
        assert (np.abs(found.mean[number] - exact) <= 4 * error + 1e-4).all()


def test_branch_is_external_sampling_that_branches_once_and_plays_on_by_the_policy(draw):
    """Below the branching a ~ q = sigma and w = 1 / q: what returns is what came back."""
    (place, branch), (same_place, external) = (
        draw(scheme, 200) for scheme in (variance.BranchAtOnce(0.1), External(0.0, 1))
    )
    assert len(np.unique(branch.round(3), axis=0)) > 5
    for number in range(3):
        left, right = branch[place == number], external[same_place == number]
        assert len(left) == len(right)
        # Rows come in the order in which traversals end.
        for rows in (left, right):
            rows.round(3, out=rows)
        np.testing.assert_allclose(left[np.lexsort(left.T)], right[np.lexsort(right.T)], atol=2e-3)


def test_a_resumed_round_keeps_its_history_and_shuffles_what_is_left(resumed, decisions):
    states = jax.vmap(resumed.init)(jax.random.split(jax.random.key(0), 600))
    packed = jax.vmap(resumed.information_state)(states, states.mover)
    seen: dict[int, set] = {}
    for row, deck in zip(np.asarray(packed), np.asarray(states.deck), strict=True):
        (number,) = np.flatnonzero((decisions.packed == row).all(axis=1))
        drawn = GAME.num_cards - 2
        np.testing.assert_array_equal(deck[:drawn], decisions.states.deck[number, :drawn])
        seen.setdefault(int(number), set()).add(tuple(deck[drawn:].tolist()))
    for number, orders in seen.items():
        left = decisions.states.deck[number, -2:].tolist()
        assert orders == set(itertools.permutations(left))
    assert len(seen) == 3
    np.testing.assert_array_equal(
        np.unique(np.asarray(states.hands), axis=0), np.unique(decisions.states.hands, axis=0)
    )


def test_resumed_games_are_equal_only_if_they_are_the_same(resumed, decisions):
    other = ResumedLostCities(**vars(GAME), states=decisions.states)
    assert resumed == resumed
    assert resumed != other
    assert hash(resumed) != hash(other)
    assert resumed.num_actions == GAME.num_actions


def test_decisions_are_of_every_third_and_have_a_choice(policy):
    found = collect(GAME, policy, 30, jax.random.key(1))
    np.testing.assert_array_equal(np.bincount(found.third), [30, 30, 30])
    # Of 8 cards left by the deal: 8 to 6, 5 to 3, 2 and 1 are left.
    for number, left in enumerate(((6, 8), (3, 5), (1, 2))):
        of_third = found.states.deck_left[found.third == number]
        assert (of_third.min(), of_third.max()) == left
    assert (found.legal.sum(axis=1) >= 2).all()
    assert len(np.unique(found.packed, axis=0)) == 90
    view = jax.vmap(GAME.information_state)(found.states, found.states.mover)
    np.testing.assert_array_equal(view, found.packed)
    np.testing.assert_array_equal(jax.vmap(GAME.legal_actions)(found.states), found.legal)
    assert set(found.states.phase.tolist()) == {0, 1}
    assert set(found.states.mover.tolist()) == {0}


def test_too_few_rounds_are_a_mistake():
    game = LostCities(colors=1, ranks=3, wagers=0, hand_size=1, max_discard_draws=0)
    with pytest.raises(ValueError, match=r"^--states=40: 80 rounds have only .* fewer, e\.g\. 10$"):
        collect(game, new_policy(game), 40, jax.random.key(0))


def test_moments_and_their_roots_by_hand():
    legal = np.array([[True, True, False], [True, True, True], [True, False, True]])
    place = np.array([0, 1, 0, 1, 1, 2])
    target = np.array([[1, -1, 0], [3, 0, 3], [3, -5, 0], [0, 0, 6], [0, 3, 0], [7, 0, 8.0]])
    found = variance.moments(place, target, 3)
    np.testing.assert_array_equal(found.drawn, [2, 3, 1])
    np.testing.assert_allclose(found.mean, [[2, -3, 0], [1, 1, 3], [7, 0, 8]])
    np.testing.assert_allclose(found.variance[:2], [[2, 8, 0], [3, 3, 9]])
    assert np.isnan(found.variance[2]).all()
    # Means over legal actions: 5 and 5 points squared; then 4 and 2; then below 0.
    squares = np.concatenate(
        [found.variance[:2], [[4.0, 4, 99], [1, 2, 3], [-1, 99, 0], [0, 0, 0]]]
    )
    legal = np.concatenate([legal[:2], legal[:2], legal[:1], legal[:1]])
    legal[4] = [True, False, True]
    decisions = Decisions(None, None, legal, np.array([0, 0, 1, 1, 2, 2]))
    row = variance.root_mean_square(decisions, squares)
    assert row["early"] == pytest.approx(np.sqrt(5))
    assert row["early_se"] == 0
    assert row["middle"] == pytest.approx(np.sqrt(3))
    assert row["middle_se"] == pytest.approx(1 / (2 * np.sqrt(3)))
    assert row["late"] == 0


def write_run(path, settings, with_value):
    network = make_network(settings)
    params = (network.init(jax.random.key(0)),)
    tree = {"current": params, "average": params}
    if with_value:
        tree["value"] = (make_value_network(settings).init(jax.random.key(1)),)
    with CheckpointStore(path / "policies") as store:
        store.save(3, tree, {"config": config.to_dict(settings)})
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    values = default.get_config("smoke")
    values.game.update(colors=2, ranks=5, wagers=1, hand_size=2, max_discard_draws=2)
    values.network.update(width=8, depth=2)
    settings = config.from_config_dict(values)
    kuhn_settings = config.from_config_dict(kuhn.get_config())
    path = tmp_path_factory.mktemp("runs")
    return {
        "valued": write_run(path / "valued", settings, True),
        "plain": write_run(path / "plain", settings, False),
        "kuhn": write_run(path / "kuhn", kuhn_settings, False),
    }


@pytest.fixture
def command(monkeypatch, capsys):
    """Run the command in this process, with two of its schemes, and return what it prints."""
    monkeypatch.setattr(runtime, "configure", lambda *args: None)
    schemes = {name: variance.SCHEMES[name] for name in ("branch", "critic")}
    monkeypatch.setattr(variance, "SCHEMES", schemes)

    def call(*arguments):
        with flagsaver.flagsaver():
            flags.FLAGS(["variance", "--states=4", "--samples=16", *map(str, arguments)])
            variance.main([])
        return capsys.readouterr().out

    return call


def test_command_measures_branch_and_critic(command, runs):
    out = command(f"--checkpoint={runs['valued']}", "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    names = [(row["quantity"], row["scheme"]) for row in rows]
    assert names == [
        ("standard deviation", "branch"),
        ("standard deviation", "critic"),
        ("advantage", "branch"),
        ("error", "critic"),
    ]
    assert all(row["iteration"] == 3 and row[f"{third}_se"] >= 0
               for row in rows for third in THIRDS)  # fmt: skip
    branch, critic = rows[:2]
    # A new value network sees little difference between actions, unlike play to the end.
    assert all(0 < critic[third] < branch[third] for third in ("early", "middle"))
    # The critic records half of the nodes of a walk, a branching takes several walks.
    assert 1.5 < critic["nodes_per_sample"] < 2.5
    assert branch["nodes_per_sample"] > 5


def test_table_without_a_value_network(command, runs, monkeypatch):
    """Schemes that need one are left out; what is sampled is beside the point."""
    statistics = type("Statistics", (), {"nodes": 30, "advantage_samples": 4})

    def samples_at(game, subject, scheme, decisions, count, key):
        return np.tile(np.arange(12), 2), np.repeat([[1.0], [3.0]], 12, axis=0) * np.ones(7)

    monkeypatch.setattr(variance, "samples_at", samples_at)
    monkeypatch.setattr(variance, "_run", lambda *args: (None, statistics))
    lines = command(f"--checkpoint={runs['plain']}").strip().splitlines()
    assert lines[0] == "policy of iteration 3, points"
    assert lines[1].split() == ["quantity", "scheme", *THIRDS, "nodes", "per", "sample"]
    # Samples of 1 and 3 points: variance 2, of their mean 1, mean 2.
    assert [line.split() for line in lines[2:]] == [
        ["standard", "deviation", "branch", *3 * ["1.4", "+-", "0.0"], "7.5"],
        ["advantage", "branch", *3 * ["1.7", "+-", "0.0"]],
    ]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "--checkpoint: must be given, a run directory"),
        (
            ["--checkpoint={kuhn}"],
            "--checkpoint={kuhn}: must be a run on lost_cities, not on kuhn_poker; e.g. --checkp",
        ),
        (["--checkpoint=nowhere"], "--checkpoint=nowhere: must be a run directory or one of"),
        (["--checkpoint={valued}", "--states=1"], "--states=1: must be at least 2; e.g. 64"),
        (
            ["--checkpoint={valued}", "--samples=2"],
            "--samples=2: must be at least 16; e.g. 256",
        ),
        (["--checkpoint={valued}", "--seed=-1"], "--seed=-1: must be an integer from 0"),
    ],
)
def test_mistakes_are_one_sentence(command, runs, arguments, sentence):
    with pytest.raises(ValueError, match=r"^[^\n]+$") as error:
        command(*(argument.format(**runs) for argument in arguments))
    assert str(error.value).startswith(sentence.format(**runs))
