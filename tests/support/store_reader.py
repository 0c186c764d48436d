"""What a reader sees of a whole store's tier, and what must hold of it."""

from dataclasses import dataclass, field

from container.check.tier import check_tier
from container.metadata.records import Queue
from container.names.queue_id import QueueId, SegmentType
from container.tier import Tier
from container.tier_view import TierReader
from provider.errors import Corrupt, StoreError
from provider.object_store import ObjectStore
from provider.ranges import ByteRange, QueueOffset
from tests.support.fake_hot_log import FakeHotLog, FakeQueue

PHYSICAL_OFFSET = slice(28, 36)


@dataclass
class QueueContents:
    """What a reader sees of one queue."""

    record: Queue
    log: bytes
    log_start: int = 0
    """Position of the first byte in `log`; higher than 0 after expiry."""
    offsets: list[int] = field(default_factory=list[int])
    units: bytes = b""
    segments: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    """(type, base, size) of each."""

    def record_at(self, index: int) -> bytes:
        unit = self.units[20 * index : 20 * index + 20]
        position, size = int.from_bytes(unit[:8]), int.from_bytes(unit[8:12])
        position -= self.log_start
        return self.log[position : position + size]

    def after_expiry(self, now: "QueueContents") -> "QueueContents":
        """What of this is still there `now`, when the oldest messages may have gone."""
        gone = sum(offset < now.record.min_offset for offset in self.offsets)
        log = self.log[max(0, now.log_start - self.log_start) :]
        return QueueContents(
            self.record, log, now.log_start, self.offsets[gone:], self.units[20 * gone :]
        )


async def contents(reader: TierReader | Tier) -> dict[QueueId, QueueContents]:
    """Everything that is published, read through containers."""
    return {queue: await queue_contents(reader, queue) for queue in sorted(reader.state.queues)}


async def queue_contents(reader: TierReader | Tier, queue: QueueId) -> QueueContents:
    container = reader.container(queue)
    assert container is not None
    record = container.record
    end = record.flat_end(SegmentType.COMMIT_LOG)
    logs = await container.segments(SegmentType.COMMIT_LOG)
    begin = logs[0].base if logs else end
    log = bytes(await container.log(ByteRange(begin, end))) if end > begin else b""
    seen = QueueContents(record, log, begin)
    start = record.min_offset
    spans: list[tuple[int, int]] = []
    for gap in record.gaps:
        if gap.end <= start:
            continue
        spans.append((start, gap.start))
        start = gap.end
    for low, high in [*spans, (start, record.next_offset)]:
        if low < high:
            units = await container.units(QueueOffset(low), QueueOffset(high))
            seen.units += units.tobytes()
            seen.offsets += range(low, high)
    for kind in (SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE):
        seen.segments += [(kind, s.base, s.size) for s in await container.segments(kind)]
    return seen


def assert_follows(seen: QueueContents, hot: FakeQueue, since: int = 0) -> None:
    """Every tiered message from the index `since` on is the hot log's, bytes 28..35 apart."""
    for index in range(since, len(seen.offsets)):
        offset = seen.offsets[index]
        tiered, written = bytearray(seen.record_at(index)), bytearray(hot.records[offset])
        assert int.from_bytes(tiered[PHYSICAL_OFFSET]) == int.from_bytes(
            seen.units[20 * index : 20 * index + 8]
        ), f"offset {offset} has another position in its record than in its unit"
        tiered[PHYSICAL_OFFSET] = written[PHYSICAL_OFFSET] = bytes(8)
        assert tiered == written, f"offset {offset} of {seen.record.id} is another message"


class Follower:
    """A reader beside the owners: what it has once seen must stay, to the byte."""

    def __init__(self, memory: ObjectStore, hot: FakeHotLog) -> None:
        self._memory = memory
        self._hot = hot
        self._reader: TierReader | None = None
        self.seen: dict[QueueId, QueueContents] = {}
        self.may_expire = False
        self.may_delete = False
        self.may_cut = False
        self.refreshes = 0
        self._may_be_behind = False

    def forget(self) -> None:
        """The tier was put back from a copy: what was there may be gone.

        A reader learns it by the next entry, or by a look that doubts what it knows.
        """
        self.seen.clear()
        self._may_be_behind = True

    async def look(self) -> None:
        """Read everything anew and compare it with what was there, and with the hot log."""
        try:
            if self._reader is None:
                self._reader = await TierReader.open(self._memory, verify=True)
            await self._reader.refresh(doubted=self._may_be_behind)
            self._may_be_behind = False
        except StoreError as error:
            if isinstance(error, Corrupt):
                raise
            return  # there is no tier yet
        self.refreshes += 1
        now = await contents(self._reader)
        assert self.may_delete or self.seen.keys() <= now.keys(), "a queue went"
        for queue, new in now.items():
            old = self.seen.get(queue)
            since = 0
            if old is not None and new.record.generation != old.record.generation:
                assert self.may_delete or self.may_cut, "nothing was cut or deleted"
                old = None
            if old is not None:
                assert self.may_expire or new.record.min_offset == old.record.min_offset
                old = old.after_expiry(new)
                since = len(old.offsets)
                assert new.log.startswith(old.log), f"published bytes of {queue} changed"
                assert new.units.startswith(old.units), f"published units of {queue} changed"
                assert new.offsets[:since] == old.offsets
                lost, now_lost = (
                    lost_from(one.record, new.record.min_offset) for one in (old, new)
                )
                assert now_lost[: len(lost)] == lost
            assert_follows(new, self._hot.queues[queue], since)
        self.seen = now


def lost_from(queue: Queue, first: int) -> list[int]:
    """The offsets of gaps from one on; those of expired messages may leave the record."""
    return [n for gap in queue.gaps for n in range(max(gap.start, first), gap.end)]


async def findings(memory: ObjectStore) -> list[str]:
    """What the checker says about the tier, with a reader of its own."""
    reader = await TierReader.open(memory, verify=True)
    return [str(finding) async for finding in check_tier(reader)]


async def orphan_manifests(memory: ObjectStore) -> set[str]:
    """Manifests that no queue refers to and no tombstone names."""
    reader = await TierReader.open(memory)
    known = {ref.object_name for q in reader.state.queues.values() for ref in q.manifests}
    listed = {entry.name for entry in await memory.list("@manifest/")}
    return listed - known - reader.state.tombstones.keys()
