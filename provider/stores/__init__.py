"""Wrappers of stores, and the drivers of file segments.

Each wrapper adds one feature to any `ObjectStore`: retries, rate limits, metrics, coalesced reads,
verification, a second store. The base of most wrappers is `ForwardingStore` in `object_store.py`.
"""
