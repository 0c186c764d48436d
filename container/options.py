"""Identity of a tier and its owner, and roll rules: sizes and ages of segments and extents."""

from dataclasses import dataclass

from provider.setting import GIB, KIB, MIB, Kind, setting

HOUR_MS = 3_600_000
CUT_PLANS_MAX = 16
"""Attempts to plan a truncation while the queue changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierOptions:
    """Roll rules: RocketMQ's where it has them, so that equal messages give equal files."""

    commit_log_bytes_max: int = setting(
        "tieredStoreCommitLogMaxSize",
        Kind.BYTES,
        GIB,
        "Maximum length of a CommitLog segment.",
        least=KIB,
    )
    """The segment is closed before the record that would exceed it. A longer record gets a segment
    of its own."""
    consume_queue_bytes_max: int = setting(
        "tieredStoreConsumeQueueMaxSize",
        Kind.BYTES,
        100 * MIB,
        "Maximum length of a ConsumeQueue segment; a multiple of 20.",
        least=20,
    )
    extent_bytes_max: int = setting(
        "tieredStoreExtentMaxSize",
        Kind.BYTES,
        4 * MIB,
        "Maximum bytes of a segment that share one checksum.",
        least=KIB,
    )
    """An extent is closed before it exceeds this."""
    rolling_age_hours: int = setting(
        "commitLogRollingInterval",
        Kind.HOURS,
        24,
        "Maximum age between the first and the last message of a CommitLog segment that is long "
        "enough to roll.",
    )
    """Hours of store timestamps."""
    rolling_bytes_min: int = setting(
        "commitLogRollingMinimumSize",
        Kind.BYTES,
        16 * MIB,
        "Minimum length of a CommitLog segment before its age can close it (see "
        "commitLogRollingInterval).",
        least=0,
    )
    cut_grace_hours: int = setting(
        "tieredStoreCutGraceTime",
        Kind.HOURS,
        72,
        "Time for which `repair` keeps the bytes of unpublished messages.",
        least=0,
    )
    takeover_wait_s_max: float = setting(
        "tieredStoreTakeoverTimeout",
        Kind.MILLISECONDS,
        2000,
        "Maximum time that a new owner waits for the earlier owner to stop writing.",
        least=0,
    )
    """After that the new owner continues beside the earlier one in segments of its own."""

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
