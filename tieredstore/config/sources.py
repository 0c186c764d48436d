"""Sources of values: properties files, the environment, the command line."""

import codecs
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from provider.setting import PORT, Key, Kind, Value, keys_of
from tieredstore.config.keys import JAVA_ONLY, KEYS, LEVELS

OURS = ("tiered", "readahead")
"""Prefixes, in lower case, of keys that are an error if they are unknown."""
NEAR = 0.85
"""Similarity from which a key counts as a misspelling of a known one."""
RESEMBLING = frozenset(
    {
        "accessMessageInMemoryHotRatio",
        "brokerIP2",
        "haListenPort",
        "mappedFileSizeConsumeQueueExt",
        "mapperFileSizeBatchConsumeQueue",
    }
)
"""Keys of a broker 5.5.0 that only resemble our keys. The list is complete."""
ENVIRONMENT_PREFIX = "TIEREDSTORE_"
DEFINE_ORIGIN = "-D"
SECRET_SET = "set"  # noqa: S105 - printed in place of a secret
"""Output in place of a secret."""
PLUG_IN_NOTE = "a failure of the plug-in "
"""Start of the note of an error that a user's plug-in raised; its name follows."""
SETTINGS_ORIGIN = "settings"
FILE_BYTES_MAX = 256 << 10
"""Maximum length of a properties file; all keys of a broker with comments are a tenth of that."""
CONTINUED_LINES_MAX = 1_000
"""Maximum number of lines that end with a backslash: joining them takes quadratic time."""

_SIZE = re.compile(r"([0-9]+)\s*([kmgt])(i?b)?", re.IGNORECASE)
_SCALE = {"k": 10, "m": 20, "g": 30, "t": 40}
_DURATION = re.compile(r"[1-9][0-9]{0,8}[smhd]", re.ASCII)
_DAY_HOURS = re.compile(r"([01]?[0-9]|2[0-3])(;([01]?[0-9]|2[0-3]))*;?", re.ASCII)
_NUMBER = re.compile(r"[+-]?[0-9]{1,99}", re.ASCII)
_NO_TEXT = re.compile(r"[\x00-\x08\x0e-\x1f]")
"""Characters that a text file does not contain."""


class ConfigError(ValueError):
    """Invalid configuration. Its sentence names the fault, its place and the valid form."""


@dataclass(frozen=True, slots=True)
class Given:
    """A value as it was written, with its origin."""

    name: str
    text: str
    origin: str
    """For people: `broker.conf:12`, `TIEREDSTORE_BROKER_NAME` or `-D`."""


def read_file(path: Path) -> list[Given]:
    """The pairs of a properties file in order, with their lines.

    Decoded as UTF-8 if that is possible, else as Latin-1, as Java does.

    Raises:
        ConfigError: the file cannot be read, is no text, is too long, or holds an invalid
            escape.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(
            f"the configuration {path} cannot be read: {(error.strerror or 'unknown').lower()}"
        ) from error
    continued = raw.count(b"\\\n") + raw.count(b"\\\r")
    if len(raw) > FILE_BYTES_MAX or continued > CONTINUED_LINES_MAX:
        raise ConfigError(
            f"{path} is longer than a broker's configuration: at most {FILE_BYTES_MAX} bytes are "
            f"read, and {CONTINUED_LINES_MAX} lines that end with a backslash"
        )
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise ConfigError(f"{path} is in UTF-16: save it as UTF-8")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = raw.decode("latin-1")
    if (first := text.lstrip()[:1]) in {"{", "[", "<"}:
        raise ConfigError(f"{path} is no properties file: it begins with {first}")
    if _NO_TEXT.search(text):
        raise ConfigError(f"{path} is no properties file: it holds control characters")
    import javaproperties  # noqa: PLC0415 - with XML and URLs, a third of what the configuration loads

    found: list[Given] = []
    line = 1
    try:
        for element in javaproperties.parse(text):  # pyright: ignore[reportUnknownMemberType] - IO without a type
            if isinstance(element, javaproperties.KeyValue):
                found.append(Given(element.key, element.value.strip(), f"{path}:{line}"))
            line += len(element.source.splitlines())
    except javaproperties.InvalidUEscapeError as error:
        reason = f"{str(error)[:1].lower()}{str(error)[1:]}"
        raise ConfigError(f"{path}:{line}: {reason}; a backslash is written twice") from error
    return found


def environment_name(key: str) -> str:
    """The environment variable of a key: `brokerName` is `TIEREDSTORE_BROKER_NAME`."""
    return ENVIRONMENT_PREFIX + re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key).upper()


def read_environment(environment: Mapping[str, str]) -> list[Given]:
    """The pairs given by environment variables; an empty variable counts as unset.

    Raises:
        ConfigError: a variable begins with our prefix and names no key.
    """
    names = {environment_name(name): name for name in (*KEYS, *JAVA_ONLY)}
    found: list[Given] = []
    for variable, text in environment.items():
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        if variable not in names:
            raise ConfigError(
                f"the environment variable {variable} names no key of the configuration"
                f"{_did_you_mean(variable, names)}"
            )
        if text.strip():  # supervisors and containers pass an unset variable on as an empty one
            found.append(Given(names[variable], text.strip(), variable))
    return found


def read_defines(defines: Iterable[str]) -> list[Given]:
    """The pairs given as `-D key=value`.

    Raises:
        ConfigError: there is no `=`.
    """
    found: list[Given] = []
    for define in defines:
        name, equals, text = define.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"-D takes key=value, not {define!r}")
        found.append(Given(name.strip(), text.strip(), DEFINE_ORIGIN))
    return found


def read_settings(settings: Mapping[str, object]) -> list[Given]:
    """The pairs that a program gave as values of any type."""
    return [Given(name, str(value).strip(), SETTINGS_ORIGIN) for name, value in settings.items()]


def refuse_misspelt(given: Given) -> None:
    """Accept known keys, and unknown ones that may be the broker's own or a plug-in's.

    A key with a dot is a plug-in's, wherever it was given; the broker has none.

    Raises:
        ConfigError: the key resembles one of our keys or has their prefix; names the nearest.
    """
    if given.name in KEYS or given.name in JAVA_ONLY or given.name in RESEMBLING:
        return
    lower = {name.lower(): name for name in (*KEYS, *JAVA_ONLY)}
    is_for_us = given.origin in {DEFINE_ORIGIN, SETTINGS_ORIGIN} and "." not in given.name
    is_ours = given.name.lower().startswith(OURS) or is_for_us
    near = get_close_matches(given.name.lower(), lower, 1, NEAR)
    if is_ours or near:
        raise unknown_key(given.name, given.origin)


def unknown_key(name: str, origin: str = "") -> ConfigError:
    """The error of a key that there is not; it names the nearest."""
    lower = {one.lower(): one for one in (*KEYS, *JAVA_ONLY)}
    place = f" ({origin})" if origin else ""
    return ConfigError(f"unknown key {name}{place}{_did_you_mean(name.lower(), lower)}")


def _did_you_mean(text: str, names: Mapping[str, str]) -> str:
    begun = sorted((name for name in names if name.startswith(text)), key=len)
    near = begun or get_close_matches(text, names, 1, 0.5)
    if not near:
        return "; `tieredstore config` lists all"
    right = near[0] if text.startswith(ENVIRONMENT_PREFIX) else names[near[0]]
    return f": did you mean {right}?"


def parse_value(key: Key, given: Given) -> Value:
    """The value in the unit of the key.

    Raises:
        ConfigError: the text is no value of that kind, or out of bounds; names the valid form.
    """
    text, place = given.text, f"{key.name} ({given.origin})"
    match key.kind:
        case Kind.TEXT | Kind.PATH:
            if "\0" in text:
                raise ConfigError(f"{place} holds a zero byte")
            return text
        case Kind.SECRET:
            return _parse_secret(key, given)
        case Kind.SWITCH:
            if text.lower() not in {"true", "false"}:
                raise ConfigError(f"{place} is true or false, not {text!r}")
            return text.lower() == "true"
        case Kind.LEVEL | Kind.CHOICE | Kind.DAY_HOURS | Kind.BACKFILL:
            return _parse_word(key, text, place)
        case Kind.BYTES | Kind.COUNT | Kind.MILLISECONDS | Kind.HOURS | Kind.PERCENT:
            return _parse_number(key, text, place)


def _parse_secret(key: Key, given: Given) -> str:
    """Return a placeholder for the secret: no value, error or output may hold it."""
    variable = environment_name(key.name)
    if given.text and given.origin != variable:
        raise ConfigError(
            f"{key.name} ({given.origin}) is a secret, which is taken from the environment only: "
            f"remove it there and set {variable}"
        )
    return SECRET_SET if given.text else ""


def _parse_word(key: Key, text: str, place: str) -> str:
    """Parse a level, a choice, or a text of a fixed form."""
    word, wanted = text, ""
    if key.kind is Kind.LEVEL:
        word = LEVELS[int(text)] if text in {"0", "1", "2", "3"} else text.upper()
        wanted = "" if word in LEVELS else f"one of {', '.join(LEVELS)}"
    elif key.kind is Kind.CHOICE:
        wanted = "" if text in key.choices else key.unit_name
    elif key.kind is Kind.DAY_HOURS:
        is_hours = _DAY_HOURS.fullmatch(text)
        wanted = "" if is_hours else "hours from 00 to 23 with semicolons, such as 04;16"
    elif text not in {"all", "none"} and not _DURATION.fullmatch(text):
        wanted = "all, none, or a duration like 90m, 36h or 7d"
    if wanted:
        raise ConfigError(f"{place} is {wanted}, not {text!r}")
    return word


def _parse_number(key: Key, text: str, place: str) -> int:
    if not _NUMBER.fullmatch(text):
        size = _SIZE.fullmatch(text) if key.kind is Kind.BYTES else None
        hint = f": write {int(size[1]) << _SCALE[size[2].lower()]}" if size else ""
        raise ConfigError(f"{place} is a whole number of {key.unit_name}, not {text!r}{hint}")
    number = int(text)
    if not key.least <= number <= key.most:
        amount = "" if key.unit == PORT else f" {key.unit_name}"
        bound = f"at least {key.least}" if number < key.least else f"at most {key.most}"
        raise ConfigError(f"{place} must be {bound}{amount}, not {number}")
    return number


OptionsT = TypeVar("OptionsT")
_FIELD = re.compile(r"\b[a-z]+(?:_[a-z]+)+\b")


@dataclass(frozen=True, slots=True)
class Setting:
    """Effective value of a key, with its origin."""

    key: Key
    value: Value
    origin: str


def build(options: type[OptionsT], settings: Mapping[str, Setting], **others: object) -> OptionsT:
    """Build an options class from the keys that set its fields, and from `others` without a key.

    Raises:
        ConfigError: the class refuses a value; the sentence names keys in place of fields.
    """
    keys = keys_of(options)
    assert not keys.keys() & others.keys(), "a value that users set would be replaced silently"
    values: dict[str, Any] = {
        field: key.field_value(settings[key.name].value) for field, key in keys.items()
    }
    try:
        return options(**{**values, **others})
    except ValueError as error:
        names = {field: key.name for field, key in keys.items()}
        reason = _FIELD.sub(lambda found: names.get(found[0], found[0]), str(error))
        raise ConfigError(reason) from error
