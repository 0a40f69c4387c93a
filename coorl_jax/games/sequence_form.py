"""The sequence form of a small game: what players with perfect recall do, and what it pays.

Words: an **information set** holds the histories that a player who forgets nothing cannot tell
apart, which agree in the player's last information set, in its action there and in what it knows
now; a **sequence** is an information set and an action there, and so stands for all that the player
has done. A **realization plan** gives the probability that a player's own actions make up each of
its sequences. What a round is worth is linear in either player's plan (Koller, Megiddo and von
Stengel 1996).

Packed information states may forget what their player did or saw earlier. Then several information
sets share one, and a policy, which reads packed states, does the same in all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from coorl_jax.games.tree import Level


class Decisions(NamedTuple):
    """The G information sets of one player, ordered by how often it decided before.

    Sequence `1 + g A + a` is action a in information set g, sequence 0 the empty one: there are
    S = 1 + G A, the illegal ones included.
    """

    information_state: np.ndarray  # int64[G], row of Tree.packed
    parent: np.ndarray  # int64[G], the sequence that leads there
    starts: np.ndarray  # int64[K + 1], those after k decisions are starts[k] .. starts[k + 1] - 1


class SequenceForm(NamedTuple):
    """A game as a sparse matrix over the sequences of both players; Z ends of rounds."""

    decisions: tuple[Decisions, Decisions]
    sequence: np.ndarray  # int64[2, Z], each player's sequence when the round ends
    payoff: np.ndarray  # float64[Z], points of player 0 times the probability of the deal


def build(levels: Sequence[Level], num_states: int, num_actions: int) -> SequenceForm:
    """Find the information sets and sequences of both players.

    Args:
      levels: all histories, from the deals to the longest.
      num_states: I, information states.
      num_actions: A.

    Returns:
      The sequence form.
    """
    starts = np.cumsum([0] + [len(level.parent) for level in levels])
    parent = np.concatenate(
        [level.parent + above for level, above in zip(levels, [0, *starts], strict=False)]
    )
    action = np.concatenate([level.action for level in levels])
    state = np.concatenate([level.information_state for level in levels])
    mover = np.where(state < 0, -1, np.concatenate([level.player for level in levels]))
    payoff = np.concatenate([level.returns * level.chance for level in levels])
    ends = np.flatnonzero(state < 0)

    decisions, sequence = [], []
    for player in (0, 1):
        last, count = _last_decisions(levels, player)
        information_set = np.zeros(len(state), np.int64)

        def sequence_of(rows, last=last, information_set=information_set):
            after = last[rows]
            made = 1 + information_set[parent[after]] * num_actions + action[after]
            return np.where(after < 0, 0, made)

        sets: list[np.ndarray] = []
        bounds = [0]
        # By decisions rather than levels: histories of one information set may differ in length.
        for k in range(count.max() + 1):
            rows = np.flatnonzero((mover == player) & (count == k))
            if not len(rows):
                break
            key, numbers = np.unique(
                sequence_of(rows) * num_states + state[rows], return_inverse=True
            )
            information_set[rows] = bounds[-1] + numbers
            sets.append(key)
            bounds.append(bounds[-1] + len(key))
        keys = np.concatenate([*sets, np.zeros(0, np.int64)])
        decisions.append(Decisions(keys % num_states, keys // num_states, np.array(bounds)))
        sequence.append(sequence_of(ends))
    return SequenceForm((decisions[0], decisions[1]), np.stack(sequence), payoff[ends])


def realization_plan(decisions: Decisions, policy: np.ndarray) -> np.ndarray:
    """Return how likely a player that follows a policy makes each of its sequences.

    Args:
      decisions: of the player.
      policy: float64[I, A].

    Returns:
      float64[S].
    """
    num_actions = policy.shape[1]
    plan = np.zeros(1 + len(decisions.parent) * num_actions)
    plan[0] = 1.0
    table = plan[1:].reshape(-1, num_actions)  # a view
    probabilities = policy[decisions.information_state]
    for sets in _by_decision(decisions):
        table[sets] = plan[decisions.parent[sets], None] * probabilities[sets]
    return plan


def best_response_value(
    form: SequenceForm, legal: np.ndarray, player: int, plan: np.ndarray
) -> float:
    """Return what a player's best response to the other's plan is worth.

    From its last decisions to its first, the player takes the action with the highest value,
    summed over all that chance and the other player may do.

    Args:
      form: the game.
      legal: bool[I, A].
      player: who responds, 0 or 1.
      plan: float64[S], the realization plan of the other player.

    Returns:
      Points of that player a round.
    """
    decisions = form.decisions[player]
    num_actions = legal.shape[1]
    weighted = form.payoff * plan[form.sequence[1 - player]] * (1 - 2 * player)
    value = np.bincount(
        form.sequence[player], weighted, minlength=1 + len(decisions.parent) * num_actions
    )
    table = value[1:].reshape(-1, num_actions)  # a view
    allowed = legal[decisions.information_state]
    for sets in reversed(_by_decision(decisions)):
        best = np.where(allowed[sets], table[sets], -np.inf).max(axis=1)
        np.add.at(value, decisions.parent[sets], best)
    return float(value[0])


def expected_value(form: SequenceForm, plans: Sequence[np.ndarray]) -> float:
    """Return the points of player 0 a round when the players follow two realization plans."""
    reach = plans[0][form.sequence[0]] * plans[1][form.sequence[1]]
    return float(form.payoff @ reach)


def _by_decision(decisions: Decisions) -> list[slice]:
    """Return the information sets of the first, second, ... decision."""
    return [slice(*bounds) for bounds in itertools.pairwise(decisions.starts)]


def _last_decisions(levels: Sequence[Level], player: int) -> tuple[np.ndarray, np.ndarray]:
    """Return of every history how it follows from the player's decisions.

    Returns:
      The history that the player's last decision led to, -1 if there was none, and the number of
      the player's decisions, both int64[n] over the histories of all levels.
    """
    last = [np.full(len(levels[0].parent), -1)]
    count = [np.zeros(len(levels[0].parent), np.int64)]
    start = 0
    for above, level in itertools.pairwise(levels):
        start += len(above.parent)
        moved = above.player[level.parent] == player
        here = start + np.arange(len(moved))
        last.append(np.where(moved, here, last[-1][level.parent]))
        count.append(count[-1][level.parent] + moved)
    return np.concatenate(last), np.concatenate(count)
