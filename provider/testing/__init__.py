"""Promises of the ports as test classes, a store in memory, faults, and a clock. Needs pytest."""
