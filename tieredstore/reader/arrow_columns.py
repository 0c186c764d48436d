"""Arrow columns of messages and of their properties, from the bytes of many records at once."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportUnknownParameterType=false
# pyright: reportUnknownLambdaType=false, reportMissingTypeStubs=false
# pyright: reportAttributeAccessIssue=false

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from container.record.batch import values_at
from container.record.columns import RecordColumns, Spans
from container.record.header import COMPRESSED, PORT_BYTES, address_text
from container.record.properties import KEY_SEPARATOR, KEYS, NAME_END, PAIR_END, TAGS, UNIQ_KEY
from tieredstore.message import host_text

_NAME_END, _PAIR_END = ord(NAME_END), ord(PAIR_END)


class Pairs(NamedTuple):
    """Positions of names and values, in order: message i has pairs `[bounds[i], bounds[i + 1])`."""

    bounds: NDArray[np.int64]
    name_starts: NDArray[np.int64]
    name_ends: NDArray[np.int64]
    value_starts: NDArray[np.int64]
    value_ends: NDArray[np.int64]

    def taken(self, kept: NDArray[np.bool_]) -> "Pairs":
        """Some of the pairs."""
        before = np.concatenate([[0], np.cumsum(kept)])
        return Pairs(before[self.bounds], *(column[kept] for column in self[1:]))

    @property
    def messages(self) -> NDArray[np.int64]:
        """To which message each pair belongs."""
        return np.repeat(np.arange(len(self.bounds) - 1), np.diff(self.bounds))


def split_pairs(raw: NDArray[np.uint8], bounds: NDArray[np.int64]) -> Pairs:
    """The pairs in the properties `raw[bounds[i]:bounds[i + 1]]` of each message, in order.

    By the rules of `decode_properties`, except that of two pairs with one name both are kept. Some
    0.2 us a message with eight properties, half of it where all are as RocketMQ writes them.
    """
    cuts = np.flatnonzero(raw == _PAIR_END)
    marks = np.flatnonzero(raw == _NAME_END)
    if (plain := _plain_pairs(raw, bounds, cuts, marks)) is not None:
        return plain
    # A piece ends at a separator or with its message, so there may be an empty one at the end.
    starts = np.sort(np.concatenate([bounds[:-1], cuts + 1]), kind="stable")
    ends = np.sort(np.concatenate([cuts, bounds[1:]]), kind="stable")
    places = np.searchsorted(marks, starts)
    name_ends = np.append(marks, len(raw))[places]
    kept = (name_ends > starts) & (name_ends + 1 < ends)
    starts, ends, name_ends = starts[kept], ends[kept], name_ends[kept]
    return Pairs(np.searchsorted(starts, bounds), starts, name_ends, name_ends + 1, ends)


def _plain_pairs(
    raw: NDArray[np.uint8],
    bounds: NDArray[np.int64],
    cuts: NDArray[np.int64],
    marks: NDArray[np.int64],
) -> Pairs | None:
    """Return the pairs if all have a name and a value and end with a separator, else None.

    Then the separators of both kinds alternate, and nothing has to be sorted or searched.
    """
    ends = bounds[1:][np.diff(bounds) > 0]
    if len(cuts) != len(marks) or not len(cuts) or (raw[ends - 1] != _PAIR_END).any():
        return None
    starts = np.concatenate((bounds[:1], cuts[:-1] + 1))
    if not ((starts < marks) & (marks + 1 < cuts)).all():
        return None
    return Pairs(np.searchsorted(starts, bounds), starts, marks, marks + 1, cuts)


NAMES_IN_TABLE_MAX = 64


def is_last_of_name(pairs: Pairs, codes: NDArray[np.int64], names: int) -> NDArray[np.bool_]:
    """Whether each pair is the last one of its message with its name: only that one counts.

    `codes`: the name of each pair as a number below `names`.
    """
    keys = pairs.messages * names + codes
    if names <= NAMES_IN_TABLE_MAX:
        seen = np.zeros((len(pairs.bounds) - 1) * names, np.bool_)
        seen[keys] = True
        if np.count_nonzero(seen) == len(keys):
            return np.ones(len(keys), np.bool_)
    kept = np.zeros(len(keys), np.bool_)
    _, last = np.unique(keys[::-1], return_index=True)
    kept[len(keys) - 1 - last] = True
    return kept


# pyarrow ships no types; what the other modules take from here is given one.


_TIME = pa.timestamp("ms", tz="UTC")
TIME_MS_MIN, TIME_MS_END = -62_135_596_800_000, 253_402_300_800_000
"""Unix ms of the years 1 to 9999, which Python, Spark, DuckDB and Iceberg have in common."""
SCHEMA = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("queue_id", pa.int32()),
        pa.field("queue_offset", pa.int64()),
        pa.field("store_timestamp", _TIME),
        pa.field("born_timestamp", _TIME),
        pa.field("msg_id", pa.string()),
        pa.field("tags", pa.string()),
        pa.field("keys", pa.list_(pa.string())),
        pa.field("properties", pa.map_(pa.string(), pa.string())),
        pa.field("body", pa.binary()),
        pa.field("born_host", pa.string()),
        pa.field("store_host", pa.string()),
        pa.field("flag", pa.int32()),
        pa.field("sys_flag", pa.int32()),
        pa.field("reconsume_times", pa.int32()),
        pa.field("prepared_transaction_offset", pa.int64()),
        pa.field("body_crc", pa.uint32()),
        pa.field("store_size", pa.int32()),
        pa.field("offset_msg_id", pa.string()),
        pa.field("tier_physical_offset", pa.int64()),
    ]
)
"""All columns, named as `read --json` names fields. Without a tag `tags` is null; `msg_id` is
UNIQ_KEY or else `offset_msg_id`."""
_NUMPY = {pa.int32(): np.int32, pa.int64(): np.int64, pa.uint32(): np.uint32}
"""Arrow before 21 asks pandas for these, which need not be there."""
PROPERTY_KINDS = {
    "string": pa.string(),
    "long": pa.int64(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
}
"""Types of a column of one property, by their names in Spark and Iceberg."""
_FORMS = {
    "long": "^-?[0-9]{1,19}$",
    "double": r"^-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]{1,3})?$",
    "boolean": "^(?i:true|false)$",
}
_POSITIONS_MAX = 2**31 - 1
_HEX = np.frombuffer("".join(f"{byte:02X}" for byte in range(256)).encode(), np.uint16)


def gathered(raw: NDArray[np.uint8], spans: Spans) -> pa.BinaryArray:
    """The parts of a buffer as one array: copies, made by Arrow in one go; some 20 ns each."""
    starts, ends = spans
    if not len(starts):
        return pa.array([], pa.binary())
    if len(raw) > _POSITIONS_MAX or (starts[1:] < ends[:-1]).any():
        return pa.array([raw[a:b].tobytes() for a, b in zip(starts, ends, strict=True)])
    # All bytes of the buffer are an array of parts and of what lies between them.
    bounds = np.empty(2 * len(starts), np.int32)
    bounds[0::2], bounds[1::2] = starts, ends
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(raw)]
    whole = pa.Array.from_buffers(pa.binary(), len(bounds) - 1, buffers)
    return whole.take(pa.array(np.arange(0, len(bounds) - 1, 2)))


class ColumnMaker:
    """Builds the columns of some records. Intermediate results of several columns are shared."""

    def __init__(self, raw: NDArray[np.uint8], records: RecordColumns) -> None:
        self._raw = raw
        self.records = records
        self._labels: Labels | None = None
        self._offset_ids: pa.StringArray | None = None

    def column(self, name: str) -> pa.Array:
        """Return a column of `SCHEMA`, except the body."""
        return _MAKERS[name](self)

    def topic(self) -> pa.Array:
        """The topic that each record has."""
        return gathered(self._raw, self.records.topics).cast(pa.string())

    def header(self, name: str, kind: pa.DataType) -> pa.Array:
        """A number of the header."""
        return pa.array(self.records.headers[name].astype(_NUMPY[kind]))

    def born_timestamp(self) -> pa.Array:
        """The time at which the producer created the message, by the producer's clock."""
        return _times(self.records.headers["born_timestamp"].astype(np.int64))

    def tail(self, name: str, kind: pa.DataType) -> pa.Array:
        """A number between the store host and the body."""
        return pa.array(self.records.tails[name].astype(_NUMPY[kind]))

    def store_timestamp(self) -> pa.Array:
        """The time at which the broker stored the message."""
        return _times(self.records.store_timestamps)

    def sys_flag(self) -> pa.Array:
        """RocketMQ's bits, without that of a compressed body."""
        flags = self.records.headers["sys_flag"].astype(np.int32)
        has_body = self.records.tails["body_length"] > 0
        return pa.array(np.where(has_body, flags & ~COMPRESSED, flags))

    def host(self, spans: Spans) -> pa.Array:
        """`ip:port`; each host is made a text once."""
        coded = gathered(self._raw, spans).dictionary_encode()
        texts = [_host_of(packed) for packed in coded.dictionary.to_pylist()]
        return pa.array(texts, pa.string()).take(coded.indices)

    def offset_msg_id(self) -> pa.StringArray:
        """Store host, port and position in upper-case hex."""
        if self._offset_ids is None:
            self._offset_ids = self._made_offset_ids()
        return self._offset_ids

    def msg_id(self) -> pa.Array:
        """The message id that clients show: `UNIQ_KEY`, else the offset message id."""
        unique = self.labels().value_of(UNIQ_KEY)
        return pc.coalesce(unique, self.offset_msg_id()) if unique.null_count else unique

    def keys(self) -> pa.Array:
        """The user keys; an empty list where there is none."""
        joined = self.labels().value_of(KEYS).fill_null("")
        split = pc.split_pattern(joined, KEY_SEPARATOR)
        keys = split.flatten()
        is_key = np.asarray(pc.not_equal(keys, ""))
        before = np.concatenate([[0], np.cumsum(is_key)]).astype(np.int32)
        offsets = before[np.asarray(split.offsets)]
        return pa.ListArray.from_arrays(pa.array(offsets), keys.filter(pa.array(is_key)))

    def property(self, name: str, kind: str) -> pa.Array:
        """A property as a value; null for a message without it, and if it is no such value."""
        texts = self.labels().value_of(name)
        if kind not in _FORMS:
            return texts
        fits = pc.match_substring_regex(texts, _FORMS[kind])
        texts = pc.if_else(fits, texts, pa.scalar(None, pa.string()))
        try:
            return texts.cast(PROPERTY_KINDS[kind])
        except pa.ArrowInvalid:  # beyond 64 bits
            return pa.array([_int64(text) for text in texts.to_pylist()], pa.int64())

    def labels(self) -> "Labels":
        """The properties, split."""
        if self._labels is None:
            self._labels = Labels(gathered(self._raw, self.records.properties))
        return self._labels

    def _made_offset_ids(self) -> pa.StringArray:
        hosts, ends = self.records.store_hosts
        count = len(hosts)
        width = int(ends[0] - hosts[0]) if count else 0
        if ((ends - hosts) != width).any():
            hosts_each = gathered(self._raw, self.records.store_hosts).to_pylist()
            places = self.records.headers["physical_offset"].tolist()
            pairs = zip(hosts_each, places, strict=True)
            ids = [
                (host + place.to_bytes(8, "big", signed=True)).hex().upper()
                for host, place in pairs
            ]
            return pa.array(ids, pa.string())
        packed = np.empty((count, width + 8), np.uint8)
        packed[:, :width] = self._raw[hosts[:, None] + np.arange(width)]
        places = self.records.headers["physical_offset"].astype(">i8")
        packed[:, width:] = places.view(np.uint8).reshape(count, 8)
        offsets = np.arange(count + 1, dtype=np.int32) * (2 * packed.shape[1])
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(_HEX[packed])]
        return pa.Array.from_buffers(pa.string(), count, buffers)


class Labels:
    """The properties of some messages."""

    def __init__(self, properties: pa.BinaryArray) -> None:
        bounds = np.frombuffer(properties.buffers()[1], np.int32)[: len(properties) + 1]
        self.text = np.frombuffer(properties.buffers()[2] or b"", np.uint8)
        """All of them in a row; spans are places in it."""
        self._pairs = split_pairs(self.text, bounds.astype(np.int64))
        self._messages = self._pairs.messages

    def spans_of(self, name: str) -> tuple[NDArray[np.int64], Spans]:
        """Return the messages that have a property, in order, and the spans of its values."""
        sought, pairs = name.encode(), self._pairs
        rows = np.flatnonzero(pairs.name_ends - pairs.name_starts == len(sought))
        names = values_at(self.text, f"V{len(sought)}", pairs.name_starts[rows])
        mine = rows[names.view(f"S{len(sought)}") == sought]
        places = np.full(len(pairs.bounds) - 1, -1)
        places[self._messages[mine]] = mine  # of several, the last assignment counts
        having = np.flatnonzero(places >= 0)
        chosen = places[having]
        return having, Spans(pairs.value_starts[chosen], pairs.value_ends[chosen])

    def value_of(self, name: str) -> pa.StringArray:
        """Return a property of each message; null for a message without it."""
        having, spans = self.spans_of(name)
        values = _texts(gathered(self.text, spans))
        count = len(self._pairs.bounds) - 1
        if len(having) == count:
            return values
        rows = np.full(count, -1)
        rows[having] = np.arange(len(having))
        return values.take(pa.array(rows, mask=rows < 0))

    def as_map(self) -> pa.MapArray:
        """All properties by name."""
        pairs = self._pairs
        found = gathered(self.text, Spans(pairs.name_starts, pairs.name_ends)).dictionary_encode()
        codes = np.asarray(found.indices).astype(np.int64)
        kept = is_last_of_name(pairs, codes, len(found.dictionary))
        if not kept.all():
            pairs, codes = pairs.taken(kept), codes[kept]
        texts = [name.decode("utf-8", "replace") for name in found.dictionary.to_pylist()]
        names = pa.array(texts, pa.string()).take(pa.array(codes))
        values = _texts(gathered(self.text, Spans(pairs.value_starts, pairs.value_ends)))
        return pa.MapArray.from_arrays(pa.array(pairs.bounds.astype(np.int32)), names, values)


def _times(values: NDArray[np.int64]) -> pa.Array:
    """Convert times in Unix ms; null outside the years 1 to 9999, which clients may send."""
    is_out = (values < TIME_MS_MIN) | (values >= TIME_MS_END)
    mask = is_out if is_out.any() else None
    return pa.array(values, mask=mask).cast(_TIME)


def _texts(values: pa.BinaryArray) -> pa.StringArray:
    """Bytes as texts, as Java reads them."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:  # not UTF-8
        texts = [value.decode("utf-8", "replace") for value in values.to_pylist()]
        return pa.array(texts, pa.string())


def _int64(text: str | None) -> int | None:
    number = None if text is None else int(text)
    return None if number is None or not -(2**63) <= number < 2**63 else number


def body_texts(bodies: pa.BinaryArray, kind: str) -> pa.StringArray:
    """Bodies as texts; null if a body is not UTF-8, or with the kind `json` not JSON."""
    if kind == "text":
        try:
            return bodies.cast(pa.string())
        except pa.ArrowInvalid:
            return pa.array([_utf8(body) for body in bodies.to_pylist()], pa.string())
    return pa.array([_json(body) for body in bodies.to_pylist()], pa.string())


def _utf8(body: bytes) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def _json(body: bytes) -> str | None:
    try:
        orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return body.decode()


def _host_of(packed: bytes) -> str:
    port = int.from_bytes(packed[-PORT_BYTES:], "big", signed=True)
    return host_text((address_text(packed[:-PORT_BYTES]), port))


_MAKERS: Mapping[str, Callable[[ColumnMaker], pa.Array]] = {
    "topic": ColumnMaker.topic,
    "queue_id": lambda one: one.header("queue_id", pa.int32()),
    "queue_offset": lambda one: one.header("queue_offset", pa.int64()),
    "store_timestamp": ColumnMaker.store_timestamp,
    "born_timestamp": ColumnMaker.born_timestamp,
    "msg_id": ColumnMaker.msg_id,
    "tags": lambda one: one.labels().value_of(TAGS),
    "keys": ColumnMaker.keys,
    "properties": lambda one: one.labels().as_map(),
    "born_host": lambda one: one.host(one.records.born_hosts),
    "store_host": lambda one: one.host(one.records.store_hosts),
    "flag": lambda one: one.header("flag", pa.int32()),
    "sys_flag": ColumnMaker.sys_flag,
    "reconsume_times": lambda one: one.tail("reconsume_times", pa.int32()),
    "prepared_transaction_offset": lambda one: one.tail("prepared_transaction_offset", pa.int64()),
    "body_crc": lambda one: one.header("body_crc", pa.uint32()),
    "store_size": lambda one: one.header("size", pa.int32()),
    "offset_msg_id": ColumnMaker.offset_msg_id,
    "tier_physical_offset": lambda one: one.header("physical_offset", pa.int64()),
}
