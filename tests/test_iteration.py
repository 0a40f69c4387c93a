"""One iteration of Deep CFR: its stages, its state, its numbers, and that it learns."""

from __future__ import annotations

import json
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import default, kuhn
from coorl_jax import config, evaluate, train
from coorl_jax.cfr import iteration as iteration_lib
from coorl_jax.cfr import mixture, reservoir
from coorl_jax.cfr.iteration import STAGES, Trainer
from coorl_jax.cfr.samples import unpack_legal
from coorl_jax.evaluation import suite
from coorl_jax.evaluation.exploitability import as_policy_fn, nash_conv
from coorl_jax.games import tree as trees
from coorl_jax.games.kuhn_poker import KuhnPoker
from coorl_jax.runtime import CACHE_VARIABLE, CompileCounter

SMALL = {
    # As conftest.py has it: a run sets it for the whole process.
    "matmul_precision": "highest",
    "network.width": 8,
    "network.depth": 2,
    "traversal.traversals": 16,
    "traversal.lanes": 8,
    "memory.advantage_capacity": 200,
    "memory.strategy_capacity": 1000,
    "memory.value_capacity": 1000,
    "memory.target_dtype": "float32",
    "advantage.updates": 4,
    "advantage.batch_size": 16,
    "strategy.updates": 4,
    "strategy.batch_size": 16,
    "value.updates": 4,
    "value.batch_size": 16,
    "evaluation.pairs": 4,
}
# Deep CFR as it was published: both players at once, one memory of all iterations. configs/kuhn.py
# has turns, bootstrapped advantages, a network per player and learning rates that fall.
PUBLISHED = {
    "network.per_player": False,
    "traversal.alternating": False,
    "advantage.cumulative": "reservoir",
    "advantage.start": "scratch",
    "advantage.weighting": "linear",
    "advantage.decay_iterations": 0,
    "advantage.annealed": False,
    "strategy.every": 1,
    "strategy.decay_iterations": 0,
    "strategy.annealed": False,
}
TINY_LOST_CITIES = {
    "game.colors": 2,
    "game.ranks": 3,
    "game.wagers": 1,
    "game.hand_size": 2,
    "game.max_discard_draws": 2,
}


def kuhn_settings(**overrides):
    return config.override(
        config.from_config_dict(kuhn.get_config()), SMALL | PUBLISHED | overrides
    )


def lost_cities_settings(**overrides):
    base = config.from_config_dict(default.get_config("cpu"))
    return config.override(base, SMALL | TINY_LOST_CITIES | overrides)


SETTINGS = {
    "kuhn": kuhn_settings(),
    "cards": lost_cities_settings(),
    "mlp": lost_cities_settings(
        **{
            "network.kind": "mlp",
            "network.per_player": True,
            "traversal.scheme": "outcome",
            "memory.target_dtype": "bfloat16",
        }
    ),
}
SETTINGS["mixture"] = kuhn_settings(
    **{
        "advantage.cumulative": "bootstrapped",
        "advantage.start": "warm",
        "strategy.weighting": "discounted",
        "mixture.capacity": 2,
    }
)
SETTINGS["baseline"] = kuhn_settings(
    **{"traversal.scheme": "baseline", "traversal.alternating": True, "value.start": "scratch"}
)
SETTINGS["critic"] = kuhn_settings(
    **{
        "traversal.scheme": "critic",
        "traversal.alternating": True,
        "network.per_player": True,
        "advantage.cumulative": "bootstrapped",
        "advantage.start": "warm",
        "advantage.weighting": "uniform",
        "advantage.decay_iterations": 2,
        "advantage.annealed": True,
        "value.start": "warm",
    }
)
READS_VALUES = ("baseline", "critic")
every_settings = pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)


def advance(trainer, state, iterations=1):
    """Run whole iterations; return the state and the metrics of each."""
    lines = []
    for _ in range(iterations):
        lines.append({})
        for _ in STAGES:
            state, metrics = trainer.run_stage(state)
            lines[-1] |= metrics
    return state, lines


def run(settings, iterations):
    trainer = Trainer(settings)
    return advance(trainer, trainer.init(), iterations)


def rows_of(memory):
    """Return the filled rows of a memory; targets in bfloat16 are bits."""
    return jax.tree.map(lambda leaf: leaf[: int(reservoir.size(memory))], memory.rows)


def seats_of(trainer, memory):
    """Return the seats of the players whose decisions a memory holds, one for each row."""
    return np.asarray(jax.vmap(trainer.game.seat)(rows_of(memory).packed))


def differ(tree, other):
    return any(
        bool(jnp.any(a != b))
        for a, b in zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True)
    )


# Stages and state.


@every_settings
def test_a_stage_advances_the_position_and_changes_its_own_part_only(settings):
    trainer = Trainer(settings)
    state = trainer.init()
    positions, changes = [trainer.position(state)], []
    for _ in STAGES:
        before = jax.device_get(state)
        state, _ = trainer.run_stage(state)
        positions.append(trainer.position(state))
        changes.append(
            {
                part
                for part in ("advantage", "strategy", "value", "memories", "mixture")
                if differ(getattr(before, part), getattr(state, part))
            }
        )
    assert positions == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0)]
    kept = {"mixture"} if settings.mixture.capacity else set()
    values = {"value"} if settings.traversal.scheme in READS_VALUES else set()
    assert changes == [{"memories"} | kept, values, {"advantage"}, {"strategy"}]


@every_settings
def test_the_seed_decides_every_bit(settings):
    state, lines = run(settings, 2)
    again, lines_again = run(settings, 2)
    chex.assert_trees_all_equal(state, again)
    measured = re.compile("seconds|per_second")
    for line, line_again in zip(lines, lines_again, strict=True):
        assert {k: v for k, v in line.items() if not measured.search(k)} == {
            k: v for k, v in line_again.items() if not measured.search(k)
        }
    other, _ = run(config.override(settings, {"seed": 1}), 2)
    values = ["value"] if settings.traversal.scheme in READS_VALUES else []
    for part in ("advantage", "strategy", "memories", *values):
        assert differ(getattr(state, part), getattr(other, part))


@every_settings
def test_the_state_between_two_stages_is_all_there_is(settings):
    whole, _ = run(settings, 2)
    state = Trainer(settings).init()
    for _ in range(2 * len(STAGES)):
        # A new trainer, given what a checkpoint would hold.
        state, _ = Trainer(settings).run_stage(jax.device_put(jax.device_get(state)))
    chex.assert_trees_all_equal(whole, state)


@every_settings
def test_evaluation_does_not_change_training(settings):
    alone, _ = run(settings, 2)
    trainer = Trainer(settings)
    state = trainer.init()
    for _ in range(2):
        state, _ = advance(trainer, state)
        suite.evaluate(trainer.game, trainer.policies(state), ("random",), 4, settings.seed)
    chex.assert_trees_all_equal(alone, state)


# Memories.


def test_memories_hold_the_samples_of_all_iterations_up_to_their_capacity():
    settings = SETTINGS["kuhn"]
    state, lines = run(settings, 6)
    given = {"advantage": 0, "strategy": 0}
    capacity = {"advantage": 200, "strategy": 1000}
    for line in lines:
        assert line["traversal/traversals"] == 2 * settings.traversal.traversals
        for kind in given:
            given[kind] += line[f"traversal/{kind}_samples"]
            assert line[f"memory/{kind}"] == min(given[kind], capacity[kind])
        # External sampling of 16 rounds for either player: player 1 decides once, player 0 once or
        # twice; as opponents, player 0 once or twice and player 1 after either of two actions.
        assert 32 <= line["traversal/advantage_samples"] <= 48
        assert 48 <= line["traversal/strategy_samples"] <= 64
    assert given["advantage"] > 200
    for kind in given:
        memories = getattr(state.memories, kind)
        assert reservoir.num_seen(memories[0]) == given[kind]
        rows = rows_of(memories[0])
        assert set(np.asarray(rows.iteration).tolist()) == {1, 2, 3, 4, 5, 6}
        assert set(np.asarray(rows.packed[:, 2]).tolist()) == {0, 1}


@pytest.mark.parametrize("settings", [SETTINGS["kuhn"], SETTINGS["cards"]], ids=["kuhn", "cards"])
def test_strategy_samples_are_the_policy_of_the_current_advantage_network(settings):
    trainer = Trainer(settings)
    state, _ = advance(trainer, trainer.init())
    current = trainer.policies(state)["current"]
    state, _ = trainer.run_stage(state)
    rows = rows_of(state.memories.strategy[0])
    second = np.asarray(rows.iteration) == 2
    assert 0 < second.sum() < len(second)
    legal = unpack_legal(rows.legal, trainer.game.num_actions)
    sigma = np.asarray(jax.jit(current.action_probabilities)(rows.packed, legal))
    target = np.asarray(rows.target)
    np.testing.assert_allclose(target[second], sigma[second], atol=1e-5)
    assert np.abs(target[~second] - sigma[~second]).max() > 0.1


def test_bootstrapped_advantages_keep_the_samples_of_one_iteration():
    state, lines = run(SETTINGS["mixture"], 3)
    (memory,) = state.memories.advantage
    assert reservoir.num_seen(memory) == lines[-1]["traversal/advantage_samples"]
    assert set(np.asarray(rows_of(memory).iteration).tolist()) == {3}
    assert set(np.asarray(rows_of(state.memories.strategy[0]).iteration).tolist()) == {1, 2, 3}


@pytest.mark.parametrize(
    ("overrides", "step"),
    [
        ({"advantage.weighting": "uniform"}, 1 / 3),
        ({"advantage.weighting": "linear"}, 2 / 4),
        ({"advantage.weighting": "linear", "advantage.min_step": 0.75}, 0.75),
        ({"advantage.weighting": "discounted", "advantage.discount": 3.0}, 4 / 6),
    ],
)
def test_the_step_of_bootstrapped_advantages_is_that_of_the_settings(monkeypatch, overrides, step):
    """In iteration 3, and the samples of that one iteration all have weight 1."""
    trainer = Trainer(config.override(SETTINGS["mixture"], overrides))
    state = trainer.init()._replace(
        iteration=jnp.int32(2), stage=jnp.int32(STAGES.index("fit_advantage"))
    )
    given = spy_on_fits(monkeypatch)
    trainer.run_stage(state)
    ((_, spec, found),) = given
    assert (spec.exponent, found) == (0.0, pytest.approx(step))


def spy_on_fits(monkeypatch):
    """Return a list that collects name, spec and step of the fits from now on."""
    given = []

    def spy(name, network, spec, loss, fitted, memories, key, iteration, step=None):
        given.append((name, spec, None if step is None else float(step)))
        return fit_networks(name, network, spec, loss, fitted, memories, key, iteration, step)

    fit_networks = iteration_lib.fit_networks
    monkeypatch.setattr(iteration_lib, "fit_networks", spy)
    return given


# The value network.


@pytest.mark.parametrize("scheme", READS_VALUES)
def test_the_value_memory_holds_the_samples_of_one_iteration(scheme):
    settings = SETTINGS[scheme]
    state, lines = run(settings, 3)
    (memory,) = state.memories.value
    for line in lines:
        # A walk from the deal to the end of a round of Kuhn poker has two or three decisions.
        assert 2 * 16 <= line["traversal/value_samples"] <= 3 * 16
        assert line["loss/value"] > 0
        assert line["precision/nonfinite_steps_value"] == 0
        assert line["value_train_seconds"] > 0
    assert reservoir.num_seen(memory) == lines[-1]["traversal/value_samples"]
    rows = rows_of(memory)
    assert set(np.asarray(rows.iteration).tolist()) == {3}
    assert rows.target.shape == (len(rows.iteration), 1)
    assert rows.packed.shape[1] == KuhnPoker().whole_size


@pytest.mark.parametrize("name", SETTINGS)
def test_what_is_saved_for_play_has_the_value_network_if_there_is_one(name):
    trainer = Trainer(SETTINGS[name])
    state = trainer.init()
    parameters = trainer.policy_parameters(state)
    assert ("value" in parameters) == (name in READS_VALUES)
    if "value" in parameters:
        (params,) = parameters["value"]
        chex.assert_trees_all_equal(params, state.value.params[0])
        # It plays no game itself.
        assert trainer.policies(state).keys() == {"current", "average"}


def test_schemes_without_a_value_network_say_nothing_of_values():
    state, (line,) = run(SETTINGS["kuhn"], 1)
    assert not [name for name in line if "value" in name]
    assert not jax.tree.leaves((state.value, state.memories.value))


# Players who take turns.


def test_players_who_take_turns_change_one_network_at_a_time(monkeypatch):
    trainer = Trainer(SETTINGS["critic"])
    state, given = trainer.init(), spy_on_fits(monkeypatch)
    for turn in (0, 1, 0, 1):
        before = state.advantage
        state, (line,) = advance(trainer, state)
        assert line["traversal/traversals"] == trainer.settings.traversal.traversals
        for part in ("params", "opt_state"):
            pairs = zip(getattr(before, part), getattr(state.advantage, part), strict=True)
            assert [differ(*pair) for pair in pairs] == [turn == 0, turn == 1]
        # Samples of the traverser's regrets alone, and of what the opponent plays.
        memories = state.memories.advantage
        assert reservoir.size(memories[1 - turn]) == 0
        assert set(seats_of(trainer, memories[turn])) == {turn}
        strategy = rows_of(state.memories.strategy[turn]).iteration
        assert int(state.iteration) not in np.asarray(strategy)
        strategy = rows_of(state.memories.strategy[1 - turn]).iteration
        assert int(state.iteration) in np.asarray(strategy)
    # Advantages have been updated as often as it was their player's turn.
    steps = [step for name, _, step in given if name == "advantage"]
    assert steps == pytest.approx([1, 1, 1 / 2, 1 / 2])


def test_players_who_take_turns_can_share_a_network():
    trainer = Trainer(SETTINGS["baseline"])
    state = trainer.init()
    for _ in range(3):
        before = state.advantage.params
        state, _ = advance(trainer, state)
        assert differ(before, state.advantage.params)
    (memory,) = state.memories.advantage
    iterations = np.asarray(rows_of(memory).iteration)
    assert set(iterations) == {1, 2, 3}
    np.testing.assert_array_equal(seats_of(trainer, memory), (iterations - 1) % 2)


# Mixtures.


@pytest.mark.parametrize("capacity", [2, 8])
@pytest.mark.parametrize("per_player", [False, True])
def test_a_mixture_keeps_the_policies_that_traversals_followed(capacity, per_player):
    overrides = {"mixture.capacity": capacity, "network.per_player": per_player}
    settings = config.override(SETTINGS["mixture"], overrides)
    trainer = Trainer(settings)
    state, followed = trainer.init(), {}
    for t in range(1, 6):
        followed[t] = jax.device_get(state.advantage.params)
        state, _ = advance(trainer, state)
    # The network fitted last has been followed by no traversal yet.
    kept = np.asarray(state.mixture.rows.iteration)
    assert set(kept[kept > 0]) <= {1, 2, 3, 4, 5}
    assert len(set(kept[kept > 0])) == (kept > 0).sum() == min(capacity, 5)
    policy = trainer.policies(state)["mixture"]
    for slot, t in enumerate(kept):
        if t:
            chex.assert_trees_all_equal(jax.device_get(policy.member(slot).params), followed[t])
    # Discounted by default: t^2.
    np.testing.assert_allclose(policy.weights, kept**2 / np.sum(kept**2), rtol=1e-6)


def test_a_mixture_with_too_few_slots_is_a_uniform_sample_of_the_iterations():
    params = ({"w": jnp.zeros(2)},)
    counts = np.zeros(9)
    for seed in range(200):
        kept = mixture.create(params, 3)
        for t in range(1, 10):
            moved = ({"w": jnp.full(2, float(t))},)
            kept = mixture.insert(
                kept, moved, jnp.int32(t), jax.random.fold_in(jax.random.key(seed), t)
            )
        np.testing.assert_array_equal(kept.rows.params[0]["w"][:, 0], kept.rows.iteration)
        counts[np.asarray(kept.rows.iteration) - 1] += 1
    # Each of nine is kept with probability 1/3, 67 times of 200 give or take 6.7.
    np.testing.assert_allclose(counts, 200 / 3, atol=4 * 6.7)


def test_advantages_are_in_units_of_the_utility_scale():
    state, _ = run(SETTINGS["cards"], 1)
    # An expedition is worth -40 to -2 points, so two players' two differ by 80 at most; the
    # advantage of an action is a difference of two such numbers. The unit is 50 points.
    largest = np.abs(rows_of(state.memories.advantage[0]).target).max()
    assert 5 / 50 < largest <= 160 / 50


def test_per_player_keeps_a_network_and_memories_for_each_seat():
    trainer = Trainer(SETTINGS["mlp"])
    state, (first, second) = advance(trainer, trainer.init(), 2)
    for fitted in (state.advantage, state.strategy):
        assert len(fitted.params) == len(fitted.opt_state) == 2
        assert differ(*fitted.params)
    for kind in ("advantage", "strategy"):
        memories = getattr(state.memories, kind)
        assert len(memories) == 2
        sizes = [int(reservoir.size(memory)) for memory in memories]
        assert min(sizes) > 0
        assert second[f"memory/{kind}"] == sum(sizes) > first[f"memory/{kind}"]
        for seat, memory in enumerate(memories):
            assert set(seats_of(trainer, memory)) == {seat}
    shared = Trainer(SETTINGS["cards"]).init()
    memories = (shared.memories.advantage, shared.memories.strategy)
    assert [len(part) for part in (shared.advantage.params, *memories)] == [1, 1, 1]


def test_full_lost_cities_takes_few_bytes_and_the_report_says_how_many():
    settings = config.from_config_dict(default.get_config("cpu"))
    trainer = Trainer(settings)
    # 60 cards, 8 slots and 6 numbers; 22 legal bits, 22 bfloat16 targets and the iteration.
    assert trainer.game.packed_size == 74 <= 80
    assert trainer.memory_report() == (
        "information state 74 bytes, sample 125 bytes, memories 2,000,000 samples = 250.0 MB"
    )
    small = {"memory.advantage_capacity": 1000, "memory.strategy_capacity": 3000}
    for per_player, slots in ((False, 4000), (True, 8000)):
        trainer = Trainer(config.override(settings, small | {"network.per_player": per_player}))
        memories = jax.eval_shape(trainer.init).memories
        rows = jax.tree.leaves([memory.rows for kind in memories for memory in kind])
        stored = sum(leaf.size * leaf.dtype.itemsize for leaf in rows)
        assert stored == 125 * slots <= 128 * slots
        assert f"{slots:,} samples = {125 * slots / 1e6:.1f} MB" in trainer.memory_report()


# Fits.


@pytest.mark.parametrize(
    ("network", "start", "settings"),
    [
        ("advantage", "scratch", kuhn_settings(**{"advantage.start": "scratch"})),
        ("advantage", "warm", kuhn_settings(**{"advantage.start": "warm"})),
        ("strategy", "scratch", kuhn_settings(**{"strategy.start": "scratch"})),
        ("strategy", "warm", kuhn_settings(**{"strategy.start": "warm"})),
        ("value", "scratch", SETTINGS["baseline"]),
        ("value", "warm", SETTINGS["critic"]),
    ],
)
def test_a_fit_from_scratch_forgets_the_former_parameters(network, start, settings):
    trainer = Trainer(settings)
    state = trainer.init()
    for _ in range(1 + STAGES.index(f"fit_{network}")):
        before = state
        state, _ = trainer.run_stage(state)
    fitted = getattr(before, network)
    moved = fitted._replace(params=jax.tree.map(lambda leaf: 3 * leaf + 1, fitted.params))
    # The memories are those the traversal returned, which no fit donates.
    other, _ = trainer.run_stage(before._replace(**{network: moved}))
    depends = differ(getattr(state, network).params, getattr(other, network).params)
    assert depends == (start == "warm")


def test_strategy_every_says_when_the_average_policy_is_fitted():
    trainer = Trainer(kuhn_settings(**{"strategy.every": 3}))
    state, fitted_in = trainer.init(), []
    for iteration in range(1, 7):
        before = state.strategy
        state, (line,) = advance(trainer, state)
        assert ("loss/strategy" in line) == differ(before, state.strategy)
        assert "strategy_train_seconds" in line
        if "loss/strategy" in line:
            fitted_in.append(iteration)
    assert fitted_in == [1, 3, 6]


def test_policies_are_those_of_the_state():
    trainer = Trainer(SETTINGS["kuhn"])
    state, _ = advance(trainer, trainer.init())
    parameters, policies = trainer.policy_parameters(state), trainer.policies(state)
    for name, fitted in (("current", state.advantage), ("average", state.strategy)):
        chex.assert_trees_all_equal(parameters[name], fitted.params)
        chex.assert_trees_all_equal(policies[name].params, fitted.params)
    tree = trees.enumerate_game(KuhnPoker())
    logits = trainer.network.apply(state.strategy.params[0], tree.packed)
    average = policies["average"].action_probabilities(tree.packed, tree.legal)
    np.testing.assert_allclose(average, jax.nn.softmax(logits), rtol=1e-5)


# Metrics and compilations.


def test_a_run_has_the_metrics_by_their_names(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE_VARIABLE, "off")
    settings = kuhn_settings(
        **{
            "iterations": 3,
            "evaluation.every": 1,
            "checkpoint.every": 1,
            "evaluation.pairs": 5,
            "evaluation.policies": ("current", "average", "mixture"),
            "mixture.capacity": 4,
        }
    )
    run_path = train.train(settings, tmp_path / "run")
    lines = [json.loads(line) for line in (run_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["iteration"] for line in lines] == [1, 2, 3]
    evaluations = {
        f"eval/random/{policy}/{metric}"
        for policy in ("current", "average", "mixture")
        for metric in ("points_per_round", "points_per_round_se", "win_rate", "win_rate_se")
    }
    for policy in ("current", "average", "mixture"):
        evaluations |= {f"eval/nash_conv/{policy}", f"eval/exploitability/{policy}"}
    for line in lines:
        assert line.keys() >= evaluations | {
            *("iteration_seconds", "traversal_seconds", "advantage_train_seconds"),
            *("strategy_train_seconds", "evaluation_seconds", "checkpoint_seconds"),
            *("compile_seconds", "compilations"),
            *("traversal/nodes", "traversal/nodes_per_second", "traversal/lane_occupancy"),
            *("traversal/fallback_rate", "memory/advantage", "memory/strategy"),
            *("loss/advantage", "loss/strategy"),
            *("precision/nonfinite_steps_advantage", "precision/nonfinite_steps_strategy"),
        }
        assert all(isinstance(value, int | float) for value in line.values())
        assert line["eval/nash_conv/mixture"] == 2 * line["eval/exploitability/mixture"] > 0
        nodes, passes = line["traversal/nodes"], line["traversal/passes"]
        assert line["traversal/lane_occupancy"] == pytest.approx(nodes / (8 * passes))
        assert line["traversal/nodes_per_second"] == pytest.approx(
            nodes / line["traversal_seconds"]
        )
        assert 0 < line["traversal/lane_occupancy"] <= 1
        assert 0 <= line["traversal/fallback_rate"] < 1
        assert line["precision/nonfinite_steps_advantage"] == 0
    assert lines[0]["compilations"] > 0  # At least a match of this many pairs.
    assert lines[2]["compilations"] == 0
    # What was saved plays as what was trained: iterations 1 to 3 with weights t, and a free slot.
    _, policies, iteration = evaluate.load(run_path)
    assert iteration == 3
    np.testing.assert_allclose(policies["mixture"].weights, [1 / 6, 2 / 6, 3 / 6, 0], rtol=1e-6)
    for policy, value in suite.nash_convs(KuhnPoker(), policies).items():
        assert lines[2][f"eval/nash_conv/{policy}"] == pytest.approx(value, rel=1e-6)


@every_settings
def test_nothing_is_compiled_after_the_second_iteration(settings):
    trainer = Trainer(settings)
    state = trainer.init()
    with CompileCounter() as counter:
        for iteration in range(1, 5):
            state, _ = advance(trainer, state)
            suite.evaluate(trainer.game, trainer.policies(state), ("random",), 4, settings.seed)
            if iteration <= 2:
                counter.take()
        assert counter.take()["compilations"] == 0
        jax.jit(lambda x: x + 1)(0)
        assert counter.take()["compilations"] == 1


# Faults and mistakes.


@pytest.mark.parametrize("field", ["started", "finished"])
def test_a_lost_traversal_is_a_fault(monkeypatch, field):
    def lossy(*args):
        memories, statistics = traverse(*args)
        return memories, statistics._replace(**{field: getattr(statistics, field) - 1})

    traverse = iteration_lib.traverse
    monkeypatch.setattr(iteration_lib, "traverse", lossy)
    trainer = Trainer(SETTINGS["kuhn"])
    with pytest.raises(RuntimeError, match=r"31 .* of 32: .* lost some"):
        trainer.run_stage(trainer.init())


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (kuhn_settings(**{"network.kind": "cards"}), r"config\.network\.kind=cards: kuhn_poker"),
        (lost_cities_settings(**{"game.hand_size": 4}), r"config\.game\.hand_size=4: the deck"),
        (
            lost_cities_settings(**{"game.max_discard_draws": None}),
            r"config\.game\.max_discard_draws=None: ",
        ),
    ],
)
def test_settings_that_cannot_be_trained_are_refused(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        Trainer(settings)


# Learning.


def train_kuhn(iterations, **overrides):
    """Return the game and the policies after some iterations of configs/kuhn.py with changes.

    Uniform play has a NashConv of 0.92.
    """
    base = config.from_config_dict(kuhn.get_config())
    base = config.override(base, {"matmul_precision": "highest"})
    trainer = Trainer(config.override(base, overrides))
    state, _ = advance(trainer, trainer.init(), iterations)
    return trainer.game, trainer.policies(state)


def test_published_deep_cfr_approaches_equilibrium():
    overrides = {
        "advantage.updates": 200,
        "strategy.updates": 200,
        "memory.advantage_capacity": 500_000,
    }
    game, policies = train_kuhn(60, **PUBLISHED, **overrides)
    found = nash_conv(trees.enumerate_game(game), as_policy_fn(policies["average"]))
    assert found.nash_conv < 0.2  # 0.12 is usual.
    assert found.value == pytest.approx(-1 / 18, abs=0.03)


def test_the_shipped_run_and_its_mixture_approach_equilibrium():
    game, policies = train_kuhn(100, **{"mixture.capacity": 100})
    found = suite.nash_convs(game, policies)
    # 0.02 is usual.
    assert found["average"] < 0.06
    assert found["mixture"] < 0.06


@pytest.mark.parametrize(
    "scheme", ["external", "robust", "outcome", "branch", "baseline", "critic"]
)
def test_every_scheme_learns(scheme):
    overrides = {
        "traversal.scheme": scheme,
        # One of two: with both, robust would be external.
        "traversal.branching_actions": 1,
        "memory.value_capacity": 10_000,
    }
    game, policies = train_kuhn(20, **overrides)
    found = suite.nash_convs(game, policies)
    assert found["average"] < 0.4  # 0.06 (external) to 0.18 (outcome) are usual.
