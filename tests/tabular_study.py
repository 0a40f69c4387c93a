"""Regret matching with exact advantages: what updates and weights alone are worth.

    python tests/tabular_study.py

prints the NashConv of the average policy on Leduc poker after 100, 200 and 400 iterations, without
networks and without sampling, for the table "Bootstrapped advantages" of docs/algorithm.md.
"""

from __future__ import annotations

import itertools

import numpy as np

from coorl_jax.evaluation import exploitability
from coorl_jax.games import tree as trees
from coorl_jax.games.leduc_poker import LeducPoker

ITERATIONS = (100, 200, 400)
EXPONENT = {"uniform": 0, "linear": 1}


def match_regrets(advantages: np.ndarray, legal: np.ndarray) -> np.ndarray:
    """Return the policy, float64[I, A]; the best action where no advantage is positive."""
    positive = np.where(legal, np.maximum(advantages, 0), 0)
    total = positive.sum(axis=1, keepdims=True)
    best = np.eye(legal.shape[1])[np.where(legal, advantages, -np.inf).argmax(axis=1)]
    return np.where(total > 0, positive / np.where(total > 0, total, 1), best)


def nash_convs(tree: trees.Tree, alternating: bool, weighting: str, by_reach: bool) -> list[float]:
    """Return the NashConv of the linearly weighted average policy after ITERATIONS."""
    exponent, found = EXPONENT[weighting], []
    cumulative = np.zeros(tree.legal.shape)
    policies: list[np.ndarray] = []
    for t in range(1, max(ITERATIONS) + 1):
        for player in (0, 1) if alternating else (None,):
            policy = match_regrets(cumulative, tree.legal)
            exact = trees.advantages(tree, lambda *_, policy=policy: policy)
            step = (exponent + 1) / (t + exponent)
            gain = exact.advantage * (exact.reach[:, None] if by_reach else 1)
            updated = (1 - step) * np.maximum(cumulative, 0) + step * gain
            turn = (tree.player == player) if alternating else np.ones(len(tree.player), bool)
            cumulative = np.where(turn[:, None], updated, cumulative)
        policies.append(policy)
        if t in ITERATIONS:
            weights = np.arange(1, t + 1) / (t * (t + 1) / 2)
            mixture = exploitability.nash_conv_of_mixture(tree, policies, weights)
            found.append(mixture.nash_conv)
    return found


def main() -> None:
    """Print a row for every kind of update."""
    tree = trees.enumerate_game(LeducPoker())
    print("updates      weighting  iterations weighed  NashConv after", *ITERATIONS)
    for alternating, weighting, by_reach in itertools.product(
        (False, True), ("linear", "uniform"), (True, False)
    ):
        row = nash_convs(tree, alternating, weighting, by_reach)
        updates = "alternating" if alternating else "simultaneous"
        weighed = "by reach" if by_reach else "alike"
        print(f"{updates:12} {weighting:10} {weighed:19} ", *(f"{value:.4f}" for value in row))


if __name__ == "__main__":
    main()
