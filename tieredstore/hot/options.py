"""Settings of our own hot log, with their bounds; RocketMQ's keys are named where one exists."""

from dataclasses import dataclass
from typing import Literal

from container.record.blank import BlankRecord
from container.record.header import Host
from container.record.layout import RECORD_BYTES_MIN
from container.record.unit import UNIT_BYTES

MIB = 1 << 20
GIB = 1 << 30

Flush = Literal["SYNC_FLUSH", "ASYNC_FLUSH"]
"""`flushDiskType`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HotWriteOptions:
    """How a store directory of our own is written.

    `memory_bytes_max` is the most that waiting messages occupy.
    """

    commit_log_path: str = ""
    """`storePathCommitLog`: where the CommitLog's files lie; "": in the store directory."""
    commit_log_bytes: int = GIB
    """`mappedFileSizeCommitLog`: length of each CommitLog file; they are sparse."""
    consume_queue_bytes: int = 6_000_000
    """`mappedFileSizeConsumeQueue`: length of each ConsumeQueue file, rounded up to whole units."""
    flush: Flush = "ASYNC_FLUSH"
    """Whether an append is acknowledged when it is on the disk, or when the kernel has it: then a
    crash of the process loses nothing, and a power failure the last `flush_interval_s`."""
    flush_interval_s: float = 0.5
    """`flushIntervalCommitLog`: longest time between two syncs of the CommitLog in ASYNC_FLUSH."""
    flush_queues_interval_s: float = 1.0
    """`flushIntervalConsumeQueue`: time between two syncs of the ConsumeQueues and the checkpoint.
    What is not synced is made anew from the CommitLog after a crash."""
    message_bytes_max: int = 4 * MIB
    """`maxMessageSize`: of one body."""
    record_crc: bool = False
    """`enabledAppendPropCRC`: each record ends with a checksum of all of it."""
    store_host: Host = ("127.0.0.1", 10911)
    """Address and port of the broker, which each record names."""
    topic_queues: int = 4
    """`defaultTopicQueueNums`: queues of a new topic in `config/topics.json`, at least."""
    own_topics: frozenset[str] = frozenset()
    """Topics named after cluster and broker, which RocketMQ keeps for itself: their messages are
    refused. Set from the configuration."""
    group_bytes_max: int = 4 * MIB
    """Bytes of bodies and properties that are written together, beyond a first message."""
    waiting_bytes_max: int = 64 * MIB
    """Bytes that wait to be written before an append waits for room; one call may exceed it."""
    files_open_max: int = 256
    """Descriptors of ConsumeQueue files."""

    def __post_init__(self) -> None:
        least = {
            "commit_log_bytes": RECORD_BYTES_MIN + BlankRecord.SIZE,
            "consume_queue_bytes": UNIT_BYTES,
            "message_bytes_max": 1,
            "topic_queues": 1,
            "group_bytes_max": 1,
            "waiting_bytes_max": 1,
            "files_open_max": 1,
        }
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise ValueError(f"{name} is {getattr(self, name)}, but at least {bound} is needed")
        for name in ("flush_interval_s", "flush_queues_interval_s"):
            if not 0 < getattr(self, name) <= 3600:  # noqa: PLR2004 - an hour of seconds
                raise ValueError(f"{name} is {getattr(self, name)}, not within 0 to 3600 seconds")
        if self.flush not in ("SYNC_FLUSH", "ASYNC_FLUSH"):
            raise ValueError(f"flush is {self.flush!r}, neither SYNC_FLUSH nor ASYNC_FLUSH")

    @property
    def queue_file_bytes(self) -> int:
        """Length of a ConsumeQueue file: `consume_queue_bytes` rounded up to whole units."""
        return -(-self.consume_queue_bytes // UNIT_BYTES) * UNIT_BYTES

    @property
    def memory_bytes_max(self) -> int:
        """Bytes: what waits, and the group that is being written, its records joined."""
        return self.waiting_bytes_max + 2 * (self.group_bytes_max + self.message_bytes_max)
