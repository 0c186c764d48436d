"""Cold to reader: serves messages of a tier by offset, from a bounded cache that reads ahead.

Knows nothing of writers; it needs a tier's metadata and the storage below it, and no hot log.
"""
