"""Hashed keys of many messages at once, in columns if their properties have the same form."""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from container.index.layout import KEY_ITEM_DTYPE, KeyItems
from container.record.batch import as_bytes, values_at
from container.record.columns import Spans, locate_columns, properties_of_all
from container.record.message import StoredMessage
from container.record.properties import (
    KEY_SEPARATOR,
    KEYS,
    NAME_END,
    PAIR_END,
    UNIQ_KEY,
    continued_hash,
    index_keys,
    java_hash,
    key_hash,
    unsigned,
)

_CELLS_MAX = 1 << 18
"""Characters processed at once, so that they and all derived arrays fit into the cache."""
_ALIKE_MIN = 8
"""Minimum of messages of one length for processing in columns."""
_POWERS_KEPT_MAX = 64
"""Cached lengths of keys, at most 128 KiB each, mostly some 100 bytes."""
_LOW_END = ord(KEY_SEPARATOR) + 1
_ASCII_END = 0x80
_FACTOR = 31
_NAME_END, _PAIR_END = NAME_END.encode(), PAIR_END.encode()

assert all(ord(one) < _LOW_END for one in (NAME_END, PAIR_END)), "separators are found by `<`"


class AlikeKeys(NamedTuple):
    """Low 32 bits of the key hashes of messages with the same number of keys."""

    rows: NDArray[np.int64]
    """Indices of the messages."""
    hashes: NDArray[np.uint32]
    """Row per message, column per key in order of ordinal."""


def keys_of_alike(
    data: NDArray[np.uint8], properties: Spans, prefix: str
) -> tuple[list[AlikeKeys], NDArray[np.int64]]:
    """Hash the keys of messages of the same form. Also return the indices of all others.

    Keys of one message differ, and are ASCII. Some 0.15 us a message with two keys, and 80 us for
    each length that properties have. `prefix` is hashed before each key.
    """
    lengths, before = properties.ends - properties.starts, continued_hash(0, prefix)
    kinds = np.unique(lengths).tolist()
    if len(kinds) * _ALIKE_MIN > len(lengths):
        return [], np.arange(len(lengths))
    found: list[AlikeKeys] = []
    odd: list[NDArray[np.int64]] = []
    for length in kinds:
        if not length:
            continue
        if len(kinds) > 1 and np.count_nonzero(lengths == length) < _ALIKE_MIN:
            odd.append(np.flatnonzero(lengths == length))
            continue
        same = np.arange(len(lengths)) if len(kinds) == 1 else np.flatnonzero(lengths == length)
        step = max(1, _CELLS_MAX // length)
        for part in (same[at : at + step] for at in range(0, len(same), step)):
            cells = values_at(data, f"V{length}", properties.starts[part]).view(np.uint8)
            hashes = _alike_hashes(cells.reshape(len(part), length), before)
            if hashes is None:
                odd.append(part)
            elif hashes.shape[1]:
                found.append(AlikeKeys(part, hashes))
    return found, np.sort(np.concatenate(odd)) if odd else np.empty(0, np.int64)


def _alike_hashes(cells: NDArray[np.uint8], before: int) -> NDArray[np.uint32] | None:
    """Hash the keys of messages of one length. None if they differ in form."""
    first = cells[0]
    low = cells < _LOW_END
    if cells.max() >= _ASCII_END or (low != low[0]).any():
        return None
    fixed = np.zeros(len(first), np.uint8)
    raw = first.tobytes()
    for start, end in _names(raw):
        fixed[start:end] = 0xFF
    fixed[low[0]] = 0xFF
    if ((cells ^ first) & fixed).any():
        return None
    spans = [*_key_spans(raw)]
    hashes = np.empty((len(cells), len(spans)), np.uint32)
    for column, (start, end) in enumerate(spans):
        powers = powers_of_factor(end - start)
        head = before * pow(_FACTOR, end - start, 1 << 32) & 0xFFFF_FFFF
        sums = np.einsum("ij,j->i", cells[:, start:end], powers)
        np.add(sums, np.uint32(head), out=hashes[:, column])
        if any((hashes[:, column] == hashes[:, other]).any() for other in range(column)):
            return None  # possibly a repeated key
    return hashes


def _names(raw: bytes) -> Iterator[tuple[int, int]]:
    """Positions of the names of properties."""
    at = 0
    for piece in raw.split(_PAIR_END):
        name, mark, _ = piece.partition(_NAME_END)
        if mark:
            yield at, at + len(name)
        at += len(piece) + len(_PAIR_END)


def _key_spans(raw: bytes) -> Iterator[tuple[int, int]]:
    """Positions of a message's keys: UNIQ_KEY, then KEYS. The last non-empty values count."""
    values: dict[bytes, tuple[int, bytes]] = {}
    at = 0
    for piece in raw.split(_PAIR_END):
        name, mark, value = piece.partition(_NAME_END)
        if value:
            values[name] = at + len(name) + len(mark), value
        at += len(piece) + len(_PAIR_END)
    start, value = values.get(UNIQ_KEY.encode(), (0, b""))
    if value:
        yield start, start + len(value)
    at, value = values.get(KEYS.encode(), (0, b""))
    for key in value.split(KEY_SEPARATOR.encode()):
        if key:
            yield at, at + len(key)
        at += len(key) + len(KEY_SEPARATOR)


@lru_cache(maxsize=_POWERS_KEPT_MAX)
def powers_of_factor(length: int) -> NDArray[np.uint32]:
    """Factors of the characters of a text in its hash. Shared: do not modify."""
    powers = np.full(length, _FACTOR, np.uint32)
    powers[-1:] = 1
    found = np.cumprod(powers[::-1], dtype=np.uint32)[::-1].copy()
    found.setflags(write=False)
    return found


_PAIR_END_BYTE = ord(PAIR_END)
_BLANK_BYTE = ord(" ")
_KEYS_BEGIN = f"{KEYS}{NAME_END}".encode()
_UNIQ_BEGIN = f"{UNIQ_KEY}{NAME_END}".encode()
FEW_MESSAGES = 16
"""Below this number, messages are processed one by one, at some 5 us each. Columns cost at least
150 us."""
_INT32_SIGN = 0x8000_0000


def index_key(topic: str, key: str) -> str:
    """Text to hash for a key of a message."""
    return f"{topic}#{key}"


class MessageKeys(NamedTuple):
    """Hashed keys of consecutive messages. One row per key, in order of message and ordinal."""

    messages: NDArray[np.int64]
    """Index of the key's message."""
    ordinals: NDArray[np.int64]
    """Number of the key in its message."""
    hashes: NDArray[np.int64]
    """Hash of `topic#key`, not negative."""


class OwnedSpans(NamedTuple):
    """Positions of values, keys or whole properties, in order."""

    owners: NDArray[np.int64]
    """Index of each one's message."""
    spans: Spans


def keys_of_records(
    data: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64], *, topic: str
) -> MessageKeys:
    """Hash the keys of whole, verified records of one topic: UNIQ_KEY, then the pieces of KEYS.

    Some 0.15 us a message and 0.05 us a key if properties have the same form, else 0.3 and 0.15 us.
    For few messages see `FEW_MESSAGES`. Thread-safe.

    Args:
        data: has a record of `sizes[i]` bytes at `starts[i]`.
        starts: first byte of each record.
        sizes: length of each record in bytes.
        topic: topic of all records.

    Raises:
        Corrupt: a record contradicts the format.
    """
    view = data.data
    if len(starts) < FEW_MESSAGES:
        return _one_by_one(view, starts, sizes, topic)
    properties = _properties_of(data, starts, sizes)
    alike, odd = keys_of_alike(data, properties, index_key(topic, ""))
    parts = [
        MessageKeys(
            np.repeat(part.rows, part.hashes.shape[1]),
            np.arange(part.hashes.size) % part.hashes.shape[1],
            _unsigned(part.hashes.ravel()),
        )
        for part in alike
    ]
    if len(odd) or not parts:
        if len(odd) < FEW_MESSAGES:
            others = _one_by_one(view, starts[odd], sizes[odd], topic)
        else:
            others = _of_any(view, properties.taken(odd), topic)
        parts.append(others._replace(messages=odd[others.messages]))
    if len(parts) == 1:
        return parts[0]
    joined = MessageKeys(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    order = np.argsort(joined.messages, kind="stable")
    return MessageKeys(*(column[order] for column in joined))


def _of_any(view: memoryview, properties: Spans, topic: str) -> MessageKeys:
    """Hash the keys of messages with properties of any form in `view`."""
    pieces = [view[a:b] for a, b in pairs(properties)]
    # The pairs as one text. The padding allows a name comparison at its end.
    joined = _PAIR_END.join([*pieces, bytes(len(_UNIQ_BEGIN))])
    text = as_bytes(joined)
    lengths = properties.ends - properties.starts + 1
    firsts = np.cumsum(lengths) - lengths
    ends = np.flatnonzero(text == _PAIR_END_BYTE)
    begins = np.concatenate(([0], ends[:-1] + 1))[: len(ends)]
    owners = np.searchsorted(firsts, begins, side="right") - 1
    found = OwnedSpans(owners, Spans(begins, ends))
    unique = _values_of(text, found, _UNIQ_BEGIN, len(pieces))
    users = _values_of(text, found, _KEYS_BEGIN, len(pieces))
    return keys_of_values(text, unique, users, topic=topic)


def keys_of_values(
    text: NDArray[np.uint8], unique: OwnedSpans, users: OwnedSpans, *, topic: str
) -> MessageKeys:
    """Hash the keys in values of UNIQ_KEY and KEYS, given by their positions in `text`.

    As `keys_of_records`, for values that were found before. 0.15 us a key.
    """
    keys = _ordered(unique, _split_at_blanks(text, users))
    hashes = _hashes(text, keys.spans, topic)
    return _without_repeats(text, keys, hashes)


def items_of_records(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    *,
    topic: str,
    queue_id: int,
    positions: NDArray[np.int64],
    store_timestamps: NDArray[np.int64],
) -> KeyItems:
    """Index items of records at `positions` of their tier log. Topic ids are 0.

    Costs and errors as `keys_of_records`.
    """
    keys = keys_of_records(data, starts, sizes, topic=topic)
    if len(starts) < FEW_MESSAGES:  # one array is faster than a column for each field
        columns = (one.tolist() for one in (positions, store_timestamps, sizes))
        of_message: list[tuple[int, ...]] = list(zip(*columns, strict=True))
        rows: Iterable[tuple[int, ...]] = zip(*(one.tolist() for one in keys), strict=True)
        few: list[tuple[int, ...]] = [
            (key, 0, queue_id, ordinal, *of_message[one]) for one, ordinal, key in rows
        ]
        return np.array(few, KEY_ITEM_DTYPE)
    return items_of_keys(
        keys, sizes, queue_id=queue_id, positions=positions, store_timestamps=store_timestamps
    )


def items_of_keys(
    keys: MessageKeys,
    sizes: NDArray[np.int64],
    *,
    queue_id: int,
    positions: NDArray[np.int64],
    store_timestamps: NDArray[np.int64],
) -> KeyItems:
    """Index items of found keys, for records of these sizes. Topic ids are 0."""
    items = np.empty(len(keys.messages), KEY_ITEM_DTYPE)
    items["key_hash"] = keys.hashes
    items["topic_id"] = 0
    items["queue_id"] = queue_id
    items["ordinal"] = keys.ordinals
    items["position"] = positions[keys.messages]
    items["store_timestamp"] = store_timestamps[keys.messages]
    items["size"] = sizes[keys.messages]
    return items


def has_key(message: StoredMessage, key: str) -> bool:
    """Whether a message has a key, by its own properties."""
    return key in index_keys(message.property_map)


def pairs(spans: Spans) -> "zip[tuple[int, int]]":
    """Begin and end of each span, as Python numbers."""
    return zip(spans.starts.tolist(), spans.ends.tolist(), strict=True)


def _one_by_one(
    view: memoryview, starts: NDArray[np.int64], sizes: NDArray[np.int64], topic: str
) -> MessageKeys:
    rows: list[tuple[int, int, int]] = []
    prefix = continued_hash(0, index_key(topic, ""))
    for number, (start, end) in enumerate(pairs(Spans(starts, starts + sizes))):
        message = StoredMessage.decode(view[start:end], path="", position=start)
        for ordinal, key in enumerate(index_keys(message.property_map)):
            rows.append((number, ordinal, unsigned(continued_hash(prefix, key))))
    return MessageKeys(*np.array(rows, np.int64).reshape(-1, 3).T)


def _properties_of(
    data: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64]
) -> Spans:
    """Positions of the properties of each record. Fast if all records have one shape."""
    if len(starts):
        first = data[int(starts[0]) : int(starts[0] + sizes[0])]
        shape = StoredMessage.decode(first.data, path="", position=0).shape
        found = properties_of_all(data, starts, sizes, shape)
        if found is not None:
            return Spans(starts + found, starts + sizes)
    return locate_columns(data.data, starts, sizes, path="").properties


def _values_of(text: NDArray[np.uint8], found: OwnedSpans, name: bytes, count: int) -> OwnedSpans:
    """Values of one property. Of several in a message, the last non-empty one counts."""
    starts, ends = found.spans
    mine = values_at(text, f"V{len(name)}", starts).view(f"S{len(name)}") == name
    mine &= ends - starts > len(name)
    last = np.full(count, -1)
    last[found.owners[mine]] = np.flatnonzero(mine)  # of several, the last assignment counts
    having = np.flatnonzero(last >= 0)
    chosen = last[having]
    return OwnedSpans(having, Spans(starts[chosen] + len(name), ends[chosen]))


def _split_at_blanks(text: NDArray[np.uint8], values: OwnedSpans) -> OwnedSpans:
    """Split values at blanks, without empty pieces."""
    blanks = np.flatnonzero(text == _BLANK_BYTE)
    within = np.searchsorted(values.spans.starts, blanks, side="right") - 1
    if not len(values.owners) or not len(blanks):
        return values
    blanks = blanks[(within >= 0) & (blanks < values.spans.ends[within])]
    starts = np.sort(np.concatenate((values.spans.starts, blanks + 1)))
    ends = np.sort(np.concatenate((values.spans.ends, blanks)))
    full = starts < ends
    starts, ends = starts[full], ends[full]
    owners = values.owners[np.searchsorted(values.spans.starts, starts, side="right") - 1]
    return OwnedSpans(owners, Spans(starts, ends))


def _ordered(unique: OwnedSpans, users: OwnedSpans) -> OwnedSpans:
    """Merge both kinds in order of message, the unique key first."""
    owners = np.concatenate((unique.owners, users.owners))
    order = np.argsort(owners, kind="stable")
    starts = np.concatenate((unique.spans.starts, users.spans.starts))
    ends = np.concatenate((unique.spans.ends, users.spans.ends))
    return OwnedSpans(owners[order], Spans(starts[order], ends[order]))


def _hashes(text: NDArray[np.uint8], spans: Spans, topic: str) -> NDArray[np.int64]:
    """Hash of each key after its topic, not negative."""
    prefix = index_key(topic, "")
    lengths = spans.ends - spans.starts
    found = np.empty(len(lengths), np.int64)
    for length in np.unique(lengths).tolist():
        factor = pow(_FACTOR, length, 1 << 32)
        head = java_hash(prefix) * factor & 0xFFFF_FFFF
        powers = powers_of_factor(length)
        same = np.flatnonzero(lengths == length)
        step = max(1, _CELLS_MAX // length)
        for part in (same[at : at + step] for at in range(0, len(same), step)):
            cells = values_at(text, f"V{length}", spans.starts[part]).view(np.uint8)
            cells = cells.reshape(len(part), length)
            sums = (cells * powers).sum(axis=1, dtype=np.uint32)
            found[part] = _unsigned(sums + np.uint32(head))
            for row in part[(cells >= _ASCII_END).any(axis=1)].tolist():
                found[row] = key_hash(prefix + _decoded(text, spans, row))
    return found


def _unsigned(low_bits: NDArray[np.uint32]) -> NDArray[np.int64]:
    """`java_hash.unsigned` for an array."""
    found = np.abs(low_bits.view(np.int32).astype(np.int64))
    found[found == _INT32_SIGN] = 0
    return found


def _decoded(text: NDArray[np.uint8], spans: Spans, row: int) -> str:
    return text[int(spans.starts[row]) : int(spans.ends[row])].tobytes().decode("utf-8", "replace")


def _without_repeats(
    text: NDArray[np.uint8], keys: OwnedSpans, hashes: NDArray[np.int64]
) -> MessageKeys:
    """Remove repeated keys of each message, and number the rest."""
    owners = keys.owners
    again = _may_repeat(owners, hashes)
    if len(again):
        keep = np.ones(len(owners), bool)
        seen: set[tuple[int, str]] = set()
        for row in np.flatnonzero(np.isin(owners, again)).tolist():
            name = (int(owners[row]), _decoded(text, keys.spans, row))
            keep[row] = name not in seen
            seen.add(name)
        owners, hashes = owners[keep], hashes[keep]
    firsts = np.searchsorted(owners, owners)
    return MessageKeys(owners, np.arange(len(owners)) - firsts, hashes)


def _may_repeat(owners: NDArray[np.int64], hashes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Messages with two keys of the same hash."""
    marked = np.sort(owners << 31 | hashes)
    return np.unique(marked[1:][marked[1:] == marked[:-1]] >> 31)
