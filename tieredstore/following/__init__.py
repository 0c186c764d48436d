"""Follows the store directory of a running RocketMQ broker, of which nothing is ever written.

`broker_hot_log.py` is the hot log that the dispatcher sees, `store_scan.py` decides when to
look at what; the rooms below are what there is to look at, from names to bytes:

- `directory/`: is it a store and which files has it (`layout.py`), which queues (`queues.py`), is
  it still the same one (`identity.py`), what does not belong to it (`foreign_files.py`), and hard
  links of files that the broker may delete too early (`pins.py`);
- `log/`: the CommitLog as bytes, by position (`commit_log.py` over `mapped_files.py`), where it
  ends (`tail.py`), both together with its pins (`followed_log.py`), and the records of a round
  (`round_read.py`, in the memory of `buffers.py`);
- `queue/`: all queues (`followed_queues.py`): ConsumeQueue files by queue offset (`files.py`),
  where they end (`tail.py` reads what `judgement.py` decides about), how far down they can be read
  (`floors.py`), and what they still need of the CommitLog (`needed_log.py`); queues that the
  broker deleted (`deletions.py`), what waits of them (`remains.py`; over a restart
  `kept_remains.py`), and whether another one has their name by now (`succession.py`); what the
  dispatcher is told of queues, and says of them (`told_queues.py`), and what it reads of them
  (`readers.py`);
- `reput/`: all queues of a store that keeps no ConsumeQueue files (`logged_queues.py`), from the
  records of its CommitLog (`log_scan.py`) and the units that wait (`waiting_units.py`); a start
  reads from where `remembered.py` says; what readers could not trust (`reader_reports.py`);
- `rebuild/`: the units of records (`record_units.py`), of those of one CommitLog file whose units
  the broker no longer has (`log_units.py`), also behind bytes that are no record
  (`damaged_log.py`), and the ConsumeQueue files that they are kept as (`made_files.py`).
"""
