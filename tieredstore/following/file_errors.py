"""What the operating system says of a hot log's files, as verdicts.

As `provider/posix/files.py` does for a tier's files, but with other meanings: here a broker
deletes what we read, and whatever else keeps us from it may pass.
"""

import errno
from pathlib import Path

from provider.errors import Denied, NotFound, StoreError, Unavailable

_OF_THE_PROCESS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


def translated(error: OSError, path: Path) -> StoreError:
    """An error of the operating system about a file of the hot log, as a verdict."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return NotFound("the broker deleted it meanwhile", str(path))
    if isinstance(error, PermissionError) or error.errno == errno.EROFS:
        return Denied(f"not allowed: {error.strerror}", str(path))
    return Unavailable(f"cannot be read now: {error.strerror}", str(path))


def is_of_the_process(error: StoreError) -> bool:
    """Whether an error says nothing of the file: other files could not be read now, either."""
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno in _OF_THE_PROCESS
