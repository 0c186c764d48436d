"""Keys of the configuration: kind, unit, default and bounds."""

from dataclasses import dataclass
from enum import Enum

Value = bool | int | str
PORT = "port"
"""The only unit that names a number instead of counting: it is not printed after the number."""


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
    sets: str = ""
    """The field of an options class that it sets, such as `TierOptions.extent_bytes_max`."""
    unit: str = ""
    """Unit of a number, unless `kind` implies it."""
    least: int = 1
    """Smallest number allowed."""
    most: int = 2**63 - 1
    """Largest number allowed."""
    choices: tuple[str, ...] = ()
    """Allowed values, if `kind` is CHOICE."""
    object_default: Value | None = None
    """Default for a tier in an object store, if it differs: requests cost there."""
    is_machines: bool = False
    """The default depends on the machine or must be given, so the shipped file leaves it out."""

    @property
    def unit_name(self) -> str:
        """The unit in words for people."""
        return self.unit or " or ".join(self.choices) or self.kind.value
