"""Fetcher: reads messages of a tier by offset, through a bounded cache with read-ahead.

It does not depend on writers or on a hot log. It needs the metadata and the storage of a tier.
"""
