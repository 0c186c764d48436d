"""Planning of a job: selection of messages, tier metadata, splits of each log."""

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from anyio.from_thread import start_blocking_portal

from container.metadata.objects import object_name
from container.metadata.objects import place_of as recorded_second
from container.metadata.records import Extent, Queue, Segment
from container.metadata.state import TierState
from container.names.queue_id import QueueId, SegmentType
from container.queue.message_queue_container import MessageQueueContainer
from container.queue.positions import lies_in_gap
from container.tier_view import TierReader
from provider.errors import NotFound, StoreError
from provider.ranges import QueueOffset
from tieredstore.config.effective import Config
from tieredstore.metrics.summary import absence_text, no_such_number
from tieredstore.offline.scan.relocation import by_newest
from tieredstore.offline.scan.sources import place_of
from tieredstore.offline.scan.split import (
    ALL_OFFSETS,
    ALL_TIMES,
    NOT_KNOWN,
    LogPiece,
    Seen,
    Split,
    TierPlace,
)
from tieredstore.reader.cursor import Moment, moment_ms
from tieredstore.session.reader import (
    AS_ARGUMENTS,
    existing_tier,
    existing_tiers,
    open_reader,
    read_bytes,
)

ResultT = TypeVar("ResultT")
SPLIT_BYTES = 128 << 20
"""Default bytes of a split. The start of a worker costs less than 5 % of its scan."""
LEAD_BYTES_MAX = 8 << 20
"""Bytes that a worker reads before its split to follow the chain of records from a known place."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Selection of messages for a scan."""

    topics: frozenset[str] | None = None
    """None: all."""
    queue_ids: frozenset[int] | None = None
    """Of each topic; None: all."""
    offsets: tuple[int, int] = ALL_OFFSETS
    """Queue offsets `[from, to)`, of each queue."""
    times_ms: tuple[int, int] = ALL_TIMES
    """Store timestamps `[from, to)` in Unix ms."""
    by_queue: Mapping[QueueId, tuple[int, int]] | None = None
    """Only these queues, and of each these offsets, besides `offsets`; None: all."""

    def has(self, queue: QueueId) -> bool:
        """Whether messages of a queue are wanted at all."""
        return (
            (self.topics is None or queue.topic in self.topics)
            and (self.queue_ids is None or queue.queue_id in self.queue_ids)
            and (self.by_queue is None or queue in self.by_queue)
        )

    def offsets_of(self, queue: QueueId) -> tuple[int, int]:
        """Queue offsets `[from, to)` of one queue; none if the first is not below the second."""
        low, high = ALL_OFFSETS if self.by_queue is None else self.by_queue[queue]
        return max(low, self.offsets[0]), min(high, self.offsets[1])


class LogExtent(NamedTuple):
    """Extent of a log: records begin at both of its ends."""

    piece: LogPiece
    first_offset: int
    next_offset: int
    """No message of it has this queue offset or a higher one."""
    times_ms: tuple[int, int] | None
    """Store timestamps `[first, last]`; None where they cannot be trusted (a Java tier)."""
    segment_base: int
    crc32c: int | None
    """As in `Extent`."""


Boundary = Callable[[LogExtent, int], int | None]
"""Function that returns a record position at or after a place inside an extent; None if unknown."""


def no_boundary(extent: LogExtent, place: int) -> int | None:
    """Nothing is known but the extent's own ends."""
    del extent, place


def extents_of(queue: Queue, segments: Iterable[Segment]) -> list[LogExtent]:
    """All extents of the readable segments of a log that may hold messages, in order. O(extents).

    Those of a Java tier say nothing of offsets and times, so any of the queue's may be in them. One
    whose offsets all lie in a gap holds none: a log that was damaged has such.
    """
    pairs = [
        (segment, extent)
        for segment in segments
        if segment.is_readable
        for extent in segment.extents
    ]
    if not pairs:
        return []
    of_java = all(extent.crc32c is None for _, extent in pairs)
    firsts = [queue.min_offset if of_java else extent.first_offset for _, extent in pairs]
    behind = [queue.next_offset if of_java else first for first in [*firsts[1:], queue.next_offset]]
    return [
        LogExtent(
            piece_of(queue.id, segment, extent),
            first_offset,
            next_offset,
            _times(extent),
            segment.base,
            extent.crc32c,
        )
        for (segment, extent), first_offset, next_offset in zip(pairs, firsts, behind, strict=True)
        if of_java or not lies_in_gap(queue.gaps, first_offset, next_offset)
    ]


def piece_of(queue: QueueId, segment: Segment, extent: Extent) -> LogPiece:
    """Return the place of an extent, in its flat file and in its object."""
    name = object_name(queue, segment, extent)
    return LogPiece(segment.base + extent.position, extent.length, name, extent.object_offset)


def offsets_between(extents: Sequence[LogExtent], start: int, end: int) -> tuple[int, int]:
    """Queue offsets `[from, to)` between which the messages in `[start, end)` of a log lie."""
    inside = [one for one in extents if one.piece.position < end and start < one.piece.end]
    return (inside[0].first_offset, inside[-1].next_offset) if inside else (0, 0)


def _times(extent: Extent) -> tuple[int, int] | None:
    return None if extent.crc32c is None else (extent.min_timestamp, extent.max_timestamp)


def splits_of_queue(
    queue: Queue,
    extents: Sequence[LogExtent],
    split_bytes: int,
    *,
    wanted: Selection,
    place: TierPlace,
    seen: Seen = NOT_KNOWN,
    boundary: Boundary = no_boundary,
) -> list[Split]:
    """The splits of one queue: its wanted extents, in runs of some `split_bytes`. O(extents).

    A split ends where an extent does, or inside one that is longer than `split_bytes`: then at a
    place that `boundary` finds, or that the worker finds by following the records of the extent, up
    to `LEAD_BYTES_MAX` of them; else the first record is found by its own bytes, and only
    `where_not_met` proves that it is the right one. No split spans two segments.
    """
    low, high = wanted.offsets_of(queue.id)
    offsets = max(low, queue.min_offset), min(high, queue.next_offset)
    if offsets[0] >= offsets[1]:
        return []
    kept = [extent for extent in extents if _may_hold(extent, offsets, wanted.times_ms)]
    of_java = any(extent.times_ms is None for extent in kept)
    generation = None if of_java else queue.generation
    made: list[Split] = []
    for run in _runs(kept, split_bytes):
        pieces = tuple(extent.piece for extent in run)
        limit = pieces[-1].end
        begin = pieces[0].position
        starts: list[tuple[int, int | None]] = [(begin, begin)]
        if len(run) == 1 and limit - begin > split_bytes:
            starts += _inner_starts(run[0], split_bytes, boundary)
        ends = [start for start, _ in starts[1:]] + [limit]
        made += [
            Split(
                queue.id, start, end, anchor, limit, pieces, offsets, wanted.times_ms, place,
                generation, seen,
            )
            for (start, anchor), end in zip(starts, ends, strict=True)
        ]  # fmt: skip
    return made


def _inner_starts(
    extent: LogExtent, split_bytes: int, boundary: Boundary
) -> Iterator[tuple[int, int | None]]:
    """Yield starts of splits inside an extent, with the anchor of the chain of records to each."""
    begin, end = extent.piece.position, extent.piece.end
    before = begin
    for target in range(begin + split_bytes, end, split_bytes):
        start = target
        anchor: int | None = begin if target - begin <= LEAD_BYTES_MAX else None
        if anchor is None:
            known = boundary(extent, target)
            start, anchor = (target, None) if known is None else (known, known)
        if before < start < end:
            yield start, anchor
            before = start


def _may_hold(extent: LogExtent, offsets: tuple[int, int], times_ms: tuple[int, int]) -> bool:
    """Whether an extent can have messages of these queue offsets and times."""
    if extent.first_offset >= offsets[1] or extent.next_offset <= offsets[0]:
        return False
    if extent.times_ms is None:
        return True
    return extent.times_ms[0] < times_ms[1] and extent.times_ms[1] >= times_ms[0]


def _runs(extents: Sequence[LogExtent], split_bytes: int) -> Iterator[list[LogExtent]]:
    """Extents of one segment that touch, of `split_bytes` together or a little more."""
    run: list[LogExtent] = []
    length = 0
    for extent in extents:
        follows = (
            run
            and run[-1].piece.end == extent.piece.position
            and run[-1].segment_base == extent.segment_base
            and length < split_bytes
            and extent.piece.length <= split_bytes
        )
        if run and not follows:
            yield run
            run, length = [], 0
        run.append(extent)
        length += extent.piece.length
    if run:
        yield run


_NAMED = ("tieredStoreFilePath", "brokerClusterName", "brokerName")
"""Keys of the place, the cluster and the broker that an address names."""


@dataclass(frozen=True, slots=True)
class TierAddress:
    """Address of a tier, with the arguments of `tieredstore.open`. Holds no secret."""

    where: str | None = None
    cluster: str | None = None
    broker: str | None = None
    conf: str | None = None
    java_metadata: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict[str, str])

    def load(self) -> Config:
        """The configuration that it names; reads `conf` and the environment.

        Raises:
            ConfigError: a setting is wrong.
        """
        named = zip(_NAMED, (self.where, self.cluster, self.broker), strict=True)
        given = {name: value for name, value in named if value is not None}
        conf = None if self.conf is None else Path(self.conf)
        return Config.load(conf=conf, settings={**self.settings, **given})

    def of_brokers(self, patterns: Sequence[str]) -> "list[TierAddress]":
        """The addresses of the brokers that fit one of the patterns; as `existing_tiers`."""
        found = existing_tiers(replace(self, broker=None).load(), patterns)
        return [replace(self, cluster=one.cluster, broker=one.broker) for one in found]

    def for_workers(self, place: TierPlace) -> "TierAddress":
        """The same without its configuration file, which workers lack; `place`: of a broker."""
        config = self.load()
        root = config.tier_root
        where = str(root.absolute() if isinstance(root, Path) else root)
        cluster = config.cluster if config.gives("brokerClusterName") else None
        settings = {key: text for key, text in place.settings if key not in _NAMED}
        return replace(self, where=where, cluster=cluster, conf=None, settings=settings)


@dataclass(frozen=True, slots=True)
class WantedMessages:
    """Selection of messages; None: no bound."""

    topics: frozenset[str] | None = None
    topic_pattern: str | None = None
    """Only topics whose whole names this regular expression matches, besides `topics`."""
    queues: frozenset[QueueId | int] | None = None
    """Queues by name, or of every topic by number."""
    starts: Mapping[str, int] = field(default_factory=dict[str, int])
    """First queue offsets by `topic/queue`."""
    ends: Mapping[str, int] = field(default_factory=dict[str, int])
    """Queue offsets after the last, likewise."""
    since_ms: int | None = None
    until_ms: int | None = None

    @property
    def times_ms(self) -> tuple[int, int]:
        """Store timestamps `[from, to)`."""
        return (
            ALL_TIMES[0] if self.since_ms is None else self.since_ms,
            ALL_TIMES[1] if self.until_ms is None else self.until_ms,
        )

    def has_topic(self, topic: str) -> bool:
        """Whether a topic was asked for."""
        return (self.topics is None or topic in self.topics) and (
            self.topic_pattern is None or re.fullmatch(self.topic_pattern, topic) is not None
        )

    def has(self, queue: QueueId) -> bool:
        """Whether messages of a queue may be wanted."""
        return self.has_topic(queue.topic) and (
            self.queues is None or queue in self.queues or queue.queue_id in self.queues
        )

    def absence(self, queues: Collection[QueueId]) -> str | None:
        """Describe the first named topic or queue that a tier with these queues lacks.

        None if it has all. Offsets and a pattern may name missing queues.
        """
        known = {queue.topic for queue in queues}
        for topic in sorted((self.topics or frozenset()) - known):
            return absence_text(topic, None, queues)
        numbers = {one.queue_id for one in queues if self.has_topic(one.topic)}
        for queue in sorted(self.queues or (), key=str):
            if isinstance(queue, QueueId):
                if queue not in queues:
                    return absence_text(queue.topic, queue.queue_id, queues)
                if not self.has_topic(queue.topic):
                    return f"the queue {queue} is of none of the topics that are wanted"
            elif queue not in numbers:
                return no_such_number(queue, numbers)
        return None

    def offsets_of(self, queue: QueueId) -> tuple[int, int]:
        """Queue offsets `[from, to)` of a queue."""
        name = str(queue)
        first = self.starts.get(name, ALL_OFFSETS[0])
        return first, max(first, self.ends.get(name, ALL_OFFSETS[1]))

    def selection(self, queues: Iterable[QueueId]) -> Selection:
        """The same for a scan; `queues` are those that there are."""
        mine = [queue for queue in queues if self.has(queue)]
        return Selection(
            times_ms=self.times_ms, by_queue={queue: self.offsets_of(queue) for queue in mine}
        )


class QueueLog(NamedTuple):
    """The log of one queue of a plan."""

    queue: QueueId
    extents: Sequence[LogExtent]
    splits_of: Callable[[Sequence[LogExtent]], list[Split]]
    """Function that returns the splits of some of the extents, which are in order."""


@dataclass(frozen=True)
class TierPlan:
    """A tier at one moment, and what workers are to scan of it."""

    place: TierPlace
    state: TierState
    """All metadata except manifests."""
    segments: Mapping[QueueId, Sequence[Segment]]
    """CommitLog segments of each queue that is wanted, those in manifests too."""
    logs: Sequence[QueueLog]
    """Of each queue that is wanted, in order."""
    seen: Seen

    @cached_property
    def splits(self) -> Sequence[Split]:
        """The splits of all logs, in order."""
        return [split for log in self.logs for split in log.splits_of(log.extents)]


def splits(
    tier_url: str | os.PathLike[str] | None = None,
    split_bytes: int = SPLIT_BYTES,
    topics: Sequence[str] | None = None,
    *,
    queues: Sequence[int] | None = None,
    offsets: tuple[int, int] = ALL_OFFSETS,
    since: Moment | None = None,
    until: Moment | None = None,
    cluster: str | None = None,
    broker: str | None = None,
    conf: str | os.PathLike[str] | None = None,
    settings: Mapping[str, object] | None = None,
    java_metadata: str | os.PathLike[str] | None = None,
) -> list[Split]:
    """Divide the published messages of a tier into splits; each message is in exactly one.

    Reads the journal and the manifests of the wanted queues, not the messages. A split can be
    pickled and sent to any process that can reach the tier. Messages published later are in none.

    Args:
        tier_url: the tier's directory or URL, as in `tieredstore.open`.
        split_bytes: length of most splits; extents (4 MiB) are cut only if they are longer.
        topics: None: all.
        queues: numbers of queues, of each topic; None: all.
        offsets: queue offsets `[from, to)`, of each queue.
        since: messages stored at this time or later.
        until: messages stored before this time.
        cluster: the broker's cluster; not needed where the tier has only one that fits.
        broker: the broker's name; likewise.
        conf: a RocketMQ broker's configuration file.
        settings: further keys with their values; they win over `conf` and the environment.
        java_metadata: a `tieredStoreMetadata.json`, for a tier that RocketMQ's own store wrote.

    Raises:
        NotFound: there is no tier, or it has none of a topic or queue; names the nearest.
        ConfigError: a setting is wrong, or the tier is of several brokers; lists them.
        NewerVersion: a newer program wrote the tier.
        Corrupt: the metadata is damaged.
        Denied, Unavailable: the storage refuses or does not answer.
        ValueError: `split_bytes` is not positive, a time has no time zone or is none, or `until`
            is not later than `since`.
    """
    config = Config.named(tier_url, cluster, broker, conf, settings)
    wanted = selected(topics, queues, since, until, offsets)
    java = None if java_metadata is None else Path(java_metadata)
    return list(plan(config, wanted, split_bytes, java_metadata=java).splits)


def selected(
    topics: Iterable[str] | None,
    queues: Iterable[int] | None,
    since: Moment | None,
    until: Moment | None,
    offsets: tuple[int, int] = ALL_OFFSETS,
) -> Selection:
    """Return the selection that the arguments of `splits` describe.

    Raises:
        ValueError: as `splits`.
    """
    times_ms = (
        ALL_TIMES[0] if since is None else moment_ms(since),
        ALL_TIMES[1] if until is None else moment_ms(until),
    )
    if times_ms[1] <= times_ms[0]:
        raise ValueError(f"until ({until}) is not later than since ({since})")
    return Selection(
        None if topics is None else frozenset(topics),
        None if queues is None else frozenset(queues),
        offsets,
        times_ms,
    )


def plan(
    config: Config,
    wanted: Selection | None = None,
    split_bytes: int = SPLIT_BYTES,
    *,
    java_metadata: Path | None = None,
    may_lack: bool = False,
) -> TierPlan:
    """Plan the splits of the configured tier, as `splits`; return them with their metadata.

    `may_lack`: as in `plan_of`.

    Raises:
        as `splits`.
    """
    if split_bytes <= 0:
        raise ValueError(f"a split has bytes: {split_bytes}")

    async def work(reader: TierReader, place: TierPlace) -> TierPlan:
        return await plan_of(reader, place, wanted or Selection(), split_bytes, may_lack=may_lack)

    return with_open_tier(config, work, java_metadata=java_metadata)


def with_open_tier(
    config: Config,
    work: Callable[[TierReader, TierPlace], Awaitable[ResultT]],
    *,
    java_metadata: Path | None = None,
    naming: str = AS_ARGUMENTS,
) -> ResultT:
    """Return the result of `work` with the configured tier open; repeated as by `by_newest`.

    `naming`: form in which the caller's user names a broker (`session.reader.AS_OPTIONS`).

    Raises:
        as `splits`.
    """

    async def done() -> ResultT:
        found = await asyncio.to_thread(existing_tier, config, naming)
        java = None if java_metadata is None else await asyncio.to_thread(read_bytes, java_metadata)
        async with open_reader(found, java, java_path=str(java_metadata or "")) as reader:
            place = await asyncio.to_thread(place_of, found)
            return await by_newest(reader, partial(work, reader, place))

    with start_blocking_portal() as portal:
        return portal.call(done)


def _has_topic(wanted: Selection, topic: str) -> bool:
    return wanted.topics is None or topic in wanted.topics


async def plan_of(
    reader: TierReader,
    place: TierPlace,
    wanted: Selection,
    split_bytes: int,
    *,
    may_lack: bool = False,
) -> TierPlan:
    """As `plan`, of a tier that is open for reading.

    `may_lack`: the tier is one of several, and need not have all topics and queues.

    Raises:
        NotFound: the tier has none of a topic, which names the nearest, or no such queue; with
            `may_lack`, none of all topics, or none of all queues.
        BytesMissing: a manifest is not there: see `by_newest`.
        Corrupt, Unavailable: a manifest cannot be read.
    """
    state = reader.state.copy()
    place, seen = await as_seen(reader, state, place)
    known = {queue.topic for queue in state.queues}
    topics = sorted((wanted.topics or frozenset()) - known)
    if topics and not (may_lack and known & (wanted.topics or frozenset())):
        raise NotFound(absence_text(topics[0], None, state.queues), place.location)
    numbers = {queue.queue_id for queue in state.queues if _has_topic(wanted, queue.topic)}
    absent = sorted((wanted.queue_ids or frozenset()) - numbers, key=str)
    if absent and not (may_lack and numbers & (wanted.queue_ids or frozenset())):
        raise NotFound(no_such_number(absent[0], numbers), place.location)
    segments: dict[QueueId, Sequence[Segment]] = {}
    logs: list[QueueLog] = []
    for queue in (state.queues[name] for name in sorted(state.queues)):
        container = reader.container(queue.id)
        if container is None or not wanted.has(queue.id):
            continue
        container = container.as_of(queue)
        segments[queue.id] = await container.segments(SegmentType.COMMIT_LOG)
        extents = await _clipped(container, extents_of(queue, segments[queue.id]))
        found = await _boundaries(container, extents, split_bytes)
        splits_of = partial(
            splits_of_queue, queue, split_bytes=split_bytes, wanted=wanted, place=place, seen=seen,
            boundary=partial(_found_at, found),
        )  # fmt: skip
        logs.append(QueueLog(queue.id, extents, splits_of))
    return TierPlan(place, state, segments, logs, seen)


async def as_seen(reader: TierReader, state: TierState, place: TierPlace) -> tuple[TierPlace, Seen]:
    """Return the place with what the journal says of it, and the position of this state."""
    place = replace(place, recorded_second=recorded_second(state.attempts))
    return place, Seen.of(state, await reader.entry_crc(state.sequence))


def _found_at(found: Mapping[tuple[int, int], int], extent: LogExtent, place: int) -> int | None:
    """The `Boundary` of what `_boundaries` found."""
    return found.get((extent.piece.position, place))


async def _clipped(container: MessageQueueContainer, extents: list[LogExtent]) -> list[LogExtent]:
    """The extents without bytes after the last readable message.

    Of a Java tier: the length of its newest file is all that is known, and may be that of a write
    under way. One read of one unit.
    """
    last = extents[-1] if extents else None
    if last is None or last.times_ms is not None:
        return extents
    end = container.next_offset
    with suppress(StoreError):
        unit = (await container.units(QueueOffset(end - 1), end))[0]
        length = int(unit["position"]) + int(unit["size"]) - last.piece.position
        if 0 < length < last.piece.length:
            return [*extents[:-1], last._replace(piece=last.piece._replace(length=length))]
    return extents


async def _boundaries(
    container: MessageQueueContainer, extents: Sequence[LogExtent], split_bytes: int
) -> dict[tuple[int, int], int]:
    """Find record positions inside extents that are too long to be followed from their beginning.

    For a tier of RocketMQ's own store, whose extents are whole segments: some 20 reads of one unit
    for each split. Positions that units do not show are searched in the log itself.
    """
    found: dict[tuple[int, int], int] = {}
    for extent in extents:
        begin, end = extent.piece.position, extent.piece.end
        for target in range(begin + split_bytes, end, split_bytes):
            if target - begin <= LEAD_BYTES_MAX:
                continue
            with suppress(StoreError):
                place = await _first_at(container, extent, target)
                if place >= target:
                    found[begin, target] = min(place, end)
    return found


async def _first_at(container: MessageQueueContainer, extent: LogExtent, target: int) -> int:
    """Position of the first record of an extent at or after `target`, by units; else its end."""
    low, high = extent.first_offset, extent.next_offset
    place = extent.piece.end
    while low < high:
        middle = (low + high) // 2
        units = await container.units(QueueOffset(middle), QueueOffset(middle + 1))
        position = int(units["position"][0])
        if position < target:
            low = middle + 1
        else:
            high, place = middle, position
    return place
