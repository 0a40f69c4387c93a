"""Benchmarks: each measures beside what is timed the floor that it is compared with."""
