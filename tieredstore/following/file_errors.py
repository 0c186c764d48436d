"""Translation of file errors of a followed hot log.

The counterpart for a tier's files is `provider/posix/files.py`. The meanings differ: a broker
deletes files while they are read, and any other cause may be temporary.
"""

import errno
from pathlib import Path

from provider.errors import Denied, NotFound, StoreError, Unavailable

_OF_THE_PROCESS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


def translated(error: OSError, path: Path) -> StoreError:
    """Translate an operating system error about a file of the hot log."""
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return NotFound("the broker deleted it meanwhile", str(path))
    if isinstance(error, PermissionError) or error.errno == errno.EROFS:
        return Denied(f"not allowed: {error.strerror}", str(path))
    return Unavailable(f"cannot be read now: {error.strerror}", str(path))


def is_of_the_process(error: StoreError) -> bool:
    """Whether an error is the process's, so that other files cannot be read now, either."""
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno in _OF_THE_PROCESS
