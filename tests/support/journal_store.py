"""An object store in a dictionary for tests of the journal: lost replies, slow ones, counts."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from provider.errors import AlreadyExists, NotFound, OutOfRange, Unavailable
from provider.object_store import Buffer, ObjectEntry
from provider.ranges import ByteRange


@dataclass(slots=True)
class Faults:
    """How often what goes wrong, each a probability per request."""

    lost_reply: float = 0.0
    turns_max: int = 0
    """Turns of the loop that a request takes before and after its effect, at most."""


class DictStore:
    """Objects that several owners share; each owner sees it through a `view` of its own."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.counts: Counter[str] = Counter()
        self.ever: dict[str, set[bytes]] = {}
        """Every bytes that a name ever had."""

    def view(self, seed: int = 0, faults: Faults | None = None) -> StoreView:
        return StoreView(self, random.Random(seed), faults or Faults())

    @property
    def requests(self) -> int:
        return self.counts.total()

    def put(self, name: str, raw: bytes) -> bool:
        if name in self.objects:
            return False
        self.objects[name] = raw
        self.ever.setdefault(name, set()).add(raw)
        return True

    def damage(self, name: str, at: int = 60) -> None:
        raw = bytearray(self.objects[name])
        raw[at % len(raw)] ^= 0x40
        self.objects[name] = bytes(raw)

    def names(self, prefix: str = "") -> list[str]:
        return sorted(name for name in self.objects if name.startswith(prefix))


class StoreView:
    """One process's connection to a `DictStore`; follows `provider.object_store`."""

    def __init__(self, shared: DictStore, rng: random.Random, faults: Faults) -> None:
        self.shared = shared
        self.rng = rng
        self.faults = faults
        self.down = False

    async def _pause(self) -> None:
        for _ in range(self.rng.randint(0, self.faults.turns_max)):
            await asyncio.sleep(0)

    async def _begin(self, verb: str, name: str) -> None:
        self.shared.counts[verb] += 1
        await self._pause()
        if self.down:
            raise Unavailable("request lost", name)

    async def _end(self, name: str) -> None:
        await self._pause()
        if self.rng.random() < self.faults.lost_reply:
            raise Unavailable("reply lost", name)

    async def create(self, name: str, buffers: Sequence[Buffer]) -> None:
        raw = b"".join(bytes(buffer) for buffer in buffers)
        await self._begin("create", name)
        created = self.shared.put(name, raw)
        await self._end(name)
        if not created:
            raise AlreadyExists("taken", name)

    async def read(self, name: str, wanted: ByteRange | None = None) -> Buffer:
        await self._begin("read", name)
        if name not in self.shared.objects:
            raise NotFound("no such object", name)
        raw = self.shared.objects[name]
        if wanted is not None:
            if wanted.end > len(raw):
                raise OutOfRange("ends before", name, len(raw))
            raw = raw[wanted.start : wanted.end]
        await self._end(name)
        return raw

    async def read_many(self, wanted: Sequence[tuple[str, ByteRange]]) -> list[Buffer]:
        return [await self.read(name, part) for name, part in wanted]

    async def size(self, name: str) -> int:
        return len(await self.read(name))

    async def list(self, prefix: str, *, after: str = "") -> list[ObjectEntry]:
        await self._begin("list", prefix)
        found = [
            ObjectEntry(name, len(self.shared.objects[name]))
            for name in self.shared.names(prefix)
            if name > after
        ]
        await self._end(prefix)
        return found

    async def delete(self, names: Sequence[str]) -> None:
        await self._begin("delete", names[0] if names else "")
        for name in names:
            self.shared.objects.pop(name, None)
            await self._pause()
        await self._end(names[0] if names else "")

    async def close(self) -> None:
        return
