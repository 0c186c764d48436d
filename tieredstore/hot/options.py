"""Settings of the hot log, with their bounds and RocketMQ's keys."""

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
    """Options of writing a store directory.

    `memory_bytes_max` is the maximum of memory for waiting messages.
    """

    commit_log_path: str = ""
    """`storePathCommitLog`: directory of the CommitLog files; "": in the store directory."""
    commit_log_bytes: int = GIB
    """`mappedFileSizeCommitLog`: length of each CommitLog file; they are sparse."""
    consume_queue_bytes: int = 6_000_000
    """`mappedFileSizeConsumeQueue`: length of each ConsumeQueue file, rounded up to whole units."""
    flush: Flush = "ASYNC_FLUSH"
    """Whether an append is acknowledged after its sync, or when the kernel has it.

    In the second case a crash of the process loses nothing, and a power failure the last
    `flush_interval_s`.
    """
    flush_interval_s: float = 0.5
    """`flushIntervalCommitLog`: longest time between two syncs of the CommitLog in ASYNC_FLUSH, in
    seconds."""
    flush_queues_interval_s: float = 1.0
    """`flushIntervalConsumeQueue`: time between two syncs of the ConsumeQueues and the checkpoint,
    in seconds. After a crash, units that were not synced are rebuilt from the CommitLog."""
    message_bytes_max: int = 4 * MIB
    """`maxMessageSize`: maximum of one body, in bytes."""
    record_crc: bool = False
    """`enabledAppendPropCRC`: each record ends with a checksum of all of it."""
    store_host: Host = ("127.0.0.1", 10911)
    """Address and port of the broker, which each record contains."""
    topic_queues: int = 4
    """`defaultTopicQueueNums`: minimum of queues of a new topic in `config/topics.json`."""
    own_topics: frozenset[str] = frozenset()
    """Topics named after cluster and broker, which RocketMQ reserves.

    Their messages are refused. Set from the configuration.
    """
    group_bytes_max: int = 4 * MIB
    """Bytes of bodies and properties that one write takes, beyond a first message."""
    waiting_bytes_max: int = 64 * MIB
    """Bytes waiting to be written from which on an append waits for room.

    One call may exceed it.
    """
    files_open_max: int = 256
    """Maximum of open ConsumeQueue files."""

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
        """Maximum of memory in bytes: waiting messages, and the group being written, encoded."""
        return self.waiting_bytes_max + 2 * (self.group_bytes_max + self.message_bytes_max)
