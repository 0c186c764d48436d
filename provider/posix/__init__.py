"""Directory as a store: files, locks and syncs in blocking calls, run by threads.

`store.py` has the store and its verbs, `files.py` the system calls.
"""
