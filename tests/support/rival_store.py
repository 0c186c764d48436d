"""A store in memory that does to rival owners whatever `provider.object_store` allows.

Each request takes time before and after its effect, in which its process may sleep (*nap*) for
longer than others need to snapshot and cut. It may be refused; its reply may be lost; a write may
land later, also that of a process that is dead by then (P7, P8). A listing shows of what changes
while it runs any part (P4 speaks of what was acknowledged before). A delete of several takes them
in any order, and may end half-way. What was created is lost in a power failure, unless a create in
the same directory was acknowledged since, or refused because the name is taken (P6, P9).
"""

import asyncio
import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from container.journal.frame import Frame
from container.names.tier_objects import JOURNAL_PREFIX, SNAPSHOT_PREFIX
from provider.errors import AlreadyExists, NotFound, OutOfRange, StoreError, Unavailable
from provider.object_store import Buffer, ObjectEntry
from provider.ranges import ByteRange
from provider.testing.faulty import flipped
from tests.support.simulated_time import note

_Result = TypeVar("_Result")


@dataclass(slots=True)
class Weather:
    """What one process meets: probabilities per request, and times in seconds."""

    delay_s_max: float = 0.0
    refused: float = 0.0
    lost_reply: float = 0.0
    late: float = 0.0
    late_s_max: float = 0.0
    nap: float = 0.0
    nap_s_max: float = 0.0
    nap_at: tuple[str, ...] = ("",)
    """It naps at these verbs and prefixes only ("create @journal/")."""
    rotten: float = 0.0
    """A snapshot is not what was written: what no storage may do, and what reading back finds."""


class RivalObjects:
    """What the processes share, and the truth: the first bytes under each number."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.counts: Counter[str] = Counter()
        self.truth: dict[int, bytes] = {}
        self.epoch = 0
        """Of the newest entry."""
        self._fragile: set[str] = set()
        self._deleted: set[str] = set()
        self._late: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()

    def names(self, prefix: str = "") -> set[str]:
        return {name for name in self.objects if name.startswith(prefix)}

    def later(self, due_s: float, effect: Callable[[], object]) -> None:
        heapq.heappush(self._late, (due_s, next(self._order), effect))

    def land(self, now_s: float) -> None:
        """Let what is late by now take effect."""
        while self._late and self._late[0][0] <= now_s:
            try:
                heapq.heappop(self._late)[2]()
            except StoreError:
                continue  # nobody hears it
            self.counts["landed late"] += 1

    def create(self, name: str, raw: bytes) -> None:
        if name in self.objects:
            raise AlreadyExists("taken", name)
        self.objects[name] = raw
        self._fragile.add(name)
        if not name.startswith(JOURNAL_PREFIX):
            return
        number = int(name.rpartition("/")[2])
        if number in self.truth:
            self.counts["created again"] += 1
            return
        self.truth[number] = raw
        self.epoch = Frame.LAYOUT.unpack(raw[: Frame.SIZE])[3]

    def sync(self, name: str) -> None:
        """The directory of `name` is durable now."""
        self._fragile = {
            one for one in self._fragile if one.partition("/")[0] != name.partition("/")[0]
        }

    def delete(self, name: str) -> None:
        if self.objects.pop(name, None) is not None:
            self._deleted.add(name)
            self.counts["deleted"] += 1

    def lose_power(self) -> None:
        """Everybody is dead: only what is durable remains, and nothing is under way."""
        self._late.clear()
        for name in self._fragile & self.objects.keys():
            del self.objects[name]
            self.counts["lost"] += 1
            if name.startswith(JOURNAL_PREFIX) and name not in self._deleted:
                del self.truth[int(name.rpartition("/")[2])]


class RivalStore:
    """One process's connection to `RivalObjects`."""

    def __init__(self, shared: RivalObjects, rng: Random, weather: Weather) -> None:
        self._shared = shared
        self._rng = rng
        self._weather = weather
        self._loop = asyncio.get_running_loop()

    async def create(self, name: str, buffers: Sequence[Buffer]) -> None:
        raw = b"".join(buffers)
        if name.startswith(SNAPSHOT_PREFIX) and self._chance(self._weather.rotten):
            raw = flipped(raw, self._rng)
        lost = self._chance(self._weather.lost_reply)

        def effect() -> None:
            try:
                self._shared.create(name, raw)
            finally:
                if not lost:
                    self._shared.sync(name)

        await self._write("create", name, effect, lambda: self._shared.create(name, raw), lost=lost)

    async def read(self, name: str, wanted: ByteRange | None = None) -> Buffer:
        def effect() -> bytes:
            raw = self._shared.objects.get(name)
            if raw is None:
                raise NotFound("no such object", name)
            if wanted is None:
                return raw
            if wanted.end > len(raw):
                raise OutOfRange("ends before", name, len(raw))
            return raw[wanted.start : wanted.end]

        return await self._call("read", name, effect)

    async def read_many(self, wanted: Sequence[tuple[str, ByteRange]]) -> list[Buffer]:
        return [await self.read(name, part) for name, part in wanted]

    async def size(self, name: str) -> int:
        return len(await self.read(name))

    async def list(self, prefix: str, *, after: str = "") -> list[ObjectEntry]:
        before = self._shared.objects.copy()
        await self._pass("list", prefix)

        def effect() -> list[ObjectEntry]:
            seen = {**before, **self._shared.objects}
            sure = before.keys() & self._shared.objects.keys()
            changed = any(name.startswith(prefix) for name in seen.keys() - sure)
            shown = 0.5 if changed and self._chance(0.5) else 0.0
            return [
                ObjectEntry(name, len(seen[name]))
                for name in sorted(seen)
                if name.startswith(prefix)
                and name > after
                and (name in sure or self._chance(shown))
            ]

        return await self._call("list", prefix, effect)

    async def delete(self, names: Sequence[str]) -> None:
        left = list(names)
        self._rng.shuffle(left)
        while left:  # what is left may land later, all of it
            batch = left[: self._rng.randint(1, 4)]
            rest = tuple(left)
            await self._write(
                "delete",
                batch[0],
                lambda batch=batch: [self._shared.delete(name) for name in batch],
                lambda rest=rest: [self._shared.delete(name) for name in rest],
                lost=self._chance(self._weather.lost_reply),
            )
            del left[: len(batch)]

    async def close(self) -> None:
        return

    def _chance(self, probability: float) -> bool:
        return self._rng.random() < probability

    async def _write(
        self,
        verb: str,
        name: str,
        effect: Callable[[], object],
        late: Callable[[], object],
        *,
        lost: bool,
    ) -> None:
        now_s, late_s = self._loop.time(), self._rng.random() * self._weather.late_s_max
        if self._chance(self._weather.late):
            await self._pass(verb, name)
            self._shared.later(now_s + late_s, late)
            raise Unavailable("timed out", name)
        try:
            await self._call(verb, name, effect)
        except asyncio.CancelledError:
            if self._chance(0.5):
                self._shared.later(now_s + late_s, late)
            raise
        except AlreadyExists:
            if not lost:
                raise
        if lost:
            raise Unavailable("reply lost", name)

    async def _call(self, verb: str, name: str, effect: Callable[[], _Result]) -> _Result:
        self._shared.counts[verb] += 1
        number = self._shared.counts.total()
        note(number, verb, name)
        await self._pass(verb, name)
        if self._chance(self._weather.refused):
            raise Unavailable("refused", name)
        self._shared.land(self._loop.time())
        try:
            result = effect()
        except StoreError as error:
            note(number, str(error))
            raise
        else:
            note(number, result if isinstance(result, list | bytes) else "done")
            return result
        finally:
            await self._pass(verb, name)

    async def _pass(self, verb: str, name: str) -> None:
        """Let some time pass, and sometimes a long one."""
        weather = self._weather
        if self._chance(weather.nap) and f"{verb} {name}".startswith(weather.nap_at):
            await asyncio.sleep(self._rng.random() * weather.nap_s_max)
            self._shared.counts["naps"] += 1
        elif self._chance(0.3):
            await asyncio.sleep(0)  # in the same moment as others
        else:
            await asyncio.sleep(self._rng.random() * weather.delay_s_max)
