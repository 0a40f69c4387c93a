"""Playing strength, measured."""
