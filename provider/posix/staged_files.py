"""Files that are made beside a tier and put at their places together, or not at all.

They lie in a directory whose name no object may have, so nothing lists them. Whoever holds the lock
of that directory is alive; what a dead run left goes when the next one begins.
"""

import fcntl
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from provider.errors import Unavailable
from provider.names import TEMPORARY_PREFIX, check_name
from provider.posix.files import posix_errors, sync_directory

STAGING_NAME = f"{TEMPORARY_PREFIX}staged"
LOCK_NAME = f"{TEMPORARY_PREFIX}staged.lock"


class StagedFiles:
    """The one run that stages files below a directory; made by `begin`. Blocks.

    A file is synced before it has its place, and its directory afterwards. A run that is killed
    before `install` has changed nothing; one that is killed within it has put some files at their
    places, each of them whole.
    """

    def __init__(self, root: Path, lock: int) -> None:
        self._root = root
        self._lock = lock
        self._directory = root / STAGING_NAME

    def __repr__(self) -> str:
        return f"<StagedFiles below {self._root}>"

    @classmethod
    def begin(cls, root: Path) -> Self:
        """Take the directory's lock and remove what a dead run left.

        Raises:
            Unavailable: another run holds the lock.
            Denied: we may not write there.
        """
        with posix_errors(LOCK_NAME):
            lock = _locked(root / LOCK_NAME)
            try:
                staged = cls(root, lock)
                shutil.rmtree(staged._directory, ignore_errors=True)
                staged._directory.mkdir()
            except OSError:
                os.close(lock)
                raise
        return staged

    @property
    def directory(self) -> str:
        """Where files are staged: for `stage`, in any process."""
        return str(self._directory)

    def install(self, name: str, staged: str, *, grows: bool = False) -> None:
        """Put a staged file at the place `name`, in place of what is there.

        `grows`: an owner may continue the file. Then one that is there is kept, with what was
        appended to it, and only its beginning is written, as long as the staged file.

        Raises:
            Unavailable, Denied: as writing to the tier.
        """
        target = self._root / check_name(name)
        source = self._directory / staged
        with posix_errors(name):
            target.parent.mkdir(parents=True, exist_ok=True)
            if not grows:
                source.replace(target)
            else:
                try:
                    os.link(source, target)
                except FileExistsError:
                    _write_beginning(target, source.read_bytes())
                source.unlink()
            _sync_directories(target.parent, self._root)

    def close(self) -> None:
        """Remove what was not installed, and let the lock go. Idempotent."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            shutil.rmtree(self._directory, ignore_errors=True)
            (self._root / LOCK_NAME).unlink(missing_ok=True)
            os.close(lock)


def _locked(path: Path) -> int:
    """The open file of that name, locked by us.

    Raises:
        Unavailable: another one holds the lock.
    """
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(lock)
            raise Unavailable("another rebuild of this tier is under way", "") from error
        try:
            if os.path.samestat(os.fstat(lock), path.stat()):
                return lock
        except FileNotFoundError:
            pass  # whoever had it has removed it meanwhile
        os.close(lock)


def stage(directory: str, name: str, parts: Iterable[bytes | memoryview]) -> None:
    """Write and sync a file below a staging directory; a second one of that name replaces it.

    Raises:
        Unavailable, Denied: as writing to the tier.
    """
    path = Path(directory) / name
    beside = path.with_name(f"{path.name}.{os.getpid()}")
    with posix_errors(name):
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)


def _write_beginning(target: Path, data: bytes) -> None:
    fd = os.open(target, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        written = 0
        while written < len(data):
            written += os.pwrite(fd, data[written:], written)
        os.fsync(fd)
    finally:
        os.close(fd)


def _sync_directories(directory: Path, root: Path) -> None:
    """Make names durable, up to the root."""
    while True:
        sync_directory(str(directory))
        if directory == root:
            return
        directory = directory.parent
