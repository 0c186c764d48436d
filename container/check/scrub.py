"""Scrub: a check in bounded runs, each of which continues at the saved mark."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple, Self, TypeVar

import orjson

from container.check.index_files import check_index_file
from container.check.metadata import ask_for_second_store, check_parts, listed_objects
from container.check.queue import FlatStream, check_extents, check_joins, grown
from container.check.tier import (
    check_metadata,
    check_past_ends,
    check_unclaimed,
    is_metadata,
    published_names,
)
from container.errors import Finding
from container.metadata.objects import object_name
from container.metadata.records import Queue, Segment
from container.metadata.state import TierState
from container.names.queue_id import FLAT_FILES, QueueId
from container.names.rocketmq import parse_segment_name
from container.names.tier_objects import (
    SCRUB_PREFIX,
    IndexBase,
    KeptName,
    ManifestName,
    ScrubName,
    parse_name,
)
from container.tier_view import ATTEMPTS_MAX, TierView, take_newer
from provider.clock import Clock
from provider.errors import Corrupt, Denied, NotFound, OutOfRange
from provider.object_store import ForwardingStore, ObjectEntry, ObjectStore, Result
from provider.stores.packed_segments import PartName

UNCLAIMED_MAX = 10_000
"""Limit of remembered unreferenced objects, about 100 bytes each."""


class ScrubPlace(NamedTuple):
    """Last unit of work that was done. Work is done in the order of these."""

    phase: int = 0
    """0: segments of queues; 1: index files; 2: objects in storage, which ends a round."""
    name: str = ""
    """Topic, or index file."""
    queue_id: int = -1
    type: int = -1
    base: int = -1
    """Base of the last segment read. -1 before the first of a flat file."""


@dataclass(frozen=True, slots=True)
class ScrubMark:
    """State saved by one run for the next."""

    number: int = 0
    """Number of the run, from 1. 0: no run."""
    round: int = 1
    """Number of rounds begun."""
    place: ScrubPlace = field(default_factory=ScrubPlace)
    began_ms: int = 0
    """Begin of the round, Unix ms. 0: not begun."""
    findings: int = 0
    """Findings of the round so far."""
    unclaimed: Mapping[str, int] = field(default_factory=dict[str, int])
    """Objects unreferenced at the end of the last round, with the time of their first sight."""

    def encode(self) -> bytes:
        """Encode as JSON: the fields by name, the place as an array."""
        return orjson.dumps({**asdict(self), "place": list(self.place)})

    @classmethod
    def decode(cls, raw: bytes, name: ScrubName) -> Self:
        """Decode a mark. An unreadable one is replaced by an initial one."""
        begun = cls(name.number)
        try:
            found: Any = orjson.loads(raw)
            place: Any = found["place"]
            numbers: list[Any] = [found[one] for one in ("number", "round", "began_ms", "findings")]
            unclaimed: dict[str, Any] = dict(found["unclaimed"])
            numbers += [*unclaimed.values(), place[0], *place[2:]]
            is_sound = (
                len(place) == len(ScrubPlace())
                and isinstance(place[1], str)
                and all(isinstance(one, int) for one in numbers)
                and found["number"] == name.number
            )
        except (orjson.JSONDecodeError, KeyError, IndexError, TypeError, ValueError):
            return begun
        if not is_sound:
            return begun
        _, the_round, began_ms, findings, *_ = numbers
        return cls(name.number, the_round, ScrubPlace(*place), began_ms, findings, unclaimed)


async def read_mark(store: ObjectStore) -> ScrubMark:
    """Read the newest mark. A listing of few names, and one request."""
    names = await _names(store)
    if not names:
        return ScrubMark()
    try:
        raw = await store.read(str(names[-1]))
    except NotFound:  # a run that just ended has replaced it
        return ScrubMark(names[-1].number)
    return ScrubMark.decode(bytes(raw), names[-1])


async def write_mark(store: ObjectStore, mark: ScrubMark) -> None:
    """Write a mark with the next number, and delete the older ones.

    Raises:
        AlreadyExists: another run ended since.
        Denied: the storage is read-only.
        Unavailable: the outcome is unknown. The next run continues from this mark or the previous
            one.
    """
    name = ScrubName(mark.number)
    await store.create(str(name), [mark.encode()])
    older = [str(one) for one in await _names(store) if one < name]
    if older:
        await store.delete(older)


async def _names(store: ObjectStore) -> list[ScrubName]:
    listed = [ScrubName.parse(entry.name) for entry in await store.list(SCRUB_PREFIX)]
    return sorted(name for name in listed if name is not None)


QUEUES, INDEX_FILES, STORAGE = 0, 1, 2
ORPHAN = "orphan"
PIECE_BYTES = 16 << 20
ENTRIES_PER_REQUEST = 1_000

ItemT = TypeVar("ItemT")


class CountedStore(ForwardingStore):
    """Counts requests like an object store."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.operations = 0

    async def list(self, prefix: str, *, after: str = "") -> list[ObjectEntry]:
        """List objects by name (`ObjectStore.list`)."""
        found = await super().list(prefix, after=after)
        self.operations += len(found) // ENTRIES_PER_REQUEST
        return found

    async def _call(
        self,
        verb: str,
        names: Sequence[str],
        effect: Callable[[], Awaitable[Result]],
        size_bytes: int = 0,
    ) -> Result:
        self.operations += len(names) if verb == "read_many" else 1
        return await super()._call(verb, names, effect, size_bytes)


class _CountedView(TierView):
    """Tier view whose requests are counted."""

    def __init__(self, tier: TierView, store: CountedStore) -> None:
        super().__init__(store, tier)
        self._tier = tier

    async def refresh(self, *, doubted: bool = False) -> bool:
        return await self._tier.refresh(doubted=doubted)


class Scrubber:
    """Single run of a scrub: `run` yields its findings, and `mark` has its end.

    Memory: one queue's segments, a piece of 16 MiB, and at the end of a round the names in storage.
    """

    def __init__(
        self,
        tier: TierView,
        mark: ScrubMark,
        *,
        operations_max: int,
        clock: Clock,
        settle_s: float,
    ) -> None:
        """`operations_max`: requests after which no further unit of work begins.

        A unit is a segment (a request for each 16 MiB), an index file, or all names in storage (one
        request for 1,000 names, and one for each journal entry and manifest). `settle_s`: seconds
        that a commit under way has for its publication before its files are reported.
        """
        self._store = CountedStore(tier.store)
        self._tier = _CountedView(tier, self._store)
        self._operations_max = operations_max
        self._clock = clock
        self._settle_s = settle_s
        began_ms = mark.began_ms or clock.now_ms()
        self.mark = replace(mark, number=mark.number + 1, began_ms=began_ms)
        """Progress, as the next run will read it."""
        self.is_round_over = False
        self.bytes_read = 0

    def __repr__(self) -> str:
        return f"<Scrubber round {self.mark.round} at {self.mark.place}>"

    @property
    def operations(self) -> int:
        """Requests so far, except those for newer metadata."""
        return self._store.operations

    async def run(self) -> AsyncIterator[Finding]:
        """Do units of work until the quota is used or the round is over.

        `mark` is updated after each unit, so an early end loses at most one unit.

        Raises:
            Unavailable: the storage does not answer.
        """
        await ask_for_second_store(self._tier)
        async with aclosing(self._work()) as work:
            async for place, finding in work:
                if finding is not None:
                    self.mark = replace(self.mark, findings=self.mark.findings + 1)
                    yield finding
                    continue
                self.mark = replace(self.mark, place=place)
                if self.operations >= self._operations_max and place.phase != STORAGE:
                    return
        self.is_round_over = True
        self.mark = replace(
            self.mark, round=self.mark.round + 1, place=ScrubPlace(), began_ms=0, findings=0
        )

    async def _work(self) -> AsyncGenerator[tuple[ScrubPlace, Finding | None]]:
        """Findings, and after those of each unit of work its place without one."""
        done = self.mark.place
        for queue in sorted(self._tier.state.queues):
            if (QUEUES, *queue) >= (done.phase, done.name, done.queue_id):
                async for each in self._queue(queue, done):
                    yield each
        for name in sorted(self._tier.state.index_files):
            place = ScrubPlace(INDEX_FILES, name)
            if place > done:
                for finding in await check_index_file(self._tier, name, contents=False):
                    yield place, finding
                yield place, None
        place = ScrubPlace(STORAGE)
        async for finding in self._storage():
            yield place, finding
        yield place, None

    async def _queue(
        self, queue: QueueId, done: ScrubPlace
    ) -> AsyncIterator[tuple[ScrubPlace, Finding | None]]:
        """Check the segments of a queue after `done`."""
        begin = ScrubPlace(QUEUES, *queue)
        flat, found = await self._settled(queue, self._segments)
        if done < begin:
            for finding in found:
                yield begin, finding
            yield begin, None
        for segment in flat or []:
            place = begin._replace(type=int(segment.type), base=segment.base)
            if place <= done:
                continue

            async def verify(record: Queue, at: Segment = segment) -> tuple[None, list[Finding]]:
                return None, await self._segment(record, at)

            for finding in (await self._settled(queue, verify))[1]:
                yield place, finding
            yield place, None

    async def _settled(
        self,
        queue: QueueId,
        verify: Callable[[Queue], Awaitable[tuple[ItemT | None, list[Finding]]]],
    ) -> tuple[ItemT | None, list[Finding]]:
        """Repeat a check with newer metadata until its findings are confirmed."""
        item: ItemT | None = None
        found: list[Finding] = []
        for _ in range(ATTEMPTS_MAX):
            record = self._tier.queue(queue)
            if record is None:
                return None, []
            item, found = await verify(record)
            if not found:
                break
            await take_newer(self._tier)
            if self._tier.queue(queue) is record:  # else parts may have been merged since
                break
        return item, found

    async def _segments(self, record: Queue) -> tuple[list[Segment] | None, list[Finding]]:
        """All readable segments of a queue, and findings on their adjacency."""
        container = self._tier.container(record.id)
        if container is None:
            return None, []
        try:
            flat = {kind: await container.as_of(record).segments(kind) for kind in FLAT_FILES}
        except (Corrupt, Denied, OutOfRange) as error:
            return None, [Finding("manifest", error.path, error.position, error.reason)]
        readable = {kind: [one for one in flat[kind] if one.is_readable] for kind in FLAT_FILES}
        joined = [segment for kind in FLAT_FILES for segment in readable[kind]]
        return joined, list(check_joins(record, readable))

    async def _segment(self, record: Queue, segment: Segment) -> list[Finding]:
        """Read a segment as published now. Sizes are queried only if that fails."""
        queue, now = record.id, self._published(record, segment)
        if now is None:
            return []
        sizes: dict[str, int] = {}
        for extent in now.extents:
            name = object_name(queue, now, extent)
            sizes[name] = max(sizes.get(name, 0), extent.object_offset + extent.length)
        found = await self._read(queue, now, sizes)
        if any(one.finding == "unreadable" for one in found):
            sizes = await grown(self._store, queue, {now.type: [now]}, {})
            found = await self._read(queue, now, sizes)
        self.bytes_read += now.size
        return [*check_extents(queue, now, sizes), *found]

    def _published(self, record: Queue, segment: Segment) -> Segment | None:
        """Segment in a newer record. None if it was truncated."""
        live = record.segments(segment.type)
        for one in live:
            if one.base == segment.base:
                return one if one.is_readable else None
        refs = [ref for ref in record.manifests if ref.type == segment.type]
        is_listed = any(ref.base <= segment.base < ref.end for ref in refs)
        return segment if is_listed else None

    async def _read(
        self, queue: QueueId, segment: Segment, sizes: Mapping[str, int]
    ) -> list[Finding]:
        stream = FlatStream(self._store, queue, [segment], sizes, piece_bytes=PIECE_BYTES)
        await stream.drain()
        return stream.findings()

    async def _storage(self) -> AsyncIterator[Finding]:
        """Check the metadata and unreferenced objects, and remember the orphans."""
        tier, known = self._tier, self.mark.unclaimed
        sizes = await listed_objects(tier)
        async for finding in check_metadata(tier, sizes):
            yield finding
        async for finding in check_parts(tier):
            yield finding
        published, _ = await published_names(tier, tier.state.queues)
        names = sorted(sizes.keys() - published)
        unclaimed = [name for name in names if not is_metadata(name)]
        orphans: dict[str, int] = {}
        now_ms = self._clock.now_ms()
        for found in (
            check_unclaimed(tier, unclaimed, sizes),
            check_past_ends(tier, unclaimed, sizes, self._clock, self._settle_s),
        ):
            async for finding in found:
                if finding.finding == ORPHAN and len(orphans) < UNCLAIMED_MAX:
                    orphans[finding.path] = min(known.get(finding.path, now_ms), now_ms)
                yield finding
        self.mark = replace(self.mark, unclaimed=orphans)


def unclaimed_since(mark: ScrubMark, before_ms: int) -> list[str]:
    """Objects known to be unreferenced since before a time, by name. Pure."""
    return sorted(name for name, seen_ms in mark.unclaimed.items() if seen_ms <= before_ms)


def may_be_deleted(state: TierState, name: str) -> bool:
    """Whether an unreferenced object has the name of an object of a tier. Pure.

    Any other name belongs to another program. A file of a queue that the tier does not have may be
    the only copy of messages.
    """
    if PartName.parse(name) or KeptName.parse(name) or IndexBase.parse(name):
        return True
    if isinstance(parse_name(name), ManifestName):
        return True
    parsed = parse_segment_name(name)
    return parsed is not None and parsed.queue in state.queues
