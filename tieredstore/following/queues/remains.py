"""Backlog of deleted queues: units from pinned records, kept beside the pins across restarts."""

import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
from cachetools import LRUCache
from numpy.typing import NDArray

from container.names.queue_id import QueueId
from container.record.unit import UNIT_DTYPE, Units
from provider.errors import OutOfRange
from provider.ranges import QueueOffset
from tieredstore.following.log.commit_log import CommitLogFiles
from tieredstore.following.log.record_units import units_in

FILES_KEPT_MAX = 2
"""CommitLog files whose units stay in memory: 28 bytes for each message of a deleted queue."""

_Runs = dict[QueueId, tuple[NDArray[np.int64], Units]]


class Remainder:
    """Waiting messages `[start, end)` of one deleted queue.

    Their records lie within `[position, end_position)` of the CommitLog. Records of other
    incarnations of the name lie elsewhere.
    """

    def __init__(self, start: int, end: int, *, position: int, end_position: int) -> None:
        self.first = start
        """First message that waited when the queue was deleted."""
        self.start = start
        """First readable message, as far as is known."""
        self.end = end
        self.position = position
        self.end_position = end_position
        self._places: deque[tuple[int, int]] = deque()
        """Offset and position of messages whose units were read, ascending."""

    def __repr__(self) -> str:
        return f"<Remainder [{self.start}, {self.end}) from {self.position} on>"

    def note(self, offset: int, position: int) -> None:
        """Record the position of the message at `offset`."""
        if not self._places or self._places[-1][0] < offset:
            self._places.append((offset, position))

    def release(self, offset: int) -> None:
        """Record that messages below `offset` are tiered. Raise `position` accordingly."""
        while self._places and self._places[0][0] <= offset:
            self.position = max(self.position, self._places.popleft()[1])


class Remains:
    """Remainders of all names, for each name in the order of its incarnations.

    Guarded by its caller.

    M1  The remainders of a name do not overlap, in offsets or in the log. The oldest is first.
    """

    def __init__(self, log: CommitLogFiles) -> None:
        self._log = log
        self._queues: dict[QueueId, deque[Remainder]] = {}
        self._walked: LRUCache[int, tuple[frozenset[QueueId], _Runs]] = LRUCache(FILES_KEPT_MAX)
        self.findings: list[str] = []
        """Sentences for operators. The poll takes them."""

    def __repr__(self) -> str:
        return f"<Remains of {len(self._queues)} queues>"

    def __contains__(self, queue: QueueId) -> bool:
        return queue in self._queues

    def __iter__(self) -> Iterator[QueueId]:
        return iter(self._queues)

    def __len__(self) -> int:
        return len(self._queues)

    def __getitem__(self, queue: QueueId) -> Remainder:
        """Return the remainder of the oldest incarnation of this name."""
        return self._queues[queue][0]

    def check(self) -> None:
        """Assert M1."""
        for rests in self._queues.values():
            for before, after in pairwise(rests):
                assert before.end <= after.first, f"M1: {before}, {after}"
                assert before.end_position <= after.position, f"M1: {before}, {after}"

    def all_of(self, queue: QueueId) -> Sequence[Remainder]:
        """Return the remainders of all incarnations of this name, the oldest first."""
        return tuple(self._queues.get(queue, ()))

    def add(self, queue: QueueId, remainder: Remainder) -> None:
        """Add the remainder of a deleted queue, after all others of its name."""
        self._queues.setdefault(queue, deque()).append(remainder)
        self._walked.clear()  # files may have grown since they were scanned

    def extend(self, queue: QueueId, end: int, end_position: int) -> None:
        """Extend the newest remainder of this name up to `end`."""
        rest = self._queues[queue][-1]
        rest.end, rest.end_position = end, end_position
        self._walked.clear()

    def drop(self, queue: QueueId) -> None:
        """Drop the remainder of the oldest incarnation of this name.

        All its messages are tiered.
        """
        self._queues[queue].popleft()
        if not self._queues[queue]:
            del self._queues[queue]
        if not self._queues:
            self._walked.clear()

    def units(self, queue: QueueId, start: QueueOffset, end: int) -> Units:
        """Return units from `start` on, below `end`, of one CommitLog file; at least one.

        Scans a CommitLog file for all remainders at once; see `units_in` for the cost.

        Raises:
            OutOfRange: the record is gone, and the remainder begins at the next existing one.
            Unavailable, Denied: the CommitLog file cannot be read.
        """
        rest = self[queue]
        if start < rest.start:
            raise OutOfRange("its topic was deleted, and its record is gone", str(queue), start)
        file_bytes = self._log.table.file_bytes
        base = self._log.table.base_of(max(rest.position, self._log.table.min_position))
        while base < min(rest.end_position, self._log.table.end):
            offsets, units = self._run(base, queue)
            at = int(np.searchsorted(offsets, start))
            if at < len(offsets):
                if offsets[at] != start:
                    rest.start = int(offsets[at])
                    break
                rest.note(start, int(units["position"][at]))
                stop = at + min(end - start, len(offsets) - at)
                touching = offsets[at:stop] - start == np.arange(stop - at)
                return units[at : at + int(np.count_nonzero(touching))]
            base += file_bytes
        else:
            rest.start = rest.end
        raise OutOfRange("its topic was deleted, and its record is gone", str(queue), start)

    def poll_again(self, queue: QueueId, released: int) -> None:
        """Find the start of a remainder again, of which messages below `released` are tiered.

        Raises:
            Unavailable, Denied: a CommitLog file cannot be read.
        """
        rest = self[queue]
        self._walked.clear()
        rest.start = min(max(rest.first, released), rest.end)
        if rest.start < rest.end:
            with suppress(OutOfRange):  # then it begins later, or none of it is left
                self.units(queue, QueueOffset(rest.start), rest.start + 1)

    def _run(self, base: int, queue: QueueId) -> tuple[NDArray[np.int64], Units]:
        """Return offsets and units of one queue's remainder in the CommitLog file at `base`."""
        walked, runs = self._walked.get(base, (frozenset[QueueId](), {}))
        if queue not in walked:
            walked = frozenset(self._queues)
            try:
                found = units_in(self._log, base, walked, self.findings)
            except OutOfRange:
                found = {}  # it was deleted
            runs = found
            self._walked[base] = (walked, runs)
        if queue not in runs:
            return np.zeros(0, np.int64), np.zeros(0, UNIT_DTYPE)
        return self._within(queue, *runs[queue])

    def _within(
        self, queue: QueueId, offsets: NDArray[np.int64], units: Units
    ) -> tuple[NDArray[np.int64], Units]:
        """Drop the records of other incarnations than the oldest."""
        rest = self[queue]
        own = (units["position"] >= rest.position) & (units["position"] < rest.end_position)
        offsets, units = offsets[own], units[own]
        falls = np.flatnonzero(np.diff(offsets) <= 0)
        first = int(falls[-1]) + 1 if len(falls) else 0  # before it: an earlier incarnation
        return offsets[first:], units[first:]


NAME = "deleted_queues.json"


class Ended(NamedTuple):
    """Deleted queue without waiting messages."""

    start: int
    """First message that was seen."""
    end: int
    """Offset after the last message."""
    end_position: int
    """CommitLog position after the last message."""


class Hidden(NamedTuple):
    """First message of a queue that waits for the end of an earlier incarnation."""

    offset: int
    position: int


@dataclass(frozen=True, slots=True)
class Kept:
    """Persistent state of one store."""

    remains: Mapping[QueueId, list[Remainder]] = field(default_factory=dict[QueueId, Any])
    ended: Mapping[QueueId, Ended] = field(default_factory=dict[QueueId, Ended])
    hidden: Mapping[QueueId, Hidden] = field(default_factory=dict[QueueId, Hidden])


class KeptRemains:
    """File of one store's remainders. One thread at a time."""

    def __init__(self, directory: Path | None, store: Path) -> None:
        """`directory` is that of the pins. Without one nothing is stored."""
        self._path = None if directory is None else directory / NAME
        self._store = str(store)
        self._kept: bytes | None = None

    def __repr__(self) -> str:
        return f"<KeptRemains {self._path}>"

    def read(self) -> Kept:
        """Read the state of an earlier process; empty without one, or if it is another store's."""
        if self._path is None:
            return Kept()
        try:
            raw = self._path.read_bytes()
            said = orjson.loads(raw)
            if said["store"] != self._store:
                return Kept()
            found = _parsed(said)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return Kept()  # as if no state was stored
        self._kept = raw
        return found

    def write(self, kept: Kept) -> str:
        """Replace the stored state. Return the reason of a failure, else "".

        Replaces one small file if anything changed. A power failure may lose the change.
        """
        if self._path is None:
            return ""
        rows = _rows(kept)
        raw = orjson.dumps({"store": self._store, **rows}) if any(rows.values()) else None
        if raw == self._kept:
            return ""
        temporary = self._path.with_suffix(".new")
        try:
            if raw is None:
                self._path.unlink(missing_ok=True)
            else:
                temporary.write_bytes(raw)
                os.replace(temporary, self._path)  # noqa: PTH105 - one call, which cannot be half done
        except OSError as error:
            return (
                f"{self._path} cannot be written ({error.strerror}): a restart would give up what "
                "waits of deleted topics."
            )
        self._kept = raw
        return ""


def _rows(kept: Kept) -> dict[str, list[list[object]]]:
    return {
        "queues": [
            [*queue, rest.start, rest.end, rest.position, rest.end_position]
            for queue, rests in kept.remains.items()
            for rest in rests
        ],
        "ended": [[*queue, *ended] for queue, ended in kept.ended.items()],
        "hidden": [[*queue, *hidden] for queue, hidden in kept.hidden.items()],
    }


def _parsed(said: Mapping[str, list[list[Any]]]) -> Kept:
    remains: dict[QueueId, list[Remainder]] = {}
    for topic, queue_id, start, end, place, end_place in said["queues"]:
        rest = Remainder(int(start), int(end), position=int(place), end_position=int(end_place))
        remains.setdefault(QueueId(str(topic), int(queue_id)), []).append(rest)
    ended = {
        QueueId(str(topic), int(queue_id)): Ended(int(start), int(end), int(place))
        for topic, queue_id, start, end, place in said.get("ended", ())
    }
    hidden = {
        QueueId(str(topic), int(queue_id)): Hidden(int(offset), int(position))
        for topic, queue_id, offset, position in said.get("hidden", ())
    }
    return Kept(remains, ended, hidden)
