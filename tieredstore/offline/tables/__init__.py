"""A tier as five tables: messages, units, keys, segments, gaps. Nothing here needs Spark.

`schemas.py` has their columns; `planning.py` divides a table into parts for workers; `reading.py`
reads a part; `open_tier.py` keeps a tier open for planning.
"""
