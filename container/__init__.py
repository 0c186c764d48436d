"""Formats, and what is built of segments: records, units, queues, and the journal of the tier.

Knows nothing of where messages come from or of who reads them. Every byte that lies on disk is
described in `FORMAT.md`, whose tables are generated from the declarations in this package.
"""
