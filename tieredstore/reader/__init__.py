"""Reading of an open tier: topics, cursors, key queries, Arrow columns.

Imports session and the packages below, never a writer. Arrow is loaded where it is used. Begin
with `readable_tier.py`, the object that `tieredstore.open` returns.
"""
