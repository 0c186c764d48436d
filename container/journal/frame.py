"""Frame of every metadata object: a fixed header, then a JSON payload.

Journal entries, snapshots, manifests and boundaries differ only in their magic. The checksum covers
everything but itself, so a damaged object is always `Corrupt`. A second frame may follow that of an
entry: a copy of the previous entry's. It replaces that entry if it is damaged or missing.
"""

from dataclasses import dataclass
from enum import Enum
from struct import Struct
from typing import ClassVar, Self

from container.errors import NewerVersion, Refused
from container.metadata.codec import ENCODINGS, decode_operations, encoding_of
from container.metadata.operations import TakeOwnership
from container.metadata.state import TierState
from container.names.tier_objects import EntryName
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


def encode_entry(frame: Frame, before: bytes) -> tuple[bytes, int]:
    """Encode an entry. Return its bytes, and the number of them before the copy.

    `before` has the own bytes of the previous entry. It is empty if the writer has no previous
    entry: the entry is the first, or a snapshot covers all earlier ones.
    """
    version = Frame.VERSION_WITH_COPY if before else Frame.VERSION
    own = frame.encode(version)
    return own + before, len(own)


def apply_entry(state: TierState, raw: Buffer, name: EntryName) -> bytes:
    """Apply the next entry to `state`, all of it or nothing. Return the entry's own bytes.

    Raises:
        Corrupt: the entry is damaged, or contradicts the state that it follows.
        NewerVersion: a newer program wrote it.
    """
    path = str(name)
    assert name.sequence == state.sequence + 1, f"{path} does not follow {state!r}"
    frame, own = decode_entry(raw, name)
    operations = decode_operations(frame.payload, path=path)
    fenced = bool(operations) and isinstance(operations[0], TakeOwnership)
    if frame.epoch != state.broker.epoch + fenced:
        raise Corrupt(f"epoch {frame.epoch} behind epoch {state.broker.epoch}", path)
    try:
        state.apply(operations)
    except Refused as refused:
        raise Corrupt(f"the entry contradicts what is before it: {refused}", path) from refused
    state.sequence = name.sequence
    return own


def decode_entry(raw: Buffer, name: EntryName) -> tuple[Frame, bytes]:
    """Decode an entry to its frame and its own bytes, without the copy after them.

    Raises:
        Corrupt: it is damaged, or has another number.
        NewerVersion: a newer program wrote it.
    """
    frame, length = Frame.decode_first(raw, FrameKind.ENTRY, path=str(name))
    if frame.sequence != name.sequence:
        raise Corrupt(f"the entry says that its number is {frame.sequence}", str(name))
    return frame, bytes(raw[:length])


def follows(raw: Buffer, name: EntryName, last: bytes) -> bool:
    """Whether the entry `name` was written after `last`, the own bytes of the last applied entry.

    False if its intact copy of the previous entry differs: the tier was restored from a backup, and
    numbers and epochs were reused. True if it has no intact copy, or `last` is empty.
    """
    if not last or raw[-len(last) :] == last:
        return True
    try:
        copy = copy_in(raw, name)
    except (Corrupt, NewerVersion):
        return True  # raised when the entry is applied
    return copy is None or copy == last


def copy_in(raw: Buffer, name: EntryName) -> bytes | None:
    """Return the copy of the previous entry in the entry `name`. None if it holds none.

    Raises:
        Corrupt: the entry or the copy is damaged. The position is that of its first byte.
        NewerVersion: a newer program wrote it.
    """
    _, own = decode_entry(raw, name)
    copy = bytes(raw[len(own) :])
    if not copy:
        if Frame.version_of(raw) == Frame.VERSION_WITH_COPY:
            raise Corrupt("its copy of the entry before it is missing", str(name), len(own))
        return None
    try:
        decode_entry(copy, EntryName(name.sequence - 1))
    except (Corrupt, NewerVersion) as error:
        reason = f"its copy of the entry before it: {error.reason}"
        raise Corrupt(reason, str(name), len(own)) from error
    return copy
