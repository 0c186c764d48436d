"""Where a tier lies: a path, or the URL of a directory."""

import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tieredstore.config.sources import ConfigError

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)


def directory_at(place: str | os.PathLike[str]) -> Path:
    """The directory that a path or a `file://` URL names; nothing is looked at.

    Raises:
        ConfigError: the URL has another scheme, or names another host.
    """
    text = os.fspath(place)
    scheme = _SCHEME.match(text)
    if scheme is None:
        return Path(text)
    if scheme[1].lower() != "file":
        raise ConfigError(
            f"tiers at {scheme[0]} are not supported yet: give a directory or a file:// URL, "
            f"not {text}"
        )
    parts = urlsplit(text)
    if parts.netloc not in {"", "localhost"} or not parts.path:
        raise ConfigError(f"{text} names no directory of this host: write file:///path")
    return Path(unquote(parts.path))
