"""Tags codes of many records, as ConsumeQueue units have them."""

import numpy as np
from numpy.typing import NDArray

from container.record.batch import values_at
from container.record.columns import Spans
from container.record.header import locate_parts
from container.record.properties import NAME_END, PAIR_END, TAGS, decode_properties, tag_hash

_PAIR_END = PAIR_END.encode()
_TAGS = TAGS.encode() + NAME_END.encode()
_NAME = int.from_bytes(TAGS.encode(), "big")
PROPERTIES_TOGETHER_MAX = 512
"""Bytes of properties from which a record is looked at alone."""
TAGS_TOGETHER_MAX = 64
"""Bytes of a tag, likewise."""


class TagsCodes:
    """Computes tags codes. Each distinct value of TAGS is hashed once."""

    def __init__(self) -> None:
        self._known: dict[bytes, int] = {b"": 0}

    def __repr__(self) -> str:
        return f"<TagsCodes: {len(self._known)} values>"

    def of_properties(self, properties: bytes) -> int:
        """Tags code of a record with these properties. O(length)."""
        tags = _tags_of(properties)
        code = self._known.get(tags)
        if code is None:
            code = self._known[tags] = tag_hash(tags.decode("utf-8", "replace"))
        return code

    def of_records(
        self, data: NDArray[np.uint8], starts: NDArray[np.int64], sizes: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Tags codes of the records at `starts` of `data`. Some 2 us a record.

        Raises:
            Corrupt: the lengths in a record do not add up.
        """
        view = data.data
        codes = np.empty(len(starts), np.int64)
        for index, (start, size) in enumerate(zip(starts.tolist(), sizes.tolist(), strict=True)):
            raw = view[start : start + size]
            _, parts = locate_parts(raw, path="", position=start)
            codes[index] = self.of_properties(bytes(raw[parts.properties :]))
        return codes


def _tags_of(properties: bytes) -> bytes:
    """Value of TAGS, empty if there is none. Decodes all pairs if the fast search could err."""
    at = properties.find(_TAGS)
    if at < 0:
        return b""
    if (at and properties[at - 1 : at] != _PAIR_END) or properties.find(_TAGS, at + 1) >= 0:
        return decode_properties(properties).get(TAGS, "").encode("utf-8", "surrogatepass")
    return properties[at + len(_TAGS) :].partition(_PAIR_END)[0]


def tags_codes(raw: NDArray[np.uint8], properties: Spans) -> NDArray[np.int64]:
    """Tags code of each record, whose properties are these bytes of `raw`. Some 0.15 us a record.

    Records with long properties, or with a tag that is long or not ASCII, take 0.7 us each.
    """
    starts, ends = properties
    lengths = ends - starts
    width = int(min(lengths.max(initial=0), PROPERTIES_TOGETHER_MAX))
    together = (lengths <= width) & (starts + width <= len(raw)) & (width > len(_TAGS))
    codes = np.zeros(len(starts), np.int64)
    if together.any():
        rows = np.flatnonzero(together)
        codes[rows], is_odd = _codes_together(raw, starts[rows], lengths[rows], width)
        together[rows] = ~is_odd
    alone, view = TagsCodes(), raw.data
    for row in np.flatnonzero(~together).tolist():
        codes[row] = alone.of_properties(bytes(view[starts[row] : ends[row]]))
    return codes


def _codes_together(
    raw: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64], width: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Tags codes of properties of at most `width` bytes, and which of them are not right.

    The properties are copied into rows of `width` bytes, that each begin at a multiple of it.
    """
    text = values_at(raw, f"V{width}", starts).view(np.uint8)
    name = len(TAGS)
    marks = np.flatnonzero(text[name:] == ord(NAME_END)) + name
    marks = marks[values_at(text, ">u4", marks - name) == _NAME]
    rows, at = np.divmod(marks, width)
    is_name = (at == name) | ((at > name) & (text[marks - name - 1] == ord(PAIR_END)))
    is_name &= at < lengths[rows]
    values, rows = marks[is_name] + 1, rows[is_name]
    cuts = np.flatnonzero(text == ord(PAIR_END))
    nearest = np.append(cuts, len(text))[np.searchsorted(cuts, values)]
    sizes = np.minimum(nearest, rows * width + lengths[rows]) - values
    values, rows, sizes = values[sizes > 0], rows[sizes > 0], sizes[sizes > 0]
    hashes = np.zeros(len(values), np.int32)
    is_odd = sizes > TAGS_TOGETHER_MAX
    for index in range(int(min(sizes.max(initial=0), TAGS_TOGETHER_MAX))):
        letters = text[np.minimum(values + index, len(text) - 1)]
        inside = index < sizes
        is_odd |= inside & (letters >= 0x80)  # noqa: PLR2004 - not ASCII
        hashes = np.where(inside, hashes * np.int32(31) + letters, hashes)  # as `java_hash`
    codes, odd = np.zeros(len(starts), np.int64), np.zeros(len(starts), np.bool_)
    codes[rows], odd[rows[is_odd]] = hashes, True  # of several tags the last one counts
    return codes, odd
