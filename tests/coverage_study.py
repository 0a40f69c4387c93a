"""Do the standard errors of matches say what they claim? A study to run by hand, for minutes.

    python tests/coverage_study.py heuristic_balanced heuristic_cautious
    python tests/coverage_study.py runs/my-run:mixture random --evaluations=200 --rounds=1000

Evaluates the same two players many times, with different seeds, and counts how often the 95 %
interval of points per round, mean +- 1.96 standard errors, covers the mean of all of them; and
compares the variance with what it would be if the two rounds of a pair were independent.
"""

from __future__ import annotations

import argparse

import numpy as np

from coorl_jax import trained_agent
from coorl_jax.evaluation import suite
from coorl_jax.evaluation.match import play

Z = 1.96


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("players", nargs=2)
    parser.add_argument("--evaluations", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=1000)
    arguments = parser.parse_args()
    game, players = trained_agent.players(arguments.players, "players")
    results = [
        play(game, *players.values(), arguments.rounds // 2, suite.evaluation_key(seed))
        for seed in range(arguments.evaluations)
    ]
    means, errors = np.array([result.points_per_round for result in results]).T
    truth = means.mean()
    covered = np.mean(np.abs(means - truth) <= Z * errors)
    points = np.concatenate([result.points for result in results])
    independent = points.var(axis=0).sum() / 4
    print(
        f"{' against '.join(players)}: {len(results)} evaluations of {arguments.rounds} rounds\n"
        f"mean {truth:+.2f} +- {means.std(ddof=1) / np.sqrt(len(means)):.2f} points a round\n"
        f"standard error of an evaluation: stated {errors.mean():.3f} on average, "
        f"found {means.std(ddof=1):.3f}\n"
        f"95 % intervals that cover the mean: {100 * covered:.1f} %\n"
        f"standard deviation of a round {points.std():.1f}, of a pair's mean "
        f"{points.mean(axis=1).std():.1f}, which would be {np.sqrt(independent):.1f} with "
        f"independent rounds: {independent / points.mean(axis=1).var():.2f} times the variance"
    )


if __name__ == "__main__":
    main()
