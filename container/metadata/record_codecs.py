"""JSON values of metadata records, derived from the annotations of their fields."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import IntEnum
from itertools import repeat
from sys import intern
from types import UnionType
from typing import Any, NewType, cast, get_args, get_origin, get_type_hints

import orjson

from container.errors import NewerVersion
from container.metadata.coverage import CoverageRows, extend_encoded
from container.metadata.records import Coverage, CoverageRow, Extent
from container.names.queue_id import QueueId


class DecodeError(ValueError):
    """JSON value of a wrong type for its field. `metadata/codec.py` raises it as `Corrupt`."""


@dataclass(frozen=True, slots=True)
class FieldCodec:
    """Encoder and decoder of the values of one type."""

    encode: Callable[[Any], Any]
    """Conversion of a value to a JSON value for orjson."""
    decode: Callable[[Any], Any]
    """Conversion of a JSON value of orjson. Raises `DecodeError` or `NewerVersion`."""


class FieldCodecs:
    """Codecs of annotations, each built once.

    A dataclass is an object with one key per field. A named tuple or a tuple of fixed length is an
    array, `tuple[X, ...]` is an array, an enumeration is its number, `X | None` is X or null.
    """

    def __init__(self, special: Mapping[Any, FieldCodec]) -> None:
        """`special`: codecs of annotations that differ from the derived form."""
        self._known: dict[Any, FieldCodec] = {int: _INTEGER, str: _TEXT, **special}

    def __repr__(self) -> str:
        return f"<FieldCodecs of {len(self._known)} types>"

    def of(self, annotation: Any) -> FieldCodec:  # noqa: ANN401 - any annotation
        """Codec of an annotation.

        Raises:
            TypeError: there is no rule for it, which is a bug in a declaration.
        """
        codec = self._known.get(annotation)
        if codec is None:
            codec = self._known[annotation] = self._derived(annotation)
        return codec

    def _derived(self, annotation: Any) -> FieldCodec:  # noqa: ANN401 - as `of`
        if isinstance(annotation, NewType):
            return self.of(annotation.__supertype__)
        if isinstance(annotation, type) and not get_args(annotation):
            return self._of_class(annotation)
        match get_origin(annotation), get_args(annotation):
            case (origin, (item, last)) if origin is UnionType and last is type(None):
                return _optional(self.of(item))
            case (origin, (item, last)) if origin is tuple and last is ...:
                return _listing(self.of(item))
            case (origin, items) if origin is tuple:
                return _row("tuple", map(self.of, items), lambda *row: row)
            case _:
                raise TypeError(f"no codec for {annotation}")

    def _of_class(self, cls: type[Any]) -> FieldCodec:
        if issubclass(cls, IntEnum):
            return _number_of(cls)
        codecs = {
            name: self.of(kind) for name, kind in get_type_hints(cls).items() if name != "extra"
        }
        if issubclass(cls, tuple):
            return _row(cls.__name__, codecs.values(), cast(type[Any], cls))
        if is_dataclass(cls):
            return _record(cls, codecs)
        raise TypeError(f"no codec for {cls}")


def json_list(raw: object) -> list[Any]:
    """Return `raw` if it is an array, else raise `DecodeError`."""
    if type(raw) is not list:
        raise DecodeError(f"{raw!r:.50} is not an array")
    return cast(list[Any], raw)


def json_object(raw: object) -> dict[str, Any]:
    """Return `raw` if it is an object, else raise `DecodeError`."""
    if type(raw) is not dict:
        raise DecodeError(f"{raw!r:.50} is not an object")
    return cast(dict[str, Any], raw)


def json_text(raw: object) -> str:
    """Return `raw` if it is a string, else raise `DecodeError`."""
    if type(raw) is not str:
        raise DecodeError(f"{raw!r:.50} is not a text")
    return raw


def json_integer(raw: object) -> int:
    """Return `raw` if it is a whole number, else raise `DecodeError`."""
    if type(raw) is not int:  # a boolean is an int to isinstance
        raise DecodeError(f"{raw!r:.50} is not a whole number")
    return raw


def _as_is(value: object) -> object:
    return value


_INTEGER = FieldCodec(_as_is, json_integer)
_TEXT = FieldCodec(_as_is, json_text)


def _optional(codec: FieldCodec) -> FieldCodec:
    """Codec of an optional value, null for None."""
    return FieldCodec(
        lambda value: None if value is None else codec.encode(value),
        lambda raw: None if raw is None else codec.decode(raw),
    )


def _listing(codec: FieldCodec) -> FieldCodec:
    """Codec of a tuple of values of one type, as an array."""
    return FieldCodec(
        lambda values: [codec.encode(value) for value in values],
        lambda raw: tuple([codec.decode(item) for item in json_list(raw)]),
    )


def _row(name: str, codecs: Iterable[FieldCodec], make: Callable[..., Any]) -> FieldCodec:
    """Codec of a tuple of fixed length, as an array."""
    columns = tuple(codecs)

    def decode(raw: object) -> object:
        items = json_list(raw)
        if len(items) != len(columns):
            raise DecodeError(f"a {name} of {len(items)} parts")
        return make(*[codec.decode(item) for codec, item in zip(columns, items, strict=True)])

    return FieldCodec(
        lambda row: [codec.encode(item) for codec, item in zip(columns, row, strict=True)], decode
    )


def _number_of(kind: type[IntEnum]) -> FieldCodec:
    """Codec of an enumeration's members, as their numbers."""
    members = {int(member): member for member in kind}

    def decode(raw: object) -> IntEnum:
        number = json_integer(raw)
        if number not in members:
            raise NewerVersion(f"{kind.__name__} {number} is of a newer version", "")
        return members[number]

    return FieldCodec(int, decode)


def _record(cls: type[Any], codecs: Mapping[str, FieldCodec]) -> FieldCodec:
    """Codec of a dataclass: one key per field. A field with its default is left out.

    Unknown keys are kept in the field `extra` if the class has one. Otherwise they are refused with
    `NewerVersion`.
    """
    declared = {field.name: field.default for field in fields(cls)}
    keeps_extra = "extra" in declared
    rows = [(name, declared[name], codec) for name, codec in codecs.items()]

    def encode(record: Any) -> dict[str, Any]:  # noqa: ANN401 - a record of the declared class
        raw: dict[str, Any] = dict(record.extra) if keeps_extra else {}
        for name, default, codec in rows:
            value = getattr(record, name)
            if value != default:
                raw[name] = codec.encode(value)
        return raw

    def decode(raw: object) -> object:
        known = json_object(raw)
        extra = {name: value for name, value in known.items() if name not in codecs}
        if extra and not keeps_extra:
            raise NewerVersion(f"{cls.__name__} has {sorted(extra)} of a newer version", "")
        values: dict[str, Any] = {"extra": extra} if extra else {}
        for name, _, codec in rows:
            if name in known:
                values[name] = codec.decode(known[name])
        try:
            return cls(**values)
        except TypeError:
            missing = [name for name in codecs if name not in values]
            raise DecodeError(f"{cls.__name__} lacks one of {missing}") from None

    return FieldCodec(encode, decode)


EXTENT_FIELDS_MIN = 6
EXTENT_FIELDS_MAX = 8
_NAME_AT = 6
_EXTENT_TYPES = (
    (int, int, int, int, int, int, str, int),
    (int, int, type(None), int, int, int, str, int),
)


def _encode_extent(extent: Extent) -> list[Any]:
    raw: list[Any] = [*extent[:EXTENT_FIELDS_MIN]]
    if extent.object_name or extent.object_offset != extent.position:
        raw += (extent.object_name, extent.object_offset)
    return raw


def _decode_extent(raw: object) -> Extent:
    items = json_list(raw)
    if len(items) == EXTENT_FIELDS_MIN:
        items += ("", items[0])
    if len(items) != EXTENT_FIELDS_MAX:
        raise NewerVersion(f"an extent of {len(items)} fields is of a newer version", "")
    if tuple(map(type, items)) not in _EXTENT_TYPES:
        raise DecodeError(f"extent with other values than {items!r:.200} may have")
    items[_NAME_AT] = intern(items[_NAME_AT])  # thousands of extents name one part
    return Extent._make(items)


EXTENT = FieldCodec(_encode_extent, _decode_extent)
"""[position, length, crc32c or null, first offset, min timestamp, max timestamp], followed by
[object name, offset in it] if the bytes do not lie at `position` of the segment's own file."""


def _encode_coverage(coverage: Coverage) -> list[Any] | orjson.Fragment:
    if isinstance(coverage, CoverageRows) and coverage.encoded is not None:
        return coverage.encoded
    raw: list[Any] = []
    extend_encoded(raw, coverage)
    return raw


def _decode_coverage(raw: object) -> Coverage:
    items = json_list(raw)
    if items and type(items[0]) is list:  # form of older programs, in any order
        return CoverageRows.of(_OLD_COVERAGE.decode(raw))
    if len(items) % 2:
        raise DecodeError(f"a coverage of {len(items)} parts")
    rows: list[CoverageRow] = []
    for topic, numbers in zip(items[::2], items[1::2], strict=True):
        name, triples = json_text(topic), json_list(numbers)
        if len(triples) % _ROW_NUMBERS:
            raise DecodeError(f"a coverage of {len(triples)} numbers of a topic")
        if not set(map(type, triples)) <= _INTEGERS:
            raise DecodeError(f"a coverage with other numbers than integers of {name:.50}")
        queues = map(QueueId, repeat(name), triples[::3])
        rows += zip(queues, triples[1::3], triples[2::3], strict=True)
    return CoverageRows.of(rows)


_ROW_NUMBERS = 3
_INTEGERS = {int}
COVERAGE = FieldCodec(_encode_coverage, _decode_coverage)
"""[topic, [queue id, from, to, queue id, from, to, ...], topic, [...], ...]: some 20 bytes a row.
The form of older programs, [[[topic, queue id], from, to], ...], is decoded too."""

_OLD_COVERAGE = FieldCodecs({}).of(tuple[CoverageRow, ...])
RECORD_CODECS = FieldCodecs({Extent: EXTENT, Coverage: COVERAGE})
"""Codecs of records and their fields."""
