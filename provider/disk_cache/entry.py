"""A file of the disk cache: a header, a checksum for each block, then bytes of one object.

```
<directory>/<first 2 digits of the key>/<key, 40 hex digits>-<start>-<length>
```
The key is a hash of where the object lies and of its name. Nothing is synced: what a crash or a
power failure leaves is found by its checksums, and is then not there. Big-endian:

    0  4  magic "TSDC"
    4  2  version, 1
    6  2  0
    8 20  key
   28  8  start: first byte in the object
   36  8  length in bytes
   44  4  CRC-32 of the 44 bytes before it, continued over the checksums behind
   48  4 for each block of 64 KiB: its CRC-32; the last block may be shorter
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from struct import Struct
from typing import NamedTuple, Self, cast

from isal import isal_zlib

from provider.object_store import Buffer
from provider.ranges import ByteRange

MAGIC = b"TSDC"
VERSION = 1
BLOCK_BYTES = 64 << 10
KEY_BYTES = 20
CRC_BYTES = 4
HEAD = Struct(">4sHH20sQQ")
HEAD_BYTES = HEAD.size + CRC_BYTES

_crc = cast("Callable[..., int]", vars(isal_zlib)["crc32"])
"""Of a buffer, continued from a second argument. The library leaves the buffer's type open."""
_FILE = re.compile(r"([0-9a-f]{40})-(0|[1-9][0-9]*)-([1-9][0-9]*)\Z")


class EntryName(NamedTuple):
    """Which bytes of which object a file has."""

    key: str
    start: int
    length: int

    def __str__(self) -> str:
        return f"{self.key}-{self.start}-{self.length}"

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """What a file's name says; None if it is not one of the cache's."""
        found = _FILE.match(name)
        return None if found is None else cls(found[1], int(found[2]), int(found[3]))

    @property
    def end(self) -> int:
        """First byte of the object behind it."""
        return self.start + self.length

    @property
    def path(self) -> str:
        """The file's path below the directory."""
        return f"{self.key[:2]}/{self}"

    @property
    def blocks(self) -> int:
        """Blocks that have a checksum."""
        return -(-self.length // BLOCK_BYTES)

    @property
    def data_at(self) -> int:
        """Where in the file the object's bytes begin."""
        return HEAD_BYTES + CRC_BYTES * self.blocks

    @property
    def file_bytes(self) -> int:
        """Length of the file."""
        return self.data_at + self.length


def key_of(scope: str, name: str) -> str:
    """The key of an object: `scope` says in which store it lies."""
    return hashlib.sha256(f"{scope}\0{name}".encode()).hexdigest()[: 2 * KEY_BYTES]


def encode_head(entry: EntryName, data: Buffer) -> bytes:
    """What stands in the file before `data`."""
    view = memoryview(data)
    sums = b"".join(
        _crc(view[at : at + BLOCK_BYTES]).to_bytes(CRC_BYTES, "big")
        for at in range(0, entry.length, BLOCK_BYTES)
    )
    head = HEAD.pack(MAGIC, VERSION, 0, bytes.fromhex(entry.key), entry.start, entry.length)
    return head + _crc(sums, _crc(head)).to_bytes(CRC_BYTES, "big") + sums


def decode_head(entry: EntryName, raw: bytes) -> Sequence[int] | None:
    """The checksums of the blocks; None if the file is not what its name says, or is damaged."""
    if len(raw) != entry.data_at:
        return None
    head, sums = raw[: HEAD.size], raw[HEAD_BYTES:]
    wanted = (MAGIC, VERSION, 0, bytes.fromhex(entry.key), entry.start, entry.length)
    crc = int.from_bytes(raw[HEAD.size : HEAD_BYTES], "big")
    if HEAD.unpack(head) != wanted or _crc(sums, _crc(head)) != crc:
        return None
    return [
        int.from_bytes(sums[at : at + CRC_BYTES], "big") for at in range(0, len(sums), CRC_BYTES)
    ]


def blocks_around(entry: EntryName, wanted: ByteRange) -> ByteRange:
    """The whole blocks that hold a range of the entry, both counted from the entry's start."""
    first = wanted.start // BLOCK_BYTES * BLOCK_BYTES
    last = -(-wanted.end // BLOCK_BYTES) * BLOCK_BYTES
    return ByteRange(first, min(last, entry.length))


def blocks_are_sound(sums: Sequence[int], place: ByteRange, data: Buffer) -> bool:
    """Whether whole blocks, at `place` in the entry, have their checksums."""
    if len(data) != place.length:
        return False
    view, first = memoryview(data), place.start // BLOCK_BYTES
    return all(
        _crc(view[at : at + BLOCK_BYTES]) == sums[first + at // BLOCK_BYTES]
        for at in range(0, len(view), BLOCK_BYTES)
    )
