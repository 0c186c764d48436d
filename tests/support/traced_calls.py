"""Records every call that changes the file system below one directory, and lets some of them fail.

The calls are made for real; what they mean for a disk, `disk_model` says. Calls on one thread only:
the store of such a run is an `InlineStore`.
"""

import errno
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any
from unittest.mock import patch


@dataclass(frozen=True, slots=True)
class CallFaults:
    """How often a call fails."""

    fdatasync: float = 0.0
    """EIO, and the pages are dropped."""
    fsync_file: float = 0.0
    fsync_directory: float = 0.0
    full: float = 0.0
    """A write stops in the middle, and its rest meets ENOSPC."""


class TracedCalls:
    """The calls below `base`, in order; `note` adds what a test wants to know the moment of."""

    def __init__(self, base: str, faults: CallFaults, rng: Random) -> None:
        self.base = base
        self.calls: list[tuple[object, ...]] = []
        self.struck: Counter[str] = Counter()
        self._faults = faults
        self._rng = rng
        self._paths: dict[int, str] = {}
        self._full = False
        self._real: dict[str, Callable[..., Any]] = {}

    def note(self, *what: object) -> None:
        self.calls.append(("note", *what))

    @contextmanager
    def traced(self) -> Iterator[None]:
        """Within the block calls are recorded."""
        verbs = {
            "open": self._open,
            "close": self._close,
            "dup": self._dup,
            "pwrite": self._pwrite,
            "ftruncate": self._ftruncate,
            "posix_fallocate": self._allocate,
            "fsync": self._fsync,
            "fdatasync": self._fdatasync,
            "mkdir": self._mkdir,
            "link": self._link,
            "rename": self._rename,
            "replace": self._rename,
            "unlink": self._unlink,
            "rmdir": self._rmdir,
        }
        self._real = {verb: getattr(os, verb) for verb in verbs}
        with patch.multiple(os, **verbs):
            yield

    def _is_ours(self, path: object) -> bool:
        if not isinstance(path, str | os.PathLike):
            return False
        return f"{os.fspath(path)}/".startswith(f"{self.base}/")

    def _strikes(self, name: str, probability: float) -> bool:
        struck = self._rng.random() < probability
        self.struck[name] += struck
        return struck

    def _open(self, path: Any, flags: int, mode: int = 0o777, **others: Any) -> int:
        fd = self._real["open"](path, flags, mode, **others)
        if self._is_ours(path):
            self._paths[fd] = os.fspath(path)
            self.calls.append(("open", fd, os.fspath(path)))
        return fd

    def _close(self, fd: int) -> None:
        if self._paths.pop(fd, None) is not None:
            self.calls.append(("close", fd))
        self._real["close"](fd)

    def _dup(self, fd: int) -> int:
        other = self._real["dup"](fd)
        if fd in self._paths:
            self._paths[other] = self._paths[fd]
            self.calls.append(("dup", fd, other))
        return other

    def _pwrite(self, fd: int, data: Any, position: int) -> int:
        if fd not in self._paths:
            return self._real["pwrite"](fd, data, position)
        if self._full:
            self._full = False
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raw = bytes(data)
        if len(raw) > 1 and self._strikes("full", self._faults.full):
            self._full = True
            raw = raw[: self._rng.randrange(1, len(raw))]
        count = self._real["pwrite"](fd, raw, position)
        self.calls.append(("write", fd, position, raw[:count]))
        return count

    def _ftruncate(self, fd: int, size: int) -> None:
        self._real["ftruncate"](fd, size)
        if fd in self._paths:
            self.calls.append(("truncate", fd, size))

    def _allocate(self, fd: int, start: int, length: int) -> None:
        self._real["posix_fallocate"](fd, start, length)
        if fd in self._paths:
            self.calls.append(("truncate", fd, os.fstat(fd).st_size))

    def _fdatasync(self, fd: int) -> None:
        self._sync(fd, "fdatasync", self._faults.fdatasync)

    def _fsync(self, fd: int) -> None:
        is_directory = fd in self._paths and stat.S_ISDIR(os.fstat(fd).st_mode)
        kind = "fsync_directory" if is_directory else "fsync_file"
        self._sync(fd, "fsync", getattr(self._faults, kind), is_directory=is_directory)

    def _sync(self, fd: int, verb: str, probability: float, *, is_directory: bool = False) -> None:
        if fd not in self._paths:
            self._real[verb](fd)
            return
        if self._strikes("directory" if is_directory else "file", probability):
            if not is_directory:
                self.calls.append(("fail_to_sync", fd))
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self.calls.append(("sync", fd))  # not made for real: the model alone loses power

    def _mkdir(self, path: Any, *others: Any, **options: Any) -> None:
        self._real["mkdir"](path, *others, **options)
        if self._is_ours(path):
            self.calls.append(("mkdir", os.fspath(path)))

    def _link(self, source: Any, path: Any, **options: Any) -> None:
        self._real["link"](source, path, **options)
        if self._is_ours(path):
            self.calls.append(("link", os.fspath(source), os.fspath(path)))

    def _rename(self, source: Any, path: Any, **options: Any) -> None:
        self._real["replace"](source, path, **options)
        if self._is_ours(source):
            self.calls.append(("rename", os.fspath(source), os.fspath(path)))

    def _unlink(self, path: Any, **options: Any) -> None:
        self._real["unlink"](path, **options)
        if self._is_ours(path):
            self.calls.append(("unlink", os.fspath(path)))

    def _rmdir(self, path: Any, **options: Any) -> None:
        self._real["rmdir"](path, **options)
        if self._is_ours(path):
            self.calls.append(("unlink", os.fspath(path)))
