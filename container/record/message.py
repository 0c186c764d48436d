"""A stored message: the record of a CommitLog, hot or cold, as an object with fields."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import repeat
from struct import Struct
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from container.record.batch import as_bytes, values_at
from container.record.checksum import body_crc_of
from container.record.columns import Contents, properties_of_all
from container.record.header import (
    BODY_CRC_AT,
    BORN_HOST_AT,
    BORN_HOST_V6,
    BORN_TIMESTAMP_AT,
    COMPRESSED,
    FLAG_AT,
    PHYSICAL_OFFSET_AT,
    PORT_BYTES,
    QUEUE_ID_AT,
    QUEUE_OFFSET_AT,
    STORE_HOST_V6,
    SYS_FLAG_AT,
    Host,
    MessageFields,
    RecordShape,
    address_text,
    layout_of,
    magic_for,
    packed_address,
    shape_of,
    unpack_record,
)
from container.record.properties import (
    KEYS,
    NAME_END,
    PAIR_END,
    TAGS,
    decode_properties,
    split_keys,
)
from provider.errors import Corrupt
from provider.object_store import Buffer

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_INT64 = Struct(">q")
_INT32 = Struct(">i")
_int64_at = _INT64.unpack_from
_int32_at = _INT32.unpack_from
_uint32_at = Struct(">I").unpack_from
_PAIR_END = PAIR_END.encode()


class StoredMessage:
    """A message with all fields of its record. `compose` creates a new one.

    A message *is* a copy of its record's bytes. Each field is decoded when it is read, at some 0.1
    us a field. `body`, `properties` and values derived from them are new objects at each access:
    keep a value that is needed twice. A message holds its own record, and no reference to the
    buffer that it was read from.

    Immutable. Two messages are equal if their records are. Body and properties are as stored
    (compressed, encoded).
    """

    __slots__ = ("_properties_at", "_record", "_shape")

    def __init__(self, record: bytes, shape: RecordShape, properties_at: int) -> None:
        """For `MessageDecoder`, which validates the arguments. Other callers use `decode`."""
        self._record = record
        self._shape = shape
        self._properties_at = properties_at

    @classmethod
    def compose(
        cls,
        topic: str,
        queue_id: int,
        queue_offset: int,
        *,
        body: bytes = b"",
        properties: bytes = b"",
        flag: int = 0,
        sys_flag: int = 0,
        born_timestamp: int = 0,
        born_host: Host = ("127.0.0.1", 0),
        store_timestamp: int = 0,
        store_host: Host = ("127.0.0.1", 10911),
        physical_offset: int = 0,
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
    ) -> Self:
        """Create a message. Version, host bits of `sys_flag` and body CRC are derived.

        Raises:
            ValueError: the topic or the properties are too long.
        """
        sys_flag &= ~(BORN_HOST_V6 | STORE_HOST_V6)
        sys_flag |= BORN_HOST_V6 if ":" in born_host[0] else 0
        sys_flag |= STORE_HOST_V6 if ":" in store_host[0] else 0
        fields = MessageFields(
            topic=topic,
            queue_id=queue_id,
            queue_offset=queue_offset,
            physical_offset=physical_offset,
            body=body,
            body_crc=body_crc_of(body),
            properties=properties,
            flag=flag,
            sys_flag=sys_flag,
            born_timestamp=born_timestamp,
            born_host=born_host,
            store_timestamp=store_timestamp,
            store_host=store_host,
            reconsume_times=reconsume_times,
            prepared_transaction_offset=prepared_transaction_offset,
            magic=magic_for(topic),
        )
        return cls(*fields.encode())

    @classmethod
    def decode(cls, raw: Buffer, *, path: str, position: int) -> Self:
        """Decode the one record in `raw`, found at `position` of `path`. About 1.5 us.

        All format errors are raised here, none when a field is read. Tolerant where RocketMQ is:
        the CRC of the body is not verified, and properties are kept unchanged.

        Raises:
            Corrupt: magic, size or a length contradicts the format, or the topic is not UTF-8.
        """
        fixed, (_, _, topic_at, topic_end, properties_at) = unpack_record(raw, path, position)
        record = bytes(raw)
        try:
            shape = shape_of(fixed[1], layout_of(fixed[7]), record[topic_at:topic_end])
        except UnicodeDecodeError as error:
            place = position + topic_at + error.start
            raise Corrupt("topic is not UTF-8", path, place) from error
        return cls(record, shape, properties_at)

    @property
    def parts(self) -> tuple[bytes, RecordShape, int]:
        """Arguments of the constructor."""
        return self._record, self._shape, self._properties_at

    def fields(self) -> MessageFields:
        """Decode all fields at once, in some 0.8 us. Faster than one by one if most are needed."""
        return MessageFields.decode(self._record, self._shape, self._properties_at)

    def _replace(self, **changes: Any) -> Self:  # noqa: ANN401 - as a NamedTuple has it
        """Copy with other values in some fields. No other field is adapted.

        Raises:
            ValueError: the topic or the properties are too long, or a host does not fit `sys_flag`.
        """
        return type(self)(*self.fields()._replace(**changes).encode())

    def __repr__(self) -> str:
        return f"{type(self).__name__}{repr(self.fields()).removeprefix(MessageFields.__name__)}"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StoredMessage):
            return NotImplemented
        return self._record == other._record

    def __hash__(self) -> int:
        return hash(self._record)

    def __reduce__(self) -> tuple[object, ...]:
        return _decoded, (self._record,)

    @property
    def topic(self) -> str:
        """Topic name."""
        return self._shape.topic

    @property
    def queue_id(self) -> int:
        """Number of the queue."""
        return _int32_at(self._record, QUEUE_ID_AT)[0]

    @property
    def queue_offset(self) -> int:
        """Position of the message in its queue."""
        return _int64_at(self._record, QUEUE_OFFSET_AT)[0]

    @property
    def offset(self) -> int:
        """Position of the message in its queue: `queue_offset`."""
        return self.queue_offset

    @property
    def physical_offset(self) -> int:
        """First byte of the record in its CommitLog. In a tier, the queue's CommitLog."""
        return _int64_at(self._record, PHYSICAL_OFFSET_AT)[0]

    @property
    def body(self) -> bytes:
        """Body as stored."""
        shape = self._shape
        return self._record[shape.body_at : self._properties_at - shape.after_body_bytes]

    @property
    def body_crc(self) -> int:
        """Stored checksum of the body. `body_is_intact` verifies it."""
        return _uint32_at(self._record, BODY_CRC_AT)[0]

    @property
    def properties(self) -> bytes:
        """Names and values as stored. `property_map` decodes them."""
        return self._record[self._properties_at :]

    @property
    def flag(self) -> int:
        """Number set by the user."""
        return _int32_at(self._record, FLAG_AT)[0]

    @property
    def sys_flag(self) -> int:
        """RocketMQ's flag bits: compression, transaction, kinds of host."""
        return _int32_at(self._record, SYS_FLAG_AT)[0]

    @property
    def born_timestamp(self) -> int:
        """Creation time at the producer, Unix ms."""
        return _int64_at(self._record, BORN_TIMESTAMP_AT)[0]

    @property
    def born_host(self) -> Host:
        """Address and port of the producer."""
        return self._host_at(BORN_HOST_AT, self._shape.layout.store_timestamp)

    @property
    def store_timestamp(self) -> int:
        """Store time at the broker, Unix ms."""
        return _int64_at(self._record, self._shape.layout.store_timestamp)[0]

    @property
    def born_at(self) -> datetime | None:
        """Creation time at the producer, in UTC; None outside the years 1 to 9999."""
        return moment_of(self.born_timestamp)

    @property
    def stored_at(self) -> datetime | None:
        """Store time at the broker, in UTC; None outside the years 1 to 9999."""
        return moment_of(self.store_timestamp)

    @property
    def store_host(self) -> Host:
        """Address and port of the broker."""
        return self._host_at(self._shape.layout.store_host, self._shape.layout.tail)

    @property
    def reconsume_times(self) -> int:
        """Number of times that a consumer returned the message for retry."""
        return _int32_at(self._record, self._shape.layout.tail)[0]

    @property
    def prepared_transaction_offset(self) -> int:
        """Position of the prepared half of a transactional message."""
        return _int64_at(self._record, self._shape.layout.tail + _INT32.size)[0]

    @property
    def magic(self) -> int:
        """Magic number of the version."""
        return self._shape.magic

    @property
    def shape(self) -> RecordShape:
        """Field layout, shared by messages of the same topic, version and kinds of host."""
        return self._shape

    @property
    def size(self) -> int:
        """Length of the record in bytes."""
        return len(self._record)

    @property
    def body_is_intact(self) -> bool:
        """Whether the body matches its stored CRC."""
        return body_crc_of(self.body) == self.body_crc

    @property
    def property_map(self) -> dict[str, str]:
        """Properties by name. Decoded at each access, at some 0.2 us a property."""
        return decode_properties(self.properties)

    @property
    def tags(self) -> str:
        """Property TAGS, or "" if there is none. 0.3 us, for any number of properties."""
        return tags_in(self._record, self._properties_at)

    @property
    def keys(self) -> list[str]:
        """User keys: the property KEYS, split at blanks."""
        return split_keys(_value_in(self._record, self._properties_at, *_KEYS))

    @property
    def message_id(self) -> str:
        """Offset message id: store host, port and physical offset in upper-case hex."""
        is_v6 = bool(self.sys_flag & STORE_HOST_V6)
        address, port = self.store_host
        place = _INT32.pack(port) + _INT64.pack(self.physical_offset)
        return (packed_address(address, is_v6=is_v6) + place).hex().upper()

    def encode(self) -> bytes:
        """Return the record's bytes."""
        return self._record

    def _host_at(self, start: int, end: int) -> Host:
        port_at = end - PORT_BYTES
        return address_text(self._record[start:port_at]), _int32_at(self._record, port_at)[0]


def _value_in(
    record: bytes, properties_at: int, name: str, begin_first: bytes, begin_later: bytes
) -> str:
    """Find the value that `decode_properties` would return, without decoding the others."""
    begin = record.rfind(begin_later, properties_at)
    if begin >= 0:
        begin += len(begin_later)
    elif record.startswith(begin_first, properties_at):
        begin = properties_at + len(begin_first)
    else:
        return ""
    end = record.find(_PAIR_END, begin)
    value = record[begin:] if end < 0 else record[begin:end]
    if not value:  # an empty value does not count, so an earlier pair of that name may
        return decode_properties(record[properties_at:]).get(name, "")
    return value.decode("utf-8", "replace")


def tags_in(record: bytes, properties_at: int) -> str:
    """Property TAGS of a record whose properties begin at `properties_at`, "" if there is none."""
    begin = record.rfind(_LATER_TAGS, properties_at)
    if begin >= 0:  # the usual case of `_value_in`, in half of its time
        begin += len(_LATER_TAGS)
        end = record.find(_PAIR_END, begin)
        if end > begin:
            return record[begin:end].decode("utf-8", "replace")
    return _value_in(record, properties_at, *_TAGS)


def moment_of(timestamp_ms: int | None) -> datetime | None:
    """A time in UTC; None without one, and outside the years 1 to 9999."""
    if timestamp_ms is None:
        return None
    try:
        return _EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return None


def _begins_of(name: str) -> tuple[str, bytes, bytes]:
    """A property's name, and its prefixes as the first property and as a later one."""
    return name, f"{name}{NAME_END}".encode(), f"{PAIR_END}{name}{NAME_END}".encode()


_TAGS, _KEYS = _begins_of(TAGS), _begins_of(KEYS)
_LATER_TAGS = _TAGS[2]


def _decoded(record: bytes) -> StoredMessage:
    return StoredMessage.decode(record, path="pickle", position=0)


TOGETHER_MIN = 8
"""Below this number, records are validated one by one: a batch has fixed costs of some 30 us."""


Columns = tuple[list[int], list[int], Iterator[bytes], Iterator[RecordShape], list[int]]
"""Queue offsets, store times, records, their shape, and places of properties."""


class MessageDecoder:
    """Decoder of any of the records in a buffer to `StoredMessage`.

    The constructor validates the lengths inside all records, at some 0.1 us a record, if they have
    one shape (topic, version, kinds of host) and no fault. It skips this if `verify_contents` has
    done it. Otherwise each record is validated when its message is decoded, at some 1.5 us.

    Keeps 4 bytes a record, and the given buffer and columns.
    """

    def __init__(
        self,
        data: Buffer,
        starts: NDArray[np.int64],
        sizes: NDArray[np.int64],
        *,
        path: str,
        contents: Contents | None = None,
    ) -> None:
        """`data` has a record of `sizes[i]` bytes at `starts[i]`. `path` is for errors.

        `contents` is the result of `verify_contents`, if it was called. All records must be sound.
        """
        self._data = memoryview(data)
        self._starts = starts
        self._sizes = sizes
        self._path = path
        self._shape: RecordShape | None = None
        self._properties_at = np.empty(0, np.int32)
        self._has_compressed: bool | None = None
        if contents is not None:
            self._shape, self._properties_at = contents.shape, contents.properties_at
            return
        if len(starts) >= TOGETHER_MIN:
            self._shape = self._shape_of_first()
        if self._shape is not None:
            places = properties_of_all(as_bytes(data), starts, sizes, self._shape)
            if places is None:
                self._shape = None
            else:
                self._properties_at = places

    @property
    def is_checked(self) -> bool:
        """Whether all records are known to be sound.

        Otherwise each is validated when it is decoded.
        """
        return self._shape is not None

    def columns(self, picked: slice | NDArray[np.int64]) -> Columns | None:
        """Queue offsets, store times and `StoredMessage.parts` of some records.

        None if not all records are known to be sound, or if any is compressed. Records are copies.
        """
        shape = self._shape
        if shape is None:
            return None
        raw = as_bytes(self._data)
        if self._has_compressed is None:
            flags = values_at(raw, ">i4", self._starts + SYS_FLAG_AT)
            self._has_compressed = bool((flags.astype(np.int32) & COMPRESSED).any())
        if self._has_compressed:
            return None
        starts = self._starts[picked]
        return (
            values_at(raw, ">i8", starts + QUEUE_OFFSET_AT).tolist(),
            values_at(raw, ">i8", starts + shape.layout.store_timestamp).tolist(),
            map(memoryview.tobytes, self._views(picked)),
            repeat(shape),
            self._properties_at[picked].tolist(),
        )

    def messages(self, picked: slice | NDArray[np.int64]) -> Iterator[StoredMessage]:
        """Decode some records. Each message is a copy and keeps no reference to the buffer.

        The iterator raises `Corrupt` in place of a message whose record contradicts the format. The
        error has the CommitLog position that the record holds in its bytes 28..35.
        """
        views = self._views(picked)
        if self._shape is None:
            return map(self._decoded, views)
        # A chain of calls in C, with one Python step for each message: `StoredMessage()`.
        records = map(memoryview.tobytes, views)
        places = self._properties_at[picked].tolist()
        return map(StoredMessage, records, repeat(self._shape), places)

    def _views(self, picked: slice | NDArray[np.int64]) -> Iterator[memoryview]:
        starts = self._starts[picked]
        ends = starts + self._sizes[picked]
        return map(self._data.__getitem__, map(slice, starts.tolist(), ends.tolist()))

    def _shape_of_first(self) -> RecordShape | None:
        start = int(self._starts[0])
        try:
            return self._decoded(self._data[start : start + int(self._sizes[0])]).shape
        except Corrupt:
            return None

    def _decoded(self, record: memoryview) -> StoredMessage:
        position = int.from_bytes(
            record[PHYSICAL_OFFSET_AT : PHYSICAL_OFFSET_AT + 8], "big", signed=True
        )
        return StoredMessage.decode(record, path=self._path, position=position)
