"""Benchmarks of `tieredstore bench`: raw limits of this machine, and our figures beside them."""
