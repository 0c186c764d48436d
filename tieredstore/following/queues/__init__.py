"""ConsumeQueues of a broker: files, tails, deletions, incarnations, pinned units.

Begin with `followed_queues.py`. `tail.py` has the verdict on a queue's end.
"""
