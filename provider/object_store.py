"""The first port: a store of named objects. Few verbs, each with its cost and errors.

Promises of every implementation, numbered as in `CONTRACT.md` and in the contract tests:

P1  `create` is atomic: the object appears whole, or not at all, and never replaces another one. The
    remains of an aborted `create` are not listed and block nothing.
P2  A read after an acknowledged `create` or `append` sees all of it.
P3  A read returns exactly the requested bytes, or raises; it is never short.
P4  `list` is sorted by name, complete, and consistent with P2. It may show any part of the objects
    that are created or deleted while it runs.
P5  `delete` of an absent object succeeds; a deleted name reads as `NotFound`.
P6  Acknowledged writes survive a power failure.
P7  An `Unavailable` write has an unknown outcome: all of it, none of it, or (for `append` only)
    a part of it may have landed, and may still land later.
P8  Cancelling a call has the same meaning as P7 and leaves the store usable.
P9  An object that `AlreadyExists` reports is as durable as an acknowledged one: a writer that finds
    its own nonce in it may continue.
P10 `append` with `new` creates a file exclusively: of all stores over one storage one succeeds.
P11 `register` is true only if no store that registered that name earlier can still write.
P12 The late effect of an unacknowledged `append` or `delete` on a file lands before a later call of
    the same verb and store object on that file is acknowledged, or never.

Names are relative, `/`-separated, and made of safe components (`names.py`). Any other name raises
`ValueError`. `@` may begin a component.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol, TypeVar, cast

from provider.ranges import ByteRange

Buffer = bytes | bytearray | memoryview
"""Bytes without a copy. A memoryview has one dimension and items of one byte. A returned buffer
belongs to the caller; a buffer argument is not changed."""


Moment = str | datetime | float
"""Time as S3's text, a date, or Unix seconds. Parsed on demand only, because listings are long."""


@dataclass(frozen=True, slots=True)
class ObjectEntry:
    """Entry of a listing."""

    name: str
    size_bytes: int
    modified: Moment | None = field(default=None, compare=False)
    """Time of the last write by the storage's own clock; None if the storage does not report it."""

    @property
    def modified_ms(self) -> int | None:
        """Time of the last write in Unix ms; None if unknown, or no time since 1970."""
        modified = self.modified
        if not modified:
            return None
        try:
            moment = datetime.fromisoformat(modified) if isinstance(modified, str) else modified
            unix_s = moment.timestamp() if isinstance(moment, datetime) else moment
        except (ValueError, OverflowError):
            return None
        return int(1000 * unix_s) if unix_s > 0 else None


@dataclass(frozen=True, slots=True)
class Append:
    """Bytes to write at `position` of `name`. `position` is the end of the caller's good bytes.

    Bytes at or beyond `position` were never published and are overwritten. Several pieces of one
    object may follow one another in a round, in order.
    """

    name: str
    position: int
    buffers: tuple[Buffer, ...]
    new: bool = False
    """Whether the object must not exist yet. An object that this store object created the same way
    counts as new, so that a retry after an unknown outcome works. Only with position 0."""

    def __post_init__(self) -> None:
        if self.position < 0 or (self.new and self.position):
            raise ValueError(f"cannot append to {self.name!r} at {self.position}")


class ReadNow(Protocol):
    """Read that waits for nothing, as a method `read_now` of stores that have it."""

    def __call__(
        self, name: str, start: int, length: int, *, follows: bool = False
    ) -> Buffer | None:
        """Return bytes of an object that are in memory. None: read them by `ObjectStore.read`.

        None also for any error, which `read` then reports. `follows`: the object was read in the
        same turn of the event loop, so its existence need not be verified again.
        """
        ...


def read_now_of(store: "ObjectStore") -> ReadNow | None:
    """Return the `read_now` of a store. None if it has none."""
    return getattr(store, "read_now", None)


class ObjectStore(Protocol):
    """Store of named, immutable objects."""

    async def create(self, name: str, buffers: Sequence[Buffer]) -> None:
        """Store the buffers, joined, as a new object. One request.

        Raises:
            AlreadyExists: the name is taken and nothing was stored. An earlier attempt of the same
                caller may have taken it (P7).
            Unavailable: unknown outcome (P7).
        """
        ...

    async def read(self, name: str, wanted: ByteRange | None = None) -> Buffer:
        """Read a range of an object, or all of it. One request.

        Raises:
            NotFound: there is no such object.
            OutOfRange: the object ends before the range does; nothing is returned.
            Unavailable: the storage did not respond; retry.
        """
        ...

    async def read_many(self, wanted: Sequence[tuple[str, ByteRange]]) -> list[Buffer]:
        """Read several ranges, and return them in order. At most one request each.

        Raises:
            StoreError: the first error, as `read`. Other reads are cancelled or their results
                dropped.
        """
        ...

    async def size(self, name: str) -> int:
        """Return the object's length in bytes. One request.

        Raises:
            NotFound: there is no such object.
            Unavailable: the storage did not respond; retry.
        """
        ...

    async def list(self, prefix: str, *, after: str = "") -> list[ObjectEntry]:
        """List all objects whose name starts with `prefix` and sorts after `after`, by name.

        One request per 1,000 entries. `prefix` is a plain string prefix; "" lists everything.
        Never returns a partial listing.

        Raises:
            Unavailable: the storage did not respond; retry.
        """
        ...

    async def delete(self, names: Sequence[str]) -> None:
        """Delete objects. An absent object counts as deleted. One request per 1,000.

        Raises:
            Unavailable: some objects may be left; call again with the same names.
        """
        ...

    async def close(self) -> None:
        """Release files and threads. Idempotent. Every later call raises `Closed`."""
        ...


class ReplacingStore(ObjectStore, Protocol):
    """Object store whose objects can be replaced, which only their owner may do."""

    async def replace(self, name: str, buffers: Sequence[Buffer]) -> None:
        """Replace the object of that name by the joined buffers. One request, atomic.

        Readers see the old object or the new one. An object deleted meanwhile is created again.

        Raises:
            Unavailable: unknown outcome (P7); call again.
        """
        ...


class AppendingStore(ObjectStore, Protocol):
    """Object store whose objects can grow in place."""

    async def append(self, appends: Sequence[Append]) -> None:
        """Write every piece at its position and make all of them durable. One round of syncs.

        Creates missing files and directories durably.

        Raises:
            AlreadyExists: a piece is `new` and its object exists. Nothing was written to that
                object; other pieces may have been written.
            OutOfRange: an object ends before the piece's position: published bytes are missing.
                It is `NotFound` if there is no such object and the position is not 0.
            Unavailable: unknown outcome (P7); call again with the same pieces.
        """
        ...

    async def register(self, name: str) -> bool:
        """Register this store as present under `name`. Return whether it is the only one.

        The registration lasts until `close` or the end of the process, which the operating system
        detects. True proves that every store that registered earlier is gone and can no longer
        write. False means that another store is registered, earlier or later; call again for the
        present state. Never waits.

        An owner must register once *before* it takes its epoch, so that later owners see it. It
        must rely only on a result from *after* that (decision 0002).
        """
        ...


Result = TypeVar("Result")


class ForwardingStore:
    """`AppendingStore` that forwards every call to `inner`. A wrapper overrides `_call`.

    `append` and `register` must not be called if `inner` is not an `AppendingStore`, and `replace`
    must not be called if it is not a `ReplacingStore` or if a cache wraps it.
    """

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = cast("AppendingStore", inner)
        """Wrapped store."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.inner!r}>"

    async def create(self, name: str, buffers: Sequence[Buffer]) -> None:
        """Store a new object; `ObjectStore.create`."""
        size_bytes = sum(map(len, buffers))
        await self._call("create", [name], lambda: self.inner.create(name, buffers), size_bytes)

    async def read(self, name: str, wanted: ByteRange | None = None) -> Buffer:
        """Read a range, or all; `ObjectStore.read`."""
        return await self._call("read", [name], lambda: self.inner.read(name, wanted))

    async def read_many(self, wanted: Sequence[tuple[str, ByteRange]]) -> list[Buffer]:
        """Read several ranges; `ObjectStore.read_many`."""
        names = [name for name, _ in wanted]
        return await self._call("read_many", names, lambda: self.inner.read_many(wanted))

    async def size(self, name: str) -> int:
        """Return the object's length in bytes; `ObjectStore.size`."""
        return await self._call("size", [name], lambda: self.inner.size(name))

    async def list(self, prefix: str, *, after: str = "") -> list[ObjectEntry]:
        """List objects by name; `ObjectStore.list`."""
        return await self._call("list", [prefix], lambda: self.inner.list(prefix, after=after))

    async def delete(self, names: Sequence[str]) -> None:
        """Remove objects; `ObjectStore.delete`."""
        await self._call("delete", names, lambda: self.inner.delete(names))

    async def append(self, appends: Sequence[Append]) -> None:
        """Write every piece at its position; `AppendingStore.append`."""
        names = [piece.name for piece in appends]
        size_bytes = sum(len(buffer) for piece in appends for buffer in piece.buffers)
        await self._call("append", names, lambda: self.inner.append(appends), size_bytes)

    async def replace(self, name: str, buffers: Sequence[Buffer]) -> None:
        """Replace an object; `ReplacingStore.replace`."""
        inner, size_bytes = cast("ReplacingStore", self.inner), sum(map(len, buffers))
        await self._call("replace", [name], lambda: inner.replace(name, buffers), size_bytes)

    async def register(self, name: str) -> bool:
        """Register this store as present; `AppendingStore.register`."""
        return await self._call("register", [name], lambda: self.inner.register(name))

    async def close(self) -> None:
        """Close the wrapped store. Does not pass through `_call`."""
        await self.inner.close()

    async def _call(
        self,
        verb: str,
        names: Sequence[str],
        effect: Callable[[], Awaitable[Result]],
        size_bytes: int = 0,
    ) -> Result:
        """Run one call of a verb.

        `names` has one entry for each object, range or piece; for `list` it is the prefix. Each
        call of `effect` makes the call on `inner`. `size_bytes` are the bytes to write.
        """
        del verb, names, size_bytes
        return await effect()
