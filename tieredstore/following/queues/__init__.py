"""ConsumeQueues of a broker: files, tails, deletions, incarnations, pinned units.

Begin with `followed_queues.py`; `tail.py` holds the verdict on a queue's end.
"""
