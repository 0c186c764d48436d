"""Errors of the layers above the storage, with the action that each requires, and findings."""

from dataclasses import dataclass
from typing import Self

from provider.errors import Denied, NotFound, OutOfRange, StoreError


class Refused(StoreError):
    """Plan again: the change was decided on an outdated state, or is invalid.

    Nothing of the transaction was applied, and nothing of it will become visible.
    """


class NewerVersion(StoreError):
    """Upgrade this program: a newer one wrote these data, which are not damaged."""


class Owned(StoreError):
    """Wait for the owner or end it, or take over its tier on purpose: it is alive.

    Nothing was changed.
    """


class InUse(Denied):
    """Stop the process that writes this store directory first: two would destroy it."""


class Expired(NotFound):
    """Plan again: messages of the plan were trimmed, truncated or deleted since.

    `path` is the queue. Nothing is damaged.
    """


class BytesMissing(NotFound):
    """Retry once, then restore the file from a backup: published bytes are not in storage."""

    @classmethod
    def of(cls, error: OutOfRange) -> Self:
        """Convert the error of a storage whose object is missing, or shorter than published."""
        return cls(f"published bytes are missing: {error.reason}", error.path, error.position)


@dataclass(frozen=True, slots=True)
class Finding:
    """Single defect found by a check."""

    finding: str
    """Short, stable name of the kind of damage, such as `checksum`."""
    path: str
    """Object or queue that it concerns."""
    position: int
    """Byte in the object, or queue offset if the path is a queue's."""
    detail: str
    """Sentence with the values."""
