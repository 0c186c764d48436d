"""Follow reader: the store directory of a running RocketMQ broker, which is never written.

`hot_log.py` polls the directory and serves the dispatcher. Rooms, from names to bytes:

- `directory/`: layout, queues, identity, pins.
- `log/`: CommitLog by position, its tail, rounds of records, units from records.
- `queues/`: ConsumeQueues, their tails, deletions and incarnations.
- `log_reader/`: the same queues from the CommitLog alone.

Imports hot log ports and record formats, no tier.
"""
