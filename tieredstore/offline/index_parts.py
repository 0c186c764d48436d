"""Which index file the keys of each message go into when index files are made again. Pure.

The name of a file must be known before its keys are, for workers make it. So what is planned is a
row of files for each split: behind so many keys, the next messages' keys go into the next file.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from container.names.rocketmq import INT64_MAX, index_name
from container.names.tier_objects import IndexBase
from tieredstore.offline.offset_runs import Runs, add_runs

INDEX_LOG_BYTES = 128 << 20
"""Messages whose keys go into one index file, in bytes of their log."""
INDEX_ITEMS_MAX = 1 << 20
"""Keys of one index file, as many as the store merges into one where nothing else is said. A worker
makes the file in memory: some 130 bytes a key."""
OPEN_GROUPS_MAX = 16
"""Groups of splits that another split may still join; each new split is compared with all."""


class IndexPart(NamedTuple):
    """Offsets of a queue whose keys go into one index file that is known, or into a planned row."""

    file: str
    start: int
    behind: int
    items_max: int = INT64_MAX
    """Keys of one split that go into a file, but for those of one message that has more."""
    step: int = 0
    """By how much the number of the next file of the row is higher."""

    def file_at(self, number: int) -> str:
        """The name of a file of the row, counted from 0."""
        if not number:
            return self.file
        base = IndexBase.parse(self.file)
        assert base is not None, "it was planned"
        return index_name(base.number + number * self.step)


class IndexCuts:
    """Cuts the keys of one split into the files of its parts, in order of the log."""

    def __init__(self) -> None:
        self.offsets: dict[str, Runs] = {}
        """By file, which messages' keys are in it."""
        self._at: dict[IndexPart, tuple[int, int]] = {}
        """By part, which file of the row has room, and how many keys of this split it has."""

    def cut(
        self, part: IndexPart, offsets: NDArray[np.int64], ends: NDArray[np.int64]
    ) -> Iterator[tuple[str, int, int]]:
        """Yield a file, and which keys go into it, by their first and the end; some have none.

        Args:
            part: the row of files.
            offsets: queue offset of each of the next messages.
            ends: number of keys up to and with each message.
        """
        first = done = 0
        number, held = self._at.get(part, (0, 0))
        while first < len(offsets):
            room = max(0, min(part.items_max - held, int(ends[-1])))
            behind = int(np.searchsorted(ends, done + room, side="right"))
            if behind == first and held:
                number, held = number + 1, 0
                continue
            behind = max(behind, first + 1)  # one message may have more keys than that
            file, end = part.file_at(number), int(ends[behind - 1])
            add_runs(self.offsets.setdefault(file, []), offsets[first:behind])
            yield file, done, end
            held, done, first = held + end - done, end, behind
        self._at[part] = number, held


def index_parts(lengths: Sequence[int], *, epoch: int, first_number: int) -> list[IndexPart]:
    """The row of files of each of some splits, by how long they are; some share theirs.

    Splits of at most `INDEX_LOG_BYTES` together share a row, each by its share of the length, so
    that no file has more than `INDEX_ITEMS_MAX` keys but for those of one message of each split.
    Files are numbered from `first_number` on: first the first one of each row, and so on.
    """
    groups = _groups(lengths)
    totals: Counter[int] = Counter()
    for group, length in zip(groups, lengths, strict=True):
        totals[group] += length
    return [
        IndexPart(
            index_name(IndexBase(epoch, first_number + group).number),
            0,
            INT64_MAX,
            max(1, INDEX_ITEMS_MAX * length // totals[group]),
            len(totals),
        )
        for length, group in zip(lengths, groups, strict=True)
    ]


def _groups(lengths: Sequence[int]) -> list[int]:
    """Which group each split is in: the first that has room, of the few that have the most."""
    found: list[int] = []
    room: dict[int, int] = {}
    count = 0
    for length in lengths:
        group = next((one for one, left in room.items() if left >= length), None)
        if group is None:
            group, count = count, count + 1
            room[group] = INDEX_LOG_BYTES
        found.append(group)
        room[group] -= length
        if len(room) > OPEN_GROUPS_MAX:
            del room[min(room, key=lambda one: room[one])]
    return found
