"""Verdicts of layers above the storage."""

from typing import Self

from provider.errors import Denied, NotFound, OutOfRange, StoreError


class Refused(StoreError):
    """Plan again: the change was decided on a state that is no more, or it makes no sense.

    Nothing of the transaction was applied, and nothing of it will become visible.
    """


class NewerVersion(StoreError):
    """Upgrade this program: what lies here was written by a newer one and is not damaged."""


class Owned(StoreError):
    """Let that process work or end it, or take the tier from it on purpose: its owner lives.

    Nothing was changed.
    """


class InUse(Denied):
    """Stop the process that writes this store directory first; two would destroy it."""


class Expired(NotFound):
    """Plan again: messages that a plan had were trimmed, truncated or deleted since.

    `path` is the queue. Nothing is damaged.
    """


class BytesMissing(NotFound):
    """Look again, once: then a file must be brought back. What is published is not in storage."""

    @classmethod
    def of(cls, error: OutOfRange) -> Self:
        """What a storage says that has no such object, or a shorter one than is published."""
        return cls(f"published bytes are missing: {error.reason}", error.path, error.position)
