"""Our own hot log: a store directory that this process writes, in RocketMQ's local format.

`hot_log.py` is what programs use: `open_hot_log` opens a directory, `HotLog` appends and reads.
What it writes the follow reader tiers (`feed.py`), and a Java broker opens after a clean end.

- Deciding: `encoding.py` checks a message and makes its record, `append_plan.py` says where it goes
  and what is written, `alike_plan.py` both for a batch at once, `one_plan.py` both for one usual
  message, `retention.py` which files may go, `checkpoint.py` and `topics.py` what two small
  files say;
- acting: `append_calls.py` lets the loop append what is small, `append_thread.py` takes the rest
  of what many tasks append as one group, `appender.py` writes it, syncs, and takes a failed write
  back, over `commit_log.py` and `consume_queues.py` (files by position and by queue offset) and
  `directory.py` (lock, `abort`, `checkpoint`); `reading.py` (over `read_files.py`, on the loop
  where nothing has to be waited for) and `trimming.py` read and delete,
  `time_search.py` looks for moments, `residency.py` asks what is in memory;
- starting: `opening.py`, and `recovery.py`, which finds the end by `durable_ends.py` and
  `record_scan.py`, truncates what is torn (`truncation.py`), and rebuilds missing units.

```
commitlog/00000000000000000000              records of all queues; name: first byte
consumequeue/<topic>/<queue id>/0000…       20 bytes a message: position, size, tags code
config/topics.json  checkpoint  lock        abort: there while it is open, or after a crash
durableEnds  durableEnds.copy               how far all is durable, and each queue's next offset
truncated/                                  bytes of a torn tail that sound records follow
```
"""

from container.errors import InUse
from tieredstore.hot.append_plan import Appended
from tieredstore.hot.encoding import MessageRefused, NewMessage
from tieredstore.hot.feed import HotLogFeed, open_feed
from tieredstore.hot.hot_log import HotLog
from tieredstore.hot.opening import open_hot_log
from tieredstore.hot.options import HotWriteOptions
from tieredstore.hot.reading import Bounds
from tieredstore.hot.retention import RetentionOptions, Trim, UntieredPolicy

__all__ = [
    "Appended",
    "Bounds",
    "HotLog",
    "HotLogFeed",
    "HotWriteOptions",
    "InUse",
    "MessageRefused",
    "NewMessage",
    "RetentionOptions",
    "Trim",
    "UntieredPolicy",
    "open_feed",
    "open_hot_log",
]
