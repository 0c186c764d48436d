"""Files of the hot log: CommitLog, ConsumeQueues, watermarks, recovery and repair.

Blocking calls with one writer; none is async. Begin with `commit_log.py` and `recovery.py`.
"""
