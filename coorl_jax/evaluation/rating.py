"""Ratings from a round robin: who is how strong, how sure that is, and who beats whom in a circle.

n players meet in all n (n - 1) / 2 pairings on the same K decks. Luck of the deal is then common to
all matches and to all players, so that intervals come from resampling deals, with everything that
was played on them, and never single rounds.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from coorl_jax.evaluation.match import MatchResult
from coorl_jax.games.game import NUM_PLAYERS

_POINTS_PER_LOG_ODDS = 400 / math.log(10)
"""Elo's scale: 400 points more are odds of ten to one."""
_LEVEL = 0.05
"""Chance that an interval misses, or that any pairing of a tournament is called wrongly."""


class Ratings(NamedTuple):
    """Ratings on Elo's scale, mean zero, with 95 % intervals; each float64[n]."""

    rating: np.ndarray
    low: np.ndarray
    high: np.ndarray


def bradley_terry(wins: np.ndarray) -> np.ndarray:
    """Return the ratings under which the results are most likely.

    The odds that i beats j are 10^((rating_i - rating_j) / 400). To the results a virtual draw of
    each two players is added, without which a player who won or lost everything would have no
    finite rating.

    Args:
      wins: float[..., n, n], how often row beat column, a draw as half a win of both; the diagonal
        is not looked at.

    Returns:
      float64[..., n], points on Elo's scale, mean zero, exact to 1e-10.

    Source: Bradley & Terry (1952), "Rank analysis of incomplete block designs". The likelihood is
    concave in the log-odds: Hunter (2004), "MM algorithms for generalized Bradley-Terry models".
    """
    players = wins.shape[-1]
    wins = wins + 0.5
    log_odds = np.zeros(wins.shape[:-1])
    while True:
        chance = 1 / (1 + np.exp(log_odds[..., None, :] - log_odds[..., :, None]))
        # A sum of differences that vanish pair by pair: no loss of digits where one side wins all.
        unexpected = wins * _transpose(chance)
        gradient = np.sum(unexpected - _transpose(unexpected), axis=-1)
        information = (wins + _transpose(wins)) * chance * _transpose(chance)
        # The likelihood does not know the mean; with a constant added a step leaves it at zero.
        hessian = np.eye(players) * np.sum(information, axis=-1)[..., None] - information
        hessian += np.mean(information, axis=(-2, -1), keepdims=True)
        step = np.linalg.solve(hessian, gradient[..., None])[..., 0]
        # Along a Newton step of this range the curvature grows at most by exp(range) (the third
        # derivative of a logistic term is at most the second), so that a step cut to
        # log(1 + range) / range always gains; Newton's method alone may diverge.
        range_ = np.maximum(np.ptp(step, axis=-1, keepdims=True), np.finfo(float).tiny)
        log_odds += step * np.log1p(range_) / range_
        # The error is about the square of the last step.
        if not np.max(range_) > 1e-8:
            return _POINTS_PER_LOG_ODDS * (log_odds - np.mean(log_odds, axis=-1, keepdims=True))


def bonferroni(pairings: int) -> float:
    """Return how many standard errors from zero all of so many differences are sure at 95 %.

    If no pairing had a better player, the chance that any is called is 5 % at most, whatever they
    have in common: each is tested both ways at 5 % divided by their number (Bonferroni).
    """
    return NormalDist().inv_cdf(1 - _LEVEL / 2 / pairings)


@dataclasses.dataclass(frozen=True)
class Tournament:
    """A round robin of n players, 0 to n - 1; rows are players and columns their opponents.

    Attributes:
      matches: player i against j for every i < j, all on the same decks.
    """

    matches: Mapping[tuple[int, int], MatchResult]

    def __post_init__(self) -> None:
        """Check that all met, on equally many deals."""
        pairings = set(itertools.combinations(range(self.num_players), 2))
        if not pairings or set(self.matches) != pairings:
            raise ValueError(
                f"matches of {sorted(self.matches)}: must be of all pairs (i, j) with i < j; "
                "e.g. (0, 1), (0, 2), (1, 2)"
            )
        if len({match.points.shape for match in self.matches.values()}) > 1:
            raise ValueError("matches: must all be of the same deals")

    @property
    def num_players(self) -> int:
        """Number of players, n."""
        return 1 + max((j for _, j in self.matches), default=0)

    @property
    def group(self) -> int:
        """Deals in a row that are not independent in some match."""
        return math.lcm(*(match.group for match in self.matches.values()))

    def payoff(self) -> tuple[np.ndarray, np.ndarray]:
        """Return points per round of row against column, and standard errors; float64[n, n]."""
        mean, error = np.zeros((2, self.num_players, self.num_players))
        for (i, j), match in self.matches.items():
            mean[i, j], error[i, j] = match.points_per_round
            mean[j, i], error[j, i] = -mean[i, j], error[i, j]
        return mean, error

    def win_rates(self) -> tuple[np.ndarray, np.ndarray]:
        """Return shares of rounds that row wins against column, and standard errors.

        Returns:
          float64[n, n] each, nan on the diagonal, which is not played.
        """
        mean, error = np.full((2, self.num_players, self.num_players), np.nan)
        for (i, j), match in self.matches.items():
            mean[i, j], error[i, j] = match.win_rate
            mean[j, i], error[j, i] = match.loss_rate
        return mean, error

    def points_against_field(self) -> tuple[np.ndarray, np.ndarray]:
        """Return points per round of each player against the others, and standard errors.

        Every opponent counts the same. The errors see that a player's matches share their decks.

        Returns:
          float64[n] each.
        """
        return self._against_field(lambda points: points)

    def win_rate_against_field(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the share of rounds that each player wins, as `points_against_field`."""
        return self._against_field(lambda points: points > 0)

    def ratings(self, seed: int, resamples: int = 1000) -> Ratings:
        """Return ratings with percentile intervals from resampled deals.

        A resample takes as many deals as there are, with replacement, and with each of them all the
        rounds that were played on it; where deals in a row are not independent, it takes groups.
        The intervals are of a rating relative to the mean of this field. Where a player won
        everything every resample says the same, and the rating itself is only a lower bound.

        Args:
          seed: of the resamples.
          resamples: how many.

        Returns:
          Ratings and intervals.

        Source: Efron & Tibshirani (1993), "An introduction to the bootstrap", chapter 13.
        """
        wins = self._wins_by_group()
        groups = wins.shape[0]
        flat = wins.reshape(groups, -1)
        generator = np.random.default_rng(seed)
        # One by one, as all counts together would not fit where there are many deals.
        resampled = [
            np.bincount(generator.integers(groups, size=groups), minlength=groups) @ flat
            for _ in range(resamples)
        ]
        by_resample = bradley_terry(np.reshape(resampled, (resamples, *wins.shape[1:])))
        low, high = np.quantile(by_resample, (_LEVEL / 2, 1 - _LEVEL / 2), axis=0)
        return Ratings(bradley_terry(wins.sum(axis=0)), low, high)

    def intransitive_triples(self, z: float | None = None) -> list[tuple[int, int, int]]:
        """Return each (a, b, c) in which a beats b, b beats c and c beats a.

        Args:
          z: by how many standard errors of the points per round; if None, as many as `bonferroni`
            says for all pairings of the tournament.

        Returns:
          Every circle once, from its first player on.
        """
        mean, error = self.payoff()
        beats = mean > (bonferroni(len(self.matches)) if z is None else z) * error
        return [
            (a, b, c)
            for a, *others in itertools.combinations(range(self.num_players), 3)
            for b, c in itertools.permutations(others)
            if beats[a, b] and beats[b, c] and beats[c, a]
        ]

    def _against_field(
        self, value: Callable[[np.ndarray], np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return each player's mean over its opponents of a value of its points in a round."""
        first = next(iter(self.matches.values()))
        means = [np.zeros(first.points.shape) for _ in range(self.num_players)]
        for (i, j), match in self.matches.items():
            means[i] += value(match.points) / (self.num_players - 1)
            means[j] += value(-match.points[:, ::-1]) / (self.num_players - 1)
        mean_and_error = dataclasses.replace(first, group=self.group).mean_and_error
        mean, error = np.array([mean_and_error(by_seat) for by_seat in means]).T
        return mean, error

    def _wins_by_group(self) -> np.ndarray:
        """Return float64[G, n, n], what row won of a group's rounds against column, draws half."""
        deals = next(iter(self.matches.values())).points.shape[0]
        starts = np.arange(0, deals, self.group)
        rounds = NUM_PLAYERS * np.diff(starts, append=deals)
        wins = np.zeros((starts.size, self.num_players, self.num_players))
        for (i, j), match in self.matches.items():
            by_deal = np.sum((1 + np.sign(match.points)) / 2, axis=1, dtype=np.float64)
            wins[:, i, j] = np.add.reduceat(by_deal, starts)
            wins[:, j, i] = rounds - wins[:, i, j]
        return wins


def _transpose(matrices: np.ndarray) -> np.ndarray:
    return np.swapaxes(matrices, -1, -2)
