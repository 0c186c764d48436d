"""Queues derived from the CommitLog alone, for stores whose ConsumeQueues cannot be read.

The counterpart of `following.queues`, with one scan in log order. Begin with `logged_queues.py`.
"""
