"""Counterfactual regret minimization: sampling, memories, fitting."""
