"""Logs in memory for the offline scanner: records, where they lie, and splits over them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from container.names.queue_id import QueueId
from container.record.message import StoredMessage
from provider.sequential import ObjectRange
from tests.support.messages import with_record_crc
from tieredstore.offline.scan.log_scan import LogScan
from tieredstore.offline.scan.split import LogGap, LogPiece, ScanReport, Split

OBJECT = "segment"


@dataclass
class MemorySource:
    """A `ByteSource` of bytes; notes what was read."""

    objects: Mapping[str, bytes | bytearray]
    reads: list[ObjectRange] = field(default_factory=list[ObjectRange])

    def expect(self, ranges: Sequence[ObjectRange]) -> None:
        self.expected = list(ranges)

    def read_into(self, name: str, start: int, view: memoryview) -> int:
        self.reads.append(ObjectRange(name, start, len(view)))
        found = self.objects.get(name, b"")[start : start + len(view)]
        view[: len(found)] = found
        return len(found)

    def close(self) -> None:
        """Nothing is held."""


@dataclass
class Log:
    """The log of one queue in one segment, whose first byte is position `base`."""

    queue: QueueId
    base: int
    raw: bytearray
    starts: list[int]
    """Of each record in `raw`."""

    def source(self) -> MemorySource:
        return MemorySource({OBJECT: self.raw})

    @property
    def end(self) -> int:
        return self.base + len(self.raw)

    def record(self, number: int) -> tuple[int, int]:
        """First byte of a record in `raw`, and its end."""
        return self.starts[number], [*self.starts, len(self.raw)][number + 1]

    def split(self, start: int | None = None, end: int | None = None, **changes: int) -> Split:
        """The part `[start, end)` of the log; all of it unless said."""
        begin = self.base if start is None else start
        anchor = changes.get("anchor", self.base if begin == self.base else None)
        piece = LogPiece(self.base, len(self.raw), OBJECT, 0)
        limit = changes.get("limit", self.end)
        return Split(self.queue, begin, self.end if end is None else end, anchor, limit, (piece,))

    def splits(self, length: int, *, anchored: bool = False) -> list[Split]:
        """The log in parts of so many bytes; only the first begins where a record is known to be.

        `anchored`: all follow the chain from the log's beginning.
        """
        bounds = [*range(self.base, self.end, length), self.end]
        anchor = {"anchor": self.base} if anchored else {}
        return [self.split(a, b, **anchor) for a, b in pairwise(bounds) if a < b]


def log_of(
    messages: Iterable[StoredMessage],
    queue: QueueId,
    base: int = 0,
    body_at: Callable[[int, int], bytes] | None = None,
    *,
    with_crc: Iterable[int] = (),
) -> Log:
    """Messages back to back, each with its own position.

    `body_at`, of number and position, gives other bodies than the messages have; `with_crc` are the
    numbers of those that end with a checksum of the whole record.
    """
    raw, starts = bytearray(), list[int]()
    chosen = set(with_crc)
    for number, message in enumerate(messages):
        position = base + len(raw)
        starts.append(len(raw))
        placed = message._replace(physical_offset=position)
        if body_at is not None:
            placed = StoredMessage.compose(
                queue.topic,
                queue.queue_id,
                message.queue_offset,
                body=body_at(number, position),
                properties=message.properties,
                store_timestamp=message.store_timestamp,
                physical_offset=position,
            )
        raw += with_record_crc(placed) if number in chosen else placed.encode()
    return Log(queue, base, raw, starts)


@dataclass
class Scanned:
    """What a scan of several splits found."""

    records: list[tuple[int, bytes]] = field(default_factory=list[tuple[int, bytes]])
    """Position and bytes, in the order of the splits."""
    reports: list[ScanReport] = field(default_factory=list[ScanReport])
    gaps: list[LogGap] = field(default_factory=list[LogGap])


def scanned(
    log: Log, splits: Iterable[Split], *, verify_bodies: bool = False, keeps_missing: bool = False
) -> Scanned:
    """Scan each split by itself; gaps are noted."""
    found = Scanned()
    for split in splits:
        report = ScanReport(split)
        scan = LogScan(
            log.source(),
            split,
            report=report,
            on_gap=found.gaps.append,
            verify_bodies=verify_bodies,
            keeps_missing=keeps_missing,
        )
        for chunk in scan:
            for start, size, at in zip(chunk.starts, chunk.sizes, chunk.positions, strict=True):
                found.records.append((int(at), chunk.raw[start : start + size].tobytes()))
        found.reports.append(report)
    return found
