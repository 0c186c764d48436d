"""Keys of the configuration, and fields of options classes that a key sets.

An options class declares a key once, with its field:

    rolling_age_hours: int = setting("commitLogRollingInterval", Kind.HOURS, 24, "Maximum age ...")

`tieredstore/config/keys.py` derives the table of all keys from these fields.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from enum import Enum
from typing import Any, ParamSpec

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
NUMBER_MAX = 2**63 - 1

P = ParamSpec("P")
Value = bool | int | str
PORT = "port"
"""The only unit that names a number instead of counting: it is not printed after the number."""

_KEY = "key"
_DURATION_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class Kind(Enum):
    """Form and unit of a value."""

    BYTES = "bytes"
    COUNT = "number"
    MILLISECONDS = "ms"
    HOURS = "hours"
    SWITCH = "true or false"
    TEXT = "text"
    PATH = "path"
    PERCENT = "percent"
    CHOICE = "choice"
    DAY_HOURS = "hours of the day"
    LEVEL = "DISABLE, NOT_IN_DISK, NOT_IN_MEM or FORCE"
    BACKFILL = "all, none or duration"
    SECRET = "secret"  # noqa: S105 - what a kind is called


@dataclass(frozen=True, slots=True)
class Key:
    """A key of the configuration."""

    name: str
    kind: Kind
    default: Value
    """In the unit of `kind`; "" if it depends on the machine or must be given."""
    meaning: str
    """A line that is complete by itself: `config --json` prints it alone."""
    unit: str = ""
    """Unit of a number, unless `kind` implies it."""
    least: int = 1
    """Smallest number allowed."""
    most: int = NUMBER_MAX
    """Largest number allowed."""
    choices: tuple[str, ...] = ()
    """Allowed values, if `kind` is CHOICE."""
    object_default: Value | None = None
    """Default for a tier in an object store, if it differs: requests cost there."""
    is_machines: bool = False
    """The default depends on the machine or must be given, so the shipped file leaves it out."""
    convert: Callable[[Any], object] | None = None
    """Conversion of a value to that of its field; None: the one of `kind`."""

    @property
    def unit_name(self) -> str:
        """The unit in words for people."""
        return self.unit or " or ".join(self.choices) or self.kind.value

    def field_value(self, value: Value) -> object:
        """Return a value as its field has it: seconds, shares of 1, durations."""
        if self.convert is not None:
            return self.convert(value)
        if self.kind is Kind.MILLISECONDS:
            return int(value) / 1000
        if self.kind is Kind.PERCENT:
            return int(value) / 100
        text = str(value)
        if self.kind is Kind.BACKFILL and text not in {"all", "none"}:
            return timedelta(**{_DURATION_UNITS[text[-1]]: int(text[:-1])})
        return value


def _field_of(key: Callable[P, Key]) -> Callable[P, Any]:
    def setting(*args: P.args, **kwargs: P.kwargs) -> Any:  # noqa: ANN401 - as its annotation
        """Return a dataclass field that a key sets. The arguments are those of `Key`."""
        made = key(*args, **kwargs)
        return field(default=made.field_value(made.default), metadata={_KEY: made})

    return setting


setting = _field_of(Key)


def keys_of(options: type) -> Mapping[str, Key]:
    """Keys of the fields of an options class, by field."""
    return {one.name: one.metadata[_KEY] for one in fields(options) if _KEY in one.metadata}
