"""Takes Linux's own calls away from this process: import it before anything of ours.

What is left is what macOS has, by its manual pages. The kernel below is still Linux.
"""

import builtins
import ctypes
import errno
import fcntl
import os
import select
import sys
import time
import urllib.request  # noqa: F401 - on macOS it needs a module that is not here
from collections.abc import Callable
from typing import Any

LINUX_ONLY = {
    os: "O_PATH O_TMPFILE O_DIRECT O_NOATIME RWF_NOWAIT RWF_HIPRI RWF_DSYNC RWF_SYNC fdatasync "
    "posix_fallocate posix_fadvise sched_getaffinity memfd_create pidfd_open copy_file_range "
    "eventfd getxattr setxattr listxattr",
    time: "CLOCK_BOOTTIME",
    fcntl: "F_OFD_SETLK F_OFD_GETLK F_OFD_SETLKW",
    select: "epoll",
}
OFD_COMMANDS = (36, 37, 38)
FUNCTIONS = frozenset({"sync_file_range", "preadv64", "renameat2", "statx", "prctl"})


def without_proc(call: Callable[..., Any]) -> Callable[..., Any]:
    """The call, in a file system without /proc."""

    def made(path: object, *args: object, **options: object) -> object:
        if isinstance(path, str | os.PathLike) and os.fspath(path).startswith("/proc"):
            raise FileNotFoundError(errno.ENOENT, "there is no /proc", path)
        return call(path, *args, **options)

    return made


def without_ofd(call: Callable[..., Any]) -> Callable[..., Any]:
    """The call, in a kernel that has other commands under these numbers."""

    def made(descriptor: int, command: int, *args: object) -> object:
        assert command not in OFD_COMMANDS, "a number of Linux is another command elsewhere"
        return call(descriptor, command, *args)

    return made


class Library(ctypes.CDLL):
    """The C library without some functions."""

    def __getattr__(self, name: str) -> Any:
        if name in FUNCTIONS:
            raise AttributeError(name)
        return super().__getattr__(name)


for module, names in LINUX_ONLY.items():
    for one in names.split():
        if hasattr(module, one):
            delattr(module, one)
for one in ("open", "stat", "lstat", "readlink", "listdir", "scandir"):
    setattr(os, one, without_proc(getattr(os, one)))
builtins.open = without_proc(builtins.open)
fcntl.fcntl = without_ofd(fcntl.fcntl)
ctypes.CDLL = Library
sys.platform = "darwin"
