"""Disk cache: bytes of immutable objects of a remote store, in files on a local disk."""
