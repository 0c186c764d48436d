"""Lookup of messages by key: index files, unindexed messages, and the records themselves."""
