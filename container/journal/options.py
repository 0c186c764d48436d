"""Limits and times of the journal, with the defaults."""

from dataclasses import dataclass
from typing import Protocol

MIB = 1 << 20


class Chance(Protocol):
    """The part of `random.Random` that is used for nonces and for jitter.

    Owners that may meet must not share a seed: equal nonces would make two entries look alike.
    """

    def randbytes(self, n: int, /) -> bytes:
        """`n` random bytes."""
        ...

    def random(self) -> float:
        """A number in `[0, 1)`."""
        ...


@dataclass(frozen=True, slots=True)
class JournalOptions:
    """How the journal groups, retries, cuts and forgets.

    Memory besides the state: at most `entry_bytes_max` for the entry in flight, what callers of
    `publish` wait for, `catch_up_bytes_max` while starting, and two snapshots while one is
    written and compared (`memory_bytes_max`).
    """

    entry_bytes_max: int = MIB
    """An entry is closed when its payload would grow beyond it; a larger transaction is alone."""
    entry_transactions_max: int = 4096
    transaction_bytes_max: int = 64 * MIB
    """A larger transaction is refused."""
    retry_s_min: float = 0.1
    """First wait after an unknown outcome; doubles up to `retry_s_max`."""
    retry_s_max: float = 5.0
    close_s_max: float = 10.0
    """How long `close` waits for what is in flight."""
    catch_up_bytes_max: int = 8 * MIB
    """Entries read at once while starting or following."""
    catch_up_entries_max: int = 64
    housekeeping_s: float = 10.0
    """How often it is looked (at the state, not at the store) whether there is work."""
    snapshot_entries_max: int = 1000
    """A snapshot is written after this many entries."""
    snapshot_age_s_max: float = 300.0
    """A snapshot is written when the oldest entry behind the last one is this old."""
    grace_s: float = 600.0
    """Entries and snapshots stay readable for this long after they were replaced."""
    listing_s_max: float = 60.0
    """A listing that took longer is made again where something depends on what it lacks. A boundary
    that was replaced stays for twice as long (snapshots and entries: `grace_s`), so that none that
    is believed lacks it and the newer one, too."""
    tombstone_tries_max: int = 3
    """A tombstone whose object could not be deleted so often is kept and reported."""
    tombstones_per_round_max: int = 1000
    searched_queues_per_round_max: int = 200
    """Queues whose directories are listed in one round, for files that were never published."""
    sealed_segments_max: int = 8
    """Sealed segments of one flat file that stay in the snapshot; more move to a manifest."""
    manifests_per_level_max: int = 8
    """Manifests of one flat file and level; more are merged to one of the next level."""

    def memory_bytes_max(self, snapshot_bytes: int) -> int:
        """Bytes held besides the state, for snapshots of `snapshot_bytes`."""
        return self.entry_bytes_max + self.catch_up_bytes_max + 2 * snapshot_bytes
