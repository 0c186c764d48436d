"""What can go wrong, as verdicts: each class says what to do next, and carries its place.

Foreign errors are translated into these once, where the outside world is met: by a store's driver
(`posix/files.py`), and for the files of a hot log in `tieredstore/following/`. No code between
the two catches `OSError` or a client library's exception.
"""


class StoreError(Exception):
    """Something happened at one byte position of one named object.

    As a text it is the reason with the place behind it, unless the reason names it:
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
    """Try again later: nothing is known to be wrong with the bytes; the outcome may be unknown."""


class Corrupt(StoreError):
    """Do not retry: the bytes contradict their format. Repair or skip."""


class OutOfRange(StoreError):
    """Fix the request: the position lies outside what is there."""


class NotFound(OutOfRange):
    """Look again: no object has that name, so reload the metadata that named it, once."""


class AlreadyExists(StoreError):
    """Read what is there: the name is taken, perhaps by an earlier attempt of our own."""


class Fenced(StoreError):
    """Stop: someone newer owns this tier, and nothing of ours will become visible any more."""


class Denied(StoreError):
    """Fix the permissions or the configuration: the storage refuses us on principle."""


class Unauthorized(Denied):
    """Fix credentials, permissions or the clock, or wait: a service refuses us for now."""


class Closed(StoreError):
    """Open it again: this object was closed by its owner."""
