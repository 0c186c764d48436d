"""Names of objects, and existence of a path.

A name is one that every storage keeps apart from others, and that escapes no path. `is_there` and
its siblings return False for absence only: any other failure raises.
"""

import os
from errno import ELOOP, ENOENT, ENOTDIR
from functools import lru_cache
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Final

COMPONENT_BYTES_MAX: Final = 255
"""What every common file system allows for one component, in UTF-8 bytes."""

NAME_BYTES_MAX: Final = 1024
"""What object stores allow for a whole key, in UTF-8 bytes."""

TEMPORARY_PREFIX: Final = "@tmp-"
"""Components that begin so are files under construction; no object may be called so."""

_LOWEST_PRINTABLE: Final = 0x20
_DELETE: Final = 0x7F


@lru_cache(maxsize=8192)
def check_name(name: str) -> str:
    """Return `name` if it may name an object; pure and remembered, about 0.1 us for a known name.

    Raises:
        ValueError: it may not, with the reason in one sentence.
    """
    for component in name.split("/"):
        _check_component(component, name)
    if len(name.encode()) > NAME_BYTES_MAX:
        raise ValueError(f"object name is longer than {NAME_BYTES_MAX} bytes: {name[:80]!r}...")
    return name


def check_prefix(prefix: str) -> str:
    """Return `prefix` if a name may start so: "" may, a part of a component may.

    Raises:
        ValueError: no name starts so.
    """
    *whole, last = prefix.split("/")
    for component in whole:
        _check_component(component, prefix)
    if last not in {"", ".", ".."}:
        _check_component(last, prefix, is_part=True)
    return prefix


def _check_component(component: str, name: str, *, is_part: bool = False) -> None:
    if component in {"", ".", ".."}:
        raise ValueError(f"object name has a component {component!r}: {name!r}")
    if not component.isprintable() and any(
        ord(char) < _LOWEST_PRINTABLE or ord(char) == _DELETE for char in component
    ):
        raise ValueError(f"object name has a control character: {name!r}")
    if "\\" in component:
        raise ValueError(f"object name has a backslash: {name!r}")
    if component.startswith(TEMPORARY_PREFIX) and not is_part:
        raise ValueError(f"object name begins a component with {TEMPORARY_PREFIX!r}: {name!r}")
    try:
        length = len(component.encode())
    except UnicodeEncodeError:
        raise ValueError(f"object name is not Unicode text: {name!r}") from None
    if length > COMPONENT_BYTES_MAX:
        raise ValueError(
            f"object name has a component longer than {COMPONENT_BYTES_MAX} bytes: {name!r}"
        )


_ABSENT = frozenset({ENOENT, ENOTDIR, ELOOP})


def is_there(path: Path) -> bool:
    """Whether a path leads to anything, over links. One system call.

    Raises:
        OSError: that cannot be told, for want of permission or by an error of the device.
    """
    return _mode(path) is not None


def is_directory(path: Path) -> bool:
    """Whether a path leads to a directory, over links. One system call.

    Raises:
        OSError: as `is_there`.
    """
    mode = _mode(path)
    return mode is not None and S_ISDIR(mode)


def is_regular_file(path: Path) -> bool:
    """Whether a path leads to a regular file, over links. One system call.

    Raises:
        OSError: as `is_there`.
    """
    mode = _mode(path)
    return mode is not None and S_ISREG(mode)


def _mode(path: Path) -> int | None:
    """The mode of what a path leads to; None if it leads nowhere, or cannot be a path."""
    try:
        return os.stat(path).st_mode  # noqa: PTH116 - the call that is meant, and no more
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        raise
    except ValueError:  # a NUL character
        return None
