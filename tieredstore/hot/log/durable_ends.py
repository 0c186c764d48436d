"""Durable watermarks of the hot log, the Java checkpoint, and checksummed JSON files."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from struct import Struct
from typing import Any, ClassVar, Self, cast

import orjson

from container.names.queue_id import QueueId
from container.record.checksum import crc32c
from provider.names import is_there
from provider.posix.files import sync_data
from tieredstore.hot.log.files import FLAGS, sync_directories, write_all

_HEAD = re.compile(rb'\{"crc32c":"([0-9a-f]{8})",')
_HEAD_BYTES = len(b'{"crc32c":"01234567",')


class NotSound(ValueError):
    """Error: the bytes are not a document of this format."""


def encode_checked(document: dict[str, Any]) -> bytes:
    """Encode a document of at least one field, with its checksum."""
    assert document, "a checksum of nothing tells nothing"
    rest = orjson.dumps(document)[1:]
    return b'{"crc32c":"%08x",' % crc32c(rest) + rest


def is_checked(raw: bytes) -> bool:
    """Whether a document begins with a checksum, right or wrong."""
    return _HEAD.match(raw) is not None


def decode_checked(raw: bytes) -> dict[str, Any]:
    """Decode a document of `encode_checked`, without the checksum.

    Raises:
        NotSound: the checksum is missing or wrong.
    """
    head = _HEAD.match(raw)
    rest = raw[_HEAD_BYTES:]
    if head is None or int(head[1], 16) != crc32c(rest):
        raise NotSound("its checksum is missing or wrong")
    return cast("dict[str, Any]", orjson.loads(b"{" + rest))


def copy_of(path: Path) -> Path:
    """Return the path of the second copy of a document."""
    return path.with_name(path.name + ".copy")


RESCAN_MS = 3000
"""Minimum age of a file's first message before the checkpoint at which a rescan begins, in ms."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Store timestamps in Unix ms of the last durable messages in each kind of file.

    The fields are in byte order, all big-endian, signed, 8 bytes each.
    """

    log_timestamp: int = 0
    """Last durable message of the CommitLog."""
    queues_timestamp: int = 0
    """Last durable message of the ConsumeQueues."""
    index_timestamp: int = 0
    """Last durable message of the key index; 0: there is none."""
    master_flushed_position: int = 0
    confirm_position: int = 0
    durable_end: int = -1
    """Position before which records and their units were durable; -1: unknown.

    This and the next field are extensions at the end of the file, with a copy of the first two
    timestamps; the other fields are zeros. They are ignored if a broker has changed those since.
    """
    queues: int = -1
    """Number of queues."""
    is_foreign: bool = False
    """Whether another program wrote the file after this one."""
    has_ends: bool = False
    """Whether `durableEnds` exists, too. It does not in directories of older versions."""

    LAYOUT: ClassVar[Struct] = Struct(">5q")
    OURS: ClassVar[Struct] = Struct(">8s4q")
    MAGIC: ClassVar[bytes] = b"hot log1"
    ENDS: ClassVar[bytes] = b"has ends"
    """Marker of `has_ends`, before `OURS`."""
    CRC: ClassVar[Struct] = Struct(">4sI")
    """Marker, and checksum of the marker `ENDS` and `OURS` after it. Older versions wrote none."""
    CRC_MAGIC: ClassVar[bytes] = b"crc:"
    SIZE: ClassVar[int] = 4096

    def encode(self) -> bytes:
        """Encode the file: the fields, and zeros."""
        fields = self.LAYOUT.pack(
            self.log_timestamp,
            self.queues_timestamp,
            self.index_timestamp,
            self.master_flushed_position,
            self.confirm_position,
        )
        ours = self.OURS.pack(
            self.MAGIC, self.log_timestamp, self.queues_timestamp, self.durable_end, self.queues
        )
        ours = (self.ENDS if self.has_ends else bytes(len(self.ENDS))) + ours
        ours = self.CRC.pack(self.CRC_MAGIC, crc32c(ours)) + ours
        return fields + ours.rjust(self.SIZE - len(fields), b"\0")

    @classmethod
    def decode(cls, raw: bytes) -> Self:
        """Decode the file.

        If it is too short all fields are unknown, which only makes a rescan longer.
        """
        if len(raw) < cls.LAYOUT.size:
            return cls()
        fields = cls.LAYOUT.unpack_from(raw)
        if len(raw) != cls.SIZE:
            return cls(*fields)
        magic, *copied, end, queues = cls.OURS.unpack_from(raw, cls.SIZE - cls.OURS.size)
        start = cls.SIZE - cls.OURS.size - len(cls.ENDS)
        has_crc, crc = cls.CRC.unpack_from(raw, start - cls.CRC.size)
        is_rotten = has_crc == cls.CRC_MAGIC and crc != crc32c(raw[start:])
        if magic != cls.MAGIC or is_rotten:
            return cls(*fields)
        if (*copied, 0, 0, 0) != fields:  # a broker sets the others even if it put nothing
            return cls(*fields, is_foreign=True)
        has_ends = raw[start:].startswith(cls.ENDS)
        return cls(*fields, durable_end=end, queues=queues, has_ends=has_ends)

    @property
    def rescan_before(self) -> int:
        """Time in Unix ms: a rescan may begin at any file whose first message is not younger."""
        return max(min(self.log_timestamp, self.queues_timestamp) - RESCAN_MS, 0)


assert Checkpoint.LAYOUT.size == 40, "an on-disk format never drifts"  # noqa: PLR2004 - the format's


FORMAT = 1
SMALL_QUEUES = 1000
"""Largest number of queues that are written with every checkpoint: some 30 KB."""
QUEUE_BYTES = 40
"""Approximate bytes of one queue in the file."""
GROWTH = 64
"""Factor of growth: a larger file is written after the log has grown by so many times its size."""


@dataclass(frozen=True, slots=True)
class DurableEnds:
    """Durable end of a log and of its queues."""

    position: int
    """First CommitLog position that may not be durable."""
    next_offsets: Mapping[QueueId, int] = field(default_factory=dict[QueueId, int])
    """Offset after the last durable message of each queue."""
    min_position: int = 0
    """First CommitLog position that is neither deleted nor being deleted."""
    filled: Mapping[QueueId, int] | None = None
    """Offset of each queue before which units may be fillers; None: an older version wrote none."""
    has_deletions: bool = False
    """Whether `config/deletedQueues.json` has entries."""
    deletions: int = 0
    """Least number of `config/deletedQueues.json`. A lower one is that of an older copy."""
    number: int = 0
    """Number that each write raises. The newer of two copies has the higher one."""

    def encode(self) -> bytes:
        """Encode the file."""
        document = {
            "format": FORMAT,
            "number": self.number,
            "position": self.position,
            "minPosition": self.min_position,
            "nextOffsets": _by_topic(self.next_offsets),
            "hasDeletions": self.has_deletions,
            "deletions": self.deletions,
        }
        if self.filled is not None:
            document["filled"] = _by_topic(self.filled)
        return encode_checked(document)

    @classmethod
    def decode(cls, raw: bytes) -> Self:
        """Decode one copy.

        Raises:
            NotSound: it is damaged, or its format is unknown to this version.
        """
        document = decode_checked(raw)
        if document.get("format") != FORMAT:
            raise NotSound("this version does not know its format")
        filled = document.get("filled")  # this and the deletions are newer than the format
        return cls(
            document["position"],
            _by_queue(document["nextOffsets"]),
            document["minPosition"],
            None if filled is None else _by_queue(filled),
            document.get("hasDeletions", False),
            document.get("deletions", 0),
            document["number"],
        )

    def is_due(self, position: int) -> bool:
        """Whether a log that is durable up to `position` justifies another write."""
        count = len(self.next_offsets)
        grown = position - self.position
        return grown > 0 and (count <= SMALL_QUEUES or grown >= count * QUEUE_BYTES * GROWTH)


def _by_topic(offsets: Mapping[QueueId, int]) -> dict[str, list[tuple[int, int]]]:
    topics: dict[str, list[tuple[int, int]]] = {}
    for (topic, queue_id), offset in offsets.items():
        topics.setdefault(topic, []).append((queue_id, offset))
    return topics


def _by_queue(topics: dict[str, list[tuple[int, int]]]) -> dict[QueueId, int]:
    return {QueueId(topic, n): offset for topic, queues in topics.items() for n, offset in queues}


class DurableEndsFile:
    """Two copies of `durableEnds`, written in turn. One thread at a time writes."""

    def __init__(self, path: Path, number: int = 0) -> None:
        """Keep the arguments. `number`: that of a first write, above those of a log that was lost.

        A copy that comes back from an earlier log is then not the newer one.
        """
        self._path = path
        self._turn = 0
        self._number = number
        self.is_damaged = False
        """Whether `read` found copies, and none of them whole."""

    def __repr__(self) -> str:
        return f"<DurableEndsFile {self._path}>"

    def read(self) -> DurableEnds | None:
        """Read the newer whole copy; None if there is none.

        The next `write` replaces the other one.

        Raises:
            OSError: a copy cannot be read.
        """
        found: list[DurableEnds] = []
        has_unsound = False
        for turn, path in enumerate(self._copies):
            try:
                one = DurableEnds.decode(path.read_bytes())
            except FileNotFoundError:
                continue
            except NotSound:
                has_unsound = True
                continue
            if not found or one.number > found[0].number:
                found = [one]
                self._turn, self._number = 1 - turn, one.number + 1
        self.is_damaged = has_unsound and not found
        return found[0] if found else None

    def write(self, ends: DurableEnds) -> None:
        """Replace the older copy. Durable on return. One write and one sync.

        Raises:
            OSError: it cannot be written; the newer copy is whole.
        """
        path = self._copies[self._turn]
        is_new = not is_there(path)
        raw = replace(ends, number=self._number).encode()
        fd = os.open(path, FLAGS | os.O_CREAT, 0o644)
        try:
            write_all(fd, 0, raw)
            if os.fstat(fd).st_size != len(raw):
                os.ftruncate(fd, len(raw))
            sync_data(fd)
        finally:
            os.close(fd)
        if is_new:
            sync_directories([path.parent])
        self._turn, self._number = 1 - self._turn, self._number + 1

    def write_both(self, ends: DurableEnds) -> None:
        """Replace both copies, the older one first. Durable on return.

        Raises:
            OSError: one cannot be written; the other is whole.
        """
        self.write(ends)
        self.write(ends)

    @property
    def _copies(self) -> tuple[Path, Path]:
        return self._path, copy_of(self._path)
