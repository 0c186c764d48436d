"""Options classes from effective settings: the units that a field has, and the names of keys."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from tieredstore.config.key import Key, Kind, Value
from tieredstore.config.keys import KEYS

OptionsT = TypeVar("OptionsT")
SECONDS = "_s"
"""Suffix of fields that count seconds. RocketMQ counts hours in some of their keys."""
HOUR_S = 3600

_DURATION_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_FIELD = re.compile(r"\b[a-z]+(?:_[a-z]+)+\b")


@dataclass(frozen=True, slots=True)
class Setting:
    """Effective value of a key, with its origin."""

    key: Key
    value: Value
    origin: str


def converted(setting: Setting) -> object:
    """The value as an options class has it: seconds, numbers of bytes, shares, durations."""
    if setting.key.kind is Kind.MILLISECONDS:
        return int(setting.value) / 1000
    if setting.key.kind is Kind.HOURS and setting.key.sets.endswith(SECONDS):
        return float(int(setting.value) * HOUR_S)
    if setting.key.kind is Kind.PERCENT:
        return int(setting.value) / 100
    text = str(setting.value)
    if setting.key.kind is Kind.BACKFILL and text not in {"all", "none"}:
        return timedelta(**{_DURATION_UNITS[text[-1]]: int(text[:-1])})
    return setting.value


def build(options: type[OptionsT], settings: Mapping[str, Setting], **others: object) -> OptionsT:
    """Build an options class from the keys that set its fields; `others` win.

    Raises:
        ValueError: the class refuses a value; see `in_keys`.
    """
    values: dict[str, Any] = {}
    for setting in settings.values():
        room, _, field = setting.key.sets.partition(".")
        if room == options.__name__:
            values[field] = converted(setting)
    return options(**{**values, **others})


def in_keys(reason: str) -> str:
    """A sentence of an options class, with its fields named as the keys that set them."""
    names = {key.sets.partition(".")[2]: key.name for key in KEYS.values() if key.sets}
    return _FIELD.sub(lambda found: names.get(found[0], found[0]), reason)
