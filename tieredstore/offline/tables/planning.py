"""Parts of a table, one worker's share each, planned from metadata."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from container.metadata.records import IndexFile, Queue, Segment
from container.metadata.state import TierState
from container.names.queue_id import FLAT_FILES, QueueId, SegmentType
from container.names.rocketmq import segment_name
from container.record.unit import UNIT_BYTES
from provider.errors import NotFound
from tieredstore.config.sources import ConfigError
from tieredstore.offline.scan.planning import TierAddress, WantedMessages, piece_of
from tieredstore.offline.scan.split import (
    ALL_TIMES,
    NOT_KNOWN,
    LogPiece,
    Seen,
    Split,
    TierPlace,
    pieces_between,
)
from tieredstore.offline.tables.open_tier import OpenTier
from tieredstore.offline.tables.schemas import GAPS, KEYS, MESSAGES, SEGMENTS, UNITS


@dataclass(frozen=True, slots=True)
class MessagesPart:
    """Messages of a stretch of one queue's log."""

    split: Split
    skips_damage: bool = False
    """Whether damaged messages are passed over; else the first is an error."""
    skips_expired: bool = False
    """Whether messages that left the tier after the plan are passed over; else an error."""


@dataclass(frozen=True, slots=True)
class UnitsPart:
    """Units of one queue."""

    queue: QueueId
    offsets: tuple[int, int]
    """Queue offsets `[from, to)`."""
    pieces: tuple[LogPiece, ...]
    """Pieces of their bytes; positions are those of the flat file, 20 bytes an offset."""
    place: TierPlace
    generation: int | None = None
    """As in `Split`, like `seen`."""
    seen: Seen = NOT_KNOWN


@dataclass(frozen=True, slots=True)
class KeysPart:
    """Items of one index file."""

    object_name: str
    size: int
    """Length of the file in bytes."""
    topics: Mapping[int, str]
    """Names of the topics that are wanted, by their numbers."""
    queues: frozenset[QueueId | int] | None
    """As `WantedMessages.queues`."""
    place: TierPlace
    is_ours: bool = True
    """Whether a journal names the file; RocketMQ's own tiers have none."""
    times_ms: tuple[int, int] = ALL_TIMES
    seen: Seen = NOT_KNOWN


@dataclass(frozen=True, slots=True)
class RowsPart:
    """Rows that the metadata have: those of `segments` and `gaps`."""

    table: str
    rows: tuple[Mapping[str, Any], ...]


Part = MessagesPart | UnitsPart | KeysPart | RowsPart


@dataclass(frozen=True, slots=True)
class TablePlan:
    """Origin of the parts of a table, by which a later reader sees if they are old."""

    planned_ms: int
    """Time before the metadata were read, Unix ms."""
    table: str
    wanted: WantedMessages
    place: TierPlace
    seen: Seen
    rows: str
    """As `rows_seen`."""
    brokers: "BrokersPlan | None" = None
    """In one plan of a table of several brokers: which ones it has."""


class BrokersPlan(NamedTuple):
    """The brokers of a table of several, of which others may fit by now."""

    address: TierAddress
    """As workers have it."""
    patterns: Sequence[str]
    fitting: Sequence[TierAddress]

    def has_changed(self) -> bool:
        """Whether other brokers fit now. Lists the tier; raises as `TierAddress.of_brokers`."""
        now, before = self.address.of_brokers(self.patterns), self.fitting
        return [(one.cluster, one.broker) for one in now] != [
            (one.cluster, one.broker) for one in before
        ]


def rows_seen(state: TierState, table: str, wanted: WantedMessages) -> str:
    """A text that differs where the table has other rows; merges change it for metadata alone."""
    if table not in {MESSAGES, UNITS}:
        return str(state.sequence)
    digest = hashlib.sha256()
    for name in sorted(one for one in state.queues if wanted.has(one)):
        queue, (low, high) = state.queues[name], wanted.offsets_of(name)
        first, end = max(low, queue.min_offset), min(high, queue.next_offset)
        if first < end:
            digest.update(f"{name} {first} {end} {queue.generation}\n".encode())
    return digest.hexdigest()


def parts_of_table(
    tier: OpenTier,
    table: str,
    wanted: WantedMessages,
    split_bytes: int,
    *,
    skips_damage: bool,
    may_lack: bool = False,
) -> list[Part]:
    """Return the parts of a table for workers. Reads its metadata: manifests, no message.

    `may_lack`: the tier is one of several, and need not have all that was named.

    Raises:
        NotFound: there is no queue of a topic that is wanted, or one of those named by offsets.
        ConfigError: the table has no offsets, or no times, to choose by.
        Corrupt, Denied, Unavailable: of manifests.
    """
    _refuse_what_it_has_not(table, wanted)
    return tier.by_newest(
        partial(
            _parts_of_table,
            tier,
            table,
            wanted,
            split_bytes,
            skips_damage=skips_damage,
            may_lack=may_lack,
        )
    )


def _parts_of_table(
    tier: OpenTier,
    table: str,
    wanted: WantedMessages,
    split_bytes: int,
    *,
    skips_damage: bool,
    may_lack: bool,
) -> list[Part]:
    queues = tier.queues_there(wanted) if may_lack else tier.queues(wanted)
    if wanted.starts or wanted.ends:
        _refuse_unknown(tier, (*wanted.starts, *wanted.ends))
    if table == MESSAGES:
        found = tier.plan(wanted.selection(queues), split_bytes)
        return [MessagesPart(split, skips_damage) for split in found.splits]
    if table == UNITS:
        seen = tier.seen()
        return [
            part
            for queue in queues.values()
            for part in units_parts(
                queue,
                tier.segments(queue.id, SegmentType.CONSUME_QUEUE),
                wanted.offsets_of(queue.id),
                split_bytes,
                tier.place,
                seen,
            )
        ]
    if table == KEYS:
        return list(keys_parts(tier.state(), wanted, tier.place, tier.seen()))
    if table == SEGMENTS:
        rows = tuple(
            _segment_row(name, segment)
            for name in queues
            for kind in FLAT_FILES
            for segment in tier.segments(name, kind)
        )
        return [RowsPart(SEGMENTS, rows)]
    return [RowsPart(GAPS, tuple(_gap_rows(queues.values())))]


def _refuse_what_it_has_not(table: str, wanted: WantedMessages) -> None:
    """Refuse options that would be ignored."""
    if table not in {MESSAGES, UNITS} and (wanted.starts or wanted.ends):
        raise ConfigError(f"the table {table} has no queue offsets to choose by")
    if table not in {MESSAGES, KEYS} and (wanted.since_ms, wanted.until_ms) != (None, None):
        raise ConfigError(f"the table {table} has no store times to choose by")


def _refuse_unknown(tier: OpenTier, names: Iterable[str]) -> None:
    """Refuse offsets of queues that are not there."""
    known = set(map(str, tier.state().queues))
    for name in names:
        if name not in known:
            raise NotFound(
                f"offsets are given of {name}, which is no queue of the tier", tier.place.location
            )


def units_parts(  # noqa: PLR0917 - all of one queue
    queue: Queue,
    segments: Sequence[Segment],
    offsets: tuple[int, int],
    split_bytes: int,
    place: TierPlace,
    seen: Seen = NOT_KNOWN,
) -> list[UnitsPart]:
    """The units of a queue that can be read, in parts of some `split_bytes`. Pure."""
    low, high = max(offsets[0], queue.min_offset), min(offsets[1], queue.next_offset)
    step = max(1, split_bytes // UNIT_BYTES)
    of_java = any(extent.crc32c is None for one in segments for extent in one.extents)
    generation = None if of_java else queue.generation
    made: list[UnitsPart] = []
    for run in _touching(_pieces(queue.id, segments)):
        begin = max(low, run[0].position // UNIT_BYTES)
        end = min(high, run[-1].end // UNIT_BYTES)
        for first in range(begin, end, step):
            last = min(first + step, end)
            pieces = pieces_between(run, first * UNIT_BYTES, last * UNIT_BYTES)
            made.append(UnitsPart(queue.id, (first, last), pieces, place, generation, seen))
    return made


def _pieces(queue: QueueId, segments: Sequence[Segment]) -> Iterator[LogPiece]:
    for segment in segments:
        for extent in segment.extents if segment.is_readable else ():
            yield piece_of(queue, segment, extent)


def _touching(pieces: Iterator[LogPiece]) -> Iterator[list[LogPiece]]:
    """Runs without anything between: a ConsumeQueue has nothing where a gap is."""
    run: list[LogPiece] = []
    for piece in pieces:
        if run and run[-1].end != piece.position:
            yield run
            run = []
        run.append(piece)
    if run:
        yield run


def keys_parts(
    state: TierState, wanted: WantedMessages, place: TierPlace, seen: Seen = NOT_KNOWN
) -> Iterator[KeysPart]:
    """The index files that may have an item of a wanted message. Pure."""
    topics = {
        topic.topic_id: name for name, topic in state.topics.items() if wanted.has_topic(name)
    }
    low, high = wanted.times_ms
    for file in sorted(state.index_files.values(), key=lambda one: one.base):
        if file.begin_timestamp < high and file.end_timestamp >= low and _covers(file, wanted):
            yield KeysPart(
                file.object_name,
                file.size,
                topics,
                wanted.queues,
                place,
                bool(file.coverage),
                wanted.times_ms,
                seen,
            )


def _covers(file: IndexFile, wanted: WantedMessages) -> bool:
    """Whether a file may have items of a wanted queue. Java's files have no coverage."""
    return not file.coverage or any(wanted.has(queue) for queue, _, _ in file.coverage)


def _segment_row(queue: QueueId, segment: Segment) -> dict[str, object]:
    return {
        "topic": queue.topic,
        "queue_id": queue.queue_id,
        "type": segment.type.name,
        "base_offset": segment.base,
        "size": segment.size,
        "state": segment.state.name,
        "sealed": segment.sealed_ms is not None,
        "begin_timestamp": segment.begin_timestamp,
        "end_timestamp": segment.end_timestamp,
        "extents": len(segment.extents),
        "path": segment_name(queue, segment.type, segment.base),
    }


def _gap_rows(queues: Iterable[Queue]) -> Iterator[dict[str, object]]:
    for queue in queues:
        for gap in queue.gaps:
            yield {
                "topic": queue.id.topic,
                "queue_id": queue.id.queue_id,
                "start_offset": gap.start,
                "end_offset": gap.end,
                "reason": gap.reason,
                "found_timestamp": gap.found_ms,
            }
