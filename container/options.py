"""Whose the tier is, and how it cuts what it stores: sizes and ages of segments and extents."""

from dataclasses import dataclass

HOUR_MS = 3_600_000
MIB = 1 << 20
CUT_PLANS_MAX = 16
"""How often a cut is planned, where the queue is changed again and again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierOptions:
    """Cutting rules; RocketMQ's where it has them, so that equal messages give equal files."""

    commit_log_bytes_max: int = 1 << 30
    """A CommitLog segment is closed before the record that would make it longer, in bytes
    (`tieredStoreCommitLogMaxSize`). A record longer than that gets a segment of its own."""
    consume_queue_bytes_max: int = 100 * MIB
    """The same for a ConsumeQueue segment, in bytes (`tieredStoreConsumeQueueMaxSize`)."""
    extent_bytes_max: int = 4 * MIB
    """An extent, which has one checksum, is closed before it would grow beyond this, in bytes."""
    rolling_age_hours: int = 24
    """A CommitLog segment is closed before a message stored this much later than its first
    (`commitLogRollingInterval`), in hours of store timestamps ..."""
    rolling_bytes_min: int = 16 * MIB
    """... unless it is still shorter than this, in bytes (`commitLogRollingMinimumSize`)."""
    cut_grace_hours: int = 72
    """How long the bytes of messages that were cut off (`repair`) stay, in hours."""
    takeover_wait_s_max: float = 2.0
    """How long a new owner waits for the one before to let go, in seconds, before it goes on
    beside it in segments of its own."""

    @property
    def rolling_age_ms(self) -> int:
        """`rolling_age_hours` in the unit of store timestamps."""
        return self.rolling_age_hours * HOUR_MS


@dataclass(frozen=True, slots=True)
class TierIdentity:
    """Whose tier it is, and who we are."""

    cluster: str
    broker: str
    owner: str
    """Host, process and time of the owner, for people."""
