"""Hot logs: the newest messages, in RocketMQ's own local format.

One so far, `follower.py`: the store directory of a broker, of which nothing here is ever written.
`store_scan.py` is its state; the rest is what that looks at, from names to bytes:

- the directory: `store_layout.py` (is it a store, which files has it), `queue_directories.py`
  (which queues), `log_identity.py` (is it still the same), `log_strangers.py` (what is odd in it);
- bytes: `mapped_files.py`, with `file_errors.py` for what may go wrong; over it by position
  `commit_log_files.py`, by queue offset `consume_queue_files.py`;
- where they end: `commit_log_tail.py`, `consume_queue_tail.py`;
- records of a round: `round_gather.py`, in the memory of `batch_buffers.py`;
- what the broker deletes too early: `pins.py` keeps CommitLog files, `rebuilt_units.py` makes the
  units for them and `floors.py` says how far down; `missing_units.py` makes those of a ConsumeQueue
  file that is gone from between others.
"""
