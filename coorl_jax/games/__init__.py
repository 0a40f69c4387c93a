"""Games as pure array functions."""
