"""Formats and the structures built of segments: records, units, queues, and the journal of a tier.

Independent of the source of messages and of their readers. `FORMAT.md` describes every byte on
disk. Its tables are generated from the declarations in this package.
"""
