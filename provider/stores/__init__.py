"""Stores over stores, in memory, and the drivers of file segments.

Each wrapper adds one thing to any `ObjectStore`: retries, limits, counts, coalesced reads, a second
store. Imports the ports of `provider` alone. Begin with `forwarding.py`.
"""
