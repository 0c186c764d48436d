"""Translation of the errors of fsspec's file systems into verdicts."""

import errno
import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from provider.errors import (
    AlreadyExists,
    Denied,
    NotFound,
    StoreError,
    Unauthorized,
    Unavailable,
)

TEXT_CHARACTERS_MAX: Final = 500
"""Longest text of a foreign error, in characters. Servers may send whole pages."""

_SECRETS: Final = (
    (re.compile(r"\?\S+"), "?..."),  # a signed URL has its signature in the query
    (re.compile(r"(?<=//)[^/\s@]+@"), "...@"),
    (
        re.compile(
            r"(?i)([\w-]*(?:secret|token|password|signature|credential|authorization|access_?key)"
            r"[\w-]*['\"]?\s*[=:]\s*['\"]?)(?:(?:aws4-hmac-sha256|bearer|basic)\s+)?[^\s,;'\"]+"
        ),
        r"\1...",
    ),
)


class NoPlace(FileNotFoundError):
    """The container of the objects, such as the bucket, does not exist."""


def error_text(error: BaseException) -> str:
    """Return the text of an error in one short line, without possible secrets. Pure."""
    text = getattr(error, "strerror", None) or str(error)
    line = " ".join(str(text).split())
    for pattern, shown in _SECRETS:
        line = pattern.sub(shown, line)
    if len(line) > TEXT_CHARACTERS_MAX:
        line = f"{line[:TEXT_CHARACTERS_MAX]}..."
    if isinstance(error, OSError) and error.strerror:
        return line
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


_VERDICTS: Final[tuple[tuple[tuple[type[Exception], ...], type[StoreError], str], ...]] = (
    ((NoPlace,), Denied, "{text}"),
    ((FileExistsError,), AlreadyExists, "the name is taken"),
    (
        (FileNotFoundError, NotADirectoryError, IsADirectoryError),
        NotFound,
        "there is no such object",
    ),
    ((PermissionError,), Unauthorized, "the storage refuses us: {text}"),
    ((TimeoutError,), Unavailable, "the storage does not answer in time: {text}"),
    ((OSError,), Unavailable, "the storage failed: {text}"),
)
"""Verdicts by class of error. The first row that matches decides."""


def as_verdict(error: Exception, path: str, position: int = 0) -> StoreError | None:
    """Return the verdict on an error at `position` of `path`; None if unknown. Pure.

    Classes of client libraries report failures of a server or a connection. Errors of Python
    itself, such as `TypeError`, are bugs and have no verdict.
    """
    if isinstance(error, OSError) and error.errno == errno.EOPNOTSUPP:
        return Denied(f"the storage refuses us: {error_text(error)}", path, position)
    for kinds, verdict, reason in _VERDICTS:
        if isinstance(error, kinds):
            return verdict(reason.format(text=error_text(error)), path, position)
    if type(error).__module__ != "builtins":
        return Unavailable(f"the storage failed: {error_text(error)}", path, position)
    return None


@contextmanager
def fsspec_errors(path: str, position: int = 0) -> Generator[None]:
    """Translate errors of a file system inside the block, as `as_verdict`.

    A `StoreError`, or an error without a verdict, propagates unchanged.
    """
    try:
        yield
    except StoreError:
        raise
    except Exception as error:
        verdict = as_verdict(error, path, position)
        if verdict is None:
            raise
        raise verdict from error
