"""How dataclasses become JSON values and back, declared field by field."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, cast

from container.errors import NewerVersion


class Misfit(ValueError):
    """A JSON value that is not what its field holds; `tier_codec` turns it into `Corrupt`."""


@dataclass(frozen=True, slots=True)
class Part:
    """The two ways of one kind of value."""

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]


def _as_is(value: object) -> object:
    return value


def _int(raw: object) -> int:
    if type(raw) is not int:  # a boolean is an int to isinstance
        raise Misfit(f"{raw!r:.50} is not a whole number")
    return raw


def _text(raw: object) -> str:
    if type(raw) is not str:
        raise Misfit(f"{raw!r:.50} is not a text")
    return raw


def json_list(raw: object) -> list[Any]:
    """`raw`, if it is an array."""
    if type(raw) is not list:
        raise Misfit(f"{raw!r:.50} is not an array")
    return cast(list[Any], raw)


def json_object(raw: object) -> dict[str, Any]:
    """`raw`, if it is an object."""
    if type(raw) is not dict:
        raise Misfit(f"{raw!r:.50} is not an object")
    return cast(dict[str, Any], raw)


INTEGER = Part(_as_is, _int)
TEXT = Part(_as_is, _text)


def optional(part: Part) -> Part:
    """The same, or null."""
    return Part(
        lambda value: None if value is None else part.encode(value),
        lambda raw: None if raw is None else part.decode(raw),
    )


def listing(part: Part) -> Part:
    """A tuple of the same, as an array."""
    return Part(
        lambda values: [part.encode(value) for value in values],
        lambda raw: tuple([part.decode(item) for item in json_list(raw)]),
    )


def number_of(kind: type[IntEnum]) -> Part:
    """A member of an enumeration, as its number."""
    members = {int(member): member for member in kind}

    def decode(raw: object) -> IntEnum:
        number = _int(raw)
        if number not in members:
            raise NewerVersion(f"{kind.__name__} {number} is of a newer version", "")
        return members[number]

    return Part(int, decode)


def shape(cls: type[Any], **parts: Part) -> Part:
    """A dataclass as an object: one key per field; a field that has its default is left out.

    Keys that are not declared are kept in the field `extra` where the class has one; where it has
    none they are refused with `NewerVersion`.
    """
    declared = {field.name: field.default for field in fields(cls)}
    keeps_extra = "extra" in declared
    declared.pop("extra", None)
    assert set(declared) == set(parts), f"{cls.__name__}: {set(declared) ^ set(parts)}"
    rows = [(name, declared[name], part) for name, part in parts.items()]

    def encode(record: Any) -> dict[str, Any]:  # noqa: ANN401 - a record of the declared class
        raw: dict[str, Any] = dict(record.extra) if keeps_extra else {}
        for name, default, part in rows:
            value = getattr(record, name)
            if value != default:
                raw[name] = part.encode(value)
        return raw

    def decode(raw: object) -> object:
        known = json_object(raw)
        extra = {name: value for name, value in known.items() if name not in declared}
        if extra and not keeps_extra:
            raise NewerVersion(f"{cls.__name__} has {sorted(extra)} of a newer version", "")
        values: dict[str, Any] = {"extra": extra} if extra else {}
        for name, _, part in rows:
            if name in known:
                values[name] = part.decode(known[name])
        try:
            return cls(**values)
        except TypeError:
            missing = [name for name in declared if name not in values]
            raise Misfit(f"{cls.__name__} lacks one of {missing}") from None

    return Part(encode, decode)
