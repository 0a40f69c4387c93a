"""The critic: the value network's opinion of every action, from the states that actions lead to.

B lanes, A actions, W bytes of a whole state. Q(h, a) is the value of the successor of h under a,
and the utility itself where the round ends. The network values states and not pairs of a state
and an action: what an action does, the rules know and need not be learnt.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from coorl_jax.cfr.lanes import compact, pick
from coorl_jax.games.game import Game, State
from coorl_jax.networks import Params, ValueNetwork

_PER_LANE = 8  # successors evaluated at once, per lane; more are evaluated in turns


def action_values(
    game: Game,
    network: ValueNetwork,
    params: Params,
    state: State,
    legal: jax.Array,
    utility_scale: float,
) -> jax.Array:
    """Evaluate the successors of all legal actions.

    Args:
      game: the rules.
      network: gives the value of a whole state to the player who moves there.
      params: its parameters.
      state: leaves [B, ...], none of them terminal where anything is legal.
      legal: bool[B, A]; the successors of other actions are not evaluated.
      utility_scale: points per unit of utility.

    Returns:
      float32[B, A], the utility that the player to move in `state` can expect; 0 where not legal.
    """
    lanes, actions = legal.shape
    mover = jax.vmap(game.player)(state)
    width = lanes * min(actions, _PER_LANE)
    turns = -(-lanes * actions // width)
    # Legal (lane, action) pairs first; positions past the last pair write nothing.
    pairs = compact(legal.reshape(-1), turns * width)
    count = jnp.sum(legal)

    def evaluate(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        turn, values = carry
        chosen = jax.lax.dynamic_slice(pairs, (turn * width,), (width,))
        readable = jnp.minimum(chosen, lanes * actions - 1)
        lane, action = readable // actions, readable % actions
        before: Any = jax.tree.map(lambda leaf: leaf[lane], state)
        after = jax.vmap(game.step)(before, action)
        whole = jax.vmap(game.whole_state)(after)
        value = network.apply(params, whole)[:, 0]
        value = jnp.where(jax.vmap(game.player)(after) == mover[lane], value, -value)
        utility = pick(jax.vmap(game.returns)(after), mover[lane]) / utility_scale
        value = jnp.where(jax.vmap(game.is_terminal)(after), utility, value)
        return turn + 1, values.at[chosen].set(value, mode="drop")

    _, values = jax.lax.while_loop(
        lambda carry: carry[0] * width < count,
        evaluate,
        (jnp.int32(0), jnp.zeros(lanes * actions, jnp.float32)),
    )
    return values.reshape(lanes, actions)
