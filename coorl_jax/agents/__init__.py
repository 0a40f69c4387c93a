"""Fixed opponents."""
