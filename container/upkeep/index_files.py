"""Index step: collected keys become index files, and files without messages expire."""

import asyncio
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from container.errors import BytesMissing
from container.index.keys import items_of_records
from container.index.layout import IndexHeader, KeyItems, joined
from container.index.options import INLINE_ITEMS_MAX
from container.index.sealed import fitting_begin, fitting_slots, seal_index
from container.lookup.collector import Collected, KeyCollector
from container.metadata.coverage import ROWS_PER_TURN, Span, rows_in_turns, without
from container.metadata.operations import AddTombstones, DropIndexFile, PutIndexFile
from container.metadata.records import Coverage, IndexFile, Queue
from container.metadata.state import StateChange, TierState
from container.names.queue_id import QueueId, SegmentType
from container.names.rocketmq import index_name
from container.names.tier_objects import INDEX_PREFIX, IndexBase
from container.queue.commit_plan import CommitKeys
from container.queue.lenient_scan import read_verified_records
from container.queue.manifest import ManifestReader
from container.queue.message_queue_container import MessageQueueContainer
from container.record.checksum import crc32c
from container.record.unit import UNIT_BYTES, consecutive
from container.steps import QUEUES_PER_TURN, OwnedTier, Step
from container.upkeep.retention import EXPIRED
from provider.errors import AlreadyExists, Corrupt, Denied, OutOfRange, StoreError, Unavailable
from provider.ranges import QueueOffset


@dataclass(frozen=True, slots=True)
class IndexBuilding:
    """State that an owner's steps share for creating index files."""

    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    """Numbers of the owner's files, from 1."""
    memory: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a file is built, so that only one at a time is in memory."""


class IndexWriter:
    """Index files of one step. Each is written, then published or given a tombstone."""

    def __init__(self, tier: OwnedTier, building: IndexBuilding) -> None:
        self._tier = tier
        self._building = building
        self._tried: dict[str, None] = {}
        """Names of files that may be in the store unpublished."""

    def __repr__(self) -> str:
        return f"<IndexWriter: {len(self._tried)} not settled>"

    async def write(self, raw: NDArray[np.uint8], coverage: Coverage) -> IndexFile:
        """Write a file under a free name of this owner. `settled` must follow. One request.

        A name is taken only if a tier was imported again after its journal was lost.

        Raises:
            Unavailable: the outcome is unknown. `tombstone_tried` will add a tombstone.
        """
        while True:
            base = IndexBase(self._tier.journal.epoch, next(self._building.numbers)).number
            name = index_name(base)
            self._tried[name] = None
            try:
                await self._tier.store.create(name, [raw.data])
            except AlreadyExists:
                del self._tried[name]
            else:
                break
        said = IndexHeader.decode(raw.data, path=name)
        return IndexFile(
            name,
            base,
            len(raw),
            said.begin_timestamp,
            said.end_timestamp,
            said.used_slots,
            said.items,
            coverage,
            crc32c(raw.data),
        )

    def settled(self, name: str) -> None:
        """Stop tracking a published file."""
        self._tried.pop(name, None)

    async def tombstone_tried(self) -> None:
        """Add tombstones for files that earlier runs may have written and did not publish.

        Raises:
            Fenced: a newer owner has the tier.
        """
        planned = self._tier.journal.planned
        await self._tier.add_tombstones(
            [name for name in self._tried if name not in planned.index_files]
        )
        for name in list(self._tried):
            if name in planned.tombstones or name in self._tier.state.index_files:
                del self._tried[name]


PIECE_BYTES = 4 << 20


class IndexStep(Step):
    """Reads unindexed messages, seals files, and adds tombstones to files of dead owners."""

    name = "index"

    def __init__(self, tier: OwnedTier, keys: KeyCollector, building: IndexBuilding) -> None:
        super().__init__(tier)
        self._keys = keys
        self._building = building
        self._writer = IndexWriter(tier, building)
        self._manifests = ManifestReader(tier.store)
        self._published: tuple[Collected, str] | None = None
        """Last publication with possibly unknown outcome, and the file's name."""
        self._searched = tier.journal.epoch == 1  # no earlier owner could leave an orphan
        self._damaged: dict[tuple[QueueId, int | None], list[Span]] = {}
        """Messages of a queue, in a generation, whose keys cannot be read."""
        self._sealed = 0
        self._caught_up = 0

    def __repr__(self) -> str:
        return f"<IndexStep: {self._sealed} files sealed, {self._keys!r}>"

    async def step(self) -> None:
        """Do the due work: a listing once, a read for unindexed messages, two requests a file.

        Raises:
            Corrupt, Denied, OutOfRange: keys of some messages cannot be read. Others were.
            Unavailable: the next run continues.
            Fenced: a newer owner has the tier.
        """
        await self._writer.tombstone_tried()
        await self._seal_due()
        unlisted: StoreError | None = None
        try:
            await self._search()
        except (Unavailable, Corrupt, Denied, OutOfRange) as error:
            unlisted = error  # without a listing, only orphans stay
        await self._catch_up()
        if unlisted is not None:
            raise unlisted

    async def finish(self) -> None:
        """Seal keys that are costly to read again, and search for orphans unless a run did.

        Raises as `step`.
        """
        options, collected = self._keys.options, self._keys.unsealed.collecting
        is_worth_it = (
            collected.items >= options.finish_items_min
            or collected.record_bytes >= options.finish_bytes_min
        )
        await self._writer.tombstone_tried()
        await self._seal_due(is_worth_it=is_worth_it)
        await self._search()

    @property
    def urgent(self) -> bool:
        """Whether memory is full of items, or a file is still to be sealed."""
        return self._keys.unsealed.is_full or self._keys.unsealed.sealing is not None

    def _is_due(self) -> bool:
        """Whether the keys being collected are due."""
        options, collected = self._keys.options, self._keys.unsealed.collecting
        if collected.since_s is None:
            return False
        age_s = self.tier.clock.monotonic_s() - collected.since_s
        return (
            collected.items >= options.items_max
            or collected.record_bytes >= options.covered_bytes_max
            or age_s >= options.age_s_max
        )

    # Sealing.

    async def _seal_due(self, *, is_worth_it: bool = False) -> None:
        """Seal full buffers, and the keys being collected if they are due or `is_worth_it`."""
        unsealed = self._keys.unsealed
        if unsealed.sealing is not None:  # an earlier run was interrupted
            part, name = self._published or (None, "")
            accepted = part is unsealed.sealing and name in self.tier.journal.planned.index_files
            if accepted or not unsealed.sealing.spans:  # all may be truncated
                self._keys.sealed()
            else:
                await self._seal(unsealed.sealing)
        while unsealed.sealing is None and (
            unsealed.full or ((is_worth_it or self._is_due()) and unsealed.collecting.spans)
        ):
            await self._seal(unsealed.begin_sealing())

    async def _seal(self, part: Collected) -> None:
        """Write and publish a file of collected keys."""
        async with self._building.memory:
            if part.spans:
                await self._seal_alone(part)
            else:  # truncated while another file was being built
                self._keys.sealed()

    async def _seal_alone(self, part: Collected) -> None:
        tier = self.tier
        part.is_cut = False
        coverage = await rows_in_turns(
            sorted(part.spans), lambda queue: part.spans.get(queue, ()), tier.clock
        )
        parts = part.parts()
        if part.items <= INLINE_ITEMS_MAX:
            raw = _built(parts)
        else:
            raw = await asyncio.to_thread(_built, parts)
        file = await self._writer.write(raw, coverage)
        name = file.object_name
        # No other task runs from here to the acceptance by the journal, so no truncation
        # intervenes.
        if part.is_cut or self._is_being_cut(part):
            return  # truncated since: the next run makes another file of the rest
        self._published = (part, name)
        await tier.journal.publish([PutIndexFile(file)])
        self._keys.sealed()
        self._published = None
        self._writer.settled(name)
        self._sealed += 1

    def _is_being_cut(self, part: Collected) -> bool:
        """Whether an unpublished transaction truncates or drops a queue of the part."""
        return any(
            queue in part.spans
            and (record is None or record.generation != _generation(self.tier.state, queue))
            for one in self.tier.journal.in_flight()
            for queue, record in one.change.queues.changed.items()
        )

    async def _search(self) -> None:
        """Add tombstones to unpublished files of earlier owners. One listing."""
        if self._searched:
            return
        listed = [entry.name for entry in await self.tier.store.list(INDEX_PREFIX)]
        state = self.tier.state
        orphans = [
            name
            for name in listed
            if (base := IndexBase.parse(name)) is not None
            and 0 < base.epoch < state.broker.epoch
            and name not in state.index_files
            and name not in state.tombstones
        ]
        await self.tier.add_tombstones(orphans)
        self._searched = True

    # Catching up.

    async def _catch_up(self) -> None:
        """Read unindexed messages, up to the limit of one run."""
        left = self._keys.options.catch_up_bytes_max
        first: StoreError | None = None
        for queue, spans in (await self._missing()).items():
            damaged = self._damaged.get((queue, _generation(self.tier.state, queue)), ())
            for span in without(spans, damaged):
                try:
                    left = await self._read(queue, span, left)
                except BytesMissing as error:
                    first = first or error
                    left = await self._read_around(queue, span, left)
                except (Corrupt, Denied, OutOfRange) as error:
                    first = first or error
                    break  # of this queue; the others are read
                if left <= 0:
                    break
            if left <= 0:
                break
        if first is not None:
            raise first

    async def _missing(self) -> dict[QueueId, list[Span]]:
        """Unindexed offsets by queue. No request."""
        await self._keys.prepare()
        found: dict[QueueId, list[Span]] = {}
        for number, queue in enumerate(self._keys.doubted()):
            if number % QUEUES_PER_TURN == QUEUES_PER_TURN - 1:  # of all queues, after a start
                await self.tier.clock.sleep(0)
            if spans := self._keys.missing_of(queue):
                found[queue] = spans
        return found

    async def _read_around(self, queue: QueueId, span: Span, left: int) -> int:
        """Read the keys of a span with lost files, file by file. Return the rest of `left`.

        The next run retries the lost ones, as they may be restored.
        """
        record = self.tier.state.queues.get(queue)
        if record is None:
            return left
        try:
            edges = await self._edges(record)
        except (Corrupt, Denied, OutOfRange):
            return left  # with a lost manifest the edges are unknown
        await self._keys.prepare()
        for missing in self._keys.missing_of(queue):
            begin, end = max(missing[0], span[0]), min(missing[1], span[1])
            inside = [edge for edge in edges if begin < edge < end]
            for part in pairwise([begin, *inside, end]) if begin < end else ():
                if left <= 0:
                    return left
                with suppress(Corrupt, Denied, OutOfRange):
                    left = await self._read(queue, part, left)
        return left

    async def _edges(self, record: Queue) -> list[int]:
        """Offsets at which a queue's files begin, of both types. A request a manifest."""
        container = MessageQueueContainer(
            record.id, lambda _: record, self.tier.store, self._manifests
        )
        logs = await container.segments(SegmentType.COMMIT_LOG)
        units = await container.segments(SegmentType.CONSUME_QUEUE)
        edges = {int(one.extents[0].first_offset) for one in logs if one.extents}
        return sorted(edges | {one.base // UNIT_BYTES for one in units})

    async def _read(self, queue: QueueId, span: Span, left: int) -> int:
        """Read the keys of a span, up to `left` bytes. Return the rest of `left`."""
        at, end = span
        while at < end and left > 0:
            record = self.tier.state.queues.get(queue)
            if record is None or record.min_offset > at:
                break  # deleted since
            container = MessageQueueContainer(
                queue, self.tier.state.queues.get, self.tier.store, self._manifests
            ).as_of(record)
            bytes_max = min(PIECE_BYTES, left)
            found = await read_verified_records(
                container, QueueOffset(at), QueueOffset(end), bytes_max=bytes_max
            )
            left -= len(found.data) + 1
            sound, runs = 0, consecutive(found.offsets)
            for first, last in runs:
                rows = slice(first, last)
                items = items_of_records(
                    found.data,
                    found.starts[rows],
                    found.sizes[rows],
                    topic=queue.topic,
                    queue_id=queue.queue_id,
                    positions=found.positions[rows],
                    store_timestamps=found.store_timestamps[rows],
                )
                keys = CommitKeys(items, int(found.sizes[rows].sum()), record.generation)
                begin = int(found.offsets[first])
                sound += last - first
                taken = self._keys.take(queue, (begin, begin + last - first), keys)
                self._caught_up += (last - first) * taken
            if sound < found.end - at:
                sound_spans = [
                    (int(found.offsets[a]), int(found.offsets[b - 1]) + 1) for a, b in runs
                ]
                damaged = self._damaged.setdefault((queue, record.generation), [])
                damaged += without([(at, found.end)], sound_spans)
            await self._seal_due()
            at = found.end
        return left

    @property
    def figures(self) -> Mapping[str, int]:
        """Sealed files, items in memory, and messages read again for their keys."""
        return {
            "index_files_sealed": self._sealed,
            "index_items_unsealed": self._keys.unsealed.items,
            "index_messages_read": self._caught_up,
        }

    def check(self) -> None:
        """Assert the invariants of the collector."""
        self._keys.check()


def _generation(state: TierState, queue: QueueId) -> int | None:
    bounds = state.queues.bounds_of(queue)
    return None if bounds is None else bounds.generation


def _built(parts: Sequence[KeyItems]) -> NDArray[np.uint8]:
    """Build the bytes of a file of these items."""
    items = joined(parts)
    begin = fitting_begin(int(items["store_timestamp"].min())) if len(items) else 0
    return seal_index(items, slots=fitting_slots(len(items)), begin_timestamp=begin)


class IndexExpiryStep(Step):
    """Unpublishes index files whose messages have all expired, or were truncated or deleted.

    Each file has a *witness*: a row of its coverage that still has messages. A new witness is
    searched only if the queue of the old one lost messages, and from that row on: earlier rows are
    gone for good. So all runs together cost O(coverage) once for each file, for any size of tier.
    """

    name = "index-expiry"

    def __init__(self, tier: OwnedTier) -> None:
        super().__init__(tier)
        self._sought: dict[str, int] = dict.fromkeys(tier.state.index_files, 0)
        """Files without a known witness, and the row at which the search for one continues."""
        self._witnesses: dict[QueueId, dict[str, int]] = {}
        """By queue, the files with a witness in it, and the row."""
        self._known: dict[str, QueueId] = {}
        """By file, the queue of its witness."""
        self._begins: dict[QueueId, int] | None = None
        """First offset of each queue (0 if missing) while there are files without coverage. None:
        there are none."""
        self._bare_is_due = True
        self._firsts: dict[QueueId, int] = {}
        """First offset, at the last check, of each queue with a witness."""
        self._expired = 0

    def __repr__(self) -> str:
        return f"<IndexExpiryStep: {self._expired} files expired>"

    def published(self, changes: Sequence[StateChange]) -> None:
        """Search for new witnesses after an entry that removed messages or changed a file."""
        for change in changes:
            for name, file in change.index_files.changed.items():
                self._forget(name)
                if file is not None:
                    self._sought[name] = 0
                    self._bare_is_due |= not file.coverage
            for queue_id, record in change.queues.changed.items():
                first = None if record is None else record.min_offset
                if queue_id in self._witnesses and self._firsts.get(queue_id) != first:
                    self._sought.update(self._witnesses.pop(queue_id))
                    self._firsts.pop(queue_id, None)
                if self._begins is not None and self._begins.get(queue_id, 0) != first:
                    self._begins[queue_id] = first or 0
                    self._bare_is_due = True

    def _forget(self, name: str) -> None:
        self._sought.pop(name, None)
        queue = self._known.pop(name, None)
        if queue is not None and queue in self._witnesses:
            self._witnesses[queue].pop(name, None)

    async def step(self) -> None:
        """Unpublish expired files, in one entry. Changes during the run are left to the next run.

        Raises:
            Unavailable, Fenced: as `Journal.publish`.
        """
        names = [name for name in list(self._sought) if not await self._has_witness(name)]
        if self._bare_is_due:
            self._bare_is_due = False
            names += await self._bare_expired()
        planned = self.tier.journal.planned
        names = [
            name
            for name in dict.fromkeys(names)
            if name in planned.index_files
            and name not in planned.tombstones
            and not _has_messages(planned, planned.index_files[name])
        ]
        if names:
            dead = tuple(self.tier.tombstone(name, EXPIRED) for name in names)
            drops = [DropIndexFile(name) for name in names]
            await self.tier.journal.publish([*drops, AddTombstones(dead)])
            self._expired += len(names)

    async def _has_witness(self, name: str) -> bool:
        """Search for a row with messages. Yields to other tasks. True if none is needed."""
        while (at := self._sought.get(name)) is not None:
            file = self.tier.state.index_files.get(name)
            if file is None or name in self.tier.state.tombstones or not file.coverage:
                del self._sought[name]
                return True
            queues = self.tier.state.queues
            some = file.coverage[at : at + ROWS_PER_TURN]
            for row, (queue, _, end) in enumerate(some, at):
                bounds = queues.bounds_of(queue)
                if bounds is not None and end > bounds.min_offset:
                    del self._sought[name]
                    self._known[name] = queue
                    self._firsts[queue] = bounds.min_offset
                    self._witnesses.setdefault(queue, {})[name] = row
                    return True
            if at + ROWS_PER_TURN >= len(file.coverage):
                return False
            self._sought[name] = at + ROWS_PER_TURN
            await self.tier.clock.sleep(0)
        return True

    async def _bare_expired(self) -> list[str]:
        """Files without coverage whose messages are gone. O(queues) if RocketMQ wrote some."""
        state = self.tier.state
        files = [one for one in state.index_files.values() if not one.coverage]
        bare = [one for one in files if one.object_name not in state.tombstones]
        oldest_ms: int | None = None
        if all(map(_is_cut_off, bare)):
            self._begins = None
        else:
            known = state.queues
            self._begins = {one.id: int(one.min_offset) for one in known.bounds() if one.min_offset}
            oldest_ms = await self._oldest_ms()
        return bare_expired(bare, oldest_ms)

    async def _oldest_ms(self) -> int | None:
        """Lower bound of the tier's store timestamps. Yields to other tasks."""
        queues = self.tier.state.queues
        oldest_ms: int | None = None
        for number, name in enumerate(list(queues)):
            if number % QUEUES_PER_TURN == QUEUES_PER_TURN - 1:
                await self.tier.clock.sleep(0)
            queue = queues.peek(name)
            stamp = None if queue is None else _oldest_ms(queue)
            if stamp is not None and (oldest_ms is None or stamp < oldest_ms):
                oldest_ms = stamp
        return oldest_ms

    @property
    def figures(self) -> Mapping[str, int]:
        """Index files whose messages were gone."""
        return {"index_files_expired": self._expired}


def bare_expired(bare: Sequence[IndexFile], oldest_ms: int | None) -> list[str]:
    """Index files without coverage whose messages are all older than those of any queue. Pure.

    RocketMQ wrote them without their messages' offsets. Such a file has expired if it was created,
    and its newest message was stored, before the oldest message of every queue. With IPv6 hosts its
    header has a part of an address as the time of the newest message, for example 1. Its creation
    time is right.
    """
    found: list[str] = []
    for file in bare:
        newest_ms = max(file.begin_timestamp, file.end_timestamp)
        if _is_cut_off(file) or (oldest_ms is not None and newest_ms < oldest_ms):
            found.append(file.object_name)
    return found


def _is_cut_off(file: IndexFile) -> bool:
    """Whether a file without coverage is ours: all that it covered was truncated."""
    base = IndexBase.parse(file.object_name)
    return base is not None and base.epoch > 0


def _has_messages(state: TierState, file: IndexFile) -> bool:
    """Whether any message covered by a file is readable."""
    queues = state.queues
    return any(
        queue in queues and end > queues[queue].min_offset for queue, _, end in file.coverage
    )


def _oldest_ms(queue: Queue) -> int | None:
    """Lower bound of a queue's store timestamps. None without messages."""
    stamps = [ref.min_timestamp for ref in queue.manifests]
    stamps += [one.begin_timestamp for one in queue.commit_log if one.begin_timestamp is not None]
    return min(stamps, default=None)
