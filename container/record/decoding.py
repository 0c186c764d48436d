"""Lazy decoding of many stored records: validation in batches, messages on demand."""

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
"""Below this number, records are validated one by one: a batch has fixed costs of some 30 us."""


class MessageDecoder:
    """Decoder of any of the records in a buffer to `StoredMessage`.

    The constructor validates the lengths inside all records, at some 0.1 us a record, if they have
    one shape (topic, version, kinds of host) and no fault. It skips this if `verify_contents` has
    done it. Otherwise each record is validated when its message is decoded, at some 1.5 us.

    Keeps 4 bytes a record, and the given buffer and columns.
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
        """`data` has a record of `sizes[i]` bytes at `starts[i]`. `path` is for errors.

        `contents` is the result of `verify_contents`, if it was called. All records must be sound.
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
        """Whether all records are known to be sound.

        Otherwise each is validated when it is decoded.
        """
        return self._shape is not None

    def messages(self, picked: slice | NDArray[np.int64]) -> Iterator[StoredMessage]:
        """Decode some records. Each message is a copy and keeps no reference to the buffer.

        The iterator raises `Corrupt` in place of a message whose record contradicts the format. The
        error has the CommitLog position that the record holds in its bytes 28..35.
        """
        starts = self._starts[picked]
        ends = starts + self._sizes[picked]
        views = map(self._data.__getitem__, map(slice, starts.tolist(), ends.tolist()))
        if self._shape is None:
            return map(self._decoded, views)
        # A chain of calls in C, with one Python step for each message: `StoredMessage()`.
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
