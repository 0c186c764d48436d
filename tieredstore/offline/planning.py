"""From a tier's place to the splits of its messages, by its metadata. Synchronous."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from anyio.from_thread import start_blocking_portal

from container.metadata.moves import place_of as recorded_second
from container.metadata.records import Segment
from container.metadata.state import TierState
from container.names.queue_id import QueueId, SegmentType
from container.queue.message_queue_container import MessageQueueContainer
from container.tier_reader import TierReader
from provider.errors import NotFound, StoreError
from provider.ranges import QueueOffset
from tieredstore.config.effective import Config
from tieredstore.offline.cutting import (
    LEAD_BYTES_MAX,
    SPLIT_BYTES,
    Boundary,
    LogExtent,
    Selection,
    extents_of,
    splits_of_queue,
)
from tieredstore.offline.sources import place_of
from tieredstore.offline.split import ALL_OFFSETS, ALL_TIMES, Split, TierPlace
from tieredstore.opening import AS_ARGUMENTS, existing_tier, open_reader, read_bytes
from tieredstore.reading.wanted import Moment, moment_ms
from tieredstore.summary import absence_text, no_such_number


@dataclass(frozen=True, slots=True)
class TierPlan:
    """A tier at one moment, and what workers are to scan of it."""

    place: TierPlace
    state: TierState
    """All metadata but what lies in manifests."""
    segments: Mapping[QueueId, Sequence[Segment]]
    """CommitLog segments of each queue that is wanted, those in manifests too."""
    splits: Sequence[Split]


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
    """What workers are to scan of a tier: its published messages, each in exactly one split.

    Reads the journal and the manifests of the wanted queues, not the messages. A split can be
    pickled and sent to any process that can reach the tier. What is published later is in none.

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
    given = {
        "tieredStoreFilePath": None if tier_url is None else os.fspath(tier_url),
        "brokerClusterName": cluster,
        "brokerName": broker,
    }
    known = {name: value for name, value in given.items() if value is not None}
    config = Config.load(
        conf=None if conf is None else Path(conf), settings={**(settings or {}), **known}
    )
    times_ms = (
        ALL_TIMES[0] if since is None else moment_ms(since),
        ALL_TIMES[1] if until is None else moment_ms(until),
    )
    if times_ms[1] <= times_ms[0]:
        raise ValueError(f"until ({until}) is not later than since ({since})")
    wanted = Selection(
        None if topics is None else frozenset(topics),
        None if queues is None else frozenset(queues),
        offsets,
        times_ms,
    )
    java = None if java_metadata is None else Path(java_metadata)
    return list(plan(config, wanted, split_bytes, java_metadata=java).splits)


def plan(
    config: Config,
    wanted: Selection | None = None,
    split_bytes: int = SPLIT_BYTES,
    *,
    java_metadata: Path | None = None,
    naming: str = AS_ARGUMENTS,
) -> TierPlan:
    """As `splits`, of the configured tier, with the metadata that it was planned by.

    `naming` is how the caller's user names a broker (`opening.AS_OPTIONS`).

    Raises:
        as `splits`.
    """
    if split_bytes <= 0:
        raise ValueError(f"a split has bytes: {split_bytes}")

    async def planned() -> TierPlan:
        found = await asyncio.to_thread(existing_tier, config, naming)
        java = None if java_metadata is None else await asyncio.to_thread(read_bytes, java_metadata)
        async with open_reader(found, java, java_path=str(java_metadata or "")) as reader:
            place = await asyncio.to_thread(place_of, found)
            return await plan_of(reader, place, wanted or Selection(), split_bytes)

    with start_blocking_portal() as portal:
        return portal.call(planned)


def _has_topic(wanted: Selection, topic: str) -> bool:
    return wanted.topics is None or topic in wanted.topics


async def plan_of(
    reader: TierReader, place: TierPlace, wanted: Selection, split_bytes: int
) -> TierPlan:
    """As `plan`, of a tier that is open for reading.

    Raises:
        NotFound: the tier has none of a topic, which names the nearest, or no such queue.
        Corrupt, OutOfRange, Unavailable: a manifest cannot be read.
    """
    state = reader.state.copy()
    place = replace(place, recorded_second=recorded_second(state.attempts))
    known = {queue.topic for queue in state.queues}
    for topic in sorted((wanted.topics or frozenset()) - known):
        raise NotFound(absence_text(topic, None, state.queues), place.location)
    numbers = {queue.queue_id for queue in state.queues if _has_topic(wanted, queue.topic)}
    for number in sorted((wanted.queue_ids or frozenset()) - numbers, key=str):
        raise NotFound(no_such_number(number, numbers), place.location)
    segments: dict[QueueId, Sequence[Segment]] = {}
    made: list[Split] = []
    for queue in (state.queues[name] for name in sorted(state.queues)):
        container = reader.container(queue.id)
        if container is None or not wanted.has(queue.id):
            continue
        container = container.as_of(queue)
        segments[queue.id] = await container.segments(SegmentType.COMMIT_LOG)
        extents = await _clipped(container, extents_of(queue, segments[queue.id]))
        found = await _boundaries(container, extents, split_bytes)
        made += splits_of_queue(
            queue, extents, split_bytes, wanted=wanted, place=place, boundary=_known(found)
        )
    return TierPlan(place, state, segments, made)


def _known(found: Mapping[tuple[int, int], int]) -> Boundary:
    def boundary(extent: LogExtent, place: int) -> int | None:
        return found.get((extent.piece.position, place))

    return boundary


async def _clipped(container: MessageQueueContainer, extents: list[LogExtent]) -> list[LogExtent]:
    """The extents without what lies behind the last message that can be read.

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
    """Where records begin inside extents too long to be followed from their beginning.

    Of a tier of RocketMQ's own store, where an extent is a whole segment: some 20 reads of one unit
    for each split. What its units do not tell is found in the log itself.
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
    """Position of the first record of an extent at or behind `target`, by units; else its end."""
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
