"""Keys that were collected become index files; what no file has is read again."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from container.errors import BytesMissing
from container.index.items import KeyItems, joined
from container.index.keys import items_of_records
from container.index.options import INLINE_ITEMS_MAX
from container.index.sealed import fitting_begin, fitting_slots, seal_index
from container.index.unsealed import Collected
from container.lookup.coverage import Span, without
from container.lookup.key_collector import KeyCollector
from container.metadata.operations import PutIndexFile
from container.metadata.records import Queue
from container.metadata.state import TierState
from container.names.index_base import INDEX_PREFIX, IndexBase
from container.names.queue_id import QueueId, SegmentType
from container.queue.collected_keys import CommitKeys
from container.queue.manifest import ManifestReader
from container.queue.message_queue_container import MessageQueueContainer
from container.queue.sound_records import read_verified_records
from container.record.unit import UNIT_BYTES
from container.upkeep.index_writer import IndexBuilding, IndexWriter
from container.upkeep.step import QUEUES_PER_TURN, OwnedTier, Step
from provider.errors import Corrupt, Denied, OutOfRange, StoreError, Unavailable
from provider.ranges import QueueOffset

PIECE_BYTES = 4 << 20


class IndexStep(Step):
    """Reads what no index has, seals files, and gives tombstones to those of dead owners."""

    name = "index"

    def __init__(self, tier: OwnedTier, keys: KeyCollector, building: IndexBuilding) -> None:
        super().__init__(tier)
        self._keys = keys
        self._building = building
        self._writer = IndexWriter(tier, building)
        self._manifests = ManifestReader(tier.store)
        self._published: tuple[Collected, str] | None = None
        """What was last published, perhaps, and under which name."""
        self._searched = tier.journal.epoch == 1  # no owner before us could leave an orphan
        self._damaged: dict[tuple[QueueId, int | None], list[Span]] = {}
        """Messages of a queue, in a generation, whose keys cannot be read."""
        self._sealed = 0
        self._caught_up = 0

    def __repr__(self) -> str:
        return f"<IndexStep: {self._sealed} files sealed, {self._keys!r}>"

    async def step(self) -> None:
        """Do what is due: a listing once, a read for what no index has, two requests a file.

        Raises:
            Corrupt, Denied, OutOfRange: keys of some messages cannot be read; others were.
            Unavailable: the next run goes on.
            Fenced: a newer owner has the tier.
        """
        await self._writer.bury_tried()
        await self._seal_if(self._is_due())
        unlisted: StoreError | None = None
        try:
            await self._search()
        except (Unavailable, Corrupt, Denied, OutOfRange) as error:
            unlisted = error  # without a listing, only orphans stay
        await self._catch_up()
        if unlisted is not None:
            raise unlisted

    async def finish(self) -> None:
        """Seal what would take long to be read again, and search for orphans if no run did.

        Raises what `step` raises.
        """
        options, collected = self._keys.options, self._keys.unsealed.collecting
        is_worth_it = (
            collected.items >= options.finish_items_min
            or collected.record_bytes >= options.finish_bytes_min
        )
        await self._writer.bury_tried()
        await self._seal_if(is_worth_it)
        await self._search()

    @property
    def urgent(self) -> bool:
        """Whether memory is full of items, or a file was left to be sealed."""
        return self._keys.unsealed.is_full or self._keys.unsealed.sealing is not None

    def _is_due(self) -> bool:
        options, collected = self._keys.options, self._keys.unsealed.collecting
        if collected.since_s is None:
            return False
        age_s = self.tier.clock.monotonic_s() - collected.since_s
        return (
            self._keys.unsealed.is_full
            or collected.record_bytes >= options.covered_bytes_max
            or age_s >= options.age_s_max
        )

    # Sealing.

    async def _seal_if(self, is_due: bool) -> None:  # noqa: FBT001 - as it says
        unsealed = self._keys.unsealed
        if unsealed.sealing is not None:  # memory was full, or an earlier run was interrupted
            part, name = self._published or (None, "")
            accepted = part is unsealed.sealing and name in self.tier.journal.planned.index_files
            if accepted or not unsealed.sealing.spans:  # all that it had may be cut off
                unsealed.sealed()
            else:
                await self._seal(unsealed.sealing)
        if is_due and unsealed.collecting.spans:
            await self._seal(unsealed.begin_sealing())

    async def _seal(self, part: Collected) -> None:
        """Write and publish a file of what was collected."""
        async with self._building.memory:
            if part.spans:
                await self._seal_alone(part)
            else:  # cut off while another file was being made
                self._keys.unsealed.sealed()

    async def _seal_alone(self, part: Collected) -> None:
        tier = self.tier
        generations = {queue: _generation(tier.state, queue) for queue in part.spans}
        coverage = {queue: tuple(spans) for queue, spans in part.spans.items()}
        parts = part.parts()
        if part.items <= INLINE_ITEMS_MAX:
            raw = _built(parts)
        else:
            raw = await asyncio.to_thread(_built, parts)
        rows = tuple(
            (queue, QueueOffset(a), QueueOffset(b))
            for queue, spans in sorted(coverage.items())
            for a, b in spans
        )
        file = await self._writer.write(raw, rows)
        name = file.object_name
        # From here to the acceptance by the journal nothing else runs: no cut comes in between.
        planned = tier.journal.planned
        if any(_generation(planned, queue) != seen for queue, seen in generations.items()):
            return  # cut meanwhile: the next run makes another file of what is left
        self._published = (part, name)
        await tier.journal.publish([PutIndexFile(file)])
        self._keys.unsealed.sealed()
        self._published = None
        self._writer.settled(name)
        self._sealed += 1

    async def _search(self) -> None:
        """Give tombstones to files of earlier owners that were never published. One listing."""
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
        await self.tier.bury(orphans)
        self._searched = True

    # Catching up.

    async def _catch_up(self) -> None:
        """Read messages whose keys are nowhere, as many as one run may."""
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
        """By queue, the offsets whose keys are nowhere. No request."""
        found: dict[QueueId, list[Span]] = {}
        for number, queue in enumerate(self._keys.doubted()):
            if number % QUEUES_PER_TURN == QUEUES_PER_TURN - 1:  # of all queues, after a start
                await self.tier.clock.sleep(0)
            if spans := self._keys.missing_of(queue):
                found[queue] = spans
        return found

    async def _read_around(self, queue: QueueId, span: Span, left: int) -> int:
        """Take the keys of a span some of whose files are lost, file by file; what is left.

        The next run tries the lost ones again, for they may be brought back.
        """
        record = self.tier.state.queues.get(queue)
        if record is None:
            return left
        try:
            edges = await self._edges(record)
        except (Corrupt, Denied, OutOfRange):
            return left  # of a manifest that is lost, too, nothing can be told
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
        """The offsets at which a queue's files begin, of both kinds. A request a manifest."""
        container = MessageQueueContainer(
            record.id, lambda _: record, self.tier.store, self._manifests
        )
        logs = await container.segments(SegmentType.COMMIT_LOG)
        units = await container.segments(SegmentType.CONSUME_QUEUE)
        edges = {int(one.extents[0].first_offset) for one in logs if one.extents}
        return sorted(edges | {one.base // UNIT_BYTES for one in units})

    async def _read(self, queue: QueueId, span: Span, left: int) -> int:
        """Take the keys of a span, as far as `left` bytes go; how many are left."""
        at, end = span
        while at < end and left > 0:
            record = self.tier.state.queues.get(queue)
            if record is None or record.min_offset > at:
                break  # deleted meanwhile
            container = MessageQueueContainer(
                queue, self.tier.state.queues.get, self.tier.store, self._manifests
            ).as_of(record)
            bytes_max = min(PIECE_BYTES, left)
            found = await read_verified_records(
                container, QueueOffset(at), QueueOffset(end), bytes_max=bytes_max
            )
            left -= len(found.data) + 1
            sound = 0
            for first, last in _runs(found.offsets):
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
                taken = self._keys.take(queue, begin, begin + last - first, keys)
                self._caught_up += (last - first) * taken
            if sound < found.end - at:
                runs = _runs(found.offsets)
                sound_spans = [
                    (int(found.offsets[a]), int(found.offsets[b - 1]) + 1) for a, b in runs
                ]
                damaged = self._damaged.setdefault((queue, record.generation), [])
                damaged += without([(at, found.end)], sound_spans)
            await self._seal_if(self._is_due())
            at = found.end
        return left

    @property
    def figures(self) -> Mapping[str, int]:
        """Files sealed, items in memory, messages that were read again for their keys."""
        return {
            "index_files_sealed": self._sealed,
            "index_items_unsealed": self._keys.unsealed.items,
            "index_messages_read": self._caught_up,
        }

    def check(self) -> None:
        """Assert what the collector's items promise."""
        self._keys.check()


def _generation(state: TierState, queue: QueueId) -> int | None:
    record = state.queues.get(queue)
    return None if record is None else record.generation


def _built(parts: Sequence[KeyItems]) -> NDArray[np.uint8]:
    """The bytes of a file of these items."""
    items = joined(parts)
    begin = fitting_begin(int(items["store_timestamp"].min())) if len(items) else 0
    return seal_index(items, slots=fitting_slots(len(items)), begin_timestamp=begin)


def _runs(offsets: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Rows `[first, last)` whose offsets follow each other."""
    cuts = np.flatnonzero(np.diff(offsets) != 1) + 1
    edges = [0, *cuts.tolist(), len(offsets)]
    return [(a, b) for a, b in pairwise(edges) if a < b]
