"""What follows from records: their ConsumeQueue units and their index items."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportMissingTypeStubs=false
# pyarrow ships no types.
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from container.index.keys import MessageKeys, OwnedSpans, keys_of_values
from container.record.batch import encode_units
from container.record.properties import KEYS, TAGS, UNIQ_KEY, tag_hash
from container.record.unit import Units
from tieredstore.offline.log_scan import FoundRecords
from tieredstore.reading.arrow_columns import ColumnMaker, Labels

KEYS_AT_ONCE = 1 << 19
"""More only of one message."""
KEY_BYTES_AT_ONCE = 2 * KEYS_AT_ONCE
"""The least that so many keys take in a log: each is a byte, and a blank."""


def labels_of(found: FoundRecords) -> Labels:
    """The properties of records, which both functions below need. Some 0.3 us a record."""
    return ColumnMaker(found.raw, found.columns).labels()


def units_of(found: FoundRecords, labels: Labels) -> Units:
    """The ConsumeQueue units of records, by the rule of `RecordCheck`. Some 0.2 us a record.

    A delayed message of a broker's own topic, whose unit has the time of its delivery, is not told
    apart: those topics are not tiered.
    """
    return encode_units(found.positions, found.sizes, tag_hashes(labels))


def tag_hashes(labels: Labels) -> NDArray[np.int64]:
    """Tags code of each record; each distinct tag is hashed once."""
    tags = labels.value_of(TAGS).dictionary_encode()
    codes = [0 if text is None else tag_hash(text) for text in tags.dictionary.to_pylist()]
    indices = np.asarray(tags.indices.fill_null(len(codes)))
    return np.array([*codes, 0], np.int64)[indices]


def keys_within(
    found: FoundRecords, labels: Labels, topic: str, offsets: tuple[int, int]
) -> Iterator[tuple[FoundRecords, MessageKeys]]:
    """The index keys of those records that have queue offsets `[from, to)`, and these records.

    Some 0.2 us a record and 0.1 us a key. In parts of at most some `KEYS_AT_ONCE` keys, each of
    which takes 150 bytes here.
    """
    numbers = found.queue_offsets
    wanted = (numbers >= offsets[0]) & (numbers < offsets[1])
    if not wanted.any():
        return
    if not wanted.all():
        found = found.taken(wanted)
        labels = labels_of(found)
    edges = _edges(labels, len(found.starts))
    for first, behind in pairwise(edges):
        some, of_some = found, labels
        if len(edges) > 2:  # noqa: PLR2004 - more than one part
            some = found.taken(slice(first, behind))
            of_some = labels_of(some)
        unique, users = (OwnedSpans(*of_some.spans_of(name)) for name in (UNIQ_KEY, KEYS))
        yield some, keys_of_values(of_some.text, unique, users, topic=topic)


def _edges(labels: Labels, count: int) -> list[int]:
    """Where to cut records, so that no part has many more keys than `KEYS_AT_ONCE`."""
    if len(labels.text) <= KEY_BYTES_AT_ONCE:  # nearly always
        return [0, count]
    owners, values = labels.spans_of(KEYS)
    lengths = np.zeros(count, np.int64)
    lengths[owners] = values.ends - values.starts
    parts = np.cumsum(lengths) // KEY_BYTES_AT_ONCE
    return [0, *(np.flatnonzero(np.diff(parts)) + 1).tolist(), count]
