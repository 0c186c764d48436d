"""Two stores as one: offloaded objects are in the second store, all others in the first."""

from collections.abc import Sequence
from typing import Final, cast

from provider.clock import run_concurrently
from provider.errors import Denied
from provider.object_store import (
    Append,
    AppendingStore,
    Buffer,
    ObjectEntry,
    ObjectStore,
    ReadNow,
    read_now_of,
)
from provider.ranges import ByteRange
from provider.stores.packed_segments import OFFLOAD_PREFIX

FIRST_STORE: Final = "first"
SECOND_STORE: Final = "second"
"""Labels of the two stores in metrics."""


def unknown_second_store(name: str, place: str = "") -> Denied:
    """Return the error for an object of the second store if its place is not configured.

    `place` is its place by the tier's journal; "" if unknown.
    """
    if place:
        reason = f"this was offloaded to a second store: set tieredStoreOffloadPath={place}"
    else:
        reason = (
            "this was offloaded to a second store, whose place is unknown: set "
            "tieredStoreOffloadPath as the owner of the tier has it"
        )
    return Denied(reason, name)


class TwoStores:
    """`AppendingStore` whose names below `@offload/` are in another store.

    Each call costs the requests of the store that has the name. `read_many` of names in both stores
    reads them concurrently; `delete` deletes in the first store, then in the second. A listing is
    of one store: of the second if its prefix begins with `@offload/`, else of the first. So P4
    holds for a prefix within one store.

    Without a second store, each call for such a name raises `Denied` with the reason.
    """

    def __init__(self, first: ObjectStore, second: ObjectStore | None) -> None:
        """Join two stores. The caller may still use both; `close` closes both."""
        self.inner = cast("AppendingStore", first)
        """First store."""
        self.second = second
        """Second store; None if its place is not configured."""
        self.recorded_place = ""
        """Place of the second store by the tier's journal; "" if unknown."""

    def __repr__(self) -> str:
        return f"<TwoStores: {self.inner!r}, {self.second!r}>"

    async def create(self, name: str, buffers: Sequence[Buffer]) -> None:
        """Store a new object; `ObjectStore.create`."""
        await self._of(name).create(name, buffers)

    async def read(self, name: str, wanted: ByteRange | None = None) -> Buffer:
        """Read a range, or all; `ObjectStore.read`."""
        return await self._of(name).read(name, wanted)

    async def read_many(self, wanted: Sequence[tuple[str, ByteRange]]) -> list[Buffer]:
        """Read several ranges; `ObjectStore.read_many`."""
        places = [number for number, (name, _) in enumerate(wanted) if is_offloaded(name)]
        if not places:
            return await self.inner.read_many(wanted)
        second = self._of(wanted[places[0]][0])
        if len(places) == len(wanted):
            return await second.read_many(wanted)
        chosen = set(places)
        others = [number for number in range(len(wanted)) if number not in chosen]
        parts = await run_concurrently(
            [
                second.read_many([wanted[number] for number in places]),
                self.inner.read_many([wanted[number] for number in others]),
            ]
        )
        found = dict(zip([*places, *others], [*parts[0], *parts[1]], strict=True))
        return [found[number] for number in range(len(wanted))]

    @property
    def read_now(self) -> ReadNow | None:
        """`ReadNow` of the first store, which has nothing of offloaded objects in memory."""
        return read_now_of(self.inner)

    async def size(self, name: str) -> int:
        """Return the object's length in bytes; `ObjectStore.size`."""
        return await self._of(name).size(name)

    async def list(self, prefix: str, *, after: str = "") -> list[ObjectEntry]:
        """List objects of one of the stores by name; `ObjectStore.list`."""
        return await self._of(prefix).list(prefix, after=after)

    async def delete(self, names: Sequence[str]) -> None:
        """Remove objects; `ObjectStore.delete`."""
        offloaded = [name for name in names if is_offloaded(name)]
        others = [name for name in names if not is_offloaded(name)]
        if not offloaded:
            await self.inner.delete(names)
            return
        second = self._of(offloaded[0])
        if others:
            await self.inner.delete(others)
        await second.delete(offloaded)

    async def append(self, appends: Sequence[Append]) -> None:
        """Write every piece at its position, in the first store; `AppendingStore.append`."""
        await self.inner.append(appends)

    async def register(self, name: str) -> bool:
        """Register with the first store; `AppendingStore.register`."""
        return await self.inner.register(name)

    async def close(self) -> None:
        """Close both stores."""
        try:
            await self.inner.close()
        finally:
            if self.second is not None:
                await self.second.close()

    def _of(self, name: str) -> ObjectStore:
        """Return the store of a name.

        Raises:
            Denied: it is the second store, and its place is not configured.
        """
        if not is_offloaded(name):
            return self.inner
        if self.second is None:
            raise unknown_second_store(name, self.recorded_place)
        return self.second


def is_offloaded(name: str) -> bool:
    """Whether an object of that name is in the second store."""
    return name.startswith(OFFLOAD_PREFIX)
