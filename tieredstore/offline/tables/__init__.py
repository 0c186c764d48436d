"""A tier as five tables: messages, units, keys, segments, gaps. Nothing here needs Spark.

`schemas.py` says what columns they have, `planning.py` what one worker reads of one, `planning.py`
finds the parts, `reading.py` reads them; `open_tier.py` keeps a tier open for all that.
"""
