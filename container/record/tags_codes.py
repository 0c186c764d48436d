"""Tags codes of records: the hashes of their TAGS properties, which their units carry."""

import numpy as np
from numpy.typing import NDArray

from container.record.header import locate_parts
from container.record.java_hash import tag_hash
from container.record.properties import TAGS, decode_properties

_PAIR_END = b"\x02"
_TAGS = TAGS.encode() + b"\x01"


class TagsCodes:
    """Computes tags codes; each different value of TAGS is hashed once."""

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
    """The value of TAGS; empty if there is none. Takes the long way where the short may err."""
    at = properties.find(_TAGS)
    if at < 0:
        return b""
    if (at and properties[at - 1 : at] != _PAIR_END) or properties.find(_TAGS, at + 1) >= 0:
        return decode_properties(properties).get(TAGS, "").encode("utf-8", "surrogatepass")
    return properties[at + len(_TAGS) :].partition(_PAIR_END)[0]
