"""One round of appends: open and check all files, write all, then sync all. Nothing here awaits."""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final

from provider.errors import AlreadyExists, OutOfRange, Unavailable
from provider.object_store import Append
from provider.options import PosixOptions
from provider.posix_directories import Directories
from provider.posix_errors import posix_errors
from provider.posix_files import OpenFile, OpenFiles, start_write_back, write_waiting

_GROWING: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class AppendRounds:
    """Writes rounds, one at a time, from one thread, and syncs their files from several.

    Remembers the files that it has begun exclusively until their second append, so that the same
    round works again after an unknown outcome. Holds one name for each of those.
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

    def __repr__(self) -> str:
        return f"<AppendRounds {len(self._begun)} files begun>"

    def close(self) -> None:
        """End the threads that sync; no round may be running."""
        self._syncers.shutdown(wait=True)

    def forget(self, name: str) -> None:
        """The object was deleted: whoever begins it next begins it anew."""
        self._begun.discard(name)

    def write(self, pieces: Mapping[str, Sequence[Append]]) -> None:
        """Write the pieces of each name and make all of them durable.

        All files are opened and measured before anything is written. After a failure nothing is
        known but that the same call may be made again: it writes and syncs everything anew, so a
        sync that failed once and would succeed falsely the next time does no harm.
        """
        opened: dict[str, OpenFile] = {}
        folders: set[str] = set()
        done = False
        try:
            for name, group in pieces.items():
                with posix_errors(name, group[0].position):
                    opened[name] = self._open(name, group, folders)
                    _check_length(opened[name].fd, group)
            self._write_and_sync(opened, pieces)
            for folder in folders:
                with posix_errors(folder.removeprefix(self._root + "/")):
                    self._directories.sync([folder])
            done = True
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
            for file in opened.values():
                start_write_back(file.fd)
        files = [(file.fd, name, pieces[name][0].position) for name, file in opened.items()]
        groups = [files[n :: self._sync_threads_max] for n in range(self._sync_threads_max)]
        others: list[Future[None]] = []
        try:
            for group in groups[1:]:
                if group:
                    others.append(self._syncers.submit(_sync, group))  # noqa: PERF401 - one by one: each counts, should the next fail
            _sync(groups[0])
        finally:
            wait(others)  # whatever happens: their descriptors are given back next
        for other in others:
            other.result()

    def _open(self, name: str, group: Sequence[Append], folders: set[str]) -> OpenFile:
        """The file of `name` for writing, pinned; `folders` collects directories to be synced.

        A file that begins here has its directory synced even if it was there already: whoever
        made it may have died before doing so.
        """
        path = f"{self._root}/{name}"
        is_new = any(piece.new for piece in group) and name not in self._begun
        if not is_new and group[0].position > 0:
            self._begun.discard(name)
            return self._files.pin(path, writable=True)
        folder = path.rpartition("/")[0]
        self._directories.make(folder)
        folders.add(folder)
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
            os.fdatasync(fd)


def _check_length(fd: int, group: Sequence[Append]) -> None:
    end = os.fstat(fd).st_size
    for piece in group:
        if piece.position > end:
            raise OutOfRange(f"the object ends at {end}", piece.name, piece.position)
        end = max(end, piece.position + sum(map(len, piece.buffers)))
