"""Base of stores that wrap another store: every verb passes through one method."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar, cast

from provider.object_store import (
    Append,
    AppendingStore,
    Buffer,
    ObjectEntry,
    ObjectStore,
    ReplacingStore,
)
from provider.ranges import ByteRange

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
