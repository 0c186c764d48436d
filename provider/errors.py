"""Errors of stores as verdicts: each class implies the next action, and has path and position.

Foreign errors are translated into these once, at the border of the process: by a store's driver
(`posix/files.py`, `object/errors.py`), and for the files of a hot log in `tieredstore/following/`.
No other code catches `OSError` or an exception of a client library.
"""


class StoreError(Exception):
    """Error at one byte position of one named object.

    Its text is the reason, followed by the place unless the reason names it:
    `the object ends at 5 (T/0/COMMIT_LOG/x at 7)`.
    """

    def __init__(self, reason: str, path: str, position: int = 0) -> None:
        super().__init__(reason, path, position)  # args mirror the signature: pickling works
        self.reason = reason
        self.path = path
        self.position = position

    def __str__(self) -> str:
        place = f"{self.path} at {self.position}" if self.path and self.position else self.path
        return f"{self.reason} ({place})" if place not in self.reason else self.reason


class Unavailable(StoreError):
    """Retry later. No damage is known; the outcome may be unknown."""


class Corrupt(StoreError):
    """Do not retry: the bytes contradict their format. Repair or skip."""


class OutOfRange(StoreError):
    """Fix the request: the position lies outside the object or queue."""


class NotFound(OutOfRange):
    """Reload the metadata that named the object, and retry once: no object has that name."""


class AlreadyExists(StoreError):
    """Read the object: the name is taken, perhaps by an earlier attempt of the same writer."""


class Fenced(StoreError):
    """Stop: a newer owner has the tier. No write of this owner becomes visible any more."""


class Denied(StoreError):
    """Fix the permissions or the configuration: the storage refuses the request permanently."""


class Unauthorized(Denied):
    """Fix credentials, permissions or the clock, or wait: a service refuses the request for now."""


class Closed(StoreError):
    """Open it again: this object was closed by its owner."""
