"""A run: consecutive messages of a queue, or those of them with certain tags, in one buffer."""

from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

from fetcher.options import COLUMN_BYTES
from fetcher.read_ahead import Reader
from provider.object_store import Buffer
from provider.ranges import QueueOffset

RUN_BYTES = 1024
"""What a run costs beside its messages."""


class Run:
    """What is known of the offsets `[first, end)`: whole records as columns over one buffer.

    R1  `offsets` ascends inside `[first, end)`; without a filter it is all of them.
    R2  `size_before[i]` is the sum of the sizes of messages 0 to i - 1; it has one value more.
    """

    __slots__ = (
        "data", "end", "first", "is_whole", "last_used_s", "nbytes", "offsets", "reader",
        "size_before", "sizes", "starts", "tag_hashes", "unread",
    )  # fmt: skip

    def __init__(
        self,
        first: QueueOffset,
        end: QueueOffset,
        data: Buffer,
        *,
        offsets: NDArray[np.int64] | None,
        starts: NDArray[np.int64],
        sizes: NDArray[np.int64],
        tag_hashes: NDArray[np.int32],
        reader: Reader | None = None,
    ) -> None:
        """`offsets` None: every one. `reader`: for whom it was read ahead, None on demand."""
        self.first = first
        self.end = end
        self.is_whole = offsets is None
        self.offsets = np.arange(first, end) if offsets is None else offsets
        assert len(self.offsets) == len(starts) == len(sizes) == len(tag_hashes), "R1"
        self.data = memoryview(data).toreadonly()
        self.starts = starts
        self.sizes = sizes
        self.tag_hashes = tag_hashes
        sums = np.zeros(len(sizes) + 1, np.int64)
        np.cumsum(sizes, out=sums[1:])
        self.size_before: memoryview[int] = sums.data  # scalars of a view are plain and quick
        self.nbytes = _pinned_bytes(self.data) + COLUMN_BYTES * len(starts) + RUN_BYTES
        self.reader = reader
        self.unread = True
        self.last_used_s = 0.0

    def __len__(self) -> int:
        return len(self.starts)

    def cut(self, start: int, stop: int, bytes_max: int) -> int:
        """Where to stop so that message `start` to the one before hold `bytes_max`, or just more.

        The last one taken is the one that reaches it; never behind `stop`. O(log n).
        """
        before = self.size_before
        wanted = before[start] + bytes_max
        if before[stop - 1] < wanted:
            return stop
        return bisect_left(before, wanted, start + 1, stop)

    def __repr__(self) -> str:
        return f"<Run [{self.first}, {self.end}): {len(self)} messages, {self.nbytes} bytes>"


def _pinned_bytes(view: memoryview) -> int:
    """What a view keeps alive: perhaps more than it shows."""
    base = view.obj
    return (
        max(view.nbytes, memoryview(base).nbytes)
        if isinstance(base, bytes | bytearray)
        else (max(view.nbytes, base.nbytes) if isinstance(base, np.ndarray) else view.nbytes)
    )


def compact(data: Buffer) -> Buffer:
    """`data`, copied if it is a small part of something larger that it would keep alive."""
    view = memoryview(data)
    return bytes(view) if _pinned_bytes(view) > view.nbytes + (view.nbytes >> 2) else view
