"""System calls on the files of a hot log: whole writes, zeros, syncs. Nothing here awaits."""

import errno
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from provider.object_store import Buffer
from provider.posix_files import sync_directory
from provider.presence import is_there

CHUNK_BYTES = 1 << 20
_ZEROS = bytes(CHUNK_BYTES)
FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


def open_file(path: Path, file_bytes: int) -> tuple[int, bool]:
    """A descriptor of a file that has `file_bytes`, made if it is not there; whether it was made.

    A shorter one, which a crash left, is brought to its length. It is sparse.

    Raises:
        OSError: it cannot be opened or made; then nothing new is left.
    """
    try:
        fd, is_new = os.open(path, FLAGS), False
    except FileNotFoundError:
        fd, is_new = os.open(path, FLAGS | os.O_CREAT | os.O_EXCL, 0o644), True
    try:
        if os.fstat(fd).st_size < file_bytes:
            os.ftruncate(fd, file_bytes)
    except BaseException:
        os.close(fd)
        raise
    return fd, is_new


def write_all(fd: int, position: int, data: Buffer) -> None:
    """Write all of `data` at `position`.

    Raises:
        OSError: a part of it may be written.
    """
    done = os.pwrite(fd, data, position)
    if done == len(data):  # as nearly always, and `data` is bytes as a rule
        return
    view = memoryview(data)
    while done < view.nbytes:
        done += os.pwrite(fd, view[done:], position + done)


def read_all(fd: int, position: int, length: int) -> bytes:
    """`length` bytes at `position`, fewer where the file ends.

    Raises:
        OSError: it cannot be read.
    """
    pieces: list[bytes] = []
    while length > 0:
        piece = os.pread(fd, length, position)
        if not piece:
            break
        pieces.append(piece)
        position += len(piece)
        length -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def zero_from(fd: int, position: int) -> bool:
    """Make everything from `position` on zeros; whether anything was changed.

    Holes stay: on a disk that is full, zeros in them would need room that there is not.

    Raises:
        OSError: it cannot be read or written.
    """
    changed = False
    for start, raw in _data_from(fd, position):
        if raw == _ZEROS[: len(raw)]:  # by far the fastest way to say so, and nearly always so
            continue
        written = raw.strip(b"\0")
        write_all(fd, start + raw.index(written[:1]), bytes(len(written)))
        changed = True
    return changed


def _data_from(fd: int, position: int) -> Iterator[tuple[int, bytes]]:
    """What is stored from `position` on, in pieces with their positions, without holes."""
    size = os.fstat(fd).st_size
    while position < size:
        try:
            position = os.lseek(fd, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # holes up to the end
                return
            raise
        end = min(os.lseek(fd, position, os.SEEK_HOLE), size)
        while position < end:
            raw = read_all(fd, position, min(CHUNK_BYTES, end - position))
            if not raw:  # it was cut meanwhile
                return
            yield position, raw
            position += len(raw)


def sync_file(path: Path) -> None:
    """Make a file's bytes durable; nothing happens where it was deleted.

    By a descriptor of its own: whoever writes the file may close theirs meanwhile.

    Raises:
        OSError: the device failed; what was written may be lost.
    """
    try:
        fd = os.open(path, FLAGS)
    except FileNotFoundError:
        return
    try:
        os.fdatasync(fd)
    finally:
        os.close(fd)


def sync_directories(paths: Iterable[Path]) -> None:
    """Make the entries of directories durable, the deepest first.

    Raises:
        OSError: one cannot be synced.
    """
    for path in sorted(set(paths), reverse=True):
        try:
            sync_directory(str(path))
        except FileNotFoundError:
            continue


def replace_file(path: Path, data: bytes, *, backup: Path | None = None) -> None:
    """Give `path` this content, wholly or not at all, and durably; keep the old one as `backup`.

    Raises:
        OSError: it cannot be written; the old content is there.
    """
    temporary = path.with_name(path.name + ".new")
    fd = os.open(temporary, FLAGS | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        write_all(fd, 0, data)
        os.fsync(fd)
    finally:
        os.close(fd)
    if backup is not None and is_there(path):
        backup.unlink(missing_ok=True)
        os.link(path, backup)
    os.replace(temporary, path)  # noqa: PTH105 - as the other calls here
    sync_directory(str(path.parent))
