"""PPO's rounds against plain play.

L lanes, T decisions of a segment, A actions.
"""

from __future__ import annotations

import functools

import chex
import jax
import numpy as np
import pytest
from ppo_play import GAMES, OPPONENTS, PLAYED, SCALE, SEED, kuhn_tree, plan_of, play

from coorl_jax.evaluation import exploitability
from coorl_jax.games import sequence_form
from coorl_jax.games.game import TURNS


@functools.partial(jax.jit, static_argnums=0)
def _view(game, state):
    player = game.player(state)
    return {
        "packed": game.information_state(state, player),
        "whole": game.whole_state(state),
        "legal": game.legal_actions(state),
        "player": player,
        "is_over": game.is_terminal(state),
        "points": game.returns(state)[0],
    }


_step = jax.jit(lambda game, state, action: game.step(state, action), static_argnums=0)
_deal = jax.jit(
    # The stream of a round is below (key, lane, number of the round), that of its deal below that.
    lambda game, key, lane, number: game.init(
        jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(key, lane), number), 0)
    ),
    static_argnums=0,
)


def assert_is_plain_play(game, segment):
    """Play the first decisions of some lanes again, each from its own deals."""
    for lane in range(min(7, segment.action.shape[1])):
        number = 0
        state = _deal(game, jax.random.key(SEED), lane, number)
        for t in range(min(24, len(segment.action))):
            view = jax.device_get(_view(game, state))
            if t % TURNS == 0 and view["is_over"]:
                number += 1
                state = _deal(game, jax.random.key(SEED), lane, number)
                view = jax.device_get(_view(game, state))
            row = jax.tree.map(lambda leaf, t=t, lane=lane: leaf[t, lane], segment)
            if view["is_over"]:
                assert not np.any([row.is_learner, row.ends, row.legal.any()])
                assert row.log_probability == 0
                continue
            for name in ("packed", "whole", "legal", "player"):
                np.testing.assert_array_equal(getattr(row, name), view[name])
            assert view["legal"][row.action]
            state = _step(game, state, row.action)
            view = jax.device_get(_view(game, state))
            assert row.ends == view["is_over"]
            if row.ends:
                assert row.utility == pytest.approx(view["points"] / SCALE)
        assert number > 0


def probabilities_of(policy, segment):
    """Return float32[T, L], those of the actions that were taken."""
    shape = segment.action.shape
    packed = segment.packed.reshape(-1, segment.packed.shape[-1])
    legal = segment.legal.reshape(-1, segment.legal.shape[-1])
    found = np.asarray(exploitability.as_policy_fn(policy)(packed, legal))
    return found[np.arange(len(found)), segment.action.reshape(-1)].reshape(shape)


def assert_drawn_from(policy, segment, decides):
    """Check the probabilities of the actions taken at some decisions, bool[T, L]."""
    probability = probabilities_of(policy, segment)[decides]
    assert probability.min() > 0
    np.testing.assert_allclose(np.exp(segment.log_probability)[decides], probability, rtol=1e-4)


@pytest.mark.parametrize("name", GAMES)
def test_self_play_is_plain_play(name):
    policy, segment, _ = play(GAMES[name], *PLAYED[name])
    assert_is_plain_play(GAMES[name], segment)
    goes_on = segment.legal.any(axis=-1)
    np.testing.assert_array_equal(segment.is_learner, goes_on)
    assert_drawn_from(policy, segment, goes_on)
    assert np.ptp(np.exp(segment.log_probability)[goes_on]) > 0.5


def test_rounds_go_on_from_segment_to_segment():
    game = GAMES["mini_lost_cities"]
    _, parts, round_lanes = play(game, 8, segments=3)
    _, whole, rollers_of_whole = play(game, *PLAYED["mini_lost_cities"])
    assert not np.all(parts.ends[4:8].any(axis=0))  # A border cuts some rounds.
    chex.assert_trees_all_close(parts, whole, rtol=1e-5)
    chex.assert_trees_all_equal(round_lanes, rollers_of_whole)


@pytest.mark.parametrize("name", GAMES)
def test_a_fixed_player_takes_the_other_seat(name):
    game, opponent = GAMES[name], OPPONENTS[name]
    policy, segment, _ = play(game, *PLAYED[name], opponent=name)
    assert_is_plain_play(game, segment)
    goes_on = segment.legal.any(axis=-1)
    # The learner sits in seat 0 of even lanes and in seat 1 of odd ones.
    seats = np.broadcast_to(np.arange(segment.action.shape[1]) % 2, goes_on.shape)
    np.testing.assert_array_equal(segment.is_learner, goes_on & (segment.player == seats))
    theirs = goes_on & ~segment.is_learner
    assert_drawn_from(policy, segment, segment.is_learner)
    assert_drawn_from(opponent, segment, theirs)
    if name == "leduc":  # Lanes get out of step: more than half may wait for one player.
        assert max(segment.is_learner.sum(axis=1)) > 4
        assert max(theirs.sum(axis=1)) > 4


def rounds_of(segment, lane):
    """Return the decisions of each round of a lane, in a row; the last may not have ended."""
    ends = np.flatnonzero(segment.ends[:, lane])
    goes_on = np.flatnonzero(segment.legal[:, lane].any(axis=-1))
    return [part for part in np.split(goes_on, np.searchsorted(goes_on, ends) + 1) if len(part)]


def test_a_mixture_draws_a_member_for_each_round_and_keeps_it():
    mixture, lanes = OPPONENTS["mixture"], 41
    # Two segments, whose border cuts rounds.
    _, segment, _ = play(GAMES["leduc"], 12, lanes, "mixture", segments=2)
    by_member = np.stack([probabilities_of(mixture.member(n), segment) for n in range(3)])
    fits = np.abs(by_member - np.exp(segment.log_probability)[None]) < 1e-4
    drawn = []
    for lane in range(lanes):
        for decisions in rounds_of(segment, lane):
            theirs = decisions[~segment.is_learner[decisions, lane]]
            (members,) = np.nonzero(fits[:, theirs, lane].all(axis=1))
            assert len(members) > 0
            if len(members) == 1 and len(theirs) > 1:
                drawn.append(members[0])
    counts = np.bincount(drawn, minlength=3)
    assert counts[1] == 0
    assert 0.15 < counts[0] / len(drawn) < 0.5
    assert len(drawn) > 60


@pytest.mark.parametrize("opponent", [None, "kuhn"], ids=["itself", "fixed"])
def test_rounds_are_worth_what_they_are_exactly(opponent):
    """So actions are drawn from the policies, and deals and actions independently."""
    policy, segment, _ = play(GAMES["kuhn"], *PLAYED["kuhn"], opponent=opponent)
    plans = [plan_of(policy, seat) for seat in (0, 1)]
    other = plans
    if opponent is not None:
        other = [plan_of(OPPONENTS[opponent], seat) for seat in (0, 1)]
    for learner in (0, 1):
        seats = [plans[0], other[1]] if learner == 0 else [other[0], plans[1]]
        exact = sequence_form.expected_value(kuhn_tree().sequence_form, seats)
        mine = slice(learner, None, 2)
        points = SCALE * segment.utility[:, mine][segment.ends[:, mine]]
        error = points.std() / np.sqrt(len(points))
        assert len(points) == 16 * (251 - learner)
        assert abs(points.mean() - exact) < 3.5 * error
    # As often as the policy says, in every information state.
    goes_on = segment.legal.any(axis=-1)
    _, state = np.unique(segment.packed[goes_on], axis=0, return_inverse=True)
    probability = np.exp(segment.log_probability)[goes_on]
    first = np.where(segment.action[goes_on] == 0, probability, 1 - probability)
    passed = np.bincount(state, segment.action[goes_on] == 0)
    spread = np.sqrt(np.bincount(state, first * (1 - first))) + 1e-9
    assert np.all(np.abs(passed - np.bincount(state, first)) / spread < 4)
