"""The first port: a place that keeps named objects. Few verbs, each with its cost and errors.

What every implementation promises, numbered as in `CONTRACT.md` and in the contract tests:

P1  `create` is atomic: the object appears whole, or not at all, and never over another one. What an
    aborted one left is neither listed nor in the way.
P2  A read that follows an acknowledged `create` or `append` sees all of it.
P3  A read returns exactly the bytes asked for, or raises; it is never short.
P4  `list` is sorted by name, complete, and consistent with P2: of what is created or deleted while
    it runs it may show any part.
P5  `delete` of what is not there is success; a deleted name reads as `NotFound`.
P6  What is acknowledged survives a power failure.
P7  An `Unavailable` write has an unknown outcome: all of it, none of it, or (for `append` only)
    a part of it may have landed, and may still land later.
P8  Cancelling a call has the same meaning as P7 and leaves the store usable.
P9  What `AlreadyExists` reports is as durable as what is acknowledged: a writer that finds its own
    nonce behind it may go on.
P10 `append` with `new` begins a file exclusively: of all stores over one storage one succeeds.
P11 `register` is true only if no store that registered that name earlier can still write.
P12 What an `append` or a `delete` of one store object may still do to a file lands before a later
    one of the same verb and store object to that file is acknowledged, or never.

Names are relative, `/`-separated, and made of safe components (`names.py`); a name that is not
is a `ValueError`, whoever asked. `@` may begin a component.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from provider.ranges import ByteRange

Buffer = bytes | bytearray | memoryview
"""Bytes without a copy; a memoryview has one dimension and items of one byte. A returned buffer
belongs to the caller; a given one is not changed."""


Moment = str | datetime | float
"""Text as of S3, a date, or Unix seconds: read only where somebody asks, for listings are long."""


@dataclass(frozen=True, slots=True)
class ObjectEntry:
    """One line of a listing."""

    name: str
    size_bytes: int
    modified: Moment | None = field(default=None, compare=False)
    """When it was last written by the storage's own clock; None: that is not told."""

    @property
    def modified_ms(self) -> int | None:
        """The same in Unix ms."""
        told = self.modified
        if not told:
            return None
        moment = datetime.fromisoformat(told) if isinstance(told, str) else told
        return int(1000 * (moment.timestamp() if isinstance(moment, datetime) else moment))


@dataclass(frozen=True, slots=True)
class Append:
    """Bytes for `position` of `name`; `position` is where the caller knows its good bytes to end.

    What lies at or beyond `position` was never published by anyone and is overwritten. Pieces of
    one object may follow one another in a round, in order.
    """

    name: str
    position: int
    buffers: tuple[Buffer, ...]
    new: bool = False
    """The object must not exist yet, or have been begun so by this very store object (so that the
    same call after an unknown outcome works). Only with position 0."""

    def __post_init__(self) -> None:
        if self.position < 0 or (self.new and self.position):
            raise ValueError(f"cannot append to {self.name!r} at {self.position}")


class ObjectStore(Protocol):
    """Named, immutable runs of bytes."""

    async def create(self, name: str, buffers: Sequence[Buffer]) -> None:
        """Store the buffers, joined, as a new object. One request.

        Raises:
            AlreadyExists: the name is taken; nothing was stored (but see P7: perhaps by us).
            Unavailable: unknown outcome (P7).
        """
        ...

    async def read(self, name: str, wanted: ByteRange | None = None) -> Buffer:
        """Read a range of an object, or all of it. One request.

        Raises:
            NotFound: there is no such object.
            OutOfRange: the object ends before the range does; nothing is returned.
            Unavailable: try again.
        """
        ...

    async def read_many(self, wanted: Sequence[tuple[str, ByteRange]]) -> list[Buffer]:
        """Read several ranges, results in order of the arguments. At most one request each.

        Raises the first error met; the others' reads are cancelled or their results dropped.
        """
        ...

    async def size(self, name: str) -> int:
        """The object's length in bytes. One request.

        Raises:
            NotFound: there is no such object.
            Unavailable: try again.
        """
        ...

    async def list(self, prefix: str, *, after: str = "") -> list[ObjectEntry]:
        """All objects whose name starts with `prefix` and sorts after `after`, by name.

        One request per 1,000 entries. `prefix` is a plain string prefix, "" lists everything.

        Raises:
            Unavailable: try again; never a partial listing.
        """
        ...

    async def delete(self, names: Sequence[str]) -> None:
        """Remove objects; one that is not there counts as removed. One request per 1,000.

        Raises:
            Unavailable: some may be left; call again with the same names.
        """
        ...

    async def close(self) -> None:
        """Release files and threads. Idempotent; every later call raises `Closed`."""
        ...


class ReplacingStore(ObjectStore, Protocol):
    """An object store whose objects can be stored anew, which only their owner may do."""

    async def replace(self, name: str, buffers: Sequence[Buffer]) -> None:
        """Store the buffers, joined, in place of the object of that name. One request, atomic.

        Readers see the one or the other. One that was deleted meanwhile is there again.

        Raises:
            Unavailable: unknown outcome (P7); call again.
        """
        ...


class AppendingStore(ObjectStore, Protocol):
    """An object store whose objects can grow in place."""

    async def append(self, appends: Sequence[Append]) -> None:
        """Write every piece at its position and make all of them durable. One round of syncs.

        A file that is not there is created, its directories with it (durably too).

        Raises:
            AlreadyExists: a piece is `new` and its object was there; nothing was written to it,
                other pieces may have been.
            OutOfRange: an object ends before the piece's position: published bytes are missing.
                `NotFound`, which is one, if there is no such object and the position is not 0.
            Unavailable: unknown outcome (P7); call again with the same pieces.
        """
        ...

    async def register(self, name: str) -> bool:
        """Register this store as present under `name`; return whether it is the only one.

        The registration lasts until `close` or the end of the process, which the operating system
        notices. True proves that every store that registered earlier is gone and can no longer
        write. False means that another one is registered, earlier or later; call again for a newer
        answer. Never waits.

        An owner must register once *before* it takes its epoch, so that later owners see it, and
        must rely only on an answer from *after* that (decision 0002).
        """
        ...
