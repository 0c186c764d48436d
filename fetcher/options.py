"""How far the fetcher reads ahead, and what it may hold."""

from dataclasses import dataclass, fields

from container.record.unit import UNIT_BYTES

COLUMN_BYTES = 40
"""What a cached message costs beside its bytes: four columns of 8 bytes and two of 4."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetcherOptions:
    """Keys in brackets are RocketMQ's; where the default differs the reason is given.

    Raises:
        ValueError: a number is not positive, or two cannot work together.
    """

    verify: bool = True
    """Compare what a read returns with its checksums (`tieredStoreCrcCheckEnable`); see
    `TieredMessageFetcher`."""
    extent_bytes_max: int = 4 << 20
    """Bytes of units that share a checksum, and that a filtered read reads together
    (`tieredStoreExtentMaxSize`). Of a tier written with more, such reads hold more."""
    cache_enabled: bool = True
    """Keep runs and read ahead (`readAheadCacheEnable`); else each call reads what it returns."""
    run_messages_max: int = 4096
    """Messages read at once, and offsets that one call examines
    (`readAheadMessageCountThreshold`)."""
    run_bytes_max: int = 16 << 20
    """Bytes of records read at once, except for a larger message alone
    (`readAheadMessageSizeThreshold`)."""
    cache_age_s_max: float = 15.0
    """A run that was not used for so long is dropped (`readAheadCacheExpireDuration`, in ms)."""
    cache_bytes_max: int = 256 << 20
    """Bytes that cached runs really occupy, columns included (`readAheadCacheSizeThresholdRate` is
    a share of Java's heap, which has no counterpart here)."""
    window_messages_min: int = 32
    """Messages read for a group that is not known to read in order (RocketMQ: 32 at a time)."""
    window_step_messages: int = 512
    """A window doubles each time that it was used to its end, and grows by so many at least."""
    gap_bytes_max: int = 16 << 10
    """Unwanted bytes between two wanted messages that are read too, to save a request."""
    whole_share_min: float = 0.75
    """A filtered read that needs this share of the bytes reads all, which serves every group."""
    prefetches_max: int = 2
    """Reads ahead under way at once. Demand is not counted, and does not wait for these."""
    demands_max: int = 256
    """Reads under way at once that calls wait for; the next one waits, a hit never does."""
    bytes_in_flight_max: int = 64 << 20
    """Bytes of records being read at once; demand is served first. A larger message goes alone."""
    messages_in_flight_max: int = 1 << 20
    """Messages being read at once; 60 bytes of units and columns for each."""
    readers_max: int = 4096
    """Windows kept, one per queue and group; the least recently used is forgotten first."""
    loop_hold_s_max: float = 0.0002
    """Longest burst of cache hits, in seconds, before a call lets other tasks run."""

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

    @property
    def kept_bytes_max(self) -> int:
        """Bytes of one run, so that several fit into the cache and none is read in vain."""
        if not self.cache_enabled:
            return self.run_bytes_max
        return max(1, min(self.run_bytes_max, self.cache_bytes_max // 4))

    @property
    def memory_bytes_max(self) -> int:
        """What fetching may hold, in bytes, besides runs that callers' results keep alive.

        `cache_bytes_max + 2 x bytes_in_flight_max` (pieces, and the one buffer they become)
        `+ bytes_in_flight_max / 4` (a store may give pieces in buffers a quarter longer)
        `+ messages_in_flight_max x (20 + 40)` (units and columns of reads under way)
        `+ 1 KiB x readers_max`. A message larger than `bytes_in_flight_max` adds 9/4 of its size.
        """
        columns = self.messages_in_flight_max * (UNIT_BYTES + COLUMN_BYTES)
        in_flight = 2 * self.bytes_in_flight_max + self.bytes_in_flight_max // 4
        return self.cache_bytes_max + in_flight + columns + 1024 * self.readers_max
