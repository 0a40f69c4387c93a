"""Where the time of a match goes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from coorl_jax.evaluation.match import play
from coorl_jax.games.game import Game
from coorl_jax.policy import AnyPolicy, MixturePolicy, Policy

_REPEATS = 7


class Timing(NamedTuple):
    """The time of one match, without compilation."""

    rounds_per_second: float
    policy_share: float | None  # of the work, done by policy a; None for a mixture
    opponent_share: float | None  # by policy b; the game and its bookkeeping are the rest


def measure(
    game: Game, policy: AnyPolicy, opponent: AnyPolicy, pairs: int, key: jax.Array
) -> Timing:
    """Play a match once more, and time either policy alone.

    A match is one program, which cannot be timed in parts. So a policy is timed by itself, on as
    many states at once as in the match, and counted as often as the match asked it; neither
    networks nor bots take longer for some states than for others of the same turn. Shares are those
    of a match whose parts are not played side by side, and a little too large, since the last
    rounds of a match ask a network about fewer states. A mixture asks several networks, and is left
    out.

    Args:
      game: the rules.
      policy: policy a.
      opponent: policy b.
      pairs: deals of the match, each played twice.
      key: consumed.
    """
    play(game, policy, opponent, pairs, key)  # Compiles, if need be.
    started = time.perf_counter()
    result = play(game, policy, opponent, pairs, key)
    rounds_per_second = result.rounds / (time.perf_counter() - started)
    started = time.perf_counter()
    play(game, policy, opponent, pairs, key, one_by_one=True)
    seconds = time.perf_counter() - started
    turn = _states_of_a_turn(game, result.batch, key)

    def share(policy: AnyPolicy) -> float | None:
        if isinstance(policy, MixturePolicy):
            return None
        alone = np.mean([_seconds(_decide, policy, *states) for states in turn])
        return float(result.passes * alone / seconds)

    return Timing(rounds_per_second, share(policy), share(opponent))


@jax.jit
def _decide(policy: Policy, packed: jax.Array, legal: jax.Array) -> jax.Array:
    return policy.action_probabilities(packed, legal)


def _states_of_a_turn(game: Game, batch: int, key: jax.Array) -> list[tuple[Any, Any]]:
    """Return packed states and legal actions after no decision, and after one."""
    states = jax.vmap(game.init)(jax.random.split(key, batch))
    turn = []
    for _ in range(2):
        player = jax.vmap(game.player)(states)
        legal = jax.vmap(game.legal_actions)(states)
        turn.append((jax.vmap(game.information_state)(states, player), legal))
        states = jax.vmap(game.step)(states, jnp.argmax(legal, axis=1).astype(jnp.int32))
    return turn


def _seconds(function: Callable[..., Any], *arguments: Any) -> float:
    """Return the median time of a call, after a first one that compiles."""
    jax.block_until_ready(function(*arguments))
    taken = []
    for _ in range(_REPEATS):
        started = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        taken.append(time.perf_counter() - started)
    return float(np.median(taken))
