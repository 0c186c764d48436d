"""Directories of a store on a file system: durable creation, listing, sweep. Blocking."""

import errno
import os
import threading
from collections.abc import Generator, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from cachetools import LRUCache

from provider.errors import Unavailable
from provider.names import TEMPORARY_PREFIX, check_name, is_there
from provider.object_store import ObjectEntry
from provider.posix.files import posix_errors, sync_directory

_REMEMBERED_MAX: Final = 65_536
_AS_A_PLACE: Final[int] = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC

_NOT_FOR_US: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.EOPNOTSUPP})
"""Errors of directories above the root that this user cannot have created anything in."""

Identity = tuple[int, int]
"""Device and inode."""


class Directories:
    """Directories below `root`, with a cache of those that are known to be durable.

    An unknown directory may have been created by a process that died before its sync. Its first use
    therefore syncs the whole chain of parents. A directory dropped from the cache is only synced
    again. A directory is identified by device and inode, so the sync of a replaced one detects the
    replacement. Thread-safe.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self._durable: LRUCache[str, Identity] = LRUCache(_REMEMBERED_MAX)
        self._lock = threading.Lock()
        self._root_fd = -1

    def check_root(self) -> None:
        """Verify that the root is still the directory that was opened first. One or two `stat`s.

        Does nothing while there is no root: the first write creates it.

        Raises:
            Unavailable: the root was unmounted, moved or replaced.
        """
        with self._lock:
            if self._root_fd < 0:
                # Held open, so that its inode number cannot be reused.
                with suppress(FileNotFoundError):
                    self._root_fd = os.open(self.root, _AS_A_PLACE)
                return
            try:
                found = os.stat(self.root)  # noqa: PTH116 - a plain string: this path is hot
            except FileNotFoundError:
                found = None
            if found is None or not os.path.samestat(found, os.fstat(self._root_fd)):
                raise Unavailable(
                    "the store's directory was unmounted, moved or replaced; put it back, or start "
                    "again",
                    self.root,
                )

    def close(self) -> None:
        """Close the root. Idempotent."""
        with self._lock:
            if self._root_fd >= 0:
                os.close(self._root_fd)
            self._root_fd = -1

    def make(self, path: str) -> bool:
        """Create the directory `path` and its parents, durably. Return True the first time.

        Raises:
            OSError, Unavailable: as `place`.
        """
        placed: dict[str, Identity] = {}
        self.place(path, placed)
        for folder in self.unsynced(placed):
            sync_directory(folder)
        self.settle(placed)
        return path in placed

    def place(self, path: str, placed: dict[str, Identity]) -> None:
        """Create the directory `path` and its parents. Add possibly undurable ones to `placed`.

        Creates many directories with fewer syncs than `make`: place all, sync the directories that
        `unsynced` returns, then `settle` them.

        Raises:
            OSError: ELOOP if a directory below the root is a symbolic link; EPERM if the root
                cannot be created.
            Unavailable: a directory was removed meanwhile.
        """
        with self._lock:
            if path in self._durable or path in placed:
                return
        if path == self.root:
            self._make_root()
        else:
            self.place(_parent(path), placed)
            self._make_one(path)
        try:
            placed[path] = identity(os.stat(path))  # noqa: PTH116 - a plain string: this path is hot
        except FileNotFoundError as error:
            raise self._removed(path) from error

    def unsynced(self, placed: Mapping[str, Identity]) -> list[str]:
        """Return the parents of the placed directories, which must be synced."""
        return sorted({_parent(path) for path in placed if path != self.root})

    def settle(self, placed: Mapping[str, Identity]) -> None:
        """Record that the placed directories are durable."""
        with self._lock:
            self._durable.update(placed)

    def _make_one(self, path: str) -> None:
        try:
            os.mkdir(path)  # noqa: PTH102 - a plain string: this path is hot
        except FileExistsError:
            if os.path.islink(path):  # noqa: PTH114 - as above
                raise OSError(errno.ELOOP, "a symbolic link leads out of the store", path) from None
            if not os.path.isdir(path):  # noqa: PTH112 - as above
                raise NotADirectoryError(errno.ENOTDIR, "not a directory", path) from None
        except FileNotFoundError as error:
            raise self._removed(path) from error

    def _removed(self, path: str) -> Unavailable:
        self.forget()  # the next call recreates it
        return Unavailable("its directory was removed just now", path)

    def _make_root(self) -> None:
        """Create the root and its parents. Sync all of them, as a dead process may have made some.

        Ends at the start of a mount, and at a directory that this process may not open.
        """
        made = Path(self.root)
        missing = sum(not is_there(path) for path in (made, *made.parents))
        try:
            made.mkdir(parents=True, exist_ok=True)
        except FileNotFoundError as error:  # in /proc, and in a deleted working directory
            raise PermissionError(errno.EPERM, "no directory can be made", self.root) from error
        made = made.resolve()
        device = made.stat().st_dev
        for number, path in enumerate(made.parents):
            try:
                found = sync_directory(str(path))
            except OSError as error:
                if number < missing or error.errno not in _NOT_FOR_US:
                    raise
                return
            if found.st_dev != device:
                return

    def refuse_links(self, folder: str) -> None:
        """Refuse a path with a symbolic link below the root. One `lstat` for each directory.

        Raises:
            OSError: ELOOP if there is a symbolic link.
        """
        path = self.root
        for component in folder.removeprefix(self.root).strip("/").split("/"):
            path = f"{path}/{component}"
            if component and os.path.islink(path):  # noqa: PTH114 - a plain string: hot
                raise OSError(errno.ELOOP, "a symbolic link leads out of the store", path)

    def forget(self) -> None:
        """Clear the cache of durable directories, after another process removed or replaced one."""
        with self._lock:
            self._durable.clear()

    def sync(self, paths: Iterable[str], placed: Mapping[str, Identity] | None = None) -> None:
        """Make the entries of some directories durable.

        Raises:
            OSError: a directory cannot be synced.
            Unavailable: a directory is not the one that was placed, or made durable, under that
                path. From now on the present one counts.
        """
        met = placed or {}
        for path in sorted(set(paths)):
            found = identity(sync_directory(path))
            with self._lock:
                known = self._durable.get(path, met.get(path, found))
            if found != known:
                self.forget()
                raise Unavailable(
                    "the directory was moved or replaced while it was in use; put it back, or "
                    "leave what is there if it is whole: the next try is made there",
                    path.removeprefix(f"{self.root}/"),
                )

    def entries(self, prefix: str, after: str) -> Generator[ObjectEntry]:
        """Yield objects whose name starts with `prefix` and sorts after `after`, in no order.

        Skips directories that cannot hold such an object. Temporary files, symbolic links and
        invalid names are not objects.
        """
        top = prefix.rpartition("/")[0]
        waiting = [top]
        while waiting:
            folder = waiting.pop()
            try:
                scan = os.scandir(f"{self.root}/{folder}" if folder else self.root)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except PermissionError:
                with posix_errors(folder):  # not the prefix: the directory needs another mode
                    raise
            with scan:
                for entry in scan:
                    name = f"{folder}/{entry.name}" if folder else entry.name
                    if entry.is_dir(follow_symlinks=False):
                        if may_hold(name + "/", prefix, after):
                            waiting.append(name)
                    elif name.startswith(prefix) and name > after:
                        found = _as_object(name, entry)
                        if found is not None:
                            yield found

    def sweep(self, path: str, before_s: float) -> None:
        """Remove temporary files of dead writers: last changed before `before_s`, Unix seconds."""
        with os.scandir(path) as scan:
            for entry in scan:
                if not entry.name.startswith(TEMPORARY_PREFIX):
                    continue
                try:
                    if entry.stat(follow_symlinks=False).st_mtime < before_s:
                        os.unlink(entry.path)  # noqa: PTH108 - a plain string from scandir
                except FileNotFoundError:
                    continue


def _parent(path: str) -> str:
    return os.path.dirname(path)  # noqa: PTH120 - a plain string: this path is hot


def identity(found: os.stat_result) -> Identity:
    """Return device and inode. Pure."""
    return found.st_dev, found.st_ino


def may_hold(folder: str, prefix: str, after: str) -> bool:
    """Whether names below `folder`, which ends in "/", may match. Pure."""
    if not (folder.startswith(prefix) or prefix.startswith(folder)):
        return False
    return folder > after or after.startswith(folder)


def _as_object(name: str, entry: os.DirEntry[str]) -> ObjectEntry | None:
    try:
        check_name(name)
        if not entry.is_file(follow_symlinks=False):
            return None
        status = entry.stat(follow_symlinks=False)
        return ObjectEntry(name, status.st_size, status.st_mtime)
    except (ValueError, FileNotFoundError):
        return None
