"""Encoding of new messages as records, and their positions by RocketMQ's rule. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import ip_address
from operator import index
from struct import Struct
from struct import error as StructError  # noqa: N812 - a class, although named as a function
from typing import NamedTuple, cast

from container.names.queue_id import QueueId, check_path_component
from container.record.checksum import RECORD_CRC_BYTES, body_crc_of, encode_record_crc
from container.record.header import (
    BORN_HOST_V6,
    HOST_BITS,
    PHYSICAL_OFFSET_AT,
    QUEUE_OFFSET_AT,
    STORE_HOST_V6,
    TOPIC_BYTES_MAX,
    TRANSACTION_MASK,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    BlankRecord,
    Host,
    RecordLayout,
    layout_of,
    magic_for,
    shape_of,
)
from container.record.properties import (
    NAME_END,
    PAIR_END,
    PROPERTIES_BYTES_MAX,
    TAGS,
    decode_properties,
    encode_properties,
    tag_hash,
)
from container.record.unit import ConsumeQueueUnit
from dispatcher.topic_filter import QUEUE_ID_MAX, untiered_reason
from provider.object_store import Buffer
from tieredstore.hot.options import HotWriteOptions

KEPT_MAX = 4096
"""Maximum of cached encodings of topics, hosts and tags: some 300 bytes each."""

_INT16 = Struct(">h")
_PAIR_END = PAIR_END.encode()
_ZERO_PAGE = bytes(4096)
"""Page of zeros, which recovery takes for one that never reached the disk."""
TAGS_BEGIN = (TAGS + NAME_END).encode()
"""Text before the tags in stored properties."""
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_" + 4 * "X"
"""RocketMQ's topic of delayed messages. The tags code of their units is a time of delivery."""
DELAY_LEVEL = "DELAY"
"""Property with the level of a delayed message."""
DELAYS_S = (1, 5, 10, 30, *range(60, 601, 60), 1200, 1800, 3600, 7200)
"""RocketMQ's `messageDelayLevel`, by level from 1 on."""
INNER_BATCH = 0x80
"""RocketMQ's flag of a body that holds several messages with an offset each."""
WITHOUT_UNIT = (TRANSACTION_PREPARED, TRANSACTION_ROLLBACK)
"""Transactions that never enter a ConsumeQueue."""


class MessageRefused(ValueError):
    """Message too large, or with a field that no record can hold: change the message."""


class NewMessage(NamedTuple):
    """Message to append. `sys_flag` must match the body: it marks a compressed body."""

    topic: str
    queue_id: int
    body: bytes
    properties: Mapping[str, str] | bytes = b""
    """Names and values, or their stored form. `KEYS`, `TAGS` and `UNIQ_KEY` have meanings."""
    flag: int = 0
    """Number of the user."""
    sys_flag: int = 0
    """RocketMQ's bits: compression, committed transaction. Those of the hosts are set
    automatically."""
    born_timestamp: int | None = None
    """Time of creation by the producer, Unix ms; None: now."""
    born_host: Host | None = None
    """Host of the producer; None: the store's own host."""
    store_host: Host | None = None
    """Host of the broker, for messages that another broker accepted; None: the store's own host."""
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0


class Prepared(NamedTuple):
    """Encoded record without its queue offset and position, which the append adds."""

    queue: QueueId
    has_unit: bool
    """Whether the message has a ConsumeQueue unit.

    Prepared and rolled-back transactions have none, and offset 0. `prepare` refuses them.
    """
    size: int
    """Length of the record in bytes."""
    tag_code: int
    store_timestamp: int
    fixed: bytearray
    """Fields before the body."""
    body: bytes
    after: bytes
    """Topic and properties, without the checksum property. `size` includes its room."""
    room: int
    """Bytes that must be left in the CommitLog file: `size`, or more (`kept_together`)."""


def prepare(message: NewMessage, now_ms: int, options: HotWriteOptions) -> Prepared:
    """Validate a message and encode it as the broker does. About 2 us, and 0.2 us per KiB of body.

    `now_ms` is its store timestamp in Unix ms.

    Raises:
        MessageRefused: it would enter no queue, or breaks a limit; see `encode_message`.
    """
    _refuse_other_types(message)
    if message.sys_flag & TRANSACTION_MASK in WITHOUT_UNIT:
        raise MessageRefused(
            "The sys_flag marks a transaction that is prepared (0x4) or rolled back (0xc), which"
            " RocketMQ enters into no queue: put the message once its transaction is committed."
        )
    return encode_message(message, now_ms, options)


def encode_message(message: NewMessage, now_ms: int, options: HotWriteOptions) -> Prepared:
    """Encode a message as `prepare`, also one without a unit. Its types are right.

    Raises:
        MessageRefused: it breaks a limit of RocketMQ's or of the format; the text names it.
    """
    if message.topic in options.own_topics:
        raise untiered(message.topic, untiered_reason(message.topic, options.own_topics))
    queue, magic, topic = queue_of(message.topic, message.queue_id)
    body = message.body
    if len(body) > options.message_bytes_max:
        raise MessageRefused(
            f"The body has {len(body)} bytes, more than {options.message_bytes_max}"
            " (maxMessageSize)."
        )
    properties, tag_code = properties_of(message.properties)
    if message.topic == SCHEDULE_TOPIC:
        named = decode_properties(properties)
        tag_code = unit_code(message.topic, named.get(TAGS, ""), named, now_ms)
    crc_bytes = 0
    if options.record_crc:
        crc_bytes = RECORD_CRC_BYTES
        if properties and not properties.endswith(_PAIR_END):
            properties += _PAIR_END
    if len(properties) + crc_bytes > PROPERTIES_BYTES_MAX:
        raise MessageRefused(
            f"The properties have {len(properties)} bytes, more than"
            f" {PROPERTIES_BYTES_MAX - crc_bytes}."
        )
    born_host = host_of(message.born_host or options.store_host)
    store_host = host_of(message.store_host or options.store_host)
    sys_flag, layout = sys_flag_and_layout(message.sys_flag & ~HOST_BITS, born_host, store_host)
    shape = shape_of(magic, layout, topic)
    after = shape.topic_part + _INT16.pack(len(properties) + crc_bytes) + properties
    size = layout.body + len(body) + len(after) + crc_bytes
    if size + BlankRecord.SIZE > options.commit_log_bytes:
        raise MessageRefused(
            f"The record has {size} bytes, too many for a CommitLog file of"
            f" {options.commit_log_bytes} (mappedFileSizeCommitLog)."
        )
    born_ms = now_ms if message.born_timestamp is None else message.born_timestamp
    try:
        fixed = bytearray(
            layout.fixed.pack(
                size, magic, body_crc_of(body), message.queue_id, message.flag, 0, 0, sys_flag,
                born_ms, *born_host[:2], now_ms, *store_host[:2],
                message.reconsume_times, message.prepared_transaction_offset, len(body),
            )
        )  # fmt: skip
    except StructError as error:
        raise MessageRefused(f"A number does not fit its field: {error}.") from error
    has_unit = sys_flag & TRANSACTION_MASK not in WITHOUT_UNIT
    return Prepared(queue, has_unit, size, tag_code, now_ms, fixed, body, after, size)


def _refuse_other_types(message: object) -> None:
    """Explain wrong types of callers without a type checker.

    Raises:
        MessageRefused: topic, queue id, body or properties are of another type.
    """
    if not isinstance(message, NewMessage):
        raise MessageRefused(f"The message is of type {type(message).__name__}, not NewMessage.")
    topic, queue_id, body, properties, _, sys_flag, *_ = cast("tuple[object, ...]", message)
    if not isinstance(body, bytes | bytearray | memoryview):
        if body is None:
            raise MessageRefused("The body is None; an empty one is b''.")
        if isinstance(body, str):
            raise MessageRefused("The body is text, not bytes: say body.encode().")
        raise MessageRefused(f"The body is of type {type(body).__name__}, not bytes.")
    if isinstance(body, memoryview) and not (body.c_contiguous and body.shape == (body.nbytes,)):
        raise MessageRefused("The body is a view, but not of bytes in a row: say body.tobytes().")
    if not isinstance(topic, str):
        raise MessageRefused(f"The topic is of type {type(topic).__name__}, not str.")
    if not isinstance(queue_id, int) or isinstance(queue_id, bool):
        raise MessageRefused(f"The queue id is of type {type(queue_id).__name__}, not int.")
    if not isinstance(properties, bytes | Mapping):
        kind = type(properties).__name__
        raise MessageRefused(f"The properties are of type {kind}, neither a mapping nor bytes.")
    _refuse_sys_flag(sys_flag)


def _refuse_sys_flag(sys_flag: object) -> None:
    """Refuse flags that no record of this store has.

    Raises:
        MessageRefused: it is no number, or marks the body as a batch.
    """
    if not isinstance(sys_flag, int):
        raise MessageRefused(f"The sys_flag is of type {type(sys_flag).__name__}, not int.")
    if sys_flag & INNER_BATCH:
        raise MessageRefused(
            "The sys_flag says that the body is a batch (0x80), which needs batch ConsumeQueues:"
            " put its messages one by one."
        )


def kept_together(records: Sequence[Prepared], options: HotWriteOptions) -> list[Prepared]:
    """Place the records in one CommitLog file, as RocketMQ keeps those of a client's batch.

    Raises:
        MessageRefused: they are too many for one file.
    """
    total = sum(record.size for record in records)
    if total + BlankRecord.SIZE > options.commit_log_bytes:
        raise MessageRefused(
            f"The batch has {total} bytes, too many for a CommitLog file of"
            f" {options.commit_log_bytes} (mappedFileSizeCommitLog)."
        )
    return [records[0]._replace(room=total), *records[1:]] if records else []


def untiered(topic: str, reason: str) -> MessageRefused:
    """Return the error for a message of a topic that is never tiered."""
    return MessageRefused(f"The topic {topic!r} is never tiered, for {reason}: use another name.")


@lru_cache(KEPT_MAX)
def queue_of(topic: str, queue_id: int) -> tuple[QueueId, int, bytes]:
    """Return the queue, the magic number of its records, and the encoded topic.

    Raises:
        MessageRefused: no queue can have such a name.
    """
    reason = check_path_component(topic)
    if reason is not None:
        raise MessageRefused(f"The topic {topic!r} names no directory: {reason}.")
    if reason := untiered_reason(topic):
        raise untiered(topic, reason)
    if not 0 <= queue_id <= QUEUE_ID_MAX:
        raise MessageRefused(f"The queue id is {queue_id}, not within 0 to {QUEUE_ID_MAX}.")
    magic, encoded = magic_for(topic), topic.encode()
    assert len(encoded) <= TOPIC_BYTES_MAX[magic], "a path component is shorter"
    # An equal number of another type (1.0) would name another directory, and is cached.
    return QueueId(topic, int(index(queue_id))), magic, encoded


def host_of(host: Host) -> tuple[bytes, int, bool]:
    """Return the encoded address, the port, and whether the address is IPv6.

    Raises:
        MessageRefused: it is not a host, or has no address.
    """
    try:
        return _host_of(host)
    except (TypeError, ValueError) as error:
        if isinstance(error, MessageRefused):
            raise
        raise MessageRefused(f"A host is an address and a port, not {host!r}.") from error


@lru_cache(KEPT_MAX)
def _host_of(host: Host) -> tuple[bytes, int, bool]:
    address, port = host
    try:
        packed = ip_address(address).packed
    except ValueError as error:
        raise MessageRefused(f"A host has an address, not a name: {address!r}.") from error
    return packed, port, ":" in address


def properties_of(properties: Mapping[str, str] | bytes) -> tuple[bytes, int]:
    """Return the stored form of properties, and the tags code of the unit."""
    if isinstance(properties, bytes):
        return stored_properties(properties)
    try:
        encoded = encode_properties(properties)
    except ValueError as error:
        raise MessageRefused(f"The properties cannot be stored: {error}.") from error
    except (TypeError, AttributeError) as error:
        raise MessageRefused("The properties have a name or a value that is no text.") from error
    if _ZERO_PAGE in encoded:
        raise MessageRefused("Properties with so many zero bytes look like a torn record.")
    tags = properties.get(TAGS, "")
    if not tags.isascii():  # the stored form counts, which differs for unpaired surrogates
        tags = decode_properties(encoded).get(TAGS, "")
    return encoded, tag_code_of(tags)


def stored_properties(raw: bytes) -> tuple[bytes, int]:
    """Return properties in their stored form, and their tags code.

    Raises:
        MessageRefused: recovery would take the record for a torn one.
    """
    find = raw.find
    if raw.endswith(b"\0") or (len(raw) >= len(_ZERO_PAGE) and find(_ZERO_PAGE) >= 0):
        raise MessageRefused("Properties with so many zero bytes look like a torn record.")
    found = find(TAGS_BEGIN)
    if found < 0:
        return raw, 0
    begin = found + len(TAGS_BEGIN)
    if (found and not raw.startswith(_PAIR_END, found - 1)) or find(TAGS_BEGIN, begin) >= 0:
        return raw, tag_code_of(decode_properties(raw).get(TAGS, ""))
    end = find(_PAIR_END, begin)
    return raw, _stored_tag_code(raw[begin:] if end < 0 else raw[begin:end])


@lru_cache(KEPT_MAX)
def _stored_tag_code(tags: bytes) -> int:
    return tag_code_of(tags.decode("utf-8", "replace"))


def sys_flag_and_layout(
    sys_flag: int, born_host: tuple[bytes, int, bool], store_host: tuple[bytes, int, bool]
) -> tuple[int, RecordLayout]:
    """Return `sys_flag` with the bits of both hosts, and the layout of such a record."""
    sys_flag |= (born_host[2] and BORN_HOST_V6) | (store_host[2] and STORE_HOST_V6)
    return sys_flag, layout_of(sys_flag)


def unit_code(topic: str, tags: str, properties: Mapping[str, str], stored_ms: int) -> int:
    """Return the tags code of a unit: for a scheduled message its time of delivery, Unix ms.

    As RocketMQ's `checkMessageAndReturnSize` with the default `messageDelayLevel`. Pure.
    """
    if topic == SCHEDULE_TOPIC:
        text = properties.get(DELAY_LEVEL, "")
        level = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0  # noqa: PLR2004 - as int32
        if level > 0:
            return stored_ms + 1000 * DELAYS_S[min(level, len(DELAYS_S)) - 1]
    return tag_code_of(tags)


@lru_cache(KEPT_MAX)
def tag_code_of(tags: str) -> int:
    """Return `tag_hash`, cached."""
    return tag_hash(tags)


_PLACE = Struct(">qq")
_pack_place = _PLACE.pack_into
_pack_unit = ConsumeQueueUnit.LAYOUT.pack

assert QUEUE_OFFSET_AT + 8 == PHYSICAL_OFFSET_AT, "the two fields are written together"


class Appended(NamedTuple):
    """Position and offset of an appended message."""

    queue_offset: int
    """Offset in its queue; 0 for prepared and rolled-back transactions."""
    position: int
    """CommitLog position of the first byte of its record."""
    size: int
    """Length of its record in bytes."""
    store_timestamp: int
    """Store time, Unix ms."""


@dataclass(slots=True)
class FileAppend:
    """Records of one group for one CommitLog file, and their units."""

    position: int
    """CommitLog position of the first record."""
    parts: list[Buffer] = field(default_factory=list[Buffer])
    """Records, and the blank record that ends the file."""
    units: dict[QueueId, tuple[int, bytearray]] = field(
        default_factory=dict[QueueId, tuple[int, bytearray]]
    )
    """First new offset and units of each queue."""


@dataclass(slots=True)
class AppendPlan:
    """Changes of the files for one group of messages. Not carried out yet."""

    files: list[FileAppend]
    """Appends to each CommitLog file that the group reaches, in order."""
    appended: list[Appended] = field(default_factory=list[Appended])
    """Result for each message, in order."""
    next_offsets: dict[QueueId, int] = field(default_factory=dict[QueueId, int])
    """Next offsets of the queues that grow."""
    end: int = 0
    """Position after the last record."""
    starts: dict[QueueId, int] = field(default_factory=dict[QueueId, int])
    """First offsets of queues without a message, if above 0."""


def plan_append(
    end: int,
    next_offsets: Mapping[QueueId, int],
    messages: Sequence[Prepared],
    *,
    file_bytes: int,
    record_crc: bool = False,
) -> AppendPlan:
    """Place messages after `end`. Fills in their `fixed` parts. About 1 us a message.

    A record that would leave less than 8 bytes of its file goes to the next one, and a blank record
    fills the rest of the file: a message never spans two files.
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
