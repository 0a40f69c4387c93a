"""Small games written out in full: every history, exact values and exact advantages.

The tree is enumerated breadth first: a level holds the histories of one length, as arrays, and
points to their parents in the level above. Values then flow up and reach probabilities down by
one `bincount` a level. All probabilities and values are numpy float64.

Words: a **history** is a deal and the actions so far; an **information state** is a set of
histories that the player to move cannot tell apart; its **counterfactual reach** is the
probability that chance and the opponent (but not the player) go there (Zinkevich et al. 2007).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from coorl_jax.games import sequence_form
from coorl_jax.games.game import EnumerableGame, Game, State
from coorl_jax.games.sequence_form import SequenceForm

PolicyFn = Callable[[np.ndarray, np.ndarray], Any]
"""uint8[I, P] packed states and bool[I, A] legal actions -> probabilities [I, A]."""

Array = Any  # np.ndarray on the host, jax.Array under jit

_CHUNKS = (1 << 9, 1 << 14)  # histories handled at once: one compilation each
_NOT_A_DISTRIBUTION = 1e-5  # how far float32 probabilities may be from summing to one


class FiniteGame(Game, EnumerableGame, Protocol):
    """A game that can be enumerated."""


class Level(NamedTuple):
    """The n histories of one length."""

    parent: np.ndarray  # int64[n], index in the level above; -1 at the root level
    action: np.ndarray  # int64[n], the last action; -1 at the root level
    player: np.ndarray  # int64[n], who is to move; 0 at the end of a round
    information_state: np.ndarray  # int64[n], row of Tree.packed; -1 at the end of a round
    returns: np.ndarray  # float64[n], points of player 0 at the end of a round, else 0
    chance: np.ndarray  # float64[n], probability of the deal


class Tree(NamedTuple):
    """Every history of a game, and its I information states."""

    levels: tuple[Level, ...]
    packed: np.ndarray  # uint8[I, P]
    legal: np.ndarray  # bool[I, A]
    player: np.ndarray  # int64[I], who moves there
    sequence_form: SequenceForm


class Advantages(NamedTuple):
    """What a policy that both players use is worth, exactly."""

    value: float  # points of player 0 a round
    advantage: np.ndarray  # float64[I, A], v(I, a) - v(I) in points; 0 if illegal or unreached
    reach: np.ndarray  # float64[I], counterfactual reach


def enumerate_game(game: FiniteGame, max_histories: int = 5_000_000) -> Tree:
    """Enumerate every deal and every legal action of a small game.

    Args:
      game: the game.
      max_histories: the most histories that the tree may have.

    Returns:
      The tree.

    Raises:
      ValueError: if the tree is larger, or if two histories of one information state differ in
        their player or legal actions.
    """
    states, probabilities = game.enumerate_deals()
    states = jax.device_get(states)
    chance = np.asarray(probabilities, np.float64)
    root = np.full(len(chance), -1, np.int64)
    views: list[_View] = []
    links = [_Links(root, root, chance)]
    histories = len(chance)
    while True:
        view = _chunked(_view_all, game, states)
        views.append(view)
        parent, action = np.nonzero(view.legal & ~view.terminal[:, None])
        if not len(parent):
            return _build(views, links)
        histories += len(parent)
        if histories > max_histories:
            raise ValueError(
                f"{game}: has more than {max_histories:,} histories, too many to enumerate; "
                "take a game with fewer cards, e.g. kuhn_poker"
            )
        before = jax.tree.map(lambda leaf, parent=parent: leaf[parent], states)
        states = _chunked(_step_all, game, (before, action.astype(np.int32)))
        links.append(_Links(parent, action, links[-1].chance[parent]))


def advantages(tree: Tree, policy_fn: PolicyFn) -> Advantages:
    """Compute exact values and counterfactual advantages of a policy that both players use.

    The advantage of action a in information state I of player p is the mean, over the histories
    h of I with weights chance(h) * opponent_reach(h), of v(h, a) - v(h), where v is the expected
    return of player p when both follow the policy (Brown et al. 2019, equation 2, divided by the
    reach). This is the quantity that sampled advantages estimate.

    Args:
      tree: the game.
      policy_fn: the policy, asked once for all information states.

    Returns:
      The value of the game and, for each information state, advantages and counterfactual reach.

    Raises:
      ValueError: if the policy gives no probability distribution over the legal actions.
    """
    policy = evaluate_policy(tree, policy_fn)
    reaches = counterfactual_reaches(tree, policy)
    num_states, num_actions = tree.legal.shape
    gain = np.zeros(num_states * num_actions)
    base = np.zeros(num_states)
    reach = np.zeros(num_states)
    value = np.zeros(0)
    for depth in reversed(range(len(tree.levels))):
        level = tree.levels[depth]
        below = value  # of the histories one action longer
        value = level.returns.copy()
        # What a history is worth to the player who moves there, seen from the histories below.
        sign = 1.0 - 2.0 * level.player
        if depth + 1 < len(tree.levels):
            child = tree.levels[depth + 1]
            state = level.information_state[child.parent]
            value += np.bincount(
                child.parent, policy[state, child.action] * below, minlength=len(value)
            )
            weight = reaches[depth][child.parent] * sign[child.parent]
            gain += np.bincount(
                state * num_actions + child.action, weight * below, minlength=len(gain)
            )
        inner = level.information_state >= 0
        state, weight = level.information_state[inner], reaches[depth][inner]
        base += np.bincount(state, weight * (sign * value)[inner], minlength=num_states)
        reach += np.bincount(state, weight, minlength=num_states)
    difference = gain.reshape(num_states, num_actions) - base[:, None]
    reached = tree.legal & (reach > 0)[:, None]
    advantage = np.divide(difference, reach[:, None], out=np.zeros_like(difference), where=reached)
    return Advantages(float(value @ tree.levels[0].chance), advantage, reach)


def evaluate_policy(tree: Tree, policy_fn: PolicyFn) -> np.ndarray:
    """Ask a policy for its probabilities in every information state.

    Args:
      tree: the game.
      policy_fn: the policy.

    Returns:
      float64[I, A], the probabilities.

    Raises:
      ValueError: if they are no distribution over the legal actions.
    """
    return check_policy(tree, policy_fn(tree.packed, tree.legal))


def check_policy(tree: Tree, probabilities: Any) -> np.ndarray:
    """Check that probabilities are a policy.

    Args:
      tree: the game.
      probabilities: [I, A].

    Returns:
      float64[I, A], the same.

    Raises:
      ValueError: if they are no distribution over the legal actions.
    """
    policy = np.asarray(probabilities, np.float64)
    if policy.shape != tree.legal.shape:
        raise ValueError(f"policy_fn: must return shape {tree.legal.shape}, not {policy.shape}")
    on_legal = np.all((policy >= 0) & (tree.legal | (policy == 0)), axis=1)
    sums_to_one = np.abs(policy.sum(axis=1) - 1) < _NOT_A_DISTRIBUTION
    wrong = np.flatnonzero(~(on_legal & sums_to_one))
    if len(wrong):
        raise ValueError(
            f"policy_fn: gives {policy[wrong[0]].tolist()} in information state {wrong[0]}, which "
            f"must be a distribution over actions {np.flatnonzero(tree.legal[wrong[0]]).tolist()}"
        )
    return policy


def counterfactual_reaches(tree: Tree, policy: np.ndarray) -> list[np.ndarray]:
    """Compute how likely chance and the opponent of the player to move are to reach a history.

    Args:
      tree: the game.
      policy: float64[I, A], followed by both players.

    Returns:
      For each level float64[n].
    """
    reaches = []
    own = np.ones((len(tree.levels[0].chance), 2))  # of both players, without chance
    for depth, level in enumerate(tree.levels):
        rows = np.arange(len(level.player))
        if depth:
            above = tree.levels[depth - 1]
            own = own[level.parent]
            mover = above.player[level.parent]
            own[rows, mover] *= policy[above.information_state[level.parent], level.action]
        reaches.append(level.chance * own[rows, 1 - level.player])
    return reaches


class _View(NamedTuple):
    """What histories look like; n of them."""

    player: Array  # int32[n]
    legal: Array  # bool[n, A]
    terminal: Array  # bool[n]
    packed: Array  # uint8[n, P], of the player to move
    returns: Array  # float32[n], of player 0


class _Links(NamedTuple):
    """Where histories come from; n of them."""

    parent: np.ndarray  # int64[n]
    action: np.ndarray  # int64[n]
    chance: np.ndarray  # float64[n]


def _view(game: FiniteGame, state: State) -> _View:
    player = game.player(state)
    return _View(
        player=player,
        legal=game.legal_actions(state),
        terminal=game.is_terminal(state),
        packed=game.information_state(state, player),
        returns=game.returns(state)[0],
    )


@functools.partial(jax.jit, static_argnames="game")
def _view_all(game: FiniteGame, states: State) -> _View:
    return jax.vmap(functools.partial(_view, game))(states)


@functools.partial(jax.jit, static_argnames="game")
def _step_all(game: FiniteGame, steps: tuple[State, jax.Array]) -> State:
    return jax.vmap(game.step)(*steps)


def _chunked(function: Callable[..., Any], game: FiniteGame, batch: Any) -> Any:
    """Apply a batch function to host arrays of any length n, in chunks of few sizes."""
    n = len(jax.tree.leaves(batch)[0])
    size = _CHUNKS[0] if n <= _CHUNKS[0] else _CHUNKS[1]
    parts = []
    for start in range(0, n, size):
        rows = np.minimum(np.arange(start, start + size), n - 1)  # the last row fills up
        parts.append(function(game, jax.tree.map(lambda leaf, rows=rows: leaf[rows], batch)))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves)[:n], *jax.device_get(parts))


def _build(views: list[_View], links: list[_Links]) -> Tree:
    """Give the information states numbers and point the histories at them."""
    views = [view._replace(player=view.player.astype(np.int64)) for view in views]
    inner = [~view.terminal for view in views]
    packed = np.concatenate([view.packed[rows] for view, rows in zip(views, inner, strict=True)])
    legal = np.concatenate([view.legal[rows] for view, rows in zip(views, inner, strict=True)])
    player = np.concatenate([view.player[rows] for view, rows in zip(views, inner, strict=True)])
    first, numbers = _unique_rows(packed)
    ambiguous = np.any(legal != legal[first][numbers], axis=1) | (player != player[first][numbers])
    if ambiguous.any():
        example = packed[np.argmax(ambiguous)].tolist()
        raise ValueError(
            f"information_state {example}: must be of one player with one set of legal actions, "
            "but two of its histories differ in them"
        )
    levels = []
    start = 0
    for view, link, rows in zip(views, links, inner, strict=True):
        states = np.full(len(rows), -1, np.int64)
        end = start + np.count_nonzero(rows)
        states[rows] = numbers[start:end]
        start = end
        levels.append(
            Level(
                parent=link.parent,
                action=link.action,
                player=np.where(rows, view.player, 0),
                information_state=states,
                returns=np.where(rows, 0.0, view.returns.astype(np.float64)),
                chance=link.chance,
            )
        )
    form = sequence_form.build(levels, len(first), legal.shape[1])
    return Tree(tuple(levels), packed[first], legal[first], player[first], form)


def _unique_rows(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return where each distinct row stands first, in ascending order, and each row's number.

    As `numpy.unique` of an axis, but several times faster: it compares eight bytes at a time.
    """
    width = -(-rows.shape[1] // 8) * 8
    padded = np.zeros((len(rows), width), np.uint8)
    padded[:, : rows.shape[1]] = rows
    first, numbers = np.zeros(0, np.int64), np.zeros(len(rows), np.int64)
    # The first byte is the highest, so that numbers sort as bytes do.
    for word in padded.view(">u8").T:
        values, rank = np.unique(word.astype(np.uint64), return_inverse=True)
        _, first, numbers = np.unique(
            numbers * len(values) + rank, return_index=True, return_inverse=True
        )
    return first, numbers
