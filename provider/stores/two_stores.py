"""Two stores as one: offloaded objects lie in the second, all others in the first."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Final, cast

from provider.errors import Denied
from provider.object_store import Append, AppendingStore, Buffer, ObjectEntry, ObjectStore
from provider.ranges import ByteRange
from provider.stores.packed_segments import OFFLOAD_PREFIX

FIRST_STORE: Final = "first"
SECOND_STORE: Final = "second"
"""How metrics name the two."""


def unknown_second_store(name: str, place: str = "") -> Denied:
    """What is said of an object of the second store where nobody said where that is.

    `place`: where it was, as the tier's journal says; "" if that does not.
    """
    if place:
        reason = f"this was offloaded to a second store: set tieredStoreOffloadPath={place}"
    else:
        reason = (
            "this was offloaded to a second store, and nothing says where that is: set "
            "tieredStoreOffloadPath as the owner of the tier has it"
        )
    return Denied(reason, name)


class TwoStores:
    """An `AppendingStore` whose names below `@offload/` lie in another store.

    Requests: those of the store that has the name; `read_many` and `delete` of names in both make
    those of each, side by side. A listing is of one store: of the second, if its prefix begins
    with `@offload/`, else of the first. So P4 holds for a prefix that lies in one store.

    Without a second store each call for such a name is `Denied`, in one sentence that says why.
    """

    def __init__(self, first: ObjectStore, second: ObjectStore | None) -> None:
        """Both stay the caller's to use; `close` closes both."""
        self.inner = cast("AppendingStore", first)
        """The first store."""
        self.second = second
        """None: where it is was not said."""
        self.recorded_place = ""
        """Where the tier's journal says that the second store is, if somebody has set it here."""

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
        parts = await _both(
            second.read_many([wanted[number] for number in places]),
            self.inner.read_many([wanted[number] for number in others]),
        )
        found = dict(zip([*places, *others], [*parts[0], *parts[1]], strict=True))
        return [found[number] for number in range(len(wanted))]

    async def size(self, name: str) -> int:
        """The object's length in bytes; `ObjectStore.size`."""
        return await self._of(name).size(name)

    async def list(self, prefix: str, *, after: str = "") -> list[ObjectEntry]:
        """Objects of one of the stores by name; `ObjectStore.list`."""
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
        """Close both."""
        try:
            await self.inner.close()
        finally:
            if self.second is not None:
                await self.second.close()

    def _of(self, name: str) -> ObjectStore:
        """The store that has an object of that name.

        Raises:
            Denied: it is the second one, and nobody said where that is.
        """
        if not is_offloaded(name):
            return self.inner
        if self.second is None:
            raise unknown_second_store(name, self.recorded_place)
        return self.second


def is_offloaded(name: str) -> bool:
    """Whether an object of that name lies in the second store."""
    return name.startswith(OFFLOAD_PREFIX)


_Reads = list[Buffer]


async def _both(
    one: Coroutine[object, object, _Reads], other: Coroutine[object, object, _Reads]
) -> tuple[_Reads, _Reads]:
    """Both results, or the first error; the other is then cancelled."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one), group.create_task(other)]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return tasks[0].result(), tasks[1].result()
