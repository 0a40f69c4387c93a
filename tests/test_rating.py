import itertools
import math

import numpy as np
import pytest

from coorl_jax.evaluation.match import MatchResult
from coorl_jax.evaluation.rating import Tournament, bonferroni, bradley_terry


def elo(odds):
    return 400 * math.log10(odds)


def match(points, group=1):
    points = np.asarray(points, np.float32)
    return MatchResult(points, np.full(points.shape, 4), group)


def minorize_maximize(wins, iterations):
    """Hunter (2004), equation 3: an algorithm that climbs to the same ratings, slowly."""
    wins = wins + 0.5 - 0.5 * np.eye(len(wins))
    strength = np.ones(len(wins))
    for _ in range(iterations):
        expected = (wins + wins.T) / (strength[:, None] + strength[None])
        strength = wins.sum(axis=1) / expected.sum(axis=1)
        strength /= np.exp(np.log(strength).mean())
    return 400 * np.log10(strength)


def simulated(strengths, deals, generator, repeats=1, luck=1.0):
    """Matches whose points are logistic noise around differences in strength, in log-odds.

    Part of the noise belongs to the deal: it favours a seat in all matches, and cancels in a pair.
    """
    strengths = np.asarray(strengths)
    favour = np.repeat(luck * generator.normal(size=deals), repeats)
    matches = {}
    for i, j in itertools.combinations(range(len(strengths)), 2):
        noise = np.repeat(generator.logistic(size=(deals, 2)), repeats, axis=0)
        points = strengths[i] - strengths[j] + noise + favour[:, None] * [1, -1]
        matches[i, j] = match(points, repeats)
    return Tournament(matches)


def chances(strengths, luck=1.0):
    """Return the expected wins in a round of `simulated`, by averaging over the luck."""
    strengths = np.asarray(strengths)
    difference = strengths[:, None] - strengths[None]
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    return np.sum(
        weights / weights.sum() / (1 + np.exp(-difference[..., None] - luck * nodes)), axis=-1
    )


def permuted(tournament, order):
    """The same tournament with other numbers for its players: `order[new]` is the old number."""
    matches = {}
    for i, j in itertools.combinations(range(len(order)), 2):
        a, b = order[i], order[j]
        matches[i, j] = (
            tournament.matches[a, b] if a < b else match(-tournament.matches[b, a].points[:, ::-1])
        )
    return Tournament(matches)


class TestBradleyTerry:
    def test_two_players_by_hand(self):
        # With the virtual draw 30 wins to 10: odds of 3, 190.85 points.
        ratings = bradley_terry(np.array([[0, 29.5], [9.5, 0]]))
        assert elo(3) == pytest.approx(190.8485, abs=1e-4)
        np.testing.assert_allclose(ratings, [elo(3) / 2, -elo(3) / 2], atol=1e-10)

    def test_three_players_by_hand(self):
        # Odds of 3, 3 and 9 go together, however often the pairs met (40, 20 and 10 times).
        wins = np.array([[0, 30, 9], [10, 0, 15], [1, 5, 0]]) - 0.5
        np.testing.assert_allclose(bradley_terry(wins), [elo(3), 0, -elo(3)], atol=1e-10)

    def test_a_circle_is_even(self):
        wins = np.array([[0, 7, 1], [1, 0, 7], [7, 1, 0]])
        np.testing.assert_allclose(bradley_terry(wins), 0, atol=1e-10)

    def test_who_wins_all_has_the_rating_of_half_a_loss_more(self):
        wins = np.array([[0, 10000], [0, 0]])
        assert np.ptp(bradley_terry(wins)) == pytest.approx(elo(20001), abs=1e-9)

    @pytest.mark.parametrize(
        "wins",
        [
            4 * np.triu(np.ones((10, 10)), 1),
            1e7 * np.triu(np.ones((10, 10)), 1),
            # Newton's method without a limit to its steps diverges.
            np.array([[0, 0, 0, 0], [0, 0, 0, 10], [1e6, 1e6, 0, 10], [1e6, 0, 0, 0]]),
        ],
    )
    def test_one_sided_results_converge(self, wins):
        ratings = bradley_terry(wins)
        assert ratings.sum() == pytest.approx(0, abs=1e-8)
        # The most likely ratings expect every player to win as often as it did.
        expected = (wins + wins.T + 1) / (1 + 10 ** ((ratings[None] - ratings[:, None]) / 400))
        np.fill_diagonal(expected, 0)
        won = wins.sum(axis=1) + 0.5 * (len(wins) - 1)
        np.testing.assert_allclose(expected.sum(axis=1), won, rtol=1e-9)

    def test_agrees_with_another_algorithm(self):
        wins = np.random.default_rng(0).uniform(0, 50, size=(6, 6))
        np.testing.assert_allclose(bradley_terry(wins), minorize_maximize(wins, 2000), atol=1e-9)

    def test_many_at_once_are_as_one_by_one(self):
        wins = np.random.default_rng(1).uniform(0, 50, size=(5, 4, 4))
        wins[2] = 1e6 * np.triu(np.ones((4, 4)), 1)
        one_by_one = [bradley_terry(each) for each in wins]
        np.testing.assert_allclose(bradley_terry(wins), one_by_one, atol=1e-9)


class TestMatrices:
    tournament = Tournament(
        {
            (0, 1): match([[10, -4], [2, 0]]),
            (0, 2): match([[5, 5], [7, 3]]),
            (1, 2): match([[-1, 1], [0, -8]]),
        }
    )

    def test_payoff_by_hand(self):
        mean, error = self.tournament.payoff()
        # Pairs 3, 1; 5, 5; 0, -4.
        np.testing.assert_array_equal(mean, [[0, 2, 5], [-2, 0, -2], [-5, 2, 0]])
        np.testing.assert_allclose(error, [[0, 1, 0], [1, 0, 2], [0, 2, 0]])

    def test_win_rates_by_hand(self):
        mean, error = self.tournament.win_rates()
        np.testing.assert_array_equal(
            mean, [[np.nan, 0.5, 1], [0.25, np.nan, 0.25], [0, 0.5, np.nan]]
        )
        # Shares of a pair won by 1 against 0: 0.5, 0; by 1 against 2: 0.5, 0; by 2: 0.5, 0.5.
        np.testing.assert_allclose(error, [[np.nan, 0, 0], [0.25, np.nan, 0.25], [0, 0, np.nan]])

    def test_points_against_the_field_by_hand(self):
        mean, error = self.tournament.points_against_field()
        # By deal: (3 + 5) / 2, (1 + 5) / 2; (-3 + 0) / 2, (-1 - 4) / 2; (-5 + 0) / 2, (-5 + 4) / 2.
        np.testing.assert_allclose(mean, [3.5, -2, -1.5])
        np.testing.assert_allclose(error, [0.5, 0.5, 1])

    def test_win_rate_against_the_field_by_hand(self):
        mean, error = self.tournament.win_rate_against_field()
        # By deal: (0.5 + 1) / 2, (0.5 + 1) / 2; (0.5 + 0.5) / 2, 0; (0 + 0.5) / 2, (0 + 0.5) / 2.
        np.testing.assert_allclose(mean, [0.75, 0.25, 0.25])
        np.testing.assert_allclose(error, [0, 0.25, 0], atol=1e-12)

    def test_rating_counts_draws_as_half(self):
        # Rounds won: 0 of 1: 2.5 of 4; 0 of 2: 4 of 4; 1 of 2: 1.5 of 4.
        wins = np.array([[0, 2.5, 4], [1.5, 0, 1.5], [0, 2.5, 0]])
        np.testing.assert_allclose(self.tournament.ratings(0).rating, bradley_terry(wins))

    @pytest.mark.parametrize(
        "matches",
        [
            {},
            {(0, 1): match(np.ones((2, 2))), (0, 2): match(np.ones((2, 2)))},
            {(1, 0): match(np.ones((2, 2)))},
        ],
    )
    def test_all_must_have_met(self, matches):
        with pytest.raises(ValueError, match="must be of all pairs"):
            Tournament(matches)

    def test_all_must_have_met_on_the_same_deals(self):
        matches = {pair: match(np.ones((2, 2))) for pair in ((0, 1), (0, 2))}
        with pytest.raises(ValueError, match="must all be of the same deals"):
            Tournament(matches | {(1, 2): match(np.ones((3, 2)))})


class TestRatings:
    strengths = (0.6, 0.1, -0.7)

    def test_known_strengths_are_recovered(self):
        tournament = simulated(self.strengths, 20_000, np.random.default_rng(0), luck=0.0)
        rating, low, high = tournament.ratings(seed=0, resamples=200)
        known = np.array(self.strengths) * 400 / math.log(10)
        np.testing.assert_allclose(rating, known, atol=4)
        assert np.all((low < known) & (known < high))
        assert np.all(high - low < 8)

    def test_intervals_cover_the_truth(self):
        known = bradley_terry(1e9 * chances(self.strengths))
        generator = np.random.default_rng(1)
        covered = []
        for seed in range(300):
            _, low, high = simulated(self.strengths, 200, generator).ratings(seed, resamples=200)
            covered.append((low < known) & (known < high))
        share = np.mean(covered, axis=0)
        # 95 % less three standard errors of a share of 300; half a percent for 200 resamples.
        assert np.all(share > 0.95 - 0.005 - 3 * np.sqrt(0.95 * 0.05 / 300))
        assert np.all(share < 0.99)

    def test_deals_that_come_in_groups_are_resampled_in_groups(self):
        once = simulated(self.strengths, 100, np.random.default_rng(2))
        four = simulated(self.strengths, 100, np.random.default_rng(2), repeats=4)
        one, repeated = (tournament.ratings(seed=3) for tournament in (once, four))
        # Four times the same rounds say nothing more (but for the weight of the virtual draw).
        np.testing.assert_allclose(repeated.high - repeated.low, one.high - one.low, rtol=0.02)
        for name in ("payoff", "points_against_field"):
            errors = [getattr(tournament, name)()[1] for tournament in (four, once)]
            np.testing.assert_allclose(*errors, rtol=1e-6)

    def test_a_last_group_may_be_smaller(self):
        points = np.random.default_rng(4).normal(size=(10, 2))
        rating, low, high = Tournament({(0, 1): match(points, group=4)}).ratings(seed=0)
        wins = np.sum(points > 0)
        assert np.ptp(rating) == pytest.approx(abs(elo((wins + 0.5) / (20 - wins + 0.5))))
        assert np.all((low <= rating) & (rating <= high))

    def test_the_deals_of_all_matches_are_resampled_together(self):
        # Players 1 and 2 are the same: they draw, and do alike against 0. They stay equal in every
        # resample if all matches have the same deals in it.
        points = np.random.default_rng(5).normal(size=(50, 2))
        same = match(np.zeros((50, 2)))
        rating, low, high = Tournament(
            {(0, 1): match(points), (0, 2): match(points), (1, 2): same}
        ).ratings(seed=0)
        for value in (rating, low, high):
            assert value[1] == pytest.approx(value[2], abs=1e-9)
        assert high[1] - low[1] > 20

    def test_numbers_of_players_mean_nothing(self):
        tournament = simulated((0.6, 0.1, -0.7, 0.0), 50, np.random.default_rng(6))
        order = [2, 0, 3, 1]
        other = permuted(tournament, order)
        for found, expected in zip(other.ratings(seed=7), tournament.ratings(seed=7), strict=True):
            np.testing.assert_allclose(found, expected[order], atol=1e-8)
        for name in ("payoff", "win_rates"):
            results = getattr(other, name)(), getattr(tournament, name)()
            for found, expected in zip(*results, strict=True):
                np.testing.assert_array_equal(found, expected[np.ix_(order, order)])
        for name in ("points_against_field", "win_rate_against_field"):
            results = getattr(other, name)(), getattr(tournament, name)()
            for found, expected in zip(*results, strict=True):
                np.testing.assert_allclose(found, expected[order], rtol=1e-12)

    def test_the_seed_decides_the_resamples(self):
        tournament = simulated(self.strengths, 50, np.random.default_rng(8))
        first, again, other = (tournament.ratings(seed) for seed in (0, 0, 1))
        np.testing.assert_array_equal(first.low, again.low)
        assert np.all(first.low != other.low)

    def test_who_wins_everything_has_finite_ratings(self):
        order = {pair: match(np.ones((20, 2))) for pair in itertools.combinations(range(4), 2)}
        rating, low, high = Tournament(order).ratings(seed=0)
        assert np.all(np.isfinite([rating, low, high]))
        assert np.all(np.diff(rating) < 0)


class TestIntransitiveTriples:
    def circle(self, *rounds):
        """Rock, paper and scissors: 0 beats 2, 1 beats 0, 2 beats 1, by these points."""
        points = np.reshape(rounds, (-1, 2))
        return {(0, 2): match(points), (0, 1): match(-points), (1, 2): match(-points)}

    def test_a_circle_is_found_once(self):
        tournament = Tournament(self.circle(1, 1, 2, 2))
        assert tournament.intransitive_triples() == [(0, 2, 1)]
        turned = permuted(tournament, [0, 2, 1])
        assert turned.intransitive_triples() == [(0, 1, 2)]

    def test_each_beats_the_next_by_more_than_z_standard_errors(self):
        # Mean 1.5 and standard error 0.5.
        tournament = Tournament(self.circle(1, 1, 2, 2))
        assert tournament.intransitive_triples(z=2.9)
        assert not tournament.intransitive_triples(z=3.1)
        assert not Tournament(self.circle(3, 3, -1, -1)).intransitive_triples()

    def test_a_circle_among_others_has_their_numbers(self):
        # Player 1 beats all others, who go round.
        one = match(np.ones((2, 2)))
        matches = {(0, 1): match(-np.ones((2, 2))), (1, 2): one, (1, 3): one}
        circle = {(0, 2): one, (2, 3): one, (0, 3): match(-np.ones((2, 2)))}
        assert Tournament(matches | circle).intransitive_triples() == [(0, 2, 3)]

    def test_none_in_a_transitive_field(self):
        strengths = np.linspace(2, -2, 6)
        tournament = simulated(strengths, 200, np.random.default_rng(9))
        assert tournament.intransitive_triples() == []

    def test_level_of_a_family_of_pairings(self):
        assert bonferroni(1) == pytest.approx(1.959964, abs=1e-6)
        assert bonferroni(3) == pytest.approx(2.393980, abs=1e-6)
        # Players who are all the same: hardly any tournament calls a single pairing.
        generator = np.random.default_rng(10)
        called = 0
        for _ in range(300):
            mean, error = simulated(np.zeros(4), 100, generator).payoff()
            called += np.any(np.abs(mean) > bonferroni(6) * error)
        assert called / 300 < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 300)
