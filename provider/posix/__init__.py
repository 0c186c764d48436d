"""A directory as a store: files, locks and syncs in blocking calls, run by threads.

Begin with `store.py`; `work.py` holds whole verbs, `files.py` the system calls.
"""
