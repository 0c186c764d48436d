"""Identity of a tier and its owner, and roll rules: sizes and ages of segments and extents."""

from dataclasses import dataclass

HOUR_MS = 3_600_000
MIB = 1 << 20
CUT_PLANS_MAX = 16
"""Attempts to plan a truncation while the queue changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierOptions:
    """Roll rules: RocketMQ's where it has them, so that equal messages give equal files."""

    commit_log_bytes_max: int = 1 << 30
    """Limit of a CommitLog segment, in bytes (`tieredStoreCommitLogMaxSize`). The segment is closed
    before the record that would exceed it. A longer record gets a segment of its own."""
    consume_queue_bytes_max: int = 100 * MIB
    """Limit of a ConsumeQueue segment, in bytes (`tieredStoreConsumeQueueMaxSize`)."""
    extent_bytes_max: int = 4 * MIB
    """Limit of an extent, which has one checksum, in bytes. The extent is closed before it exceeds
    it."""
    rolling_age_hours: int = 24
    """A CommitLog segment is closed before a message stored this much later than its first
    (`commitLogRollingInterval`), in hours of store timestamps ..."""
    rolling_bytes_min: int = 16 * MIB
    """... unless it is still shorter than this, in bytes (`commitLogRollingMinimumSize`)."""
    cut_grace_hours: int = 72
    """Time that the bytes of truncated messages (`repair`) are kept, in hours."""
    takeover_wait_s_max: float = 2.0
    """Time that a new owner waits for the previous one to release its segments, in seconds. After
    that it continues beside it in segments of its own."""

    @property
    def rolling_age_ms(self) -> int:
        """`rolling_age_hours` in ms, the unit of store timestamps."""
        return self.rolling_age_hours * HOUR_MS


@dataclass(frozen=True, slots=True)
class TierIdentity:
    """Identity of a tier, and its present owner."""

    cluster: str
    broker: str
    owner: str
    """Host, process and time of the owner, for display."""
