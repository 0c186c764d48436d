"""Limits and times of the journal, with their defaults."""

from dataclasses import dataclass
from typing import Protocol

from provider.setting import MIB, Kind, setting


class RandomSource(Protocol):
    """Part of `random.Random` that produces nonces and jitter.

    Owners of one tier must not share a seed: with equal nonces two entries would be equal.
    """

    def randbytes(self, n: int, /) -> bytes:
        """Return `n` random bytes."""
        ...

    def random(self) -> float:
        """Return a number in `[0, 1)`."""
        ...


@dataclass(frozen=True, slots=True)
class JournalOptions:
    """Grouping of transactions, retries of entries, and reading of the journal.

    Memory besides the state: three times `entry_bytes_max` for the previous entry and the entry in
    flight with its copy of it; the transactions that callers of `publish` wait for; and
    `catch_up_bytes_max` during the start.
    """

    entry_bytes_max: int = MIB
    """Payload bytes at which an entry is closed. A larger transaction gets an entry of its own."""
    entry_transactions_max: int = 4096
    transaction_bytes_max: int = 64 * MIB
    """Limit of a transaction. A larger one is refused."""
    retry_s_min: float = 0.1
    """First delay after an unknown outcome, in seconds. It doubles up to `retry_s_max`."""
    retry_s_max: float = 5.0
    close_s_max: float = 10.0
    """Time that `close` waits for transactions in flight, in seconds."""
    catch_up_bytes_max: int = 8 * MIB
    """Bytes of entries that one batch reads at the start or while following."""
    catch_up_entries_max: int = 64
    """Entries that one batch reads at the start or while following."""
    claim_s_max: float = setting(
        "tieredStoreClaimTimeout",
        Kind.MILLISECONDS,
        5000,
        "Time for which an owner stops writing when another process wants to take its tier.",
        least=0,
        most=600_000,
    )
    """Enough for some ten requests of the claimant, which may have died since."""
    heartbeat_s: float = setting(
        "tieredStoreOwnerHeartbeatInterval",
        Kind.MILLISECONDS,
        30_000,
        "Interval of the signs of life of an idle owner; each is one request.",
        least=100,
    )
    lease_s: float = setting(
        "tieredStoreOwnerLease",
        Kind.MILLISECONDS,
        90_000,
        "Time without a sign of life after which a start replaces an owner; at least twice the "
        "heartbeat interval.",
        least=200,
    )
    """Measured on the observer's monotonic clock."""
    listing_s_max: float = 60.0
    """Limit of a trusted listing, in seconds. A slower one is repeated if a decision depends on
    objects that it lacks. A replaced boundary stays for twice this time (snapshots and entries:
    `UpkeepOptions.grace_s`), so that a trusted listing shows that boundary or a newer one."""

    def __post_init__(self) -> None:
        """Reject a lease within which a living owner may show no sign of life.

        Raises:
            ValueError: `lease_s` is less than twice `heartbeat_s`.
        """
        if self.lease_s < 2 * self.heartbeat_s:
            raise ValueError("lease_s must be at least twice heartbeat_s")
