"""Limits and times of the journal, with the defaults."""

from dataclasses import dataclass
from typing import Protocol

MIB = 1 << 20


class RandomSource(Protocol):
    """The part of `random.Random` that makes nonces and jitter.

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
    """How the journal groups transactions, retries entries, and is read.

    Memory besides the state: three times `entry_bytes_max` for the entry in flight, with its copy
    of the one before, and that one; the transactions that callers of `publish` wait for; and
    `catch_up_bytes_max` while starting.
    """

    entry_bytes_max: int = MIB
    """Payload bytes at which an entry is closed; a larger transaction has an entry of its own."""
    entry_transactions_max: int = 4096
    transaction_bytes_max: int = 64 * MIB
    """A larger transaction is refused."""
    retry_s_min: float = 0.1
    """First wait after an unknown outcome; doubles up to `retry_s_max`."""
    retry_s_max: float = 5.0
    close_s_max: float = 10.0
    """How long `close` waits for transactions in flight."""
    catch_up_bytes_max: int = 8 * MIB
    """Bytes of entries that one batch reads while starting or following."""
    catch_up_entries_max: int = 64
    """Entries that one batch reads while starting or following."""
    claim_s_max: float = 5.0
    """How long an owner stands back for somebody who has claimed the tier, in seconds, once for
    each claim: long enough for some ten requests of the taker's, which may have died since."""
    heartbeat_s: float = 30.0
    """Interval of the signs of life of an owner that writes no entries, in seconds."""
    lease_s: float = 90.0
    """Time without a sign of life after which an owner counts as dead, in seconds of the observer's
    monotonic clock. At least twice `heartbeat_s`."""
    listing_s_max: float = 60.0
    """A listing that took longer is made again where something depends on what it lacks. A boundary
    that was replaced stays for twice as long (snapshots and entries: `UpkeepOptions.grace_s`), so
    that a listing which is believed shows that boundary or the newer one."""

    def __post_init__(self) -> None:
        """Reject a lease within which a living owner may show no sign of life.

        Raises:
            ValueError: `lease_s` is less than twice `heartbeat_s`.
        """
        if self.lease_s < 2 * self.heartbeat_s:
            raise ValueError("lease_s must be at least twice heartbeat_s")
