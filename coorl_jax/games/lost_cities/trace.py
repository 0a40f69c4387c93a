"""Given games of Lost Cities as the engine plays them: what a record of each would say.

Many games are played at once under `jit`; sizes are padded to powers of two, so that few
different ones are compiled.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from coorl_jax.games.lost_cities.locations import EXPEDITION
from coorl_jax.games.lost_cities.rules import LostCities, State

PHASES = ("card", "draw")

Array = Any  # np.ndarray on the host, jax.Array under jit


class Trace(NamedTuple):
    """Games as the engine plays them: T decisions of B games, and the states they end in."""

    player: Array  # int32[B, T]
    phase: Array  # int32[B, T]
    legal: Array  # bool[B, T, A]
    terminal: Array  # bool[B, T]
    location: Array  # uint8[B, N], at the end
    deck_left: Array  # int32[B], at the end
    expedition_scores: Array  # int32[B, 2, C], at the end
    packed: Array  # uint8[B, P], what the player to move knows at the end


def trace_games(game: LostCities, decks: np.ndarray, actions: list[list[int]]) -> Trace:
    """Trace given actions on given decks.

    Args:
      game: the rules.
      decks: uint8[B, N].
      actions: for each game its action numbers; an impossible number is played as a possible one.

    Returns:
      The trace of the B games, on the host. The last entry of each game is its last state, so
      that T exceeds the longest game.
    """
    lanes = _power_of_two(len(actions))
    length = _power_of_two(max(map(len, actions)) + 1)
    padded = np.zeros((lanes, length), np.int32)
    for row, taken in zip(padded, actions, strict=False):
        row[: len(taken)] = [min(max(action, 0), game.num_actions - 1) for action in taken]
    lengths = np.zeros(lanes, np.int32)
    lengths[: len(actions)] = [len(taken) for taken in actions]
    all_decks = np.tile(np.arange(game.num_cards, dtype=np.uint8), (lanes, 1))
    all_decks[: len(decks)] = decks
    traces = jax.device_get(_play(game, all_decks, padded, lengths))
    return jax.tree.map(lambda leaf: leaf[: len(actions)], traces)


@functools.partial(jax.jit, static_argnames="game")
def _play(game: LostCities, decks: Array, actions: Array, lengths: Array) -> Trace:
    """Trace uint8[B, N] decks and int32[B, T] actions, of which int32[B] count."""

    def decide(state: State, step: tuple[jax.Array, jax.Array]):
        counts, action = step
        seen = (
            game.player(state),
            state.phase,
            game.legal_actions(state),
            game.is_terminal(state),
        )
        after = game.step(state, action)
        return jax.tree.map(lambda new, old: jnp.where(counts, new, old), after, state), seen

    def one_game(deck: jax.Array, taken: jax.Array, length: jax.Array) -> Trace:
        within = jnp.arange(taken.shape[0]) < length
        final, seen = jax.lax.scan(decide, game.from_deck(deck), (within, taken))
        player, phase, legal, terminal = seen
        return Trace(
            player=player,
            phase=phase,
            legal=legal,
            terminal=terminal,
            location=final.location,
            deck_left=final.deck_left,
            expedition_scores=game.scores(final),
            packed=game.information_state(final, game.player(final)),
        )

    return jax.vmap(one_game)(decks, actions, lengths)


def field_value(game: LostCities, trace: Trace, field: str, decision: int) -> Any:
    """Return what one game's trace says of a field, in the form that records use.

    Args:
      game: the rules.
      trace: of one game, without the axis B.
      field: name of a field in a record; any name not known here stands for an action, and its
        value is the list of legal ones.
      decision: of which decision; that after the last action for the fields about the end.

    Returns:
      The value, as `json` would read it.
    """
    match field:
        case "player":
            return int(trace.player[decision])
        case "phase":
            return PHASES[trace.phase[decision]]
        case "terminal":
            return bool(trace.terminal[decision])
        case "truncated":
            return not trace.terminal[decision]
        case "n_steps":
            return decision
        case "deck_left":
            return int(trace.deck_left)
        case "expedition_scores":
            return trace.expedition_scores.tolist()
        case "scores":
            return trace.expedition_scores.sum(axis=1).tolist()
        case "expeditions":
            return _expeditions(game, trace.location)
        case _:
            return np.flatnonzero(trace.legal[decision]).tolist()


def _expeditions(game: LostCities, location: np.ndarray) -> list[list[list[int]]]:
    """Return the ranks of every expedition in order, 0 for a wager, by player and colour."""
    ranks = np.maximum(np.arange(game.suit_size) - game.wagers + 1, 0)
    suits = location.reshape(game.colors, game.suit_size)
    return [[ranks[suit == EXPEDITION + seat].tolist() for suit in suits] for seat in (0, 1)]


def _power_of_two(n: int) -> int:
    """Return the least power of two that is at least n."""
    return 1 << (n - 1).bit_length()
