"""What obstore raises, as the `OSError`s of a file system; the only place that knows it."""

import asyncio
import errno
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)

SAID_CHARACTERS_MAX: Final = 200
_STATUS: Final = re.compile(r"\b(?:status(?: code)?:? |code: )(\d{3})\b")
_CODE: Final = re.compile(r"<Code>(\w{1,64})</Code>")
_MEANINGS: Final = {
    "AccessDenied": "these credentials may not do this (AccessDenied)",
    "ExpiredToken": "the session's token is over (ExpiredToken)",
    "InvalidAccessKeyId": "it knows no such access key (InvalidAccessKeyId)",
    "InvalidToken": "the session's token is none (InvalidToken)",
    "RequestTimeTooSkewed": "this host's clock is wrong, or its own is (RequestTimeTooSkewed)",
    "SignatureDoesNotMatch": "the secret key is another one (SignatureDoesNotMatch)",
}
"""What a refusal is about, by its code."""
_TIMED_OUT: Final = re.compile(r"timed? ?out", re.IGNORECASE)


@asynccontextmanager
async def os_errors(path: str, where: str, total_s_max: float) -> AsyncGenerator[None]:
    """Give the block `total_s_max` seconds; whatever it raises leaves as an `OSError`.

    `where` names bucket and endpoint for a sentence about permissions.

    Raises:
        FileNotFoundError: there is no such object, or no such bucket.
        FileExistsError: the condition of a write was refused for certain.
        PermissionError: the service knows us not, or refuses us this.
        TimeoutError: nothing came in time; what a write did is unknown.
        OSError: all else; what a write did is unknown.
    """
    try:
        async with asyncio.timeout(total_s_max):
            yield
    except TimeoutError as error:
        raise TimeoutError(errno.ETIMEDOUT, "S3 did not answer in time", path) from error
    except FileNotFoundError as error:
        if _code(str(error)) == "NoSuchBucket":
            raise FileNotFoundError(errno.ENOENT, f"there is no {where}", path) from error
        raise FileNotFoundError(errno.ENOENT, "there is no such object", path) from error
    except BaseError as error:
        raise as_os_error(error, path, where) from error


def as_os_error(error: BaseError, path: str, where: str) -> OSError:
    """The `OSError` that means the same. Pure."""
    text = str(error)
    status, code = _status(text), _code(text)
    denied = isinstance(error, PermissionDeniedError | UnauthenticatedError)
    number, reason = errno.EIO, f"S3 failed: {said(text)}"
    if isinstance(error, AlreadyExistsError | PreconditionError):
        # A 409 means that another write was under way: nothing need be there now, or ever.
        number, reason = errno.EAGAIN, f"S3 left open whether it wrote: {said(text)}"
        if status == "412":
            number, reason = errno.EEXIST, "the name is taken"
    elif denied or status in {"401", "403"} or code in _MEANINGS:
        why = _MEANINGS.get(code, "") or code or status or "no valid credentials"
        number, reason = errno.EACCES, f"the {where} refuses us: {why}"
    elif status == "416":
        number, reason = errno.ERANGE, "the object ends before the range begins"
    elif code == "NoSuchBucket":
        number, reason = errno.ENOENT, f"there is no {where}"
    elif _TIMED_OUT.search(text):
        number, reason = errno.ETIMEDOUT, "S3 did not answer in time"
    elif "error sending request" in text:
        number, reason = errno.ECONNRESET, f"the connection to S3 failed: {said(text)}"
    return OSError(number, reason, path)  # Python makes the class that the number has


def said(text: str) -> str:
    """What a service or a library says, in one short line without queries and headers. Pure."""
    first = text.partition("\n\nDebug source:")[0]
    line = " ".join(re.sub(r"\?\S+", "?...", first).split())
    return line if len(line) <= SAID_CHARACTERS_MAX else f"{line[:SAID_CHARACTERS_MAX]}..."


def _status(text: str) -> str:
    found = _STATUS.search(text)
    return found[1] if found else ""


def _code(text: str) -> str:
    found = _CODE.search(text)
    return found[1] if found else ""
