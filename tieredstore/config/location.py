"""Location of a tier and of its second store.

A path, or the URL of a directory or of a place in an object store.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from provider.names import check_name
from tieredstore.config.sources import ConfigError, Setting

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_ONE_SLASH = re.compile(r"s3[an]?:(/(?!/)|$)", re.IGNORECASE)
"""A mistyped URL, which would otherwise create a directory of that name."""
ALIASES = {"s3a": "s3", "s3n": "s3"}
"""Schemes by which Hadoop and Spark name others."""


@dataclass(frozen=True, slots=True)
class TierUrl:
    """A location in an object store; `/` appends a name, as with a `Path`."""

    scheme: str
    """In small letters, such as `s3`."""
    place: str
    """Bucket and prefix, without slashes around them; kept as written."""

    def __str__(self) -> str:
        return f"{self.scheme}://{self.place}"

    def __truediv__(self, name: str | os.PathLike[str]) -> "TierUrl":
        below = os.fspath(name)
        return TierUrl(self.scheme, f"{self.place}/{below}" if below else self.place)


Location = Path | TierUrl
"""A directory of this host, or a place in an object store."""


def without_alias(place: str) -> str:
    """The same URL by the usual scheme; anything else as it is. Pure."""
    found = _SCHEME.match(place)
    scheme = ALIASES.get(found[1].lower()) if found else None
    return place if found is None or scheme is None else f"{scheme}://{place[found.end() :]}"


def location_at(place: str | os.PathLike[str]) -> Location:
    """Parse a path or a URL. Makes no request and no system call.

    Raises:
        ConfigError: the URL names no directory of this host, or no bucket, or holds a secret.
    """
    text = without_alias(os.fspath(place))
    found = _SCHEME.match(text)
    if found is None:
        if _ONE_SLASH.match(text):
            raise ConfigError("the URL of a tier has two slashes: write s3://bucket/prefix")
        return Path(text)
    scheme = found[1].lower()
    parts = urlsplit(text)
    if scheme == "file":
        if parts.netloc not in {"", "localhost"} or not parts.path:
            raise ConfigError(f"{text} names no directory of this host: write file:///path")
        return Path(unquote(parts.path))
    if "@" in parts.netloc:
        raise ConfigError(
            f"the URL of a tier at {scheme}:// holds what may be a secret: credentials come from "
            f"the environment only"
        )
    below = text[found.end() :].strip("/")
    if not below or not parts.netloc:
        raise ConfigError(f"{text} names no bucket: write {scheme}://bucket/prefix")
    segments = below.split("/")
    if {"", ".", ".."} & set(segments) or parts.query or parts.fragment:
        raise ConfigError(f"{text} is no place in an object store: write {scheme}://bucket/prefix")
    try:
        check_name(below)
    except ValueError as error:
        raise ConfigError(f"{text} is no place in an object store: {error}") from error
    return TierUrl(scheme, below)


OFFLOAD_PATH = "tieredStoreOffloadPath"
DIRECTORIES = frozenset(
    {
        "storePathRootDir",
        "storePathCommitLog",
        "tieredStoreFilePath",
        OFFLOAD_PATH,
        "readAheadDiskCachePath",
        "tieredStoreStatePath",
    }
)
"""Keys of directories that are opened again and again while a store is open."""


def anchored(name: str, text: str) -> str:
    """Return the value of a key, absolute if it is a relative directory of `DIRECTORIES`.

    A program may change its working directory. One system call for a relative directory.
    """
    is_url = _SCHEME.match(text) or _ONE_SLASH.match(text)
    if name not in DIRECTORIES or not text or is_url or "," in text:  # several of a broker
        return text
    return str(Path(text).absolute())


def has_second_store(settings: Mapping[str, Setting]) -> bool:
    """Whether `tieredStoreOffloadPath` was given."""
    return bool(settings[OFFLOAD_PATH].value)


def offloads_to_object_store(settings: Mapping[str, Setting]) -> bool:
    """Whether `tieredStoreOffloadPath` names a place in an object store.

    Raises:
        ConfigError: it is no place.
    """
    place = second_place(settings)
    return bool(place) and isinstance(location_at(place), TierUrl)


def second_place(settings: Mapping[str, Setting]) -> str:
    """`tieredStoreOffloadPath` as it was given; "" if it was not."""
    return str(settings[OFFLOAD_PATH].value)


def place_text(settings: Mapping[str, Setting]) -> str:
    """The whole place of the second store, for people; "" if there is none.

    It holds no secret: URLs with such are refused.

    Raises:
        ConfigError: it is no place.
    """
    given = second_place(settings)
    if not given:
        return ""
    place = location_at(given)
    if isinstance(place, TierUrl):
        return str(place)
    if place.is_absolute():
        return os.path.normpath(place)  # makes no system call, and follows no link
    return os.path.abspath(place)  # noqa: PTH100 - likewise
