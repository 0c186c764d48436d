"""Check of a whole tier: published bytes, and bytes past the published ends."""

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from container.check.index_files import check_index_files, is_for_a_broker
from container.check.metadata import (
    check_journal,
    check_parts,
    listed_objects,
    own_objects,
    unused_objects,
)
from container.check.queue import still_stands, verify_queue
from container.errors import Finding
from container.metadata.objects import object_name, object_names
from container.metadata.records import Queue
from container.metadata.state import TierState
from container.names.queue_id import FLAT_FILES, QueueId, SegmentType
from container.names.rocketmq import parse_segment_name, segment_name
from container.names.tier_objects import IndexBase, KeptName
from container.queue.manifest import ManifestReader
from container.queue.message_queue_container import MessageQueueContainer
from container.record.checksum import body_crc_of, record_crc_is_valid
from container.record.header import RecordHeader, locate_parts
from container.tier_view import ATTEMPTS_MAX, TierView, take_newer
from provider.clock import Clock
from provider.errors import Corrupt, Denied, NotFound, OutOfRange, StoreError
from provider.object_store import Buffer, ObjectStore
from provider.ranges import ByteRange
from provider.stores.packed_segments import PartName
from provider.stores.two_stores import is_offloaded

TAIL_BYTES = 1 << 20
"""Limit of bytes in which records after an end are counted."""
UNPUBLISHED = "unpublished"
UNKNOWN_QUEUE = "unknown-queue"


@dataclass(frozen=True, slots=True)
class Tail:
    """Bytes after the published end of a queue's CommitLog."""

    queue: QueueId
    holder: str
    start: int
    """First byte in the file."""
    size: int
    """Length of the file in bytes."""
    log_position: int
    next_offset: int
    copies: tuple[str, ...]
    """Copies of this file, made by truncations."""


def tails(state: TierState, sizes: Mapping[str, int]) -> list[Tail]:
    """Bytes after the published end of each queue's log. Pure, O(queues)."""
    found: list[Tail] = []
    copies: dict[str, list[str]] = {}
    for name in state.tombstones:
        if (kept := KeptName.parse(name)) is not None:
            copies.setdefault(kept.segment, []).append(name)
    for queue in state.queues.values():
        tail = _tail(queue, sizes, copies)
        if tail is not None:
            found.append(tail)
    return found


def _tail(
    queue: Queue, sizes: Mapping[str, int], copies: Mapping[str, Sequence[str]]
) -> Tail | None:
    end = queue.flat_end(SegmentType.COMMIT_LOG)
    next_file = segment_name(queue.id, SegmentType.COMMIT_LOG, end)
    live = queue.commit_log
    if live and live[-1].extents and next_file not in sizes:
        extent = live[-1].extents[-1]
        holder, start = object_name(queue.id, live[-1], extent), extent.object_offset
        start += extent.length
        if extent.object_name or live[-1].sealed_ms is not None:
            return None  # no commit writes after the end of a part, or of a sealed segment
    else:
        holder, start = next_file, 0
    if sizes.get(holder, 0) <= start:
        return None
    made = tuple(copies.get(holder, ()))
    return Tail(queue.id, holder, start, sizes[holder], end, queue.next_offset, made)


async def records_past_end(store: ObjectStore, tail: Tail) -> Finding | None:
    """Search for whole, valid records of the queue after its end. One or two requests."""
    end = min(tail.size, tail.start + TAIL_BYTES)
    try:
        raw = memoryview(await store.read(tail.holder, ByteRange(tail.start, end)))
    except (Denied, NotFound, OutOfRange):
        return None
    count, length = _whole_records(raw, tail)
    if not count or await _is_cut_off(store, tail, raw[:length]):
        return None
    detail = (
        f"{count} whole records after the published end, offsets {tail.next_offset} to "
        f"{tail.next_offset + count - 1}: a commit was interrupted, or the journal entries that "
        f"published them are lost; `tier` publishes what the broker has"
    )
    return Finding(UNPUBLISHED, tail.holder, tail.start, detail)


async def _is_cut_off(store: ObjectStore, tail: Tail, raw: Buffer) -> bool:
    """Whether these bytes are in a copy that a truncation made."""
    place = ByteRange(tail.start, tail.start + len(raw))
    for name in tail.copies:
        try:
            if bytes(await store.read(name, place)) == bytes(raw):
                return True
        except (Denied, NotFound, OutOfRange):
            continue
    return False


def _whole_records(raw: memoryview, tail: Tail) -> tuple[int, int]:
    """Number of records that begin `raw` and may be the queue's next, and their length."""
    count = at = 0
    while at < len(raw):
        try:
            header = RecordHeader.decode(raw[at:], path=tail.holder, position=tail.start + at)
        except Corrupt:
            break
        record = raw[at : at + header.size]
        is_next = (
            header.queue_id == tail.queue.queue_id
            and header.queue_offset == tail.next_offset + count
            and header.physical_offset == tail.log_position + at
        )
        if not is_next or not _is_whole(record, tail):
            break
        count += 1
        at += header.size
    return count, at


def _is_whole(record: Buffer, tail: Tail) -> bool:
    try:
        header, parts = locate_parts(record, path=tail.holder, position=tail.start)
    except Corrupt:
        return False
    return (
        bytes(record[parts.topic : parts.topic_end]) == tail.queue.topic.encode()
        and body_crc_of(record[parts.body : parts.body_end]) == header.body_crc
        and record_crc_is_valid(record)
    )


def unknown_queues(state: TierState, names: Iterable[str]) -> dict[QueueId, list[str]]:
    """Segment files of queues that the tier does not have, by queue. Pure."""
    found: dict[QueueId, list[str]] = {}
    for name in names:
        parsed = parse_segment_name(name)
        if parsed is None or parsed.type not in FLAT_FILES or parsed.queue in state.queues:
            continue
        if name not in state.tombstones:
            found.setdefault(parsed.queue, []).append(name)
    return found


def unknown_queue(queue: QueueId, names: Iterable[str], sizes: Mapping[str, int]) -> Finding:
    """Finding for files of a queue that the tier does not have."""
    known = [sizes[name] for name in names if name in sizes]
    detail = (
        f"the tier has no such queue, but {len(known)} files of it with {sum(known)} bytes: its "
        f"first commit was interrupted, it was left out of an import, or the journal entries that "
        f"published it are lost"
    )
    return Finding(UNKNOWN_QUEUE, str(queue), 0, detail)


def unclaimed_parts(state: TierState, names: Iterable[str]) -> list[str]:
    """Unreferenced parts of the present owner, perhaps not published yet. Pure."""
    parts = ((name, PartName.parse(name)) for name in names)
    return [name for name, part in parts if part is not None and part.epoch >= state.broker.epoch]


WAITS_FOR_PARTS = 10
"""Waits for the publication of unreferenced parts: 20 seconds with those of `check`."""


def _unseen(_bytes: int) -> None:
    """Default progress callback: does nothing."""


async def check_tier(
    tier: TierView,
    *,
    journal: bool = True,
    bodies: bool = False,
    contents: bool = True,
    progress: Callable[[int], None] = _unseen,
    clock: Clock | None = None,
    settle_s: float = 0.0,
) -> AsyncIterator[Finding]:
    """Yield all defects of a tier. Never stops at the first finding.

    Checks both directions: everything in the metadata exists and is intact (objects, checksums,
    units, records, joins), and every object is in the metadata (orphans). Reads every byte once.
    Memory is some tens of MiB and the listing.

    Args:
        tier: the tier. A reader's metadata is refreshed after a suspected defect.
        journal: False for a tier of the Java store, which has none.
        bodies: True to decompress every compressed body too. An undecompressable one is a mistake
            of its producer, not damage of the tier.
        contents: False to read no messages, for a caller that does so itself (an audit).
        progress: called with the bytes of CommitLogs that were followed by units since the last
            call.
        clock: if given, bytes after the published ends are reported too.
        settle_s: seconds that a commit under way has for its publication, if there are such bytes.

    Raises:
        Unavailable: the storage does not answer, so the result is unknown.
    """
    sizes = await listed_objects(tier)
    if journal:
        async for finding in check_metadata(tier, sizes):
            yield finding
    async for finding in check_index_files(tier, sizes, contents=contents):
        yield finding
    known = set(own_objects(tier.state))
    for queue in sorted(tier.state.queues):
        findings = _check_queue(
            tier, queue, sizes, known, progress, bodies=bodies, contents=contents
        )
        async for finding in findings:
            yield finding
    async for finding in check_parts(tier):
        yield finding
    unclaimed = [name for name in sorted(sizes.keys() - known) if not is_metadata(name)]
    async for finding in check_unclaimed(tier, unclaimed, sizes):
        yield finding
    if clock is not None:
        async for finding in check_past_ends(tier, unclaimed, sizes, clock, settle_s):
            yield finding


def is_metadata(name: str) -> bool:
    """Whether an object holds no messages, by its name. `check_journal` checks these."""
    return name.startswith("@") and PartName.parse(name) is None


def may_be_a_commit(state: TierState, name: str) -> bool:
    """Whether an unpublished commit, which may never be published, may have created this object.

    A commit may end a segment and begin others, and the first commit of a queue is not recorded
    elsewhere. The next commit of that range writes the same files. A part or an index file can only
    be published while its creator owns the tier.
    """
    part = PartName.parse(name)
    if part is not None:
        return part.epoch >= state.broker.epoch
    base = IndexBase.parse(name)
    if base is not None:
        return base.epoch >= state.broker.epoch
    parsed = parse_segment_name(name)
    if parsed is None or parsed.type not in FLAT_FILES:
        return False
    queue = state.queues.get(parsed.queue)
    return queue is None or parsed.base >= queue.flat_end(parsed.type)


async def check_metadata(tier: TierView, sizes: Mapping[str, int]) -> AsyncIterator[Finding]:
    """Yield findings that two checks in a row agree on, or one if nothing has changed since."""
    seen, before = sizes, tier.state.sequence
    found = [finding async for finding in check_journal(tier.store, tier.state, seen)]
    for _ in range(ATTEMPTS_MAX):
        if not found:
            return
        await take_newer(tier)
        now = {entry.name: entry.size_bytes for entry in await tier.store.list("@")}
        was = {
            name: size
            for name, size in seen.items()
            if name.startswith("@") and not is_offloaded(name)
        }
        if now == was and tier.state.sequence == before:
            break
        seen, before = now, tier.state.sequence
        again = [finding async for finding in check_journal(tier.store, tier.state, seen)]
        settled = _keys(again) <= _keys(found)
        found = again
        if settled:
            break
    for finding in found:
        yield finding


def _keys(findings: Collection[Finding]) -> set[tuple[str, str, int]]:
    return {(one.finding, one.path, one.position) for one in findings}


async def _check_queue(
    tier: TierView,
    queue: QueueId,
    sizes: dict[str, int],
    known: set[str],
    progress: Callable[[int], None],
    *,
    bodies: bool,
    contents: bool,
) -> AsyncIterator[Finding]:
    """Check one queue, and again if the state that its findings depend on has changed.

    Adds the names of its objects to `known`.
    """
    reported: set[tuple[str, str, int]] = set()
    manifests = ManifestReader(tier.store)
    for attempt in range(ATTEMPTS_MAX):
        record = tier.queue(queue)
        if record is None:
            return
        container = MessageQueueContainer(queue, _always(record), tier.store, manifests)
        stands = True
        batches = verify_queue(
            container, tier.store, sizes, known, progress, bodies=bodies, contents=contents
        )
        async for batch in batches:
            if not batch:
                continue
            await take_newer(tier)
            stands = still_stands(record, tier.queue(queue)) or attempt == ATTEMPTS_MAX - 1
            if not stands:
                break
            for finding in batch:
                if _keys([finding]) <= reported:
                    continue
                reported |= _keys([finding])
                yield finding
        if stands:
            return
        progress = _unseen
        await _list_again(tier, queue, sizes)


def _always(record: Queue) -> Callable[[QueueId], Queue]:
    return lambda _: record


async def _list_again(tier: TierView, queue: QueueId, sizes: dict[str, int]) -> None:
    """Update `sizes` by the present objects in a queue's directory."""
    prefix = f"{queue}/"
    for name in [name for name in sizes if name.startswith(prefix)]:
        del sizes[name]
    sizes.update({entry.name: entry.size_bytes for entry in await tier.store.list(prefix)})


async def check_unclaimed(
    tier: TierView, names: Sequence[str], sizes: Mapping[str, int]
) -> AsyncIterator[Finding]:
    """Yield objects of no queue, unless a commit may have created them, or they are gone by now."""
    orphans = [name for name in names if not may_be_a_commit(tier.state, name)]
    if not orphans:
        return
    await take_newer(tier)
    state = tier.state
    owners = {parsed.queue for name in orphans if (parsed := parse_segment_name(name))}
    parts = any(PartName.parse(name) for name in orphans)
    queues = state.queues if parts else owners & state.queues.keys()
    known, _ = await published_names(tier, queues)
    for name in orphans:
        if name in known or may_be_a_commit(state, name):
            continue
        try:
            size = await tier.store.size(name)
        except NotFound:
            continue
        except Denied:
            size = sizes[name]
        if await is_for_a_broker(tier.store, name, size):
            continue
        yield Finding("orphan", name, 0, f"nothing refers to these {size} bytes")


async def published_names(
    tier: TierView, queues: Iterable[QueueId]
) -> tuple[set[str], StoreError | None]:
    """Names of the objects of these queues and the tier, and the error of an unreadable manifest.

    One request for each manifest. Memory: the names, about 100 bytes each.
    """
    lost: StoreError | None = None
    names = set(own_objects(tier.state))
    manifests = ManifestReader(tier.store, extents_max=0)  # each is read once
    for queue in sorted(queues):
        record = tier.queue(queue)
        if record is None:
            continue
        names.update(ref.object_name for ref in record.manifests)
        for kind in FLAT_FILES:
            names.update(object_names(queue, record.segments(kind)))
        for ref in record.manifests:
            try:
                names.update(object_names(queue, await manifests.segments(ref)))
            except (Corrupt, Denied, OutOfRange) as error:
                lost = lost or error
    return names, lost


async def check_past_ends(
    tier: TierView,
    unclaimed: Sequence[str],
    sizes: Mapping[str, int],
    clock: Clock,
    settle_s: float,
) -> AsyncIterator[Finding]:
    """Yield objects and records after the published ends that remain after a while.

    Parts get more time: an owner that merges publishes several together.
    """
    state = tier.state.copy()
    unpublished = [tail for tail in tails(state, sizes) if await records_past_end(tier.store, tail)]
    queues = unknown_queues(state, unclaimed)
    parts = unclaimed_parts(state, unclaimed)
    unused = list(unused_objects(state, sizes))
    if not unpublished and not queues and not parts and not unused:
        return
    await _pass(tier, clock, settle_s, WAITS_FOR_PARTS if parts else 1)
    for tail in unpublished:
        queue = tier.queue(tail.queue)
        if queue is not None and queue.next_offset == tail.next_offset:
            finding = await records_past_end(tier.store, tail)
            if finding is not None:
                yield finding
    # An owner may have deleted what `sizes` has.
    there = await listed_objects(tier) if queues or parts or unused else {}
    for queue_id in sorted(queues.keys() - tier.state.queues.keys()):
        if there.keys() & queues[queue_id]:
            yield unknown_queue(queue_id, queues[queue_id], there)
    if tier.state.sequence == state.sequence:
        for finding in (one for one in unused if one.path in there):
            yield finding
        for name in (name for name in parts if name in there):
            yield Finding(UNPUBLISHED, name, 0, f"no entry publishes these {sizes[name]} bytes")


async def _pass(tier: TierView, clock: Clock, seconds: float, times_max: int) -> None:
    """Wait until an entry is published, at most `times_max` times `seconds`."""
    sequence = tier.state.sequence
    for _ in range(times_max):
        await clock.sleep(seconds)
        await take_newer(tier)
        if tier.state.sequence != sequence:
            return
