"""Copies of segments as Kafka's KIP-405 knows them: which copy serves an offset of an epoch. Pure.

An epoch is one ownership. Several copies may hold the same offsets of the same epoch, because a
copy was made twice, or an owner woke up late. Kafka keeps the copy that came last at each start;
here the order of arrival has no effect:

    Of the finished copies of an epoch those are *referenced* that no other one contains. Of equal
    ranges it is that of the higher writer epoch, then that of the smaller id. What is left is
    *superseded*: never read, listed, and back as soon as what contains it goes.

So starts and ends of the referenced ones both ascend, and the last one that begins at or below an
offset has it if any has it.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

from container.errors import Refused
from container.metadata.copy_states import is_legal
from container.metadata.records import CopyState
from provider.errors import NotFound
from provider.ranges import QueueOffset


class EpochStart(NamedTuple):
    """Where an epoch begins, in a segment or in a history."""

    epoch: int
    first_offset: QueueOffset


class Standing(Enum):
    """What a copy is for one of its epochs; it is always exactly one of these."""

    IN_PROGRESS = "in progress"
    REFERENCED = "referenced"
    SUPERSEDED = "superseded"
    DELETING = "deleting"


@dataclass(frozen=True, slots=True)
class SegmentCopy:
    """One attempt to copy a segment; another attempt at the same offsets has another id.

    Raises:
        ValueError: the offsets, or the epochs, do not ascend.
    """

    copy_id: str
    first_offset: QueueOffset
    end_offset: QueueOffset
    """First offset behind it."""
    epochs: tuple[EpochStart, ...]
    """Those that it has messages of, in order; at least one."""
    state: CopyState = CopyState.COPY_STARTED
    size_bytes: int = 0
    writer_epoch: int = 0
    """Epoch of the owner that made the copy."""

    def __post_init__(self) -> None:
        starts = [start for _, start in self.epochs]
        epochs = [epoch for epoch, _ in self.epochs]
        is_sound = (
            0 <= self.first_offset < self.end_offset
            and bool(starts)
            and all(before < after for before, after in pairwise(epochs))
            and all(before <= after for before, after in pairwise(starts))
            and self.first_offset <= starts[0]
            and starts[-1] <= self.end_offset
        )
        if not is_sound:
            raise ValueError(f"no segment has these offsets and epochs: {self}")

    @property
    def ranges(self) -> Iterator[tuple[int, int, int]]:
        """Each epoch with the offsets `[start, end)` that it has here."""
        ends = [start for _, start in self.epochs[1:]]
        for (epoch, start), end in zip(self.epochs, [*ends, self.end_offset], strict=True):
            yield epoch, start, end


@dataclass(slots=True)
class _OfEpoch:
    """The finished copies of one epoch that are referenced, by start."""

    starts: list[int] = field(default_factory=list[int])
    ends: list[int] = field(default_factory=list[int])
    ids: list[str] = field(default_factory=list[str])


class SegmentCopies:
    """All copies of the segments of one queue, until their deletion is finished.

    A lookup costs O(log copies of the epoch), after a change O(n log n) once.
    """

    def __init__(self, copies: Iterable[SegmentCopy] = ()) -> None:
        """Begin with copies that are in any state but DELETE_FINISHED."""
        self._copies: dict[str, SegmentCopy] = {}
        self._last: dict[int, QueueOffset] = {}
        self._referenced: dict[int, _OfEpoch] = {}
        for copy in copies:
            self._put(copy)

    def __repr__(self) -> str:
        return f"<SegmentCopies: {len(self._copies)} copies, {len(self._last)} epochs>"

    def add(self, copy: SegmentCopy) -> None:
        """Begin a copy: its state is COPY_STARTED. Nothing if it is known and the same.

        Raises:
            Refused: it is in another state, or another copy has its id.
        """
        known = self._copies.get(copy.copy_id)
        now = None if known is None else known.state
        if copy.state is not CopyState.COPY_STARTED or not is_legal(now, copy.state):
            raise Refused(f"{_step(now, copy.state)} begins no copy", copy.copy_id)
        if known not in {None, copy}:
            raise Refused("another copy has this id", copy.copy_id)
        self._put(copy)

    def update(self, copy_id: str, state: CopyState) -> None:
        """Move a copy on; DELETE_FINISHED forgets it.

        Raises:
            NotFound: there is no such copy, or no more.
            Refused: the step is not one of a copy's life.
        """
        copy = self._copies.get(copy_id)
        if copy is None:
            raise NotFound("there is no such copy of a segment", copy_id)
        if state is CopyState.COPY_STARTED or not is_legal(copy.state, state):
            raise Refused(f"{_step(copy.state, state)} is not a step of a copy's life", copy_id)
        if state is CopyState.DELETE_FINISHED:
            del self._copies[copy_id]
            self._forget_order(copy)
        else:
            self._put(replace(copy, state=state))

    def lookup(self, epoch: int, offset: int) -> SegmentCopy | None:
        """The finished copy that has `offset` of `epoch`; None if there is none."""
        found = self._of_epoch(epoch)
        place = bisect_right(found.starts, offset) - 1
        if place < 0 or offset >= found.ends[place]:
            return None
        return self._copies[found.ids[place]]

    def last_offset(self, epoch: int) -> QueueOffset | None:
        """The highest offset of an epoch that was ever in a finished copy. It never goes back."""
        return self._last.get(epoch)

    def listed(self, epoch: int | None = None, from_offset: int = 0) -> list[SegmentCopy]:
        """All copies, or those of an epoch, with an offset at or above `from_offset`, by start."""
        found = (copy for copy in self._copies.values() if copy.end_offset > from_offset)
        if epoch is not None:
            found = (copy for copy in found if any(one == epoch for one, _ in copy.epochs))
        return sorted(found, key=lambda copy: (copy.first_offset, copy.end_offset, copy.copy_id))

    def standing(self, copy_id: str, epoch: int) -> Standing | None:
        """What a copy is for one of its epochs; None if it has nothing of it, or is not known."""
        copy = self._copies.get(copy_id)
        if copy is None or all(one != epoch for one, _ in copy.epochs):
            return None
        if copy.state is CopyState.COPY_STARTED:
            return Standing.IN_PROGRESS
        if copy.state is CopyState.DELETE_STARTED:
            return Standing.DELETING
        is_referenced = copy_id in self._of_epoch(epoch).ids
        return Standing.REFERENCED if is_referenced else Standing.SUPERSEDED

    @property
    def retained_bytes(self) -> int:
        """What a retention by size counts: finished copies alone (KAFKA-17062)."""
        return self._bytes_in(CopyState.COPY_FINISHED)

    @property
    def size_bytes(self) -> int:
        """What the tier occupies: finished copies, and those whose deletion has only begun."""
        return self.retained_bytes + self._bytes_in(CopyState.DELETE_STARTED)

    def _bytes_in(self, state: CopyState) -> int:
        return sum(copy.size_bytes for copy in self._copies.values() if copy.state is state)

    def _put(self, copy: SegmentCopy) -> None:
        if copy.state is CopyState.DELETE_FINISHED:
            raise Refused("a copy whose deletion is finished is no copy", copy.copy_id)
        self._copies[copy.copy_id] = copy
        self._forget_order(copy)
        if copy.state is CopyState.COPY_FINISHED:
            for epoch, start, end in copy.ranges:
                if start < end:
                    self._last[epoch] = QueueOffset(max(end - 1, self._last.get(epoch, -1)))

    def _forget_order(self, copy: SegmentCopy) -> None:
        for epoch, _ in copy.epochs:
            self._referenced.pop(epoch, None)

    def _of_epoch(self, epoch: int) -> _OfEpoch:
        known = self._referenced.get(epoch)
        if known is not None:
            return known
        finished = [
            (start, -end, -copy.writer_epoch, copy.copy_id)
            for copy in self._copies.values()
            if copy.state is CopyState.COPY_FINISHED
            for one, start, end in copy.ranges
            if one == epoch and start < end
        ]
        found = _OfEpoch()
        for start, negative_end, _, copy_id in sorted(finished):
            if not found.ends or -negative_end > found.ends[-1]:
                found.starts.append(start)
                found.ends.append(-negative_end)
                found.ids.append(copy_id)
        self._referenced[epoch] = found
        return found


def _step(now: CopyState | None, wanted: CopyState) -> str:
    return f"{'nothing' if now is None else now.name} to {wanted.name}"


def is_in_lineage(
    copy: SegmentCopy, lineage: Sequence[EpochStart], end_offset: QueueOffset
) -> bool:
    """Whether a copy is of the history `lineage`, which ends at `end_offset`. Pure.

    Epochs of the copy before the history's first one do not count: their messages were deleted from
    it (KAFKA-16511).
    """
    said, known = _without_empty(copy.epochs, copy.end_offset), _without_empty(lineage, end_offset)
    if not said or not known or not known[0].epoch <= said[-1].epoch <= known[-1].epoch:
        return False
    said = [one for one in said if one.epoch >= known[0].epoch]
    places = {one.epoch: number for number, one in enumerate(known)}
    if any(one.epoch not in places for one in said):
        return False
    first, last = places[said[0].epoch], places[said[-1].epoch]
    if first > 0 and said[0].first_offset < known[first].first_offset:
        return False
    if last + 1 < len(known) and copy.end_offset > known[last + 1].first_offset:
        return False
    return said[1:] == known[first + 1 : last + 1] and copy.end_offset <= end_offset


def _without_empty(epochs: Sequence[EpochStart], end_offset: QueueOffset) -> list[EpochStart]:
    """The epochs that have an offset."""
    ends = [one.first_offset for one in epochs[1:]] + [end_offset]
    return [one for one, end in zip(epochs, ends, strict=True) if one.first_offset < end]
