"""The keys of messages whose properties look alike, column by column, without an object a key.

A producer's messages mostly differ in the characters of values alone: names, lengths and
separators stand at the same places. Such are found by comparing bytes, so nothing is assumed.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from container.record.columns import Spans
from container.record.java_hash import continued_hash
from container.record.kernels import values_at
from container.record.properties import (
    KEY_SEPARATOR,
    KEYS,
    NAME_END,
    PAIR_END,
    UNIQ_KEY,
)

_CELLS_MAX = 1 << 18
"""Characters that are looked at once: they and what is made of them stay in the cache."""
_ALIKE_MIN = 8
"""Fewer messages of one length are not worth being looked at together."""
_POWERS_KEPT_MAX = 64
"""Lengths of keys that are remembered: at most 128 KiB each, mostly some 100 bytes."""
_LOW_END = ord(KEY_SEPARATOR) + 1
_ASCII_END = 0x80
_FACTOR = 31
_NAME_END, _PAIR_END = NAME_END.encode(), PAIR_END.encode()

assert all(ord(one) < _LOW_END for one in (NAME_END, PAIR_END)), "separators are told by `<`"


class AlikeKeys(NamedTuple):
    """Low 32 bits of the hashes of the keys of some messages, all of which have as many."""

    rows: NDArray[np.int64]
    """The messages."""
    hashes: NDArray[np.uint32]
    """A row a message, a column a key, in order of ordinal."""


def keys_of_alike(
    data: NDArray[np.uint8], properties: Spans, prefix: str
) -> tuple[list[AlikeKeys], NDArray[np.int64]]:
    """The keys of messages that look alike, and which messages are to be looked at otherwise.

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
            hashes = _hashes(cells.reshape(len(part), length), before)
            if hashes is None:
                odd.append(part)
            elif hashes.shape[1]:
                found.append(AlikeKeys(part, hashes))
    return found, np.sort(np.concatenate(odd)) if odd else np.empty(0, np.int64)


def _hashes(cells: NDArray[np.uint8], before: int) -> NDArray[np.uint32] | None:
    """Hashes of the keys of messages of one length; None if they do not look alike."""
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
            return None  # perhaps one key twice
    return hashes


def _names(raw: bytes) -> Iterator[tuple[int, int]]:
    """Where the names of properties lie."""
    at = 0
    for piece in raw.split(_PAIR_END):
        name, mark, _ = piece.partition(_NAME_END)
        if mark:
            yield at, at + len(name)
        at += len(piece) + len(_PAIR_END)


def _key_spans(raw: bytes) -> Iterator[tuple[int, int]]:
    """Where the keys of a message lie: of UNIQ_KEY, then of KEYS, of each the last that counts."""
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
    """What each of `length` characters is multiplied by. Shared: not to be changed."""
    powers = np.full(length, _FACTOR, np.uint32)
    powers[-1:] = 1
    found = np.cumprod(powers[::-1], dtype=np.uint32)[::-1].copy()
    found.setflags(write=False)
    return found
