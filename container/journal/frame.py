"""Frame of every metadata object: a fixed header, then a JSON payload.

Journal entries, snapshots, manifests and boundaries differ only in their magic. The checksum covers
everything but itself, so a damaged object is always `Corrupt`. A second frame may follow that of an
entry: a copy of the previous entry's (`entry.py`).
"""

from dataclasses import dataclass
from enum import Enum
from struct import Struct
from typing import ClassVar, Self

from container.errors import NewerVersion
from container.metadata.codec import ENCODINGS, encoding_of
from container.record.checksum import crc32c
from provider.errors import Corrupt
from provider.object_store import Buffer

NONCE_BYTES = 16


class FrameKind(Enum):
    """Kind of an object. The value is its magic number, in the first bytes."""

    ENTRY = b"TSJE"
    SNAPSHOT = b"TSSN"
    MANIFEST = b"TSMF"
    BOUNDARY = b"TSBD"


@dataclass(frozen=True, slots=True)
class Frame:
    """A metadata object. The header's fields are in byte order, big-endian, and unsigned."""

    kind: FrameKind
    epoch: int
    sequence: int
    nonce: bytes
    payload: bytes

    VERSION: ClassVar[int] = 1
    VERSION_WITH_COPY: ClassVar[int] = 2
    """Version of an entry whose payload is followed by a copy of the previous entry."""
    LAYOUT: ClassVar[Struct] = Struct(">4sHHQQ16sII")
    SIZE: ClassVar[int] = 48

    def encode(self, version: int = VERSION) -> bytes:
        """Encode the object. With `VERSION_WITH_COPY`, the bytes before the copy."""
        head = self.head(encoding_of(self.payload), len(self.payload), version)
        crc = crc32c(self.payload, crc32c(head))
        return b"".join((head, crc.to_bytes(CRC_BYTES, "big"), self.payload))

    def head(self, encoding: int, payload_bytes: int, version: int = VERSION) -> bytes:
        """Encode the header up to its checksum, for a payload that may be elsewhere."""
        numbers = self.epoch, self.sequence, self.nonce, payload_bytes, 0
        head = self.LAYOUT.pack(self.kind.value, version, encoding, *numbers)
        return head[: self.SIZE - CRC_BYTES]

    @classmethod
    def version_of(cls, raw: Buffer) -> int:
        """Format version in the header of an object that was decoded before."""
        return int(cls.LAYOUT.unpack(bytes(raw[: cls.SIZE]))[1])

    @classmethod
    def decode(cls, raw: Buffer, kind: FrameKind, *, path: str) -> Self:
        """Decode an object. Bytes after its frame are ignored.

        Raises:
            Corrupt: any byte differs from what was written. `path` names the object.
            NewerVersion: it is intact, in a format version that this program does not know.
        """
        return cls.decode_first(raw, kind, path=path)[0]

    @classmethod
    def decode_first(cls, raw: Buffer, kind: FrameKind, *, path: str) -> tuple[Self, int]:
        """Decode the frame that begins an object. Return it and its length. Raises as `decode`.

        More bytes may follow only if the version says so.
        """
        if len(raw) < cls.SIZE:
            raise Corrupt(f"{len(raw)} of {cls.SIZE} header bytes", path)
        head = bytes(raw[: cls.SIZE])
        magic, version, encoding, epoch, sequence, nonce, length, crc = cls.LAYOUT.unpack(head)
        if magic != kind.value:
            raise Corrupt(f"magic is {magic!r}, not {kind.value!r}", path)
        payload, found_bytes = bytes(raw[cls.SIZE : cls.SIZE + length]), len(raw) - cls.SIZE
        if len(payload) < length:
            raise Corrupt(f"{found_bytes} of {length} payload bytes", path, cls.SIZE)
        found = crc32c(payload, crc32c(head[: cls.SIZE - CRC_BYTES]))
        if found != crc:
            raise Corrupt(f"checksum is {found:08x}, not {crc:08x}", path, cls.SIZE - CRC_BYTES)
        newest = cls.VERSION_WITH_COPY if kind is FrameKind.ENTRY else cls.VERSION
        if not cls.VERSION <= version <= newest or encoding not in ENCODINGS:
            raise NewerVersion(f"format version {version}.{encoding}: upgrade this program", path)
        if version == cls.VERSION and length < found_bytes:
            raise Corrupt(f"{found_bytes} bytes behind a header of {length}", path, cls.SIZE)
        return cls(kind, epoch, sequence, nonce, payload), cls.SIZE + length


CRC_BYTES = 4

FRAME_FIELDS = (
    ("magic", "4s", "TSJE entry, TSSN snapshot, TSMF manifest, TSBD boundary"),
    ("version", "H", "format version: 1; of an entry that has a copy of the one before it, 2"),
    ("encoding", "H", "how the payload is written: 0, JSON in UTF-8; 1 to 3, with what is new"),
    ("epoch", "Q", "epoch of the owner that wrote the object, from 1"),
    ("sequence", "Q", "entry: its number; the others: the last entry that the writer had applied"),
    ("nonce", "16s", "random; identifies the writer's own object after a lost reply"),
    ("payload_length", "I", "bytes of payload; of version 1, the object ends after it"),
    ("crc32c", "I", "CRC-32C of the 44 bytes before it, continued over the payload"),
)
"""Fields of the header, as rows for FORMAT.md: name, struct code, meaning."""

assert Frame.LAYOUT.size == Frame.SIZE, "an on-disk format never drifts"
assert Frame.LAYOUT.format == ">" + "".join(code for _, code, _ in FRAME_FIELDS), "one declaration"
