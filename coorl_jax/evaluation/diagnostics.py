"""How a recorded match of Lost Cities was played, beyond who won.

K pairs of rounds, C colours, T decisions at most. Everything is about policy a; the names marked
with * exist once more with the prefix `opponent_`, for policy b. Means are over all rounds of both
columns; a share is one of all the decisions of its kind in the match. Standard deviations are
those of the rounds played.

| name | unit | meaning |
|---|---|---|
| `score` *, `score_sd` * | points | own score of a round: mean, standard deviation |
| `points_sd` | points | standard deviation of own score minus the opponent's |
| `points_p05`, `_p25`, `_p50`, `_p75`, `_p95` | points | its quantiles |
| `pairing_variance_ratio` | | variance of the mean of a pair, over what it would be if its two \
rounds were independent: below 1, pairing makes errors smaller; 1 if no points vary |
| `decisions_per_round`, `turns_per_round` | | length of a round, both players together; a turn is \
a card and a draw |
| `stall_rate` | share of rounds | the limit on draws from the piles was used up |
| `play_share` *, `discard_share` * | share of cards | cards played to an expedition, discarded |
| `wager_play_share` *, `number_play_share` * | share of cards | the two parts of `play_share` |
| `deck_draw_share` *, `pile_draw_share` * | share of draws | cards drawn from the deck, a pile |
| `discard_draws` * | per round | cards drawn from the piles |
| `opened_colors` * | per round | expeditions of a card or more |
| `positive_expeditions` *, `even_expeditions` *, `negative_expeditions` * | per round | those \
worth more than, exactly and less than 0 points |
| `bonus_expeditions` * | per round | those long enough for the bonus |
| `score_per_opened_color` * | points | all points over all expeditions opened; 0 if none was |
| `wagers_played` * | per round | wagers in expeditions |
| `policy_entropy` * | nats | mean entropy of a decision |
| `fallback_rate` * | share of decisions | regret matching found no positive advantage |

Swapping the two policies swaps the two versions of every *, and negates the quantiles, exactly.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import jax
import numpy as np

from coorl_jax.evaluation.match import MatchResult
from coorl_jax.games.lost_cities import LostCities
from coorl_jax.games.lost_cities.locations import EXPEDITION
from coorl_jax.games.lost_cities.rules import State


class _Tallies(NamedTuple):
    """Counts of every round; the last axis of two is policies a, b."""

    turns: np.ndarray  # int[K, 2, 2]
    plays: np.ndarray  # int[K, 2, 2]
    pile_draws: np.ndarray  # int[K, 2, 2]
    entropy: np.ndarray  # float32[K, 2, 2], nats
    fallbacks: np.ndarray  # int[K, 2, 2]
    scores: np.ndarray  # int[K, 2, 2, C], points of each expedition
    wagers: np.ndarray  # int[K, 2, 2, C], wagers in each expedition
    cards: np.ndarray  # int[K, 2, 2, C], wagers and numbers

    def of(self, policy: int) -> _Tallies:
        """Return those of one policy: leading axes K, 2."""
        return _Tallies(*(tally[:, :, policy] for tally in self))


def diagnose(game: LostCities, result: MatchResult) -> dict[str, float]:
    """Describe a match.

    Args:
      game: the rules that it was played by.
      result: of `match.play` with `record=True`.

    Returns:
      Numbers by name, see the table above.

    Raises:
      ValueError: for a match that was not recorded.
    """
    tallies = _tally(game, result)
    points = result.points.astype(np.float64)
    by_pair = np.var(points.mean(axis=1))
    if_independent = np.sum(np.var(points, axis=0)) / 4
    described = {
        "points_sd": _deviation(points),
        "points_p05": np.quantile(points, 0.05),
        "points_p25": np.quantile(points, 0.25),
        "points_p50": np.quantile(points, 0.5),
        # From the other end, so that swapping the policies negates them to the last bit.
        "points_p75": -np.quantile(-points, 0.25),
        "points_p95": -np.quantile(-points, 0.05),
        "pairing_variance_ratio": by_pair / if_independent if if_independent > 0 else 1.0,
        "decisions_per_round": _mean(result.decisions),
        "turns_per_round": _mean(result.decisions // 2),
        # An unlimited number of draws is a constant above 0.
        "stall_rate": _mean(result.recorded.finals.discard_draws_left == 0),
    }
    opponent = _describe(game, tallies.of(1))
    described |= _describe(game, tallies.of(0))
    described |= {f"opponent_{name}": value for name, value in opponent.items()}
    return {name: float(value) for name, value in described.items()}


def matches_of_three(points: np.ndarray, group: int = 1) -> dict[str, float]:
    """Return how matches of three rounds end that are put together from rounds played.

    Deals 3 i, 3 i + 1 and 3 i + 2 make a match, which is played twice: either policy starts the
    first round once. Who leads on total points starts the next one; on equal totals, who did not
    start the last. Deals that are left over are not used. Swapping the policies, that is
    `-points[:, ::-1]`, swaps wins and losses and negates the points, exactly.

    Args:
      points: float32[K, 2], points of policy a in deal k when it has seat s, and so starts if s is
        0: `MatchResult.points`.
      group: deals in a row that are not independent: `MatchResult.group`.

    Returns:
      `match_points`, mean total of policy a, and `match_win_rate`, each with its standard error
      under the name that ends in `_se`; `match_draw_rate` and `match_loss_rate`.

    Raises:
      ValueError: with too few deals for two independent blocks of matches, and so for an error.
    """
    # Blocks of matches that begin where a group does are independent.
    block = group // math.gcd(3, group)
    if len(points) < 3 * block + 3:
        raise ValueError(
            f"points of {len(points)} deals: must be at least {3 * block + 3} for a standard error "
            f"of matches of three rounds, with groups of {group}; e.g. {300 * block}"
        )
    by_match = points[: len(points) // 3 * 3].astype(np.float64).reshape(-1, 3, 2)
    matches = np.arange(len(by_match))[:, None]
    seat = np.broadcast_to(np.arange(2), (len(by_match), 2))  # of policy a
    total = np.zeros(seat.shape)
    for deal in range(3):
        total = total + by_match[matches, deal, seat]
        seat = np.where(total == 0, 1 - seat, np.where(total > 0, 0, 1))
    # A match is to its errors what a round is to those of a pair; nobody asks for its length.
    ended = MatchResult(total, decisions=np.zeros(total.shape, np.int32), group=block)
    mean, mean_error = ended.points_per_round
    wins, wins_error = ended.win_rate
    return {
        "match_points": mean,
        "match_points_se": mean_error,
        "match_win_rate": wins,
        "match_win_rate_se": wins_error,
        "match_draw_rate": ended.draw_rate[0],
        "match_loss_rate": ended.loss_rate[0],
    }


def _tally(game: LostCities, result: MatchResult) -> _Tallies:
    """Count, in a recorded match, who did what."""
    recording = result.recorded
    finals: State = recording.finals
    # Decisions come in turns of a card and a draw, of either seat in turn.
    cards, draws = recording.actions[..., 0::2], recording.actions[..., 1::2]
    taken = np.arange(cards.shape[-1]) < result.decisions[..., None] // 2

    def count(turns: np.ndarray) -> np.ndarray:
        by_seat = [np.sum((taken & turns)[..., seat::2], axis=-1) for seat in (0, 1)]
        return _by_policy(np.stack(by_seat, axis=-1))

    expeditions = EXPEDITION + np.arange(2, dtype=np.uint8)[:, None]
    own = _by_policy(np.asarray(finals.location)[:, :, None] == expeditions)
    own = own.reshape(*own.shape[:3], game.colors, game.suit_size)
    return _Tallies(
        turns=count(taken),
        plays=count(cards % 2 == 0),
        pile_draws=count(draws > 2 * game.hand_size),
        entropy=recording.entropy,
        fallbacks=recording.fallbacks,
        scores=_by_policy(np.asarray(_scores(game, finals))),
        wagers=np.sum(own[..., : game.wagers], axis=-1),
        cards=np.sum(own, axis=-1),
    )


def _describe(game: LostCities, of: _Tallies) -> dict[str, float]:
    """Return what the table has a * for, of one policy."""
    score = np.sum(of.scores, axis=2)
    # Cards and draws, of which there is one each in every turn.
    turns = _mean(of.turns)
    decisions = 2 * turns
    wagers, numbers = (_mean(np.sum(n, axis=2)) for n in (of.wagers, of.cards - of.wagers))
    plays, pile_draws = _mean(of.plays), _mean(of.pile_draws)
    opened = of.cards > 0

    def per_round(expeditions: np.ndarray) -> float:
        return _mean(np.sum(opened & expeditions, axis=2))

    opened_colors = per_round(opened)
    return {
        "score": _mean(score),
        "score_sd": _deviation(score),
        "play_share": plays / turns,
        "discard_share": 1 - plays / turns,
        "wager_play_share": wagers / turns,
        "number_play_share": numbers / turns,
        "deck_draw_share": 1 - pile_draws / turns,
        "pile_draw_share": pile_draws / turns,
        "discard_draws": pile_draws,
        "opened_colors": opened_colors,
        "positive_expeditions": per_round(of.scores > 0),
        "even_expeditions": per_round(of.scores == 0),
        "negative_expeditions": per_round(of.scores < 0),
        "bonus_expeditions": per_round(of.cards >= game.bonus_threshold),
        "score_per_opened_color": _mean(score) / opened_colors if opened_colors > 0 else 0.0,
        "wagers_played": wagers,
        "policy_entropy": _mean(of.entropy) / decisions,
        "fallback_rate": _mean(of.fallbacks) / decisions,
    }


@partial(jax.jit, static_argnames="game")
def _scores(game: LostCities, finals: State) -> jax.Array:
    """Return int32[K, 2, 2, C], points of expeditions by seat."""
    return jax.vmap(jax.vmap(game.scores))(finals)


def _by_policy(by_seat: np.ndarray) -> np.ndarray:
    """Return [K, 2, 2, ...] with policies a, b in the third axis, which has the seats 0, 1."""
    return np.stack([by_seat[:, 0], by_seat[:, 1, ::-1]], axis=1)


def _mean(values: np.ndarray) -> float:
    """Return the mean of [K, 2]: by pairs first, to the last bit the same with columns swapped."""
    return float(np.mean(np.mean(values, axis=1, dtype=np.float64)))


def _deviation(values: np.ndarray) -> float:
    """Return the standard deviation of [K, 2] over all rounds."""
    return float(np.sqrt(_mean((values - _mean(values)) ** 2)))
