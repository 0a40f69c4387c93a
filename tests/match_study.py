"""Do the standard errors of matches say what they claim? A study to run by hand, for minutes.

    python tests/match_study.py heuristic_balanced heuristic_cautious
    python tests/match_study.py runs/my-run:mixture random --evaluations=200 --rounds=1000

Evaluates the same two players of Lost Cities many times, with different seeds, and counts how often
the 95 % interval of points per round, mean +- 1.96 standard errors, covers the mean of all of them;
and compares the variance with what it would be if the two rounds of a pair were independent. Tells,
too, how many rounds used up the limit on draws from discard piles.
"""

from __future__ import annotations

import argparse

import numpy as np

from coorl_jax import trained_agent
from coorl_jax.evaluation import suite
from coorl_jax.evaluation.match import play
from coorl_jax.games.lost_cities import LostCities

Z = 1.96


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("players", nargs=2)
    parser.add_argument("--evaluations", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--max_discard_draws", type=int)
    arguments = parser.parse_args()
    limit = arguments.max_discard_draws
    rules = None if limit is None else LostCities(max_discard_draws=limit)
    # A player may meet itself.
    different = list(dict.fromkeys(arguments.players))
    game, players = trained_agent.players(different, "players", rules)
    policies = [players[name] for name in arguments.players]
    means, errors, points, decisions, stalled = [], [], [], [], []
    for seed in range(arguments.evaluations):
        key = suite.evaluation_key(seed)
        result = play(game, *policies, arguments.rounds // 2, key, record=True)
        mean, error = result.points_per_round
        means.append(mean)
        errors.append(error)
        points.append(result.points)
        decisions.append(result.decisions)
        stalled.append(result.recorded.finals.discard_draws_left == 0)

    truth = np.mean(means)
    covered = np.mean(np.abs(means - truth) <= Z * np.array(errors))
    found = np.std(means, ddof=1)
    points = np.concatenate(points)
    independent, paired = points.var(axis=0).sum() / 4, points.mean(axis=1).var()
    print(
        f"{' against '.join(arguments.players)}: {len(means)} evaluations of {arguments.rounds} "
        "rounds\n"
        f"mean {truth:+.2f} +- {found / np.sqrt(len(means)):.2f} points a round, "
        f"{np.mean(decisions):.0f} decisions a round, {100 * np.mean(stalled):.1f} % stalled\n"
        f"standard error of an evaluation: stated {np.mean(errors):.3f} on average, "
        f"found {found:.3f}\n"
        f"95 % intervals that cover the mean: {100 * covered:.1f} %\n"
        f"standard deviation of a round {points.std():.1f}, of a pair's mean "
        f"{np.sqrt(paired):.1f}, which would be {np.sqrt(independent):.1f} with independent "
        f"rounds: {independent / paired if paired else np.inf:.2f} times the variance"
    )


if __name__ == "__main__":
    main()
