"""Message stores: over the hot log alone, with a cold tier, and plug-ins around them.

`protocol.py` defines the calls. `local.py` is the hot log alone. `tiered.py` adds a tier to any of
them.

- Decisions: `levels.py` chooses the side that serves a read and joins the bounds of hot log and
  tier. `local.py` chooses the messages that one read of the hot log returns.
- Actions: `tiered_reads.py` reads from one side and falls back to the other. `cold_side.py` owns
  the tier and feeds it. `local.py` wakes waiting readers. `iteration.py` iterates over a queue.
"""
