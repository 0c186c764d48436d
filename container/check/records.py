"""What is wrong with units and the records they point to. Pure: bytes in, findings out."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from container.check.finding import Finding
from container.names.queue_id import QueueId
from container.record.blank import BLANK_MAGIC, Coda
from container.record.body import check_compression, decompress
from container.record.checksum import body_crc_of, record_crc_is_valid
from container.record.header import RecordHeader, RecordParts, locate_parts
from container.record.java_hash import tag_hash
from container.record.layout import MAGIC_AT
from container.record.properties import NAME_END, PAIR_END, TAGS
from container.record.unit import Units
from container.record.unit_faults import Fault, find_records
from provider.errors import Corrupt
from provider.object_store import Buffer
from provider.ranges import QueueOffset

_TAGS_NAME = (PAIR_END + TAGS + NAME_END).encode()
_PAIR_END = PAIR_END.encode()
_FIELDS = {
    Fault.QUEUE_ID: "queue_id",
    Fault.QUEUE_OFFSET: "queue_offset",
    Fault.POSITION: "physical_offset",
}
"""The header's field that is wrong; of the other faults `locate_parts` speaks."""


@dataclass(slots=True)
class RecordCheck:
    """Checks the records of one queue in order of offset, a chunk at a time.

    `next_position` is where the next record must begin: units join without holes, except that a
    coda of an old Java tier may stand between two segments.
    """

    queue: QueueId
    next_position: int
    decompresses: bool = False
    """Whether compressed bodies are read to their end, up to `BODY_BYTES_MAX`; takes its time.

    Otherwise only their first bytes are compared with the format."""
    tag_hashes: dict[bytes, int] = field(default_factory=dict[bytes, int])

    def check(
        self, first_offset: QueueOffset, units: Units, log: Buffer, log_start: int
    ) -> Iterator[Finding]:
        """Yield everything wrong with the messages of `units`, whose bytes `log` holds.

        `log_start` is the log position of `log[0]`. About 6 us per message.
        """
        view = memoryview(log)
        found = find_records(
            log, log_start, units, queue_id=self.queue.queue_id, first_offset=first_offset
        )
        columns = (units["position"], units["tag_hash"], found.starts, found.sizes, found.faults)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for offset, (position, tags, at, size, number) in enumerate(rows, first_offset):
            if position != self.next_position and not self._coda_between(view, log_start, position):
                yield self._finding(
                    "units-do-not-join",
                    offset,
                    f"unit points to {position}, the record before ends at {self.next_position}",
                )
            self.next_position = log_start + at + max(size, 0)
            fault = Fault(number)
            if fault is Fault.OUTSIDE:
                yield self._finding(
                    "unit-outside-log", offset, f"unit points to [{position}, {position + size})"
                )
                continue
            yield from self._check_record(view[at : at + size], offset, log_start + at, tags, fault)

    def _coda_between(self, view: memoryview, log_start: int, position: int) -> bool:
        """Whether only a coda lies between the last record and `position`."""
        at = self.next_position - log_start
        return (
            position - self.next_position
            == Coda.SIZE
            == self._coda_bytes(view[max(at, 0) : max(at, 0) + Coda.SIZE])
        )

    @staticmethod
    def _coda_bytes(head: memoryview) -> int:
        """Length of the coda that `head` is; 0 if it is something else."""
        magic = int.from_bytes(head[MAGIC_AT : MAGIC_AT + 4], "big")
        return Coda.SIZE if len(head) == Coda.SIZE and magic == BLANK_MAGIC else 0

    def _check_record(
        self, record: memoryview, offset: int, position: int, tags: int, fault: Fault
    ) -> Iterator[Finding]:
        try:
            header, parts = locate_parts(record, path=str(self.queue), position=position)
        except Corrupt as error:
            yield self._finding("record", offset, f"{error.reason} at log position {position}")
            return
        if fault:
            found = getattr(header, _FIELDS[fault])
            yield self._finding("record", offset, f"{fault.reason}: {found} at {position}")
        topic = bytes(record[parts.topic : parts.topic_end])
        if topic != self.queue.topic.encode():
            yield self._finding("record", offset, f"another topic: {topic!r}")
        yield from self._check_sums(record, header, parts, offset)
        found_hash = self._tag_hash(bytes(record[parts.properties :]))
        if tags != found_hash:
            yield self._finding("tag-hash", offset, f"unit has {tags}, the tags give {found_hash}")

    def _check_sums(
        self, record: memoryview, header: RecordHeader, parts: RecordParts, offset: int
    ) -> Iterator[Finding]:
        found = body_crc_of(record[parts.body : parts.body_end])
        if found != header.body_crc:
            yield self._finding(
                "body-crc", offset, f"body has CRC {found:#010x}, stored {header.body_crc:#010x}"
            )
        elif parts.body < parts.body_end:  # readers take an empty body as it is
            verify = decompress if self.decompresses else check_compression
            body = record[parts.body : parts.body_end]
            try:
                verify(body, header.sys_flag, path=str(self.queue), position=offset)
            except Corrupt as error:
                yield self._finding("body-compression", offset, error.reason)
        if not record_crc_is_valid(record):
            yield self._finding("record-crc", offset, "the whole-record CRC does not match")

    def _tag_hash(self, properties: bytes) -> int:
        """Tags code that the properties give; the last TAGS counts."""
        _, found, rest = (_PAIR_END + properties).rpartition(_TAGS_NAME)
        tags = rest.partition(_PAIR_END)[0] if found else b""
        if tags not in self.tag_hashes:
            self.tag_hashes[tags] = tag_hash(tags.decode("utf-8", "replace"))
        return self.tag_hashes[tags]

    def _finding(self, kind: str, offset: int, detail: str) -> Finding:
        return Finding(kind, str(self.queue), offset, detail)
