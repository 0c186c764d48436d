"""Files of the hot log: CommitLog, ConsumeQueues, watermarks, recovery and repair.

Blocking calls, one writer; nothing here awaits. Begin with `commit_log.py` and `recovery.py`.
"""
