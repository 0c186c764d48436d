"""Tiering of a store in a process of its own: its owner, the pipe to it, and its supervision.

The store's process appends and serves. The tiering process owns the tier, follows the hot log by
the durable watermarks that it receives, and sends back what is tiered. See decision 0069.
"""
