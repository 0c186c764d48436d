"""Bytes of immutable objects that were read from far away, kept in files on a local disk."""
