"""Follows the store directory of a running RocketMQ broker, of which nothing is ever written.

`broker_hot_log.py` is the hot log that the dispatcher sees, `store_scan.py` its state; the rooms
below are what that looks at, from names to bytes:

- `directory/`: is it a store and which files has it (`layout.py`), which queues (`queues.py`), is
  it still the same one (`identity.py`), what does not belong to it (`foreign_files.py`), and hard
  links of files that the broker may delete too early (`pins.py`);
- `log/`: the CommitLog as bytes, by position (`commit_log.py` over `mapped_files.py`), where it
  ends (`tail.py`), and the records of a round (`round_read.py`, in the memory of `buffers.py`);
- `queue/`: ConsumeQueue files by queue offset (`files.py`), where they end (`tail.py` reads what
  `judgement.py` decides about), and how far down a queue can be read (`floors.py`);
- `rebuild/`: units that the broker no longer has, made from the records of a CommitLog file
  (`log_units.py`), and the ConsumeQueue files that they are kept as (`made_files.py`).
"""
