"""Consecutive messages of one queue as columns over one buffer: what the hot paths work on."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from provider.ranges import QueueOffset


@dataclass(frozen=True, slots=True)
class MessageBatch:
    """Whole stored records of consecutive queue offsets, back to back in one buffer.

    The batch alone owns its buffer: a commit rewrites the records' physical offsets in place.
    """

    first_offset: QueueOffset
    data: NDArray[np.uint8]
    """The records, without anything between them."""
    starts: NDArray[np.int64]
    """First byte of each record in `data`; the first is 0."""
    sizes: NDArray[np.int64]
    """Length of each record in bytes."""
    tag_hashes: NDArray[np.int64]
    """Tags code of each record's local ConsumeQueue unit, copied as it is."""
    store_timestamps: NDArray[np.int64]
    """Unix ms."""

    def __post_init__(self) -> None:
        count = len(self.starts)
        assert count > 0, "a batch has at least one message"
        assert len(self.sizes) == len(self.tag_hashes) == len(self.store_timestamps) == count
        assert int(self.starts[-1] + self.sizes[-1]) == len(self.data), "records fill the buffer"

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def next_offset(self) -> QueueOffset:
        """The queue offset after the last message."""
        return QueueOffset(self.first_offset + len(self.starts))

    @property
    def bytes(self) -> int:
        """Length of all records together."""
        return len(self.data)
