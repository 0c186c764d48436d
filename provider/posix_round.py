"""One round of appends: open and check all files, write all, then sync all. Nothing here awaits."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Final, TypeVar

from provider.errors import AlreadyExists, OutOfRange, Unavailable
from provider.object_store import Append
from provider.options import PosixOptions
from provider.posix_directories import Directories, Identity, identity
from provider.posix_errors import is_full, posix_errors
from provider.posix_files import (
    OpenFile,
    OpenFiles,
    start_write_back,
    sync_data,
    write_waiting,
)

_GROWING: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_REMEMBERED_MAX: Final = 65_536
T = TypeVar("T")


class AppendRounds:
    """Writes rounds, one at a time, from one thread, and syncs their files from several.

    Remembers the files that it has begun exclusively until their second append, so that the same
    round works again after an unknown outcome. Holds one name for each of those, and for 65,536
    files at most which ones have a durable name.
    """

    def __init__(
        self, root: str, files: OpenFiles, directories: Directories, options: PosixOptions
    ) -> None:
        self._root = root
        self._files = files
        self._directories = directories
        self._write_bytes_max = options.write_bytes_max
        self._sync_threads_max = options.sync_threads_max
        self._syncers = ThreadPoolExecutor(options.sync_threads_max, "posix-sync")
        self._begun: set[str] = set()
        self._named: dict[str, Identity] = {}
        """Files whose entry in their directory is durable, by name."""

    def __repr__(self) -> str:
        return f"<AppendRounds {len(self._begun)} files begun>"

    def close(self) -> None:
        """End the threads that sync; no round may be running."""
        self._syncers.shutdown(wait=True)

    def forget(self, name: str) -> None:
        """The object was deleted: whoever begins it next begins it anew."""
        self._begun.discard(name)
        self._named.pop(name, None)

    def write(self, pieces: Mapping[str, Sequence[Append]]) -> None:
        """Write the pieces of each name and make all of them durable.

        All files are opened and measured before anything is written. After a failure nothing is
        known but that the same call may be made again: it writes and syncs everything anew, so a
        sync that failed once and would succeed falsely the next time does no harm.

        Two `stat`s of each file's path: before, for its length, and whether the open descriptor is
        still that file's; and after the syncs, so that what is acknowledged lies under its name.

        A full file system gets back what the round has taken of it.
        """
        opened: dict[str, OpenFile] = {}
        lengths: dict[str, int] = {}
        unnamed: dict[str, str] = {}
        placed: dict[str, Identity] = {}
        done = False
        try:
            for name, group in pieces.items():
                with posix_errors(name, group[0].position, volume=self._root):
                    opened[name] = self._open(name, group, placed)
                    lengths[name] = opened[name].seen.st_size
                    _check_length(lengths[name], group)
                    begins = group[0].position == 0
                    if begins or not self._has_durable_name(name, opened[name]):
                        unnamed[name] = f"{self._root}/{name}".rpartition("/")[0]
                        self._directories.place(unnamed[name], placed)
            self._write_and_sync(opened, pieces)
            self._sync_directories({*self._directories.unsynced(placed), *unnamed.values()}, placed)
            self._check_places(opened, pieces)
            self._note_named(unnamed, opened)
            done = True
        except Unavailable as error:
            if is_full(error):
                _give_back((file.fd, lengths[name]) for name, file in opened.items())
            raise
        finally:
            for name, file in opened.items():
                self._files.unpin(file)
                if not done:
                    self._files.forget(f"{self._root}/{name}")

    def _write_and_sync(
        self, opened: Mapping[str, OpenFile], pieces: Mapping[str, Sequence[Append]]
    ) -> None:
        for name, group in pieces.items():
            for piece in group:
                with posix_errors(name, piece.position):
                    write_waiting(
                        opened[name].fd,
                        piece.position,
                        piece.buffers,
                        self._write_bytes_max,
                        writes_back=True,
                    )
        if len(opened) > 1:
            for name, file in opened.items():
                with posix_errors(name, pieces[name][0].position):
                    start_write_back(file.fd)
        files = [(file.fd, name, pieces[name][0].position) for name, file in opened.items()]
        self._in_parallel(_sync, files)

    def _sync_directories(self, folders: Iterable[str], placed: Mapping[str, Identity]) -> None:
        """Make durable what the round made: the entries of its directories and files."""

        def sync(group: Sequence[str]) -> None:
            for folder in group:
                with posix_errors(folder.removeprefix(self._root).removeprefix("/")):
                    self._directories.sync([folder], placed)

        self._in_parallel(sync, sorted(folders))
        self._directories.settle(placed)

    def _in_parallel(self, sync: Callable[[Sequence[T]], None], items: Sequence[T]) -> None:
        """Share the items among the syncing threads, of which this one is one."""
        groups = [items[n :: self._sync_threads_max] for n in range(self._sync_threads_max)]
        others: list[Future[None]] = []
        try:
            for group in groups[1:]:
                if group:
                    others.append(self._syncers.submit(sync, group))  # noqa: PERF401 - one by one: each counts, should the next fail
            sync(groups[0])
        finally:
            wait(others)  # whatever happens: their descriptors are given back next
        for other in others:
            other.result()

    def _check_places(
        self, opened: Mapping[str, OpenFile], pieces: Mapping[str, Sequence[Append]]
    ) -> None:
        """Acknowledge nothing that does not lie under its name."""
        for name, file in opened.items():
            position = pieces[name][0].position
            with posix_errors(name, position):
                if not file.is_at(f"{self._root}/{name}"):
                    raise Unavailable(
                        "the file was removed, moved or replaced while it was written, so these "
                        "bytes do not count; the next try writes to the file that then has the "
                        "name",
                        name,
                        position,
                    )

    def _has_durable_name(self, name: str, file: OpenFile) -> bool:
        """Whether the entry of this file in its directory is known to be durable.

        It is not for a file that is met for the first time: whoever made it, or put it there, may
        have died before the sync. Nor for one that took another's place; its directories may be
        others, too.
        """
        known = self._named.get(name)
        if known == identity(file.seen):
            return True
        if known is not None:
            self._directories.forget()
        return False

    def _note_named(self, names: Iterable[str], opened: Mapping[str, OpenFile]) -> None:
        for name in names:
            self._named[name] = identity(opened[name].seen)
        if len(self._named) > _REMEMBERED_MAX:  # those that go are only synced again
            for name in list(self._named)[: _REMEMBERED_MAX // 8]:
                self._named.pop(name, None)

    def _open(self, name: str, group: Sequence[Append], placed: dict[str, Identity]) -> OpenFile:
        """The file of `name` for writing, pinned."""
        path = f"{self._root}/{name}"
        is_new = any(piece.new for piece in group) and name not in self._begun
        if not is_new and group[0].position > 0:
            self._begun.discard(name)
            return self._files.pin(path, writable=True)
        self._directories.place(path.rpartition("/")[0], placed)
        try:
            fd = os.open(path, _GROWING | (os.O_EXCL if is_new else 0), 0o666)
        except FileExistsError as error:
            raise AlreadyExists("the name is taken", name) from error
        except FileNotFoundError as error:
            self._directories.forget()  # made again by the next call
            raise Unavailable("its directory was removed just now", name) from error
        if is_new:
            self._begun.add(name)
        return self._files.adopt(path, fd, writable=True)


def _sync(files: Sequence[tuple[int, str, int]]) -> None:
    """Make files durable: descriptor, name, and position to be told if that fails."""
    for fd, name, position in files:
        with posix_errors(name, position):
            sync_data(fd)


def _give_back(files: Iterable[tuple[int, int]]) -> None:
    """Cut files back to the length that they had before a round for which there is no room."""
    for fd, length in files:
        with suppress(OSError):
            os.ftruncate(fd, length)


def _check_length(end: int, group: Sequence[Append]) -> None:
    for piece in group:
        if piece.position > end:
            raise OutOfRange(f"the object ends at {end}", piece.name, piece.position)
        end = max(end, piece.position + sum(map(len, piece.buffers)))
