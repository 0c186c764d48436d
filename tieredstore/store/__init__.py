"""Message stores: over the hot log alone, with a cold tier, and plug-ins around them.

`protocol.py` says what each of them does. `local.py` is the hot log alone, `tiered.py` puts a tier
below any of them.

- Deciding: `levels.py` says who serves a read, `levels.py` what hot log and tier are together,
  `local.py` what one read of the hot log takes;
- acting: `tiered_reads.py` asks one side and then the other, `cold_side.py` owns and feeds the
  tier, `local.py` wakes who waits, `iteration.py` walks through a queue.
"""
