"""Copies of an offload: segments are copied, read back and published in order."""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NamedTuple, TypeVar

from container.errors import BytesMissing, Refused
from container.metadata.objects import own_file, references, release_of
from container.metadata.operations import (
    ManifestSwap,
    OffloadSegments,
    RepackedRun,
)
from container.metadata.records import Extent, ManifestRef, Queue, Segment, Tombstone
from container.move.offload_plan import Held, pieces_of_extent, runs_of
from container.names.queue_id import QueueId, SegmentType
from container.names.rocketmq import segment_name
from container.options import UpkeepOptions
from container.queue.manifest import ManifestReader
from container.queue.positions import begins_in_gap
from container.record.checksum import crc32c
from container.steps import ManifestWriter, OwnedTier
from provider.disk_cache.use import cache_use
from provider.errors import Corrupt, OutOfRange, StoreError
from provider.file_segments import FileSegments, SegmentSlice
from provider.object_store import Buffer
from provider.ranges import ByteRange
from provider.stores.two_stores import is_offloaded

CopyT = TypeVar("CopyT")


class CopiesAhead(Generic[CopyT]):
    """Copies of segments, made ahead of their publication and taken in the given order.

    A1  Copies in progress hold `offload_bytes_in_flight_max` bytes at most, or there is only one.
    A2  At most `offload_copies_max` copies were begun and not taken.
    """

    def __init__(
        self,
        wanted: Sequence[Held],
        copy: Callable[[Held], Coroutine[Any, Any, CopyT]],
        options: UpkeepOptions,
        group: asyncio.TaskGroup,
    ) -> None:
        self._left = deque(wanted)
        self._copy = copy
        self._options = options
        self._group = group
        self._begun: deque[tuple[Held, asyncio.Task[CopyT | StoreError]]] = deque()
        self._bytes = 0
        self._fill()

    def __repr__(self) -> str:
        return f"<CopiesAhead: {len(self._begun)} begun of {self._bytes} bytes>"

    async def take(self, one: Held) -> CopyT:
        """Wait for the copy of a segment, which must be the next one.

        Raises:
            StoreError: the copy failed.
        """
        held, task = self._begun[0]
        assert held is one, "copies are taken in order"
        found = await task
        self._begun.popleft()
        self._fill()
        if isinstance(found, StoreError):
            raise found
        return found

    def stop(self) -> None:
        """Begin no other copy, and cancel those in progress."""
        self._left.clear()
        for _, task in self._begun:
            task.cancel()

    def left(self) -> list[CopyT]:
        """Finished copies that were not taken, once all tasks have ended."""
        done = (task.result() for _, task in self._begun if not task.cancelled())
        return [one for one in done if not isinstance(one, StoreError)]

    def _fill(self) -> None:
        """Begin as many copies as the limits allow."""
        options = self._options
        while self._left and len(self._begun) < options.offload_copies_max:
            size = copy_bytes(self._left[0], options)
            if self._bytes and self._bytes + size > options.offload_bytes_in_flight_max:
                return
            one = self._left.popleft()
            self._bytes += size
            self._begun.append((one, self._group.create_task(self._outcome(one, size))))

    async def _outcome(self, one: Held, size: int) -> CopyT | StoreError:
        """Return the copy, or its error: it must not cancel the other copies."""
        try:
            return await self._copy(one)
        except StoreError as error:
            return error
        finally:
            self._bytes -= size
            self._fill()


def copy_bytes(one: Held, options: UpkeepOptions) -> int:
    """Memory of a segment's copy in bytes: its longest object, twice."""
    runs = runs_of(one.segment.extents, options.repack_bytes_max)
    lengths = (sum(extent.length for extent in run) for run in runs)
    return 2 * min(max(lengths), max(options.repack_bytes_max, options.offload_extent_bytes_max))


@asynccontextmanager
async def copies_ahead(
    wanted: Sequence[Held],
    copy: Callable[[Held], Coroutine[Any, Any, CopyT]],
    options: UpkeepOptions,
    abandon: Callable[[CopyT], None],
) -> AsyncGenerator[CopiesAhead[CopyT]]:
    """Begin to copy. The end of the block cancels copies in progress, and abandons those not taken.

    An error of the block is raised unchanged.
    """
    failed: Exception | None = None
    copies: CopiesAhead[CopyT] | None = None
    try:
        async with asyncio.TaskGroup() as group:
            copies = CopiesAhead(wanted, copy, options, group)
            try:
                yield copies
            except Exception as error:  # noqa: BLE001 - the group would wrap it
                failed = error
            finally:
                copies.stop()
    finally:
        for one in copies.left() if copies is not None else ():
            abandon(one)
    if failed is not None:
        raise failed


OFFLOADED = "offloaded"
"""Reason in tombstones of the first store's copies."""
BATCH_BYTES = 256 << 20
"""Bytes of one queue that are published together. A manifest is written once for them."""
PLANS_MAX = 4
"""Attempts to plan a publication while the queue changes."""


class Copied(NamedTuple):
    """Segment, and the place of its copy in the second store."""

    segment: Segment
    extents: tuple[Extent, ...]


@dataclass(slots=True)
class Done:
    """Offloaded and damaged segments of a queue."""

    segments: int = 0
    bytes: int = 0
    damaged: list[tuple[Segment, StoreError]] = field(
        default_factory=list[tuple[Segment, StoreError]]
    )
    """Segments that stay because bytes of them are damaged or lost, with the reason."""


class _Plan(NamedTuple):
    """Operation that publishes some copies, and those left out because their segments are gone."""

    operation: OffloadSegments
    written: tuple[str, ...]
    """Manifests that were written for it."""
    planned_on: Queue
    left_out: tuple[Copied, ...]


class Offloader:
    """Offloads segments: concurrent copies, sequential publications.

    Cost of a segment: a read of its bytes from the first store, and for each `repack_bytes_max` of
    it one create and one read of the second store. One entry for 256 MiB of a queue. Two requests
    for each manifest that lists some of them. Memory: `offload_bytes_in_flight_max`.
    """

    def __init__(self, tier: OwnedTier, segments: FileSegments, manifests: ManifestReader) -> None:
        """`segments` are the parts of the second store."""
        self._tier = tier
        self._segments = segments
        self._manifests = manifests
        self._writer = ManifestWriter(tier)

    def __repr__(self) -> str:
        return f"<Offloader to {self._segments!r}>"

    def copies(self, wanted: Sequence[Held]) -> AbstractAsyncContextManager[CopiesAhead[Copied]]:
        """Begin to copy sealed segments of any queues. They are offloaded in this order."""
        return copies_ahead(wanted, self._copied, self._tier.options, self._abandon_copy)

    async def offload(
        self, queue: QueueId, wanted: Sequence[Held], copies: CopiesAhead[Copied]
    ) -> Done:
        """Offload sealed segments of a queue. Segments removed since are left out.

        Raises:
            Corrupt: the second store returned other bytes than were written. Earlier segments are
                published.
            Unavailable, Denied: one of the stores does not answer, or refuses. Likewise.
            Fenced: a newer owner has the tier.
        """
        await self._writer.tombstone_tried()
        done = Done()
        batch: list[Copied] = []
        failed: StoreError | None = None
        for number, one in enumerate(wanted):
            try:
                batch.append(await copies.take(one))
            except (BytesMissing, Corrupt, OutOfRange) as error:
                if is_offloaded(error.path):
                    failed = error
                else:
                    done.damaged.append((one.segment, error))
            except StoreError as error:
                failed = error
            full = sum(copied.segment.size for copied in batch) >= BATCH_BYTES
            if batch and (full or failed or number == len(wanted) - 1):
                for segment in await self._publish(queue, batch):
                    done.segments += 1
                    done.bytes += segment.size
                batch = []
            if failed is not None:
                raise failed
        return done

    async def _copied(self, one: Held) -> Copied:
        """Copy a segment, and verify the copy by reading it back."""
        queue, segment = one
        extents: list[Extent] = []
        options = self._tier.options
        try:
            for run in runs_of(segment.extents, options.repack_bytes_max):
                if run[0].length > options.offload_extent_bytes_max:
                    await self._copy_in_pieces(queue, segment, run[0], extents)
                else:
                    extents += await self._copy(queue, segment, run)
        except BaseException:
            self._abandon(extents)
            raise
        return Copied(segment, tuple(extents))

    async def _copy_in_pieces(
        self, queue: QueueId, segment: Segment, extent: Extent, made: list[Extent]
    ) -> None:
        """Copy a long extent in pieces.

        The pieces are extents of their own, and are added to `made`.
        """
        own = segment_name(queue, segment.type, segment.base)
        options, store = self._tier.options, self._tier.store
        bytes_max = min(options.repack_bytes_max, options.offload_extent_bytes_max)
        known = self._tier.state.queues.get(queue)
        is_lost = known is not None and begins_in_gap(known.gaps, extent)
        pieces = pieces_of_extent(store, segment.type, own, extent, bytes_max, is_lost=is_lost)
        try:
            async for piece in pieces:
                made += await self._placed(own, [piece.extent], [piece.body])
        except OutOfRange as error:
            raise BytesMissing.of(error) from error

    async def _copy(self, queue: QueueId, segment: Segment, run: Sequence[Extent]) -> list[Extent]:
        """Copy adjacent extents into one object. Return them with their new places."""
        own, store = segment_name(queue, segment.type, segment.base), self._tier.store
        wanted = [
            (one.object_name or own, ByteRange(one.object_offset, one.object_offset + one.length))
            for one in run
        ]
        try:
            with cache_use(past=True):
                bodies = await store.read_many(wanted)
        except OutOfRange as error:
            raise BytesMissing.of(error) from error
        sums = [crc32c(body) for body in bodies]
        for one, (name, place), found in zip(run, wanted, sums, strict=True):
            if one.crc32c not in {None, found}:
                reason = f"CRC-32C of {one.length} bytes is not that of its extent"
                raise Corrupt(reason, name, place.start)
        summed = [one._replace(crc32c=found) for one, found in zip(run, sums, strict=True)]
        return await self._placed(own, summed, bodies)

    async def _placed(self, own: str, run: Sequence[Extent], bodies: list[Buffer]) -> list[Extent]:
        """Write adjacent extents with known checksums to one object, and read it back.

        `bodies` is empty afterwards.
        """
        (place,) = await self._segments.write(
            [SegmentSlice(own, run[0].position, tuple(bodies))], alone=True
        )
        bodies.clear()
        moved = [
            one._replace(
                object_name=place.object_name,
                object_offset=place.object_offset + one.position - run[0].position,
            )
            for one in run
        ]
        try:
            await self._verify(moved)
        except BaseException:
            self._abandon(moved)
            raise
        return moved

    async def _verify(self, extents: Sequence[Extent]) -> None:
        """Verify a whole object by reading it back.

        Raises:
            Corrupt: it differs from what was written.
        """
        name = extents[0].object_name
        with cache_use(past=True):
            raw: Buffer = await self._tier.store.read(name)
        view = memoryview(raw)
        whole = sum(one.length for one in extents)
        same = len(view) == whole and all(
            crc32c(view[one.object_offset : one.object_offset + one.length]) == one.crc32c
            for one in extents
        )
        if not same:
            reason = f"the second store gave back other bytes than the {whole} that it was given"
            raise Corrupt(reason, name)

    async def _publish(self, queue: QueueId, batch: Sequence[Copied]) -> list[Segment]:
        """Publish copies of a queue in one entry. Return the segments that still existed."""
        journal = self._tier.journal
        for _ in range(PLANS_MAX):
            plan = await self._plan(queue, batch)
            if plan is None:
                break
            current = journal.planned.queues.get(queue)
            if current is not None and _still_holds(plan, current):
                operation = replace(
                    plan.operation, generation=current.generation, repacks=current.repacks
                )
                try:
                    await journal.publish([operation])  # no await since the comparison
                except Refused:
                    if journal.planned.queues.get(queue) is current:
                        self._abandon_all(batch)
                        raise
                else:
                    self._writer.settled(plan.written)
                    self._abandon_all(plan.left_out)
                    gone = {id(one) for one in plan.left_out}
                    return [one.segment for one in batch if id(one) not in gone]
            await self._tier.add_tombstones(plan.written)
            self._writer.settled(plan.written)
        self._abandon_all(batch)
        return []

    async def _plan(self, queue_id: QueueId, batch: Sequence[Copied]) -> _Plan | None:
        """Plan the publication of the copies on the present record. None if none remains."""
        queue = self._tier.journal.planned.queues.get(queue_id)
        if queue is None:
            return None
        tier, left = self._tier, {(one.segment.type, one.segment.base): one for one in batch}
        runs: list[RepackedRun] = []
        moved: list[Copied] = []
        for copied in batch:
            segment = copied.segment
            if _is_live(queue, segment):
                del left[segment.type, segment.base]
                moved.append(copied)
                count = len(segment.extents)
                runs.append(RepackedRun(segment.type, segment.base, 0, count, copied.extents))
        swaps: list[ManifestSwap] = []
        lost = Counter[str]()
        for ref in queue.manifests:
            inside = [one for one in left.values() if _may_list(ref, one.segment)]
            if not inside:
                continue
            try:
                listed = await self._manifests.segments(ref)
            except BytesMissing:
                continue  # replaced since: the plan will be invalid
            after, there = _with_copies(listed, left)
            if not there:
                continue
            for copied in there:
                del left[copied.segment.type, copied.segment.base]
            moved += there
            lost.update(references(listed))
            lost.subtract(references(after))
            made = await self._writer.write(queue_id, after, ref.level)
            swaps.append(ManifestSwap(ref.object_name, made))
        if not moved:
            return None
        due_ms = max(tier.due_ms(), tier.clock.now_ms() + int(1000 * tier.options.offload_lag_s))
        files = (own_file(queue_id, one.segment) for one in moved)
        dead = [Tombstone(name, due_ms, OFFLOADED) for name in files if name is not None]
        dead += [tier.tombstone(swap.replaced, OFFLOADED) for swap in swaps]
        release = release_of(lost, due_ms)
        operation = OffloadSegments(queue_id, 0, 0, tuple(runs), tuple(swaps), tuple(dead), release)
        written = tuple(swap.ref.object_name for swap in swaps)
        return _Plan(operation, written, queue, tuple(left.values()))

    def _abandon_all(self, copied: Sequence[Copied]) -> None:
        for one in copied:
            self._abandon_copy(one)

    def _abandon_copy(self, copied: Copied) -> None:
        self._abandon(copied.extents)

    def _abandon(self, extents: Sequence[Extent]) -> None:
        """Record objects that will never be referenced. `PartsStep` adds their tombstones."""
        known = self._segments.abandoned
        known.extend({one.object_name: None for one in extents}.keys() - set(known))


def _is_live(queue: Queue, segment: Segment) -> bool:
    """Whether the record has the segment, with its bytes at the same place."""
    return any(
        one.base == segment.base and one.extents == segment.extents and one.is_readable
        for one in queue.segments(segment.type)
    )


def _may_list(ref: ManifestRef, segment: Segment) -> bool:
    return ref.type == segment.type and ref.base <= segment.base < ref.end


def _with_copies(
    listed: Sequence[Segment], copies: Mapping[tuple[SegmentType, int], Copied]
) -> tuple[list[Segment], list[Copied]]:
    """Segments of a manifest with the copies' extents, and the copies used. Pure."""
    after: list[Segment] = []
    there: list[Copied] = []
    for segment in listed:
        copied = copies.get((segment.type, segment.base))
        if copied is not None and copied.segment.extents == segment.extents:
            there.append(copied)
            segment = replace(segment, extents=copied.extents)  # noqa: PLW2901 - as it will be
        after.append(segment)
    return after, there


def _still_holds(plan: _Plan, queue: Queue) -> bool:
    """Whether a record still has the parts that a plan replaces. Commits do not conflict."""
    if queue is plan.planned_on:
        return True
    before = plan.planned_on
    names = {ref.object_name for ref in queue.manifests}
    runs = {(run.type, run.base) for run in plan.operation.runs}
    wanted = [
        one
        for kind in {type_ for type_, _ in runs}
        for one in before.segments(kind)
        if (kind, one.base) in runs
    ]
    return (
        queue.generation == before.generation
        and all(swap.replaced in names for swap in plan.operation.manifests)
        and all(_is_live(queue, one) for one in wanted)
    )
