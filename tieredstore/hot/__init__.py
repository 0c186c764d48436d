"""Hot log: a store directory in RocketMQ's local format, written by this process.

`open_hot_log` opens a directory. `HotLog` appends and reads. `hot_log_source.py` feeds the
dispatcher. A Java broker can open the directory after a clean shutdown. `encoding.py` and
`batch_plan.py` plan the bytes and their positions. `appending.py` and `appender.py` write them.
`reading.py` reads. `retention.py` deletes old files. `log/` has the files themselves.

```
commitlog/00000000000000000000              records of all queues; name: first byte
consumequeue/<topic>/<queue id>/0000…       20 bytes a message: position, size, tags code
config/topics.json  checkpoint  lock        abort: there while it is open, or after a crash
durableEnds  durableEnds.copy               durable watermark, and each queue's next offset
truncated/                                  bytes of a torn tail that sound records follow
```
"""
