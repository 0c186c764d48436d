"""Store in memory: the reference model of both ports' promises, and the fastest test double."""

from collections.abc import Sequence
from typing import Self

from provider.errors import AlreadyExists, Closed, NotFound, OutOfRange
from provider.names import check_name, check_prefix
from provider.object_store import Append, Buffer, ObjectEntry
from provider.ranges import ByteRange


class MemoryObjects:
    """State that the clients of one memory share."""

    def __init__(self) -> None:
        self.objects: dict[str, bytearray] = {}
        self.present: dict[str, list[MemoryStore]] = {}


class MemoryStore:
    """`AppendingStore` in a dict. Every verb takes effect at once, without yielding.

    `another_client` returns a second store over the same objects, like that of a second process.
    `kill` ends a client as `kill -9` ends a process. Nothing survives the last client. Memory: the
    bytes of its objects.
    """

    def __init__(self, shared: MemoryObjects | None = None) -> None:
        self._shared = shared or MemoryObjects()
        self._begun: set[str] = set()
        self._end = ""

    def __repr__(self) -> str:
        size_bytes = sum(map(len, self._shared.objects.values()))
        return f"<MemoryStore {len(self._shared.objects)} objects, {size_bytes} bytes>"

    def another_client(self) -> Self:
        """Return another store over the same objects."""
        return type(self)(self._shared)

    def kill(self) -> None:
        """End this client like a dead process: no call lands any more, and its locks are free.

        Later calls raise `Closed`. A caller that still runs acts as the dead process.
        """
        self._end = "this client was killed"
        for present in self._shared.present.values():
            if self in present:
                present.remove(self)

    async def create(self, name: str, buffers: Sequence[Buffer]) -> None:
        """Store a new object; `ObjectStore.create`."""
        self._check(name)
        if name in self._shared.objects:
            raise AlreadyExists("the name is taken", name)
        self._shared.objects[name] = bytearray(b"".join(buffers))

    async def replace(self, name: str, buffers: Sequence[Buffer]) -> None:
        """Replace an object; `ReplacingStore.replace`."""
        self._check(name)
        self._shared.objects[name] = bytearray(b"".join(buffers))

    async def read(self, name: str, wanted: ByteRange | None = None) -> Buffer:
        """Read a range, or all; `ObjectStore.read`. Copies."""
        self._check(name)
        held = self._shared.objects.get(name)
        if held is None:
            raise NotFound("there is no such object", name, wanted.start if wanted else 0)
        if wanted is None:
            return bytes(held)
        if wanted.end > len(held):
            raise OutOfRange(f"the object ends at {len(held)}", name, wanted.start)
        return bytes(memoryview(held)[wanted.start : wanted.end])

    async def read_many(self, wanted: Sequence[tuple[str, ByteRange]]) -> list[Buffer]:
        """Read several ranges; `ObjectStore.read_many`."""
        self._check(*(name for name, _ in wanted))
        return [await self.read(name, part) for name, part in wanted]

    def read_now(
        self, name: str, start: int, length: int, *, follows: bool = False
    ) -> Buffer | None:
        """Read a range at once; `ReadNow`. Copies."""
        del follows
        held = self._shared.objects.get(name)
        if self._end or held is None or start + length > len(held):
            return None
        return bytes(memoryview(held)[start : start + length])

    async def size(self, name: str) -> int:
        """Return the object's length in bytes; `ObjectStore.size`."""
        self._check(name)
        if name not in self._shared.objects:
            raise NotFound("there is no such object", name)
        return len(self._shared.objects[name])

    async def list(self, prefix: str, *, after: str = "") -> list[ObjectEntry]:
        """List objects by name; `ObjectStore.list`."""
        self._check()
        check_prefix(prefix)
        objects = self._shared.objects
        found = [name for name in objects if name.startswith(prefix) and name > after]
        return [ObjectEntry(name, len(objects[name])) for name in sorted(found)]

    async def delete(self, names: Sequence[str]) -> None:
        """Remove objects; `ObjectStore.delete`."""
        self._check(*names)
        for name in names:
            self._shared.objects.pop(name, None)
            self._begun.discard(name)

    async def append(self, appends: Sequence[Append]) -> None:
        """Write every piece at its position, or none; `AppendingStore.append`."""
        self._check(*(piece.name for piece in appends))
        objects = self._shared.objects
        ends: dict[str, int] = {}
        for piece in appends:
            held = objects.get(piece.name)
            if piece.new and held is not None and piece.name not in self._begun:
                raise AlreadyExists("the name is taken", piece.name)
            if held is None and piece.position > 0 and piece.name not in ends:
                raise NotFound("there is no such object", piece.name, piece.position)
            end = ends.get(piece.name, len(held or b""))
            if end < piece.position:
                raise OutOfRange(f"the object ends at {end}", piece.name, piece.position)
            ends[piece.name] = max(end, piece.position + sum(map(len, piece.buffers)))
        for piece in appends:
            if piece.new:
                self._begun.add(piece.name)
            elif piece.position > 0:
                self._begun.discard(piece.name)
            data = b"".join(piece.buffers)
            held = objects.setdefault(piece.name, bytearray())
            held[piece.position : piece.position + len(data)] = data

    async def register(self, name: str) -> bool:
        """Register this store as present; true if it is the only one; `AppendingStore.register`."""
        self._check(name)
        present = self._shared.present.setdefault(name, [])
        if self not in present:
            present.append(self)
        return present == [self]

    async def close(self) -> None:
        """Release the registrations. Idempotent. The objects stay for the other clients."""
        if not self._end:
            self.kill()
            self._end = "the store was closed"

    def _check(self, *names: str) -> None:
        if self._end:
            raise Closed(self._end, names[0] if names else "")
        for name in names:
            check_name(name)
