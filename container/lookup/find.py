"""Finding messages by key in a tier: the shell around `query.py`."""

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from itertools import islice

import numpy as np

from container.index.items import KeyItems, no_items
from container.index.keys import has_key, index_key, keys_of_records
from container.index.layout import END_MAGIC, IndexHeader, IndexItem
from container.index.sealed import SealedIndex
from container.lookup.coverage import Span, count, readable, topic_covered_by_files, without
from container.lookup.query import (
    Candidate,
    Found,
    KeyQuery,
    LookupLimits,
    QueryResult,
    Unsealed,
    candidates,
    may_have,
    tick_of,
)
from container.lookup.spans_to_scan import spans_to_scan
from container.metadata.records import IndexFile, Queue
from container.names.queue_id import QueueId, SegmentType
from container.queue.message_queue_container import MessageQueueContainer
from container.queue.sound_records import UNITS_AT_ONCE, read_sound_records
from container.record.contents import ANOTHER_BODY
from container.record.java_hash import key_hash
from container.record.message import StoredMessage
from container.tier_view import TierView
from provider.errors import Corrupt, Denied, OutOfRange, StoreError
from provider.object_store import Buffer
from provider.ranges import ByteRange, QueueOffset

FILES_AT_ONCE = 64
LOOKS_MAX = 3
"""How often a query is answered anew because files went away meanwhile."""
SCAN_PIECE_BYTES = 4 << 20
_DEFAULT_LIMITS = LookupLimits()


async def find_messages(
    tier: TierView,
    query: KeyQuery,
    *,
    unsealed: Sequence[Unsealed] = (),
    limits: LookupLimits = _DEFAULT_LIMITS,
) -> QueryResult:
    """The messages with a key. An item only says where to look: the record itself has the key.

    Costs two requests for each index file that may have the key (one if its slot is empty), one
    for each record that has the hash, and the reading of messages that no index has, as far as
    they were stored within the time asked for.

    Args:
        tier: where to look; its metadata is taken as it is.
        query: what to look for.
        unsealed: items besides those of the sealed files.
        limits: how much is read at most.

    An index file that is lost or cannot be read is damage; the messages that it alone covers are
    read like those that no index has. Lost messages are damage, too; without an index, the rest of
    their segment is not searched.

    Raises:
        Unavailable, OutOfRange: try again; a manifest is lost.
    """
    for _ in range(LOOKS_MAX - 1):
        lookup = _Lookup(tier, query, unsealed, limits)
        try:
            return await lookup.answer()
        except OutOfRange:  # something that was deleted meanwhile, or is lost
            if not (lookup.is_outdated or await tier.refresh()):
                break
    return await _Lookup(tier, query, unsealed, limits, expects_losses=True).answer()


class _Lookup:
    """One look at a tier as it is now."""

    def __init__(
        self,
        tier: TierView,
        query: KeyQuery,
        unsealed: Sequence[Unsealed],
        limits: LookupLimits,
        *,
        expects_losses: bool = False,
    ) -> None:
        """`expects_losses`: what is not there is lost, not deleted meanwhile."""
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
        self._index_files = dict(state.index_files)
        self._files = [one for one in self._index_files.values() if may_have(one, query)]
        self._unsealed = {
            queue.id: without(
                readable(queue), [span for more in unsealed for span in more.spans(queue.id)]
            )
            for queue in state.queues.of_topic(query.topic)
        }
        """By queue of the topic, the offsets whose keys are not in memory."""
        self._hash = key_hash(index_key(query.topic, query.key))
        # All of the above and this in one step, so that nothing is between memory and files.
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
        """Whether something was published since."""
        return self._tier.state.sequence != self._sequence

    async def answer(self) -> QueryResult:
        query = self._query
        if self._topic is None or not query.key or query.messages_max < 1:
            return QueryResult((), is_complete=True)
        wanted: list[Candidate] = []
        for items, is_exact in self._in_memory:
            wanted += candidates(items, query.topic, 1 if is_exact else None, query)
        async for file, items in self._items_of_files():
            wanted += candidates(items, query.topic, tick_of(file), query)
        unsearched = await self._scan()
        await self._look_at(wanted)
        messages = self._found.messages()
        whole = self._is_complete and not self._found.cut and not self._damage and not unsearched
        return QueryResult(messages, whole, unsearched, tuple(self._damage))

    async def _items_of_files(self) -> AsyncIterator[tuple[IndexFile, KeyItems]]:
        """The items of every file that have the hash and the topic."""
        assert self._topic is not None
        for at in range(0, len(self._files), FILES_AT_ONCE):
            files = self._files[at : at + FILES_AT_ONCE]
            for file, items in zip(files, await self._read_items(files), strict=True):
                mine = (items["key_hash"] == self._hash) & (
                    items["topic_id"] == self._topic.topic_id
                )
                yield file, items[mine]

    async def _read_items(self, files: Sequence[IndexFile]) -> list[KeyItems]:
        """The slot of the hash in each file: two rounds of requests."""
        found = {file.object_name: no_items() for file in files}
        indices: list[tuple[IndexFile, SealedIndex]] = []
        for file in files:
            try:
                indices.append((file, index_of(file)))
            except Corrupt as error:
                self._damage.append(error)
        slots = [index.slot_of(self._hash) for _, index in indices]
        wanted = [
            (index.path, index.slot_range(slot))
            for (_, index), slot in zip(indices, slots, strict=True)
        ]
        entries = await self._read(wanted)
        runs: list[tuple[SealedIndex, int, ByteRange]] = []
        for (file, index), slot, entry in zip(indices, slots, entries, strict=True):
            if entry is None:
                continue
            try:
                place = index.run(slot, entry)
            except Corrupt as error:
                self._damage.append(error)
                continue
            if place is not None:
                runs.append((index, slot, self._bounded(file, place)))
        raws = await self._read([(index.path, place) for index, _, place in runs])
        for (index, slot, place), raw in zip(runs, raws, strict=True):
            if raw is None:
                continue
            try:
                found[index.path] = index.items(raw, position=place.start, slot=slot)
            except Corrupt as error:
                self._damage.append(error)
        return [found[file.object_name] for file in files]

    async def _read(self, wanted: Sequence[tuple[str, ByteRange]]) -> Sequence[bytes | None]:
        """Parts of index files; None of one that cannot be read, which covers nothing then."""
        if not wanted:
            return []
        try:
            return [bytes(raw) for raw in await self._tier.store.read_many(wanted)]
        except self._lost as error:
            if len(wanted) > 1:
                return [raw for one in wanted for raw in await self._read([one])]
            self._damage.append(error)
            self._index_files.pop(wanted[0][0], None)
            return [None]

    def _bounded(self, file: IndexFile, place: ByteRange) -> ByteRange:
        """The part of a slot's items that is looked at: our files have the newest last."""
        bytes_max = self._limits.run_items_max * IndexItem.SIZE
        if place.length <= bytes_max:
            return place
        self._is_complete = False
        if self._query.newest_first == bool(file.coverage):
            return ByteRange(place.end - bytes_max, place.end)
        return ByteRange(place.start, place.start + bytes_max)

    # Records that items name.

    async def _look_at(self, wanted: Iterable[Candidate]) -> None:
        """Read the candidates, the best first, until no other can be better."""
        newest_first = self._query.newest_first
        # After a cut, an old item and a new one may name one place; their records differ in size.
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
                await self._look_at_queue(queue, some)

    def _batch(self, rest: Iterator[Candidate]) -> list[Candidate]:
        batch: list[Candidate] = []
        total = 0
        for one in islice(rest, self._limits.batch_records_max):
            batch.append(one)
            total += one.size
            if total >= self._limits.batch_bytes_max:
                break
        return batch

    async def _look_at_queue(self, queue: QueueId, some: Sequence[Candidate]) -> None:
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
        """Parts of a log; None of one that cannot be read."""
        try:
            return await container.log_many(ranges)
        except self._lost as error:
            if len(ranges) > 1:
                return [raw for one in ranges for raw in await self._read_log(container, [one])]
            self._damage.append(error)
            return [None]

    def _judge(self, queue: Queue, item: Candidate, raw: bytes) -> None:
        """Take the record that an item names, if it is meant."""
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
        """An item names no record. After a cut, others may lie where its record was."""
        if not queue.generation:
            self._damage.append(error)

    def _take(self, message: StoredMessage, queue: Queue) -> None:
        if (
            queue.min_offset <= message.queue_offset < queue.next_offset
            and self._query.includes(message.store_timestamp)
            and has_key(message, self._query.key)
        ):
            self._found.add(message)

    # Messages that no index has.

    async def _scan(self) -> int:
        """Look at all messages without an index, as far as the limit goes; how many are left."""
        chunks: list[tuple[int, MessageQueueContainer, Span]] = []
        covered = topic_covered_by_files(self._index_files.values(), self._query.topic)
        for queue, left in self._unsealed.items():
            spans = without(left, covered.get(queue, ()))
            container = self._tier.container(queue)
            if container is None or not spans:
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
        """Look at some messages; the first offset that was not, and the bytes that were read."""
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
    """How a published index file is laid out, by its record.

    Raises:
        Corrupt: no file can be so.
    """
    header = IndexHeader(
        END_MAGIC, file.begin_timestamp, file.end_timestamp, file.slots, file.items
    )
    return SealedIndex.of(header.encode(), file.size, path=file.object_name)
