"""Where messages go, by RocketMQ's rule, and the bytes that say so. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import NamedTuple

from container.names.queue_id import QueueId
from container.record.blank import BlankRecord
from container.record.checksum import encode_record_crc
from container.record.layout import PHYSICAL_OFFSET_AT, QUEUE_OFFSET_AT
from container.record.unit import ConsumeQueueUnit
from provider.object_store import Buffer
from tieredstore.hot.encoding import Prepared

_PLACE = Struct(">qq")
_pack_place = _PLACE.pack_into
_pack_unit = ConsumeQueueUnit.LAYOUT.pack

assert QUEUE_OFFSET_AT + 8 == PHYSICAL_OFFSET_AT, "the two fields are written together"


class Appended(NamedTuple):
    """Where a message was put."""

    queue_offset: int
    """Which message of its queue it is; 0 for prepared and rolled-back transactions."""
    position: int
    """First byte of its record in the CommitLog."""
    size: int
    """Length of its record in bytes."""
    store_timestamp: int
    """Unix ms."""


@dataclass(slots=True)
class FileAppend:
    """What one group of messages adds to one CommitLog file, and the units of those records."""

    position: int
    """Where in the CommitLog it begins."""
    parts: list[Buffer] = field(default_factory=list[Buffer])
    """Records, and the blank one that ends the file."""
    units: dict[QueueId, tuple[int, bytearray]] = field(
        default_factory=dict[QueueId, tuple[int, bytearray]]
    )
    """Of each queue, the first new offset and its units."""


@dataclass(slots=True)
class AppendPlan:
    """What one group of messages changes; nothing is changed yet."""

    files: list[FileAppend]
    """One for each CommitLog file that it reaches, in order."""
    appended: list[Appended] = field(default_factory=list[Appended])
    """One for each message, in order."""
    next_offsets: dict[QueueId, int] = field(default_factory=dict[QueueId, int])
    """Of the queues that grow."""
    end: int = 0
    """Position after the last record."""
    starts: dict[QueueId, int] = field(default_factory=dict[QueueId, int])
    """Where queues begin that have no message yet, if not at 0."""


def plan_append(
    end: int,
    next_offsets: Mapping[QueueId, int],
    messages: Sequence[Prepared],
    *,
    file_bytes: int,
    record_crc: bool = False,
) -> AppendPlan:
    """Place messages after `end`. About 1 us a message. Fills in their `fixed` parts.

    A record that would leave less than 8 bytes of its file goes to the next one, and a blank
    record takes the rest of the file: a message never spans two.
    """
    file = FileAppend(end)
    plan = AppendPlan([file])
    left = file_bytes - end % file_bytes
    grown = plan.next_offsets
    for queue, has_unit, size, tag_code, store_timestamp, fixed, body, after, room in messages:
        if room + BlankRecord.SIZE > left:
            assert room + BlankRecord.SIZE <= file_bytes, "prepare refuses what no file holds"
            file.parts.append(BlankRecord(left).encode())
            end += left
            left = file_bytes
            file = FileAppend(end)
            plan.files.append(file)
        offset = 0
        if has_unit:
            offset = grown[queue] if queue in grown else next_offsets.get(queue, 0)
            grown[queue] = offset + 1
            unit = _pack_unit(end, size, tag_code)
            if queue in file.units:
                file.units[queue][1].extend(unit)
            else:
                file.units[queue] = (offset, bytearray(unit))
        _pack_place(fixed, QUEUE_OFFSET_AT, offset, end)
        if record_crc:
            covered = b"".join((fixed, body, after))
            file.parts += (covered, encode_record_crc(covered))
        else:
            file.parts += (fixed, body, after)
        plan.appended.append(Appended(offset, end, size, store_timestamp))
        end += size
        left -= size
    plan.end = end
    return plan
