"""Split: one worker's share of a scan and its result. Plain values that can be pickled."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Any, NamedTuple, Self
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from container.errors import Finding
from container.metadata.state import TierState
from container.names.queue_id import QueueId
from container.names.rocketmq import INT64_MAX
from container.record.unit import consecutive

Runs = list[tuple[int, int]]
"""Queue offsets `[first, end)`, in order of the log."""


def add_runs(runs: Runs, offsets: NDArray[np.int64]) -> None:
    """Add the offsets of some more messages, at least one; they may continue the last run."""
    for first, behind in consecutive(offsets):
        start, end = int(offsets[first]), int(offsets[behind - 1]) + 1
        if runs and runs[-1][1] == start:
            runs[-1] = (runs[-1][0], end)
        else:
            runs.append((start, end))


ALL_OFFSETS = (0, INT64_MAX)
ALL_TIMES = (-INT64_MAX - 1, INT64_MAX)
MISSING_BYTES = "the storage does not have these bytes any more"
"""Reason of a gap of published bytes that are not in the storage."""


class LogPiece(NamedTuple):
    """Bytes of a queue's log that lie in one object."""

    position: int
    """First byte in the log."""
    length: int
    object_name: str
    """Relative to the broker's directory."""
    object_offset: int
    """First byte in the object."""

    @property
    def end(self) -> int:
        """End in the log, exclusive."""
        return self.position + self.length

    def after(self, position: int) -> "LogPiece":
        """Return the rest from a log position on."""
        shift = position - self.position
        offset = self.object_offset + shift
        return LogPiece(position, self.length - shift, self.object_name, offset)


@dataclass(frozen=True, slots=True)
class TierPlace:
    """Place of a broker's tier, safe to send to other processes: it has no secret."""

    location: str = ""
    """The broker's directory: an absolute path, or a URL such as `s3://bucket/prefix/...`."""
    settings: tuple[tuple[str, str], ...] = ()
    """Keys of the configuration that say how an object store is reached; credentials come from the
    environment of each worker."""
    recorded_second: str = ""
    """Location of the second store in the journal; "" if it has none."""


class Seen(NamedTuple):
    """Identity of a tier and position of its journal, as a plan, a run or a stream saw it last.

    A worker or a later run may see another tier or an older state: where a replica lags, another
    directory is mounted, or the tier was put back from a copy. 0 in any field: not known.
    """

    begun_ms: int = 0
    """As in `Broker`."""
    sequence: int = 0
    """Number of the last journal entry."""
    epoch: int = 0
    owner: int = 0
    """Checksum of the text that identifies the owner: host, process and start of the process."""
    entry: int = 0
    """Checksum of the last entry."""

    @classmethod
    def of(cls, state: TierState, entry: int = 0) -> Self:
        """Return the position of a journal, whose last entry has the checksum `entry`."""
        broker = state.broker
        owner = crc32(broker.owner.encode())
        return cls(broker.begun_ms, state.sequence, broker.epoch, owner, entry)

    @classmethod
    def kept(cls, about: Mapping[str, Any]) -> Self:
        """Return the position that an export keeps."""
        return cls(*(about.get(name, 0) for name in cls._fields))

    def as_kept(self) -> dict[str, int]:
        """For an export's own record."""
        return {name: number for name, number in self._asdict().items() if number}

    def is_continued_by(self, now: Self, entry: int = 0) -> bool:
        """Whether `now` is the same or a later state of one history; False of an older copy.

        Only what is known on both sides is compared. A tier that was put back from an older copy
        has an earlier entry, another entry of that number, or another owner in that epoch.
        `entry`: checksum that the journal's entry `sequence` has now.
        """
        is_older = 0 < now.sequence < self.sequence or 0 < now.epoch < self.epoch
        is_other = 0 not in {entry, self.entry} and entry != self.entry
        of_other = now.epoch == self.epoch and 0 not in {now.owner, self.owner}
        return not (is_older or is_other or (of_other and now.owner != self.owner))


NOT_KNOWN = Seen()


@dataclass(frozen=True, slots=True)
class Split:
    """A part of one queue's log, for one worker."""

    queue: QueueId
    start: int
    end: int
    """The split owns the records that start in `[start, end)`; both are log positions."""
    anchor: int | None
    """A position at or before `start` where a record is known to begin: the chain of records is
    followed from there. None: none is known, and the first record is found by its own bytes."""
    limit: int
    """At or after `end`: no record that the split owns reaches beyond it. Here a record is known
    to begin, or the segment ends."""
    pieces: tuple[LogPiece, ...]
    """Adjacent pieces of the bytes `[anchor or start, limit)`, in order."""
    offsets: tuple[int, int] = ALL_OFFSETS
    """Queue offsets `[from, to)` of the messages that are wanted."""
    times_ms: tuple[int, int] = ALL_TIMES
    """Store timestamps `[from, to)` in Unix ms of the messages that are wanted."""
    place: TierPlace = TierPlace()
    """The tier; `sources.source_of` opens it."""
    generation: int | None = None
    """`Queue.generation` of the plan, by which bytes that moved since are found again; None where
    no journal says that: of a tier that RocketMQ's own store wrote, and of a split made by hand."""
    seen: Seen = NOT_KNOWN

    def __post_init__(self) -> None:
        first = self.first_byte
        touch = all(a.end == b.position for a, b in pairwise(self.pieces))
        if not (
            first <= self.start < self.end <= self.limit
            and self.pieces
            and touch
            and self.pieces[0].position <= first
            and self.pieces[-1].end >= self.limit
        ):
            raise ValueError(f"not a split: {self}")

    @property
    def first_byte(self) -> int:
        """Position of the first byte to read."""
        return self.start if self.anchor is None else self.anchor

    def place_of(self, position: int) -> tuple[str, int]:
        """The object that holds a byte of the log, and where in it."""
        for piece in self.pieces:
            if piece.position <= position < piece.end:
                return piece.object_name, piece.object_offset + position - piece.position
        return f"{self.queue}/COMMIT_LOG", position


@dataclass(frozen=True, slots=True)
class LogGap:
    """Bytes of a log in which no sound record is, though there should be."""

    queue: QueueId
    position: int
    length: int
    reason: str
    offset_before: int | None = None
    """Queue offset of the last message before it in the same split; None if there is none."""
    offset_behind: int | None = None
    """Queue offset of the first message after it; None if it ends with a segment or an extent."""
    shift: int = 0
    """Bytes by which whole records in it lie further on than they say; negative if bytes before
    them were lost."""
    shifted: int = 0
    """Number of consecutive records with that displacement."""

    @property
    def is_missing(self) -> bool:
        """Whether published bytes are not in the storage, which is no damage."""
        return self.reason == MISSING_BYTES

    @property
    def end(self) -> int:
        """End in the log, exclusive."""
        return self.position + self.length

    @property
    def finding(self) -> Finding:
        """Finding of an audit or a rebuild."""
        after = "" if self.offset_behind is None else f", the next message is {self.offset_behind}"
        shift = f"; {self.shifted} whole records lie {self.shift:+} bytes off" if self.shift else ""
        detail = f"{self.length} bytes hold no sound record: {self.reason}{after}{shift}"
        return Finding("log-gap", f"{self.queue}/COMMIT_LOG", self.position, detail)

    def __str__(self) -> str:
        where = f"{self.queue} at {self.position:,}, {self.length:,} bytes: {self.reason}"
        return f"{where} (whole records shifted by {self.shift:+,})" if self.shift else where


@dataclass(slots=True)
class ScanReport:
    """Report of a scan. Filled while it runs; complete once it has ended."""

    split: Split
    first: int | None = None
    """First place of the chain of records at or after `split.start`."""
    end: int | None = None
    """First place of the chain at or after `split.end`; None until the scan has ended."""
    records: int = 0
    """Records that the split owns, whether they were wanted or not."""
    bytes: int = 0
    """Length of those records together."""
    first_offset: int | None = None
    """Queue offset of the first of them."""
    last_offset: int | None = None
    gaps: list[LogGap] = field(default_factory=list[LogGap])
    """In order. A gap belongs to the split in which it begins."""


class NotMet(NamedTuple):
    """Two neighbours of which one ended where the other did not begin."""

    before: Split
    behind: Split
    ended: int | None
    began: int | None


def where_not_met(reports: Iterable[ScanReport]) -> list[NotMet]:
    """Return the adjacent splits that do not meet. None: nothing was lost or found twice.

    Proof, by induction over the splits of a segment in order: the first one follows the chain from
    the segment's first byte. Each ends at the first place of the chain at or after its `end`. If
    the next one begins there, it follows the same chain. So together they find the messages of one
    scan of the whole segment. Splits that are not adjacent (another segment, or unwanted bytes
    between them) are not compared.
    """
    ordered = sorted(reports, key=lambda report: (report.split.queue, report.split.start))
    found: list[NotMet] = []
    for one, two in pairwise(ordered):
        touch = one.split.queue == two.split.queue and one.split.end == two.split.start
        if touch and (one.end is None or one.end != two.first):
            found.append(NotMet(one.split, two.split, one.end, two.first))
    return found


def pieces_between(pieces: Sequence[LogPiece], start: int, end: int) -> tuple[LogPiece, ...]:
    """The parts of `pieces` (in order) that lie in `[start, end)`. O(log pieces + parts)."""
    found: list[LogPiece] = []
    first = bisect_right(pieces, start, key=lambda piece: piece.end)
    for piece in islice(pieces, first, None):
        if piece.position >= end:
            break
        low, high = max(piece.position, start), min(piece.end, end)
        place = piece.object_offset + low - piece.position
        found.append(LogPiece(low, high - low, piece.object_name, place))
    return tuple(found)
