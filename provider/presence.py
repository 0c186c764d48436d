"""Whether something lies at a path, where an error is no answer.

From Python 3.14 on `Path.exists`, `is_dir` and `is_file` say False whatever error there was. A
directory that cannot be looked at would count as deleted, and a state that cannot be read as one
that was never written.
"""

import os
from errno import ELOOP, ENOENT, ENOTDIR
from pathlib import Path
from stat import S_ISDIR, S_ISREG

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
