"""A player that tries every action by playing on: one-ply search by determinised rollouts.

B information states, A actions, P packed bytes, K deals for each state, L lanes, R rollouts.

For every information state K whole states are dealt that its player cannot tell apart. In each of
them every legal action is tried, and a given policy plays both sides to the end of the round. An
action that does better there than the policy's own, by more than luck explains, is played; where
none does, the policy plays. It is one step of policy improvement, against an opponent who is taken
for that policy and whose earlier decisions tell nothing. (The action with the highest mean would be
mostly noise: of eight deals it lost 88 points a round to the policy that it was to improve.)

All actions share the K deals, and the noise of every later decision (common random numbers), so
that their differences are known much better than their values. Random numbers depend on the key and
the packed bytes alone, so that the player is a deterministic policy; only that a network rounds
otherwise in a batch of another size, and now and then a rollout then goes another way.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from coorl_jax.cfr.lanes import compact, pick, select
from coorl_jax.cfr.regret_matching import sample_action
from coorl_jax.games.game import TURNS, DeterminizableGame, Game, State
from coorl_jax.policy import MixturePolicy, Policy

_LANES = 8192
_LANES_OF_A_CPU = 512
"""Rollouts under way at once, at most: they bound the memory, whatever B and K are. A CPU evaluates
a network for a few hundred states as fast as for more, and fewer lanes have a shorter tail."""
_NARROWING = 4
"""As rollouts run out, so many times fewer lanes go on. Each width takes seconds to compile."""
_NARROWEST = 64
"""Lanes that are worth a program of their own, at least."""
_ROUNDING = 1e-3  # points: a gain that is no more is none
_DEAL = 0  # stream below the key of a deal; the d-th decision after the root has stream d


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SearchPolicy:
    """Plays an action that turns out better than the policy's own, where there is one.

    Raises:
      ValueError: for a game that cannot deal again what a player does not know or whose rounds need
        not end, for a mixture, or without samples.
    """

    game: Game = dataclasses.field(metadata={"static": True})
    policy: Policy  # of both players after the action that is tried
    key: jax.Array  # of all random numbers
    samples: int = dataclasses.field(metadata={"static": True})  # K
    margin: float = dataclasses.field(default=2.0, metadata={"static": True})  # standard errors

    def __post_init__(self) -> None:
        """Check what can be searched."""
        if not isinstance(self.game, DeterminizableGame):
            raise ValueError(
                f"search: must be in a game that can deal again what a player does not know, not "
                f"{self.game.name}; e.g. lost_cities"
            )
        _ = self.game.max_decisions
        if isinstance(self.policy, MixturePolicy):
            raise ValueError(
                "search: must be with a single policy, not a mixture, which draws one for a whole "
                "round; e.g. average"
            )
        if self.samples < 2:
            raise ValueError(
                f"search={self.samples}: must have at least 2 samples, for an error; e.g. 64"
            )

    def action_probabilities(self, packed: jax.Array, legal: jax.Array) -> jax.Array:
        """Return float32[B, A] for uint8[B, P] and bool[B, A].

        1 for the action whose gain over the policy is greatest after `margin` standard errors are
        taken off, if something is left, the lowest number among equals; else what the policy plays.
        Where a single action is legal, none is tried.
        """
        own = self.policy.action_probabilities(packed, legal)
        choices = jnp.sum(legal, axis=1, keepdims=True)
        returns = roll_out(self, packed, legal & (choices > 1)).returns
        gains = returns - jnp.einsum("ba,bak->bk", own, returns)[:, None]
        error = jnp.std(gains, axis=2, ddof=1) / np.sqrt(self.samples)
        least = jnp.where(legal, jnp.mean(gains, axis=2) - self.margin * error, -jnp.inf)
        best = jax.nn.one_hot(jnp.argmax(least, axis=1), legal.shape[1], dtype=jnp.float32)
        return jnp.where(jnp.max(least, axis=1, keepdims=True) > _ROUNDING, best, own)


class Rollouts(NamedTuple):
    """What rollouts gave, and what they cost."""

    returns: jax.Array  # float32[B, A, K], points of the player to move; 0 if not tried
    decisions: jax.Array  # int32, taken after the tried actions, all rollouts together
    evaluated: jax.Array  # int32, states that the policy was given for them


class _Lanes(NamedTuple):
    """Rollouts under way."""

    state: State  # leaves [L, ...]
    choice: jax.Array  # int32[L], the tried action, b A + a; B A for a lane without a rollout
    deal: jax.Array  # int32[L], which of the K
    noise_key: jax.Array  # key[L], of the deal
    decisions: jax.Array  # int32[L], since the root, the tried action included


class _Progress(NamedTuple):
    """The carry of the loops."""

    lanes: _Lanes
    begun: jax.Array  # int32, rollouts
    rollouts: Rollouts  # its returns as float32[B A, K]


@dataclasses.dataclass(frozen=True)
class _Task:
    """What is to be tried. Rollout i is deal i % K under choice i // K of those that are legal."""

    search: SearchPolicy
    packed: jax.Array  # uint8[B, P]
    choices: jax.Array  # int32[B A], legal ones first, as b A + a
    root_keys: jax.Array  # key[B]
    rollouts: jax.Array  # int32, R, how many there are

    @property
    def none(self) -> int:
        """Return the `choice` of a lane without a rollout, B A."""
        return self.choices.shape[0]

    def row(self, choice: jax.Array) -> jax.Array:
        """Return int32[L], the number b of the state that each lane's choice belongs to."""
        batch = self.packed.shape[0]
        return jnp.minimum(choice // self.search.game.num_actions, batch - 1)


def roll_out(search: SearchPolicy, packed: jax.Array, legal: jax.Array) -> Rollouts:
    """Play out the K deals of every state under every legal action.

    Args:
      search: the game, the policy that plays on, and how many deals.
      packed: uint8[B, P], of the players to move.
      legal: bool[B, A]; other actions are not tried, and cost nothing.
    """
    batch, actions = legal.shape
    # Whoever asks about a fixed number of states may fill up with copies of one of them.
    original = _first_of_its_kind(packed, legal)
    tried = legal & (original == np.arange(batch))[:, None]
    task = _Task(
        search=search,
        packed=packed,
        choices=compact(tried.reshape(-1), batch * actions),
        root_keys=jax.vmap(partial(_root_key, search.key))(packed),
        rollouts=jnp.sum(tried, dtype=jnp.int32) * search.samples,
    )
    lanes = _LANES_OF_A_CPU if jax.default_backend() == "cpu" else _LANES
    widths = [min(lanes, batch * actions * search.samples)]
    while widths[-1] // _NARROWING >= _NARROWEST:
        widths.append(widths[-1] // _NARROWING)
    progress = _Progress(
        lanes=_no_lanes(task, widths[0]),
        begun=jnp.int32(0),
        rollouts=Rollouts(jnp.zeros((batch * actions, search.samples)), jnp.int32(0), jnp.int32(0)),
    )
    # Each width serves as long as the next one has no room for what is left.
    for width, narrower in zip(widths, [*widths[1:], 0], strict=True):
        progress = progress._replace(lanes=_narrowed(task, progress.lanes, width))

        def has_work(progress: _Progress, narrower: int = narrower) -> jax.Array:
            under_way = jnp.sum(progress.lanes.choice < task.none)
            return task.rollouts - progress.begun + under_way > narrower

        progress = jax.lax.while_loop(has_work, partial(_advance, task), progress)
    returns = progress.rollouts.returns.reshape(batch, actions, -1)[original]
    return progress.rollouts._replace(returns=jnp.where(legal[:, :, None], returns, 0.0))


def _first_of_its_kind(packed: jax.Array, legal: jax.Array) -> jax.Array:
    """Return int32[B], the first of the states in a row that are the same as this one."""
    asked = jnp.concatenate([packed, legal.astype(jnp.uint8)], axis=1)
    differs = jnp.any(asked[1:] != asked[:-1], axis=1)
    number = np.arange(1, asked.shape[0], dtype=np.int32)
    first = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.where(differs, number, 0)])
    return jax.lax.cummax(first)


def _root_key(key: jax.Array, packed: jax.Array) -> jax.Array:
    """Return the key of uint8[P], an information state: its bytes folded in, four at a time."""
    padded = jnp.pad(packed, (0, -packed.shape[0] % 4))
    words = jax.lax.bitcast_convert_type(padded.reshape(-1, 4), jnp.uint32)
    return jax.lax.scan(lambda key, word: (jax.random.fold_in(key, word), None), key, words)[0]


def _no_lanes(task: _Task, width: int) -> _Lanes:
    """Return lanes without rollouts."""
    state = jax.eval_shape(task.search.game.init, task.search.key)
    return _Lanes(
        state=jax.tree.map(lambda leaf: jnp.zeros((width, *leaf.shape), leaf.dtype), state),
        choice=jnp.full(width, task.none, jnp.int32),
        deal=jnp.zeros(width, jnp.int32),
        noise_key=jnp.broadcast_to(task.search.key, (width,)),
        decisions=jnp.zeros(width, jnp.int32),
    )


def _narrowed(task: _Task, lanes: _Lanes, width: int) -> _Lanes:
    """Return the lanes with rollouts, of which there are `width` at most, in that many lanes."""
    chosen = compact(lanes.choice < task.none, width)
    narrowed: _Lanes = jax.tree.map(lambda leaf: leaf.at[chosen].get(mode="clip"), lanes)
    is_lane = chosen < lanes.choice.shape[0]
    return narrowed._replace(choice=jnp.where(is_lane, narrowed.choice, task.none))


def _advance(task: _Task, progress: _Progress) -> _Progress:
    """Begin rollouts in free lanes, take a few decisions in all, and note what has ended.

    Rollouts begin a multiple of `TURNS` decisions apart: if all states are of one seat and phase,
    as in a match, so are the lanes at any time, and of a network per seat one is evaluated.
    """
    progress = _begin(task, progress)
    decided = jax.lax.fori_loop(
        0, TURNS, lambda _, carry: _decide(task, *carry), (progress.lanes, progress.rollouts)
    )
    return _end(task, progress.begun, *decided)


def _begin(task: _Task, progress: _Progress) -> _Progress:
    """Deal the next rollouts to free lanes, and try their actions."""
    lanes, game = progress.lanes, task.search.game
    assert isinstance(game, DeterminizableGame)
    free = lanes.choice == task.none
    number = progress.begun + jnp.cumsum(free, dtype=jnp.int32) - 1
    begins = free & (number < task.rollouts)
    choice = task.choices[jnp.where(begins, number // task.search.samples, 0)]
    row = task.row(choice)
    deal = number % task.search.samples
    deal_key = jax.vmap(jax.random.fold_in)(task.root_keys[row], deal)
    root = jax.vmap(game.sample_state)(
        task.packed[row], jax.vmap(partial(jax.random.fold_in, data=_DEAL))(deal_key)
    )
    state = jax.vmap(game.step)(root, choice % game.num_actions)
    begun = _Lanes(state, choice, deal, deal_key, jnp.ones_like(choice))
    return progress._replace(
        lanes=jax.tree.map(partial(select, begins), begun, lanes),
        begun=progress.begun + jnp.sum(begins, dtype=jnp.int32),
    )


def _decide(task: _Task, lanes: _Lanes, rollouts: Rollouts) -> tuple[_Lanes, Rollouts]:
    """Take one decision in every lane whose round goes on."""
    game = task.search.game
    goes_on = (lanes.choice < task.none) & ~jax.vmap(game.is_terminal)(lanes.state)
    player = jax.vmap(game.player)(lanes.state)
    probabilities = task.search.policy.action_probabilities(
        jax.vmap(game.information_state)(lanes.state, player),
        jax.vmap(game.legal_actions)(lanes.state),
    )
    noise = jax.vmap(lambda key, stream: jax.random.uniform(jax.random.fold_in(key, stream)))(
        lanes.noise_key, lanes.decisions
    )
    action = sample_action(probabilities, noise)
    return (
        lanes._replace(
            # A round that is over stays as it is.
            state=jax.vmap(game.step)(lanes.state, action),
            decisions=lanes.decisions + 1,
        ),
        rollouts._replace(
            decisions=rollouts.decisions + jnp.sum(goes_on, dtype=jnp.int32),
            evaluated=rollouts.evaluated + len(action),
        ),
    )


def _end(task: _Task, begun: jax.Array, lanes: _Lanes, rollouts: Rollouts) -> _Progress:
    """Note what the rollouts that have ended gave, and free their lanes."""
    game = task.search.game
    ended = jax.vmap(game.is_terminal)(lanes.state)
    mover = jax.vmap(game.seat)(task.packed)[task.row(lanes.choice)]
    points = pick(jax.vmap(game.returns)(lanes.state), mover)
    choice = jnp.where(ended, lanes.choice, task.none)
    returns = rollouts.returns.at[choice, lanes.deal].set(points, mode="drop")
    return _Progress(
        lanes._replace(choice=jnp.where(ended, task.none, lanes.choice)),
        begun,
        rollouts._replace(returns=returns),
    )
