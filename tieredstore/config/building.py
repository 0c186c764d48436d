"""Options classes from effective settings."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from provider.setting import Key, Value, keys_of
from tieredstore.config.sources import ConfigError

OptionsT = TypeVar("OptionsT")
_FIELD = re.compile(r"\b[a-z]+(?:_[a-z]+)+\b")


@dataclass(frozen=True, slots=True)
class Setting:
    """Effective value of a key, with its origin."""

    key: Key
    value: Value
    origin: str


def build(options: type[OptionsT], settings: Mapping[str, Setting], **others: object) -> OptionsT:
    """Build an options class from the keys that set its fields; `others` win.

    Raises:
        ConfigError: the class refuses a value; the sentence names keys in place of fields.
    """
    keys = keys_of(options)
    values: dict[str, Any] = {
        field: key.field_value(settings[key.name].value) for field, key in keys.items()
    }
    try:
        return options(**{**values, **others})
    except ValueError as error:
        names = {field: key.name for field, key in keys.items()}
        reason = _FIELD.sub(lambda found: names.get(found[0], found[0]), str(error))
        raise ConfigError(reason) from error
