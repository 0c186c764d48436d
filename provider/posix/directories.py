"""Directories of a store on a file system: made durably, listed by name, swept. Nothing awaits."""

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
_AS_A_PLACE: Final = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC

_NOT_FOR_US: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.EOPNOTSUPP})
"""What directories above the root answer in which nobody like us has made anything."""

Identity = tuple[int, int]
"""Device and inode."""


class Directories:
    """The directories below `root`, and which of them are known to survive a power failure.

    A directory that this object has not made durable itself may be the work of a process that
    died before its sync, so the first use syncs the whole chain, whoever made it. What is not
    remembered any more is only synced again. A directory is known by device and inode, so one that
    was put in its place is noticed when it is synced. Thread-safe.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self._durable: LRUCache[str, Identity] = LRUCache(_REMEMBERED_MAX)
        self._lock = threading.Lock()
        self._root_fd = -1

    def check_root(self) -> None:
        """Keep writes out of a directory that stands where ours was. One or two `stat`s.

        Nothing is kept where there is no root yet: the first write makes it.

        Raises:
            Unavailable: the root is not the directory that was met first.
        """
        with self._lock:
            if self._root_fd < 0:
                # Held open, so that its number cannot become another directory's.
                with suppress(FileNotFoundError):
                    self._root_fd = os.open(self.root, _AS_A_PLACE)
                return
            try:
                found = os.stat(self.root)  # noqa: PTH116 - a plain string: this path is hot
            except FileNotFoundError:
                found = None
            if found is None or not os.path.samestat(found, os.fstat(self._root_fd)):
                raise Unavailable(
                    "the store's directory was unmounted, moved or replaced; put it back and it "
                    "goes on, or start again",
                    self.root,
                )

    def close(self) -> None:
        """Let go of the root. Idempotent."""
        with self._lock:
            if self._root_fd >= 0:
                os.close(self._root_fd)
            self._root_fd = -1

    def make(self, path: str) -> bool:
        """Make the directory `path` and those above it, durably; True the first time.

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
        """Make the directory `path` and those above it; enter in `placed` what may not be durable.

        Many are made with fewer syncs than by `make`: place all, sync what `unsynced` says, and
        then `settle` them.

        Raises:
            OSError: ELOOP if one of them, below the root, is a symbolic link; EPERM where no root
                can be made.
            Unavailable: one of them was removed meanwhile.
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
        """The directories that hold the entries of those that were placed."""
        return sorted({_parent(path) for path in placed if path != self.root})

    def settle(self, placed: Mapping[str, Identity]) -> None:
        """Remember that those which were placed, and the entries of all, were synced."""
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
        self.forget()  # made again by the next call
        return Unavailable("its directory was removed just now", path)

    def _make_root(self) -> None:
        """Make the root and what is above it; sync all that a dead process may have made of it.

        Ends where a mount begins, and at a directory that we may not open.
        """
        made = Path(self.root)
        missing = sum(not is_there(path) for path in (made, *made.parents))
        try:
            made.mkdir(parents=True, exist_ok=True)
        except FileNotFoundError as error:  # /proc answers so, and a working directory that went
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
        """Keep out of directories to which a symbolic link below the root leads.

        One `lstat` for each directory below the root.

        Raises:
            OSError: ELOOP, there is one.
        """
        path = self.root
        for component in folder.removeprefix(self.root).strip("/").split("/"):
            path = f"{path}/{component}"
            if component and os.path.islink(path):  # noqa: PTH114 - a plain string: hot
                raise OSError(errno.ELOOP, "a symbolic link leads out of the store", path)

    def forget(self) -> None:
        """Look again at every directory: one was removed or replaced by somebody else."""
        with self._lock:
            self._durable.clear()

    def sync(self, paths: Iterable[str], placed: Mapping[str, Identity] | None = None) -> None:
        """Make the entries of some directories durable.

        Raises:
            OSError: one cannot be synced.
            Unavailable: one is not the directory that was placed, or made durable, under that
                path; from now on the one that is there counts.
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
        """Objects whose name starts with `prefix` and sorts after `after`, in no order.

        Directories that cannot hold one are not visited. What is no object (temporary files,
        symbolic links, names that no object may have) is left out.
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
                with posix_errors(folder):  # not the prefix: people look for what to change
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
        """Remove temporary files of dead writers: those last changed before Unix `before_s`."""
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
    """Which file or directory was found. Pure."""
    return found.st_dev, found.st_ino


def may_hold(folder: str, prefix: str, after: str) -> bool:
    """Whether names that start with `folder` (it ends in "/") may match. Pure."""
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
