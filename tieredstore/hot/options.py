"""Options of the hot log: writing, retention, and limits of reads."""

from dataclasses import dataclass
from enum import Enum
from typing import Literal

from container.record.header import RECORD_BYTES_MIN, BlankRecord, Host
from container.record.unit import UNIT_BYTES
from provider.setting import GIB, MIB, Kind, setting

HOUR_MS = 3_600_000

Flush = Literal["SYNC_FLUSH", "ASYNC_FLUSH"]
"""`flushDiskType`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HotWriteOptions:
    """Options of writing a store directory.

    `memory_bytes_max` is the maximum of memory for waiting messages.
    """

    commit_log_path: str = ""
    """`storePathCommitLog`: directory of the CommitLog files; "": in the store directory."""
    commit_log_bytes: int = setting(
        "mappedFileSizeCommitLog",
        Kind.BYTES,
        GIB,
        "Length of each CommitLog file; files are sparse.",
        least=1 << 10,
        most=2**31 - 1,
    )
    consume_queue_bytes: int = setting(
        "mappedFileSizeConsumeQueue",
        Kind.BYTES,
        6_000_000,
        "Length of each ConsumeQueue file, rounded up to a multiple of 20.",
        least=20,
        most=2**31 - 1,
    )
    flush: Flush = setting(
        "flushDiskType",
        Kind.CHOICE,
        "ASYNC_FLUSH",
        "Whether an append waits for the disk; without that a power failure loses the newest "
        "messages.",
        choices=("ASYNC_FLUSH", "SYNC_FLUSH"),
    )
    """ASYNC_FLUSH acknowledges an append when the kernel has it: a crash of the process loses
    nothing, and a power failure the last `flush_interval_s`."""
    flush_interval_s: float = setting(
        "flushIntervalCommitLog",
        Kind.MILLISECONDS,
        500,
        "Interval between two syncs of the CommitLog with ASYNC_FLUSH.",
        most=HOUR_MS,
    )
    flush_queues_interval_s: float = setting(
        "flushIntervalConsumeQueue",
        Kind.MILLISECONDS,
        1000,
        "Interval between two syncs of the ConsumeQueues and the checkpoint.",
        most=HOUR_MS,
    )
    """After a crash, units that were not synced are rebuilt from the CommitLog."""
    message_bytes_max: int = setting(
        "maxMessageSize",
        Kind.BYTES,
        4 * MIB,
        "Largest body that the broker accepts; used to bound memory.",
        most=2**31 - 1,
    )
    record_crc: bool = setting(
        "enabledAppendPropCRC",
        Kind.SWITCH,
        default=False,
        meaning="True: each record ends with a checksum of all of it, in the property __CRC32#.",
    )
    store_host: Host = ("127.0.0.1", 10911)
    """Address and port of the broker, which each record contains."""
    topic_queues: int = setting(
        "defaultTopicQueueNums",
        Kind.COUNT,
        4,
        "Number of queues of a new topic in config/topics.json (RocketMQ: 8, of which a producer "
        "takes 4).",
        unit="queues",
        most=2**31 - 1,
    )
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


class UntieredPolicy(Enum):
    """Policy for messages without a copy in the tier when the disk is nearly full."""

    KEEP = "keep"
    """Keep them. The disk may fill. Appends then fail, and nothing is lost."""
    DROP = "drop"
    """Delete the oldest file above `disk_force_ratio`. Appends continue, and the tier has a gap."""


def _hours_s(hours: int) -> float:
    return hours * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionOptions:
    """Retention of messages in the hot log."""

    reserved_s: float = setting(
        "fileReservedTime",
        Kind.HOURS,
        72,
        "Age since the last write from which on a CommitLog file is deleted (see deleteWhen) "
        "if all of it is in the tier.",
        least=0,
        convert=_hours_s,
    )
    disk_clean_ratio: float = setting(
        "diskMaxUsedSpaceRatio",
        Kind.PERCENT,
        75,
        "Share of the disk in use from which on files that are in the tier are deleted at any age.",
        most=100,
    )
    disk_forcible_ratio: float = setting(
        "diskSpaceCleanForciblyRatio",
        Kind.PERCENT,
        85,
        "Share of the disk in use from which on young messages without a tier are deleted "
        "(see cleanFileForciblyEnable).",
        most=100,
    )
    """These messages are lost."""
    clean_forcibly: bool = setting(
        "cleanFileForciblyEnable",
        Kind.SWITCH,
        default=True,
        meaning="Above diskSpaceCleanForciblyRatio, delete messages that no tier takes before "
        "fileReservedTime.",
    )
    disk_force_ratio: float = setting(
        "diskSpaceWarningLevelRatio",
        Kind.PERCENT,
        90,
        "Share of the disk in use from which on tieredStoreUntieredPolicy holds.",
        most=100,
    )
    untiered: UntieredPolicy = setting(
        "tieredStoreUntieredPolicy",
        Kind.CHOICE,
        "KEEP",
        "Untiered files that are deleted on a full disk: none, so that appends fail, or the "
        "oldest one.",
        choices=("KEEP", "DROP"),
        convert=UntieredPolicy.__getitem__,
    )
    delete_hours: frozenset[int] = frozenset()
    """`deleteWhen`: hours of the local day, 0 to 23, in which files are deleted by age; none: any
    hour."""
    files_max: int = setting(
        "deleteFileBatchMax",
        Kind.COUNT,
        10,
        "Maximum number of files that one round deletes (see cleanResourceInterval).",
        unit="files",
    )
    interval_s: float = setting(
        "cleanResourceInterval",
        Kind.MILLISECONDS,
        10_000,
        "Interval between two rounds of deletion.",
        most=24 * HOUR_MS,
    )

    def __post_init__(self) -> None:
        if not 0 < self.disk_clean_ratio <= self.disk_force_ratio <= 1:
            raise ValueError(
                f"disk_clean_ratio {self.disk_clean_ratio} and disk_force_ratio"
                f" {self.disk_force_ratio} are not ascending within 0 to 1"
            )
        if not 0 < self.disk_forcible_ratio <= 1:
            raise ValueError(f"disk_forcible_ratio {self.disk_forcible_ratio} is not within 0 to 1")
        if self.reserved_s < 0 or self.files_max < 1:
            raise ValueError("reserved_s is at least 0, files_max at least 1")
        if not self.delete_hours <= frozenset(range(24)):
            raise ValueError(f"delete_hours {sorted(self.delete_hours)} are not within 0 to 23")
        if self.interval_s <= 0:
            raise ValueError(f"interval_s is {self.interval_s}, not above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """Limits of one read, besides those of its caller. The first message always fits.

    A message counts as in memory by RocketMQ's estimate: it is among the newest bytes of the
    CommitLog, up to `memory_share` of the memory's size.
    """

    memory_messages_max: int = setting(
        "maxTransferCountOnMessageInMemory",
        Kind.COUNT,
        32,
        "Maximum number of messages of one read of the hot log while they are in memory.",
        unit="messages",
    )
    memory_bytes_max: int = setting(
        "maxTransferBytesOnMessageInMemory",
        Kind.BYTES,
        256 << 10,
        "Maximum bytes of one read of the hot log while its messages are in memory.",
    )
    disk_messages_max: int = setting(
        "maxTransferCountOnMessageInDisk",
        Kind.COUNT,
        8,
        "Maximum number of messages of one read of the hot log that must be read from its disk.",
        unit="messages",
    )
    disk_bytes_max: int = setting(
        "maxTransferBytesOnMessageInDisk",
        Kind.BYTES,
        64 << 10,
        "Maximum bytes of one read of the hot log from its disk; one message may have more.",
    )
    memory_share: float = setting(
        "accessMessageInMemoryMaxRatio",
        Kind.PERCENT,
        40,
        "Share of the machine's memory that is assumed to hold the newest messages, where "
        "the kernel is not asked.",
        least=0,
        most=100,
    )

    def __post_init__(self) -> None:
        for name in (
            "memory_messages_max", "memory_bytes_max", "disk_messages_max", "disk_bytes_max",
        ):  # fmt: skip
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but at least 1 is needed")
        if not 0 <= self.memory_share <= 1:
            raise ValueError(f"memory_share is {self.memory_share}, not within 0 to 1")
