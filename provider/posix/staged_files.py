"""Staged files: written beside a tier, then installed under their names.

Their directory has a name that no object may have, so listings skip it. The lock of that directory
marks a living run. The next run removes the files of a dead one.
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
    """Exclusive run that stages files below a directory. Created by `begin`. Blocking.

    A file is synced before it is installed, and its directory afterwards. A run that is killed
    before `install` has changed nothing. A run that is killed during installation has installed
    some files, each of them whole.
    """

    def __init__(self, root: Path, lock: int) -> None:
        self._root = root
        self._lock = lock
        self._directory = root / STAGING_NAME

    def __repr__(self) -> str:
        return f"<StagedFiles below {self._root}>"

    @classmethod
    def begin(cls, root: Path) -> Self:
        """Take the lock and remove the files of a dead run.

        Raises:
            Unavailable: another run holds the lock.
            Denied: the directory is not writable.
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
        """Staging directory, for `stage` in any process."""
        return str(self._directory)

    def install(self, name: str, staged: str, *, grows: bool = False) -> None:
        """Install a staged file as `name`, replacing an existing file.

        `grows`: an owner may append to the file. An existing file is then kept with its appended
        bytes, and only its beginning is overwritten, up to the length of the staged file.

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
        """Remove the files that were not installed, and release the lock. Idempotent."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            shutil.rmtree(self._directory, ignore_errors=True)
            (self._root / LOCK_NAME).unlink(missing_ok=True)
            os.close(lock)


def _locked(path: Path) -> int:
    """Open and lock the file of that name. Return its descriptor.

    Raises:
        Unavailable: another process holds the lock.
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
            pass  # the former holder removed the file meanwhile
        os.close(lock)


def stage(directory: str, name: str, parts: Iterable[bytes | memoryview]) -> None:
    """Write and sync a file below a staging directory, replacing an earlier one of that name.

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
    """Sync a directory and its parents up to the root."""
    while True:
        sync_directory(str(directory))
        if directory == root:
            return
        directory = directory.parent
