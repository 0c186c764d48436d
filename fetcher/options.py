"""Options of the fetcher: sizes of reads, read-ahead, and memory bounds."""

from dataclasses import dataclass, fields

from container.queue.message_queue_container import ROUNDED_BYTES
from container.record.unit import UNIT_BYTES
from provider.setting import KIB, MIB, Kind, setting

COLUMN_BYTES = 40
"""Bytes of a cached message without its record: four columns of 8 bytes and two of 4."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetcherOptions:
    """Options of the fetcher. Keys in brackets are RocketMQ's.

    If a default differs from RocketMQ's, the text gives the reason.

    Raises:
        ValueError: a number is negative or not positive, or two options contradict each other.
    """

    verify: bool = setting(
        "tieredStoreCrcCheckEnable",
        Kind.SWITCH,
        default=True,
        meaning=(
            "True: reading verifies topic, tags and body checksum of each message. False: "
            "only headers (RocketMQ: no effect)."
        ),
    )
    """See `TieredMessageFetcher`."""
    extent_bytes_max: int = 4 << 20
    """Bytes of units that share a checksum and that a filtered read reads together
    (`tieredStoreExtentMaxSize`). Reads of a tier with larger extents hold more."""
    keeps_extents: bool = False
    """A disk cache may keep only extents whose checksum matches: nothing else has covered each of
    their bytes on the way. Reads then have up to twice their bytes, or 256 KiB more."""
    cache_enabled: bool = setting(
        "readAheadCacheEnable",
        Kind.SWITCH,
        default=True,
        meaning=(
            "True: messages that were read are cached, and reading continues ahead of the reader."
        ),
    )
    """Without it each call reads exactly its result."""
    run_messages_max: int = setting(
        "readAheadMessageCountThreshold",
        Kind.COUNT,
        4096,
        "Maximum number of messages in one read from storage.",
        unit="messages",
        least=32,
        object_default=16_384,
    )
    """Also the most offsets that one call examines."""
    run_bytes_max: int = setting(
        "readAheadMessageSizeThreshold",
        Kind.BYTES,
        16 * MIB,
        "Maximum bytes of records in one read from storage; a larger message is read alone.",
        object_default=32 * MIB,
    )
    cache_age_s_max: float = setting(
        "readAheadCacheExpireDuration",
        Kind.MILLISECONDS,
        15_000,
        "Time after its last use at which a cached range of messages is dropped.",
    )
    cache_bytes_max: int = setting(
        "readAheadCacheSize",
        Kind.BYTES,
        256 * MIB,
        "Maximum bytes that the cache occupies (RocketMQ: a share of Java's heap).",
    )
    """Includes the columns."""
    window_messages_min: int = 32
    """Messages of a read for a group that is not known to read in order (RocketMQ: 32)."""
    window_step_messages: int = 512
    """Least growth of a window in messages. A window doubles each time that it is used up."""
    gap_bytes_max: int = setting(
        "readAheadGapSize",
        Kind.BYTES,
        16 * KIB,
        "Maximum number of unwanted bytes between two wanted messages that are read too, to save "
        "a request.",
        least=0,
        object_default=256 * KIB,
    )
    whole_share_min: float = 0.75
    """Share of wanted bytes from which on a filtered read reads all messages, which serves every
    group."""
    prefetches_max: int = setting(
        "readAheadPrefetchMax",
        Kind.COUNT,
        2,
        "Maximum number of reads ahead that are under way at once; reads that a caller waits for "
        "come first.",
        unit="reads",
        least=0,
        object_default=8,
    )
    demands_max: int = 256
    """Concurrent demand reads. Further ones wait; a cache hit never waits."""
    bytes_in_flight_max: int = setting(
        "readAheadBytesInFlight",
        Kind.BYTES,
        64 * MIB,
        "Maximum bytes of records in all reads that are under way, over all readers.",
    )
    """Demand reads go first. A larger message is read alone."""
    messages_in_flight_max: int = 1 << 20
    """Messages being read at once. Each takes 60 bytes of units and columns."""
    readers_max: int = 4096
    """Windows kept, one for each queue and group. The least recently used is dropped first."""
    loop_hold_s_max: float = 0.0002
    """Longest burst of cache hits in seconds before a call yields to other tasks."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, bool) and value < 0:
                raise ValueError(f"{field.name} must not be negative, not {value}")
        for name in (
            "run_messages_max", "run_bytes_max", "window_messages_min", "window_step_messages",
            "demands_max", "bytes_in_flight_max", "messages_in_flight_max", "readers_max",
        ):  # fmt: skip
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, not {getattr(self, name)}")
        if self.window_messages_min > self.run_messages_max:
            raise ValueError(
                f"window_messages_min ({self.window_messages_min}) must not exceed "
                f"run_messages_max ({self.run_messages_max})"
            )

    def requested_bytes(self, length: int) -> int:
        """Return the most bytes that a read of so many bytes of the log has in memory."""
        if not self.keeps_extents:
            return length
        return length + min(max(length, ROUNDED_BYTES), 2 * self.extent_bytes_max)

    @property
    def kept_bytes_max(self) -> int:
        """Most bytes of one run, so that several runs fit into the cache."""
        if not self.cache_enabled:
            return self.run_bytes_max
        return max(1, min(self.run_bytes_max, self.cache_bytes_max // 4))

    @property
    def memory_bytes_max(self) -> int:
        """Memory bound of fetching, in bytes, without runs that results of callers keep alive.

        The sum of five terms:

        - `cache_bytes_max`.
        - `2 x bytes_in_flight_max`: buffers of the storage, and the one buffer that joins them.
        - `bytes_in_flight_max / 4`: a store may return buffers that are a quarter longer.
        - `messages_in_flight_max x (20 + 40)`: units and columns of reads under way.
        - `1 KiB x readers_max`.

        A message larger than `bytes_in_flight_max` adds 9/4 of its size.
        """
        columns = self.messages_in_flight_max * (UNIT_BYTES + COLUMN_BYTES)
        in_flight = 2 * self.bytes_in_flight_max + self.bytes_in_flight_max // 4
        return self.cache_bytes_max + in_flight + columns + 1024 * self.readers_max
