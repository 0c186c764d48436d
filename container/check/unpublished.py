"""What lies behind the published ends: an interrupted commit, or what lost journal entries said.

Nothing tells the two apart, so both are told. A commit that is under way looks the same until it is
published, so a queue that goes on meanwhile is not told. Nor is what a repair has cut off: it lies
behind a segment that is closed, where no commit writes, or is the same in the copy that it made.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from container.check.finding import Finding
from container.metadata.object_names import object_name
from container.metadata.records import Queue
from container.metadata.state import TierState
from container.names.queue_id import FLAT_FILES, QueueId, SegmentType
from container.names.rocketmq import parse_segment_name, segment_name
from container.names.tier_objects import KeptName
from container.record.checksum import body_crc_of, record_crc_is_valid
from container.record.header import RecordHeader, locate_parts
from provider.errors import Corrupt, Denied, NotFound, OutOfRange
from provider.object_store import Buffer, ObjectStore
from provider.ranges import ByteRange
from provider.stores.packed_segments import PartName

LOOK_BYTES = 1 << 20
"""Records behind an end are counted in so many bytes at most."""
UNPUBLISHED = "unpublished"
UNKNOWN_QUEUE = "unknown-queue"


@dataclass(frozen=True, slots=True)
class Tail:
    """Bytes behind the published end of a queue's CommitLog."""

    queue: QueueId
    holder: str
    start: int
    """First byte in the file."""
    size: int
    """Length of the file."""
    log_position: int
    next_offset: int
    copies: tuple[str, ...]
    """Copies of this file that cuts have made."""


def tails(state: TierState, sizes: Mapping[str, int]) -> list[Tail]:
    """Where the record behind the last published one of each queue would lie. Pure, O(queues)."""
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
            return None  # no commit writes behind the end of a part, or of a closed segment
    else:
        holder, start = next_file, 0
    if sizes.get(holder, 0) <= start:
        return None
    made = tuple(copies.get(holder, ()))
    return Tail(queue.id, holder, start, sizes[holder], end, queue.next_offset, made)


async def look_behind(store: ObjectStore, tail: Tail) -> Finding | None:
    """Whether whole, valid records of the queue lie behind its end. One request, or two."""
    end = min(tail.size, tail.start + LOOK_BYTES)
    try:
        raw = memoryview(await store.read(tail.holder, ByteRange(tail.start, end)))
    except (Denied, NotFound, OutOfRange):
        return None
    count, length = _whole_records(raw, tail)
    if not count or await _is_cut_off(store, tail, raw[:length]):
        return None
    detail = (
        f"{count} whole records behind the published end, offsets {tail.next_offset} to "
        f"{tail.next_offset + count - 1}: a commit was interrupted, or the journal entries that "
        f"published them are lost; `tier` publishes what the broker has"
    )
    return Finding(UNPUBLISHED, tail.holder, tail.start, detail)


async def _is_cut_off(store: ObjectStore, tail: Tail, raw: Buffer) -> bool:
    """Whether a cut has made a copy of these bytes."""
    place = ByteRange(tail.start, tail.start + len(raw))
    for name in tail.copies:
        try:
            if bytes(await store.read(name, place)) == bytes(raw):
                return True
        except (Denied, NotFound, OutOfRange):
            continue
    return False


def _whole_records(raw: memoryview, tail: Tail) -> tuple[int, int]:
    """How many records that can be the queue's next ones `raw` begins with, and their length."""
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
    """The finding for files of a queue that the tier does not have."""
    known = [sizes[name] for name in names if name in sizes]
    detail = (
        f"the tier has no such queue, but {len(known)} files of it with {sum(known)} bytes: its "
        f"first commit was interrupted, it was left out of an import, or the journal entries that "
        f"published it are lost"
    )
    return Finding(UNKNOWN_QUEUE, str(queue), 0, detail)


def unclaimed_parts(state: TierState, names: Iterable[str]) -> list[str]:
    """Parts of the present owner that nothing refers to (yet). Pure."""
    parts = ((name, PartName.parse(name)) for name in names)
    return [name for name, part in parts if part is not None and part.epoch >= state.broker.epoch]
