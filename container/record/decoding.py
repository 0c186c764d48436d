"""Many stored records as messages: checked together, each made when it is asked for."""

from collections.abc import Iterator
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from container.record.batch import as_bytes
from container.record.columns import Contents, properties_of_all
from container.record.header import RecordShape
from container.record.layout import PHYSICAL_OFFSET_AT
from container.record.message import StoredMessage
from provider.errors import Corrupt
from provider.object_store import Buffer

TOGETHER_MIN = 8
"""Fewer records are checked one by one: the batch has fixed costs of some 30 us."""


class MessageDecoder:
    """Makes a `StoredMessage` of any of the records in a buffer.

    The lengths inside the records are checked for all of them when the decoder is made, some
    0.1 us a record, if they have one shape (topic, version, kinds of host) and no fault; not again
    if `verify_contents` did. Else each record is checked when its message is made, some 1.5 us.

    Keeps 4 bytes a record, and the buffer and columns that it was given.
    """

    def __init__(
        self,
        data: Buffer,
        starts: NDArray[np.int64],
        sizes: NDArray[np.int64],
        *,
        path: str,
        contents: Contents | None = None,
    ) -> None:
        """`data` has a record of `sizes[i]` bytes at `starts[i]`; `path` is for errors.

        `contents`: what `verify_contents` found, if it was asked; all must be sound.
        """
        self._data = memoryview(data)
        self._starts = starts
        self._sizes = sizes
        self._path = path
        self._shape: RecordShape | None = None
        self._properties_at = np.empty(0, np.int32)
        if contents is not None:
            self._shape, self._properties_at = contents.shape, contents.properties_at
            return
        if len(starts) >= TOGETHER_MIN:
            self._shape = self._shape_of_first()
        if self._shape is not None:
            places = properties_of_all(as_bytes(data), starts, sizes, self._shape)
            if places is None:
                self._shape = None
            else:
                self._properties_at = places

    @property
    def is_checked(self) -> bool:
        """Whether all records are known to be sound; else each is checked for itself."""
        return self._shape is not None

    def messages(self, picked: slice | NDArray[np.int64]) -> Iterator[StoredMessage]:
        """The messages of some records. Each is a copy and keeps nothing of the buffer alive.

        The iterator raises `Corrupt` in place of a message whose record contradicts the format,
        with the position in its CommitLog that the record itself has in bytes 28..35.
        """
        starts = self._starts[picked]
        ends = starts + self._sizes[picked]
        views = map(self._data.__getitem__, map(slice, starts.tolist(), ends.tolist()))
        if self._shape is None:
            return map(self._decoded, views)
        # A chain of calls in C, with one step of Python for each message: `StoredMessage()`.
        records = map(memoryview.tobytes, views)
        places = self._properties_at[picked].tolist()
        return map(StoredMessage, records, repeat(self._shape), places)

    def _shape_of_first(self) -> RecordShape | None:
        start = int(self._starts[0])
        try:
            return self._decoded(self._data[start : start + int(self._sizes[0])]).shape
        except Corrupt:
            return None

    def _decoded(self, record: memoryview) -> StoredMessage:
        position = int.from_bytes(
            record[PHYSICAL_OFFSET_AT : PHYSICAL_OFFSET_AT + 8], "big", signed=True
        )
        return StoredMessage.decode(record, path=self._path, position=position)
