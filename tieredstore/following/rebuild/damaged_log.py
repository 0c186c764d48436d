"""How to go on in a CommitLog file behind bytes that are no record."""

from collections.abc import Iterator

import numpy as np

from container.record.blank import BlankRecord
from container.record.layout import (
    MAGIC_AT,
    MAGIC_V1,
    MAGIC_V2,
    PHYSICAL_OFFSET_AT,
    RECORD_BYTES_MIN,
)
from provider.errors import Corrupt, NotFound
from tieredstore.following.log.commit_log import CommitLogFiles
from tieredstore.following.options import WINDOW_BYTES

WINDOW_BYTES_MIN = 64 << 10
_MAGICS = (MAGIC_V1, MAGIC_V2)


def has_begun_later(log: CommitLogFiles, base: int) -> bool:
    """Whether a later file has a record: then this one is written no more, whatever it holds."""
    for later in sorted(b for b in log.table.paths if b > base):
        try:
            raw = log.peek(later, BlankRecord.SIZE)
        except (NotFound, Corrupt):
            continue
        if len(raw) == BlankRecord.SIZE and BlankRecord.LAYOUT.unpack(raw)[1] in _MAGICS:
            return True
    return False


def records_after(log: CommitLogFiles, place: int, end: int) -> Iterator[int]:
    """Places after `place` where a record seems to begin: its magic, and its own position.

    Searches up to `end`, within one file, in windows that grow: 1 ms for each MB.

    Raises:
        OutOfRange, Unavailable, Denied: as `CommitLogFiles.read_into`.
    """
    head = PHYSICAL_OFFSET_AT + 8
    at = place + 1
    length = WINDOW_BYTES_MIN
    while end - at >= RECORD_BYTES_MIN:
        window = np.empty(min(length, end - at), np.uint8)
        length = min(2 * length, WINDOW_BYTES)
        raw = window[: log.read_into(at, window)].tobytes()
        found = [
            index
            for magic in _MAGICS
            for index in _places_of(magic.to_bytes(4, "big"), raw)
            if int.from_bytes(raw[index + PHYSICAL_OFFSET_AT : index + head], "big") == at + index
            and RECORD_BYTES_MIN
            <= int.from_bytes(raw[index : index + 4], "big")
            <= end - at - index
        ]
        yield from (at + index for index in sorted(found))
        if len(raw) <= head:
            return
        at += len(raw) - head


def _places_of(magic: bytes, raw: bytes) -> Iterator[int]:
    at = raw.find(magic, MAGIC_AT)
    while at >= 0:
        yield at - MAGIC_AT
        at = raw.find(magic, at + 1)
