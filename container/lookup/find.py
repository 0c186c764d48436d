"""Key queries of a tier: index files, unindexed spans, records. The I/O around `query.py`."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice, pairwise
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from container.index.keys import has_key, index_key, keys_of_records
from container.index.layout import (
    END_MAGIC,
    IndexHeader,
    IndexItem,
    ItemPlace,
    KeyItems,
    joined,
    place_of,
    places_in_log,
)
from container.index.merging import MergedPart
from container.index.sealed import FEW_ITEMS, OpenIndex, SealedIndex
from container.lookup.immediate import RECORDS_MAX, answer_at_once
from container.lookup.query import (
    Candidate,
    Found,
    KeyQuery,
    LookupLimits,
    QueryResult,
    Unsealed,
    candidates,
    is_within,
    tick_of,
)
from container.metadata.coverage import (
    Span,
    count,
    merged,
    readable,
    rows_of_topic,
    topic_covered_by_files,
    without,
)
from container.metadata.records import IndexFile, Queue
from container.metadata.state import TierState
from container.names.queue_id import QueueId, SegmentType
from container.queue.lenient_scan import UNITS_AT_ONCE, read_sound_records
from container.queue.message_queue_container import MessageQueueContainer
from container.record.checksum import crc32c
from container.record.columns import ANOTHER_BODY
from container.record.message import StoredMessage
from container.record.properties import key_hash
from container.tier_view import TierView
from provider.errors import Corrupt, Denied, OutOfRange, StoreError
from provider.object_store import Buffer, ObjectStore
from provider.ranges import ByteRange, QueueOffset

CHAIN_ITEMS_MAX = 65_536
"""Limit of items of one slot that are read. RocketMQ reads 512."""


class OpenFileItems:
    """Items of open files. Their coverage is unknown."""

    has_exact_times = False
    revision = 0

    def __init__(self, files: Sequence[OpenIndex]) -> None:
        self._files = files

    def __repr__(self) -> str:
        return f"<OpenFileItems: {len(self._files)} files>"

    def items_of(self, key_hash: int, topic_id: int) -> KeyItems:
        """Items of a hash.

        Raises:
            Corrupt: the chain of a slot is damaged.
        """
        found = [file.chain(key_hash, items_max=CHAIN_ITEMS_MAX) for file in self._files]
        items = joined(found)
        return items[items["topic_id"] == topic_id]

    def spans(self, queue: QueueId) -> Sequence[Span]:  # noqa: ARG002 - of none it is known
        """Return no spans."""
        return ()


async def read_whole(store: ObjectStore, file: IndexFile) -> Buffer:
    """Read and verify a published file. One request. Holds the file.

    Raises:
        Corrupt: its bytes differ from the published ones.
        OutOfRange, Unavailable, Denied: as the storage's `read`.
    """
    raw = await store.read(file.object_name)
    if len(raw) != file.size or crc32c(raw) != file.crc32c:
        reason = f"the index file has {len(raw)} bytes that are not those that were written"
        raise Corrupt(reason, file.object_name)
    return raw


def queues_of(file: IndexFile) -> Iterable[QueueId]:
    """Queues of a file's coverage, in order."""
    return (queue for queue, _ in groupby(file.coverage, key=itemgetter(0)))


class KeptPlaces:
    """Places of a file's queues whose items still belong to existing messages.

    The file no longer covers a queue that was dropped, or truncated completely. Items of such a
    queue would point to other messages in a new queue of the same name.
    """

    def __init__(self) -> None:
        self._places: list[int] = []
        self._first_bytes: list[int] = []

    def __repr__(self) -> str:
        return f"<KeptPlaces: {len(self._places)} queues>"

    def add(self, state: TierState, queue_id: QueueId) -> None:
        """Add a covered queue, if it exists. At most 20 us."""
        queue, topic = state.queues.peek(queue_id), state.topics.get(queue_id.topic)
        if queue is not None and topic is not None:
            self._places.append(place_of(topic.topic_id, queue_id.queue_id))
            self._first_bytes.append(queue.flat_begin(SegmentType.COMMIT_LOG))

    def part(self, file: IndexFile, raw: Buffer) -> MergedPart:
        """Return the items of the file that are kept."""
        order = np.argsort(np.array(self._places, np.int64))
        places, first_bytes = _taken(self._places, order), _taken(self._first_bytes, order)
        return MergedPart(file.object_name, raw, places, first_bytes)


def part_of(state: TierState, file: IndexFile, raw: Buffer) -> MergedPart:
    """Select the items of a file that belong to its coverage, and to existing messages. Pure."""
    kept = KeptPlaces()
    for queue in queues_of(file):
        kept.add(state, queue)
    return kept.part(file, raw)


def _taken(numbers: Sequence[int], order: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.array(numbers, np.int64)[order]


async def spans_to_scan(
    container: MessageQueueContainer,
    spans: Sequence[Span],
    query: KeyQuery,
    *,
    by_segments: bool,
) -> list[Span]:
    """Parts of spans whose extents may have a message within the queried times.

    `by_segments`: no span extends over two segments of the log. One request for each manifest that
    is not cached.
    """
    segments = await container.segments(SegmentType.COMMIT_LOG)
    extents = [extent for segment in segments for extent in segment.extents]
    ends = [extent.first_offset for extent in extents[1:]] + [container.next_offset]
    outside = [
        (extent.first_offset, end)
        for extent, end in zip(extents, ends, strict=True)
        if extent.max_timestamp < query.begin_ms or extent.min_timestamp > query.end_ms
    ]
    within = without(spans, outside)
    if not by_segments:
        return within
    firsts = [segment.extents[0].first_offset for segment in segments if segment.extents]
    parts: list[Span] = []
    for start, end in within:
        edges = [start, *(first for first in firsts if start < first < end), end]
        parts += pairwise(edges)
    return parts


TOPICS_MAX = 64
"""Cached topics, some 300 bytes for each queried queue."""


@dataclass(frozen=True, slots=True)
class TopicIndex:
    """Index of one topic in one state of the tier. Shared: do not modify."""

    topic: str
    files: Sequence[IndexFile]
    """Files that may have items of the topic."""
    unindexed: Mapping[QueueId, list[Span]]
    """Readable offsets by queue whose keys are in no file and not in memory. Only queues with any.
    """
    sealed: Sequence[tuple[IndexFile, SealedIndex]] | None
    """`files` with their layouts. None if not all are valid files of ours."""
    queues: Sequence[tuple[Queue, Sequence[Span]]]
    """Queues of the topic, with the offsets of each whose keys are in memory."""

    def unindexed_without(self, lost: Container[str]) -> Mapping[QueueId, list[Span]]:
        """`unindexed` without some unreadable files, by name. O(coverage of the topic)."""
        kept = [one for one in self.files if one.object_name not in lost]
        covered = topic_covered_by_files(kept, self.topic)
        found = {
            queue.id: _left(queue, [*covered.get(queue.id, ()), *in_memory])
            for queue, in_memory in self.queues
        }
        return {queue: spans for queue, spans in found.items() if spans}


@dataclass(frozen=True, slots=True)
class _FilesOfTopic:
    every: list[IndexFile]
    """All files of the state that this was derived from."""
    having: list[IndexFile]
    sealed: list[tuple[IndexFile, SealedIndex]] | None
    covered: Mapping[QueueId, list[Span]]


class KnownCoverage:
    """Cache of the newest answer for each topic. O(1) if nothing was published since."""

    def __init__(self) -> None:
        self._answers: dict[str, tuple[TierState, tuple[int, ...], TopicIndex]] = {}
        self._files: dict[str, _FilesOfTopic] = {}

    def __repr__(self) -> str:
        return f"<KnownCoverage of {len(self._answers)} topics>"

    def of_topic(self, state: TierState, topic: str, unsealed: Sequence[Unsealed]) -> TopicIndex:
        """Index of a topic in `state` and `unsealed`.

        O(queues of the tier) after a commit, and O(coverage of the topic) after a change of index
        files.
        """
        when = state.sequence, *(one.revision for one in unsealed)
        known = self._answers.get(topic)
        if known is not None and known[0] is state and known[1] == when:
            return known[2]
        files = self._files_of(state, topic)
        queues = [
            (queue, [span for one in unsealed for span in one.spans(queue.id)])
            for queue in state.queues.of_topic(topic)
        ]
        unindexed: dict[QueueId, list[Span]] = {}
        for queue, in_memory in queues:
            if left := _left(queue, [*files.covered.get(queue.id, ()), *in_memory]):
                unindexed[queue.id] = left
        found = TopicIndex(topic, files.having, unindexed, files.sealed, queues)
        self._answers.pop(topic, None)
        if len(self._answers) >= TOPICS_MAX:
            oldest = next(iter(self._answers))
            del self._answers[oldest], self._files[oldest]
        self._answers[topic] = state, when, found
        return found

    def _files_of(self, state: TierState, topic: str) -> _FilesOfTopic:
        every = [*state.index_files.values()]
        known = self._files.get(topic)
        if known is None or not _are_same(known.every, every):
            having = [one for one in every if not one.coverage or rows_of_topic(one, topic)]
            spans = topic_covered_by_files(having, topic)
            covered = {queue: merged(some) for queue, some in spans.items()}
            known = self._files[topic] = _FilesOfTopic(
                every, having, _with_layouts(having), covered
            )
        return known


def _with_layouts(files: Sequence[IndexFile]) -> list[tuple[IndexFile, SealedIndex]] | None:
    if not all(file.coverage for file in files):
        return None
    try:
        return [(file, index_of(file)) for file in files]
    except Corrupt:
        return None


def _are_same(one: Sequence[object], other: Sequence[object]) -> bool:
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))


def _left(queue: Queue, known: Sequence[Span]) -> list[Span]:
    """Readable offsets of a queue that are in none of `known`. O(n) if there are none, as usual."""
    at: int = queue.min_offset
    for start, end in known:
        if start <= at < end:
            at = end
    return without(readable(queue), known) if at < queue.next_offset else []


FILES_AT_ONCE = 64
ATTEMPTS_MAX = 3
"""Attempts to answer a query while files are deleted concurrently."""
SCAN_PIECE_BYTES = 4 << 20
_DEFAULT_LIMITS = LookupLimits()


async def find_messages(
    tier: TierView,
    query: KeyQuery,
    *,
    unsealed: Sequence[Unsealed] = (),
    limits: LookupLimits = _DEFAULT_LIMITS,
    known: KnownCoverage | None = None,
) -> QueryResult:
    """Find the messages with a key. Items are only hints: the record itself proves the key.

    Costs two requests for each index file that may have the key (one if its slot is empty), one for
    each record with the hash, and reads of unindexed messages, limited to those stored within the
    queried times.

    Args:
        tier: the tier, with its present metadata.
        query: the key, the times and the limits of the result.
        unsealed: items besides those of the sealed files.
        limits: limits of the reads.
        known: cache of earlier queries.

    An index file that is lost or unreadable is reported as damage. The messages that only it covers
    are read as unindexed ones. Lost messages are damage too. Without an index, the rest of their
    segment is not searched.

    Raises:
        Unavailable: retry later.
        OutOfRange: a manifest is lost.
    """
    known = known or KnownCoverage()
    found = await find_at_once(tier, query, known, unsealed=unsealed, limits=limits)
    if found is not None:
        return found
    for _ in range(ATTEMPTS_MAX - 1):
        lookup = _Lookup(tier, query, unsealed, limits, known)
        try:
            return await lookup.answer()
        except OutOfRange:  # an object was deleted since, or is lost
            if not (lookup.is_outdated or await tier.refresh(doubted=True)):
                break
    return await _Lookup(tier, query, unsealed, limits, known, expects_losses=True).answer()


async def find_at_once(
    tier: TierView,
    query: KeyQuery,
    known: KnownCoverage,
    *,
    unsealed: Sequence[Unsealed] = (),
    limits: LookupLimits = _DEFAULT_LIMITS,
) -> QueryResult | None:
    """As `find_messages`, without a request. None if it needs one, or anything is unusual.

    See `answer_at_once`.
    """
    topic = tier.state.topics.get(query.topic)
    if topic is None or tier.read_now is None or not (query.key and query.messages_max):
        return None
    if limits.run_items_max < FEW_ITEMS or limits.records_max < RECORDS_MAX:
        return None  # an answer may be cut where it is not cut at once
    index = known.of_topic(tier.state, query.topic, unsealed)
    if index.unindexed or index.sealed is None or not all(one.has_exact_times for one in unsealed):
        return None
    files = [layout for file, layout in index.sealed if is_within(file, query)]
    key = key_hash(index_key(query.topic, query.key)), topic.topic_id
    return await answer_at_once(tier, query, key, files, unsealed)


class _Lookup:
    """Single attempt of a query on the present state of a tier."""

    def __init__(
        self,
        tier: TierView,
        query: KeyQuery,
        unsealed: Sequence[Unsealed],
        limits: LookupLimits,
        known: KnownCoverage,
        *,
        expects_losses: bool = False,
    ) -> None:
        """`expects_losses`: missing objects are lost, not deleted since."""
        self._tier = tier
        self._lost = (Corrupt, Denied, OutOfRange) if expects_losses else (Corrupt, Denied)
        self._query = query
        self._limits = limits
        self._found = Found(query)
        self._damage: list[StoreError] = []
        self._is_complete = True
        state = tier.state
        self._sequence = state.sequence
        self._topic = state.topics.get(query.topic)
        self._unreadable: set[str] = set()
        """Names of unreadable index files."""
        self._index = known.of_topic(state, query.topic, unsealed)
        self._files = [one for one in self._index.files if is_within(one, query)]
        self._hash = key_hash(index_key(query.topic, query.key))
        # All of the above and this in one step, so that no item is between memory and files.
        self._in_memory: list[tuple[KeyItems, bool]] = []
        topic_id = -1 if self._topic is None else self._topic.topic_id
        for more in unsealed:
            try:
                items = more.items_of(self._hash, topic_id)
            except Corrupt as error:
                self._damage.append(error)
            else:
                self._in_memory.append((items, more.has_exact_times))

    @property
    def is_outdated(self) -> bool:
        """Whether an entry was published since."""
        return self._tier.state.sequence != self._sequence

    async def answer(self) -> QueryResult:
        query = self._query
        if self._topic is None or not query.key or query.messages_max < 1:
            return QueryResult((), is_complete=True)
        wanted: list[Candidate] = []
        for items, is_exact in self._in_memory:
            places = places_in_log(items)
            wanted += candidates(places, query.topic, 1 if is_exact else None, query)
        for at in range(0, len(self._files), FILES_AT_ONCE):
            for file, places in await self._read_items(self._files[at : at + FILES_AT_ONCE]):
                wanted += candidates(places, query.topic, tick_of(file), query)
        unsearched = await self._scan()
        await self._read_candidates(wanted)
        messages = self._found.messages()
        whole = self._is_complete and not self._found.cut and not self._damage and not unsearched
        return QueryResult(messages, whole, unsearched, tuple(self._damage))

    async def _read_items(
        self, files: Sequence[IndexFile]
    ) -> list[tuple[IndexFile, list[ItemPlace]]]:
        """Read the items of each file with the hash and the topic, in two rounds of requests."""
        assert self._topic is not None
        asked: list[tuple[IndexFile, SealedIndex]] = []
        for file in files:
            try:
                asked.append((file, index_of(file)))
            except Corrupt as error:
                self._damage.append(error)
        entries = await self._read(
            [(one.path, one.slot_range(one.slot_of(self._hash))) for _, one in asked]
        )
        runs: list[tuple[IndexFile, SealedIndex, ByteRange]] = []
        for (file, index), entry in zip(asked, entries, strict=True):
            try:
                place = None if entry is None else index.run(index.slot_of(self._hash), entry)
            except Corrupt as error:
                self._damage.append(error)
                continue
            if place is not None:
                runs.append((file, index, self._bounded(file, place)))
        raws = await self._read([(index.path, place) for _, index, place in runs])
        key = self._hash, self._topic.topic_id
        found: list[tuple[IndexFile, list[ItemPlace]]] = []
        for (file, index, place), raw in zip(runs, raws, strict=True):
            if raw is None:
                continue
            slot = index.slot_of(self._hash)
            try:
                found.append((file, index.places(raw, key, position=place.start, slot=slot)))
            except Corrupt as error:
                self._damage.append(error)
        return found

    async def _read(self, wanted: Sequence[tuple[str, ByteRange]]) -> Sequence[bytes | None]:
        """Read parts of index files. None for an unreadable one, which then covers nothing."""
        if not wanted:
            return []
        try:
            return [bytes(raw) for raw in await self._tier.store.read_many(wanted)]
        except self._lost as error:
            if len(wanted) > 1:
                return [raw for one in wanted for raw in await self._read([one])]
            self._damage.append(error)
            self._unreadable.add(wanted[0][0])
            return [None]

    def _bounded(self, file: IndexFile, place: ByteRange) -> ByteRange:
        """Part of a slot's items that is read. Our files have the newest last."""
        bytes_max = self._limits.run_items_max * IndexItem.SIZE
        if place.length <= bytes_max:
            return place
        self._is_complete = False
        if self._query.newest_first == bool(file.coverage):
            return ByteRange(place.end - bytes_max, place.end)
        return ByteRange(place.start, place.start + bytes_max)

    # Records of items.

    async def _read_candidates(self, wanted: Iterable[Candidate]) -> None:
        """Read the candidates, the best first, until no other can be better."""
        newest_first = self._query.newest_first
        # After a truncation, an old and a new item may have one position. Their records differ in
        # size.
        unique = {(one.queue, one.position, one.size): one for one in wanted}
        ordered = sorted(
            unique.values(), key=lambda one: -one.high_ms if newest_first else one.low_ms
        )
        if len(ordered) > self._limits.records_max:
            self._is_complete = False
            del ordered[self._limits.records_max :]
        rest = iter(ordered)
        while batch := self._batch(rest):
            if self._found.excludes(batch[0]):
                return
            by_queue: dict[QueueId, list[Candidate]] = {}
            for one in batch:
                by_queue.setdefault(one.queue, []).append(one)
            for queue, some in by_queue.items():
                await self._read_queue(queue, some)

    def _batch(self, rest: Iterator[Candidate]) -> list[Candidate]:
        batch: list[Candidate] = []
        total = 0
        for one in islice(rest, self._limits.batch_records_max):
            batch.append(one)
            total += one.size
            if total >= self._limits.batch_bytes_max:
                break
        return batch

    async def _read_queue(self, queue: QueueId, some: Sequence[Candidate]) -> None:
        container = self._tier.container(queue)
        if container is None:
            return  # deleted with its messages
        record = container.record
        log = SegmentType.COMMIT_LOG
        first, end = record.flat_begin(log), record.flat_end(log)
        inside = [one for one in some if first <= one.position and one.position + one.size <= end]
        if not inside:
            return
        ranges = [ByteRange(one.position, one.position + one.size) for one in inside]
        raws = await self._read_log(container, ranges)
        for one, raw in zip(inside, raws, strict=True):
            if raw is not None:
                self._judge(record, one, bytes(raw))

    async def _read_log(
        self, container: MessageQueueContainer, ranges: Sequence[ByteRange]
    ) -> Sequence[Buffer | None]:
        """Read parts of a log. None for an unreadable one."""
        try:
            return await container.log_many(ranges)
        except self._lost as error:
            if len(ranges) > 1:
                return [raw for one in ranges for raw in await self._read_log(container, [one])]
            self._damage.append(error)
            return [None]

    def _judge(self, queue: Queue, item: Candidate, raw: bytes) -> None:
        """Add the record of an item, if it matches the query."""
        path = f"{queue.id}/{SegmentType.COMMIT_LOG.name}"
        try:
            message = StoredMessage.decode(raw, path=path, position=item.position)
        except Corrupt as error:
            self._refuse(queue, error)
            return
        if message.physical_offset != item.position or message.size != item.size:
            self._refuse(queue, Corrupt("the index has another record", path, item.position))
            return
        if not message.body_is_intact:
            self._damage.append(Corrupt(ANOTHER_BODY, path, item.position))
            return
        if (message.topic, message.queue_id) == queue.id:
            self._take(message, queue)

    def _refuse(self, queue: Queue, error: Corrupt) -> None:
        """Handle an item without a record. After a truncation its place may have other records."""
        if not queue.generation:
            self._damage.append(error)

    def _take(self, message: StoredMessage, queue: Queue) -> None:
        if (
            queue.min_offset <= message.queue_offset < queue.next_offset
            and self._query.includes(message.store_timestamp)
            and has_key(message, self._query.key)
        ):
            self._found.add(message)

    # Unindexed messages.

    def _unindexed(self) -> Mapping[QueueId, Sequence[Span]]:
        """Offsets by queue that are in no index, or only in an unreadable one."""
        if not self._unreadable:
            return self._index.unindexed
        return self._index.unindexed_without(self._unreadable)

    async def _scan(self) -> int:
        """Scan unindexed messages up to the limit. Return the number left."""
        chunks: list[tuple[int, MessageQueueContainer, Span]] = []
        for queue, spans in self._unindexed().items():
            container = self._tier.container(queue)
            if container is None:
                continue
            if not self._limits.scan_bytes_max:
                chunks += [(0, container, span) for span in spans]
                continue
            apart = OutOfRange in self._lost
            for span in await spans_to_scan(container, spans, self._query, by_segments=apart):
                for start in range(span[0], span[1], UNITS_AT_ONCE):
                    end = min(start + UNITS_AT_ONCE, span[1])
                    age = container.next_offset - end if self._query.newest_first else start
                    chunks.append((age, container, (start, end)))
        chunks.sort(key=lambda chunk: chunk[0])
        bytes_left, lost = self._limits.scan_bytes_max, 0
        for number, (_, container, (start, end)) in enumerate(chunks):
            at = QueueOffset(start)
            while at < end:
                if bytes_left <= 0:
                    rest = [(at, end), *(span for _, _, span in chunks[number + 1 :])]
                    return lost + count(rest)
                try:
                    at, length = await self._scan_piece(container, at, QueueOffset(end), bytes_left)
                except self._lost as error:
                    self._damage.append(error)
                    lost += end - at
                    break
                bytes_left -= length
        return lost

    async def _scan_piece(
        self, container: MessageQueueContainer, start: QueueOffset, end: QueueOffset, left: int
    ) -> tuple[QueueOffset, int]:
        """Scan some messages. Return the first offset not scanned, and the bytes read."""
        bytes_max = min(SCAN_PIECE_BYTES, left)
        found = await read_sound_records(container, start, end, bytes_max=bytes_max)
        self._damage += found.damage
        keys = keys_of_records(found.data, found.starts, found.sizes, topic=container.id.topic)
        path = str(container.id)
        for row in np.unique(keys.messages[keys.hashes == self._hash]).tolist():
            at = int(found.starts[row])
            raw = found.data[at : at + int(found.sizes[row])].data
            message = StoredMessage.decode(raw, path=path, position=int(found.positions[row]))
            self._take(message, container.record)
        return found.end, len(found.data) + 1


def index_of(file: IndexFile) -> SealedIndex:
    """Layout of a published index file, from its record.

    Raises:
        Corrupt: no file has this layout.
    """
    header = IndexHeader(
        END_MAGIC, file.begin_timestamp, file.end_timestamp, file.slots, file.items
    )
    return SealedIndex.by_header(header, file.size, path=file.object_name)
