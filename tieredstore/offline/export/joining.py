"""Joins the small files of an export: one file for each topic and day, or hour, in their place.

The new files of a partition are made in a directory beside that of the export, and one exchange of
the two directories (`renameat2`) puts them in place of the old ones. So a listing has all old files
or all new ones, whatever its pattern. No name is used again: a reader that has listed the old
files, and opens one after the exchange, finds no such file, and reads no message twice.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
# pyright: reportUnknownVariableType=false, reportMissingTypeStubs=false
# pyarrow ships no types.
import ctypes
import errno
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq

from provider.errors import Corrupt, Denied
from provider.posix.files import sync_directory
from tieredstore.offline.export.day_files import OpenFile
from tieredstore.offline.export.export_directory import LocalDirectory

JOINED_BYTES_MAX = 128 << 20
"""Length of a file from which on it is left as it is."""
BATCH_ROWS = 8192
PREFIX = "joined-"
_SWAP = 2
"""RENAME_EXCHANGE of renameat2(2)."""
_HERE = -100
"""AT_FDCWD of the same."""
_IMPOSSIBLE = frozenset({errno.EINVAL, errno.ENOSYS, errno.EXDEV, errno.EOPNOTSUPP})
_NUMBERS = re.compile(r"[0-9]+")


class Joined(NamedTuple):
    """Counts of a join."""

    files: int
    """Files that are replaced."""
    partitions: int
    """Files in their place."""


def joined(root: Path, *, top: Path, files_min: int) -> Joined:
    """Join small files of an export, a partition with `files_min` of them at a time.

    The caller has the lock of the export, and no run of it is unfinished. A process that is killed
    leaves each partition as it was or joined. Memory: a row group. Disk: the files of a partition
    twice.

    Args:
        root: directory of the export.
        top: the same, or the directory of the exports of several brokers. What is being made lies
            beside it, where no reader of the export looks.
        files_min: at least 2.

    Raises:
        Denied: the file system cannot exchange directories.
        Corrupt: a file of the export is damaged.
        OSError: the directory beside `top` cannot be written.
    """
    whole = hashlib.sha256(str(root.absolute()).encode()).hexdigest()[:16]
    staging = top.absolute().parent / f".{top.name}.joining-{whole}"
    shutil.rmtree(staging, ignore_errors=True)  # of a process that was killed
    files = partitions = 0
    try:
        for at, _, names in os.walk(root):
            small = _small_files(Path(at), names)
            if len(small) >= files_min and _have_one_schema(small):
                _join(Path(at), small, staging)
                files, partitions = files + len(small), partitions + 1
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return Joined(files, partitions)


def _small_files(directory: Path, names: Sequence[str]) -> list[Path]:
    """Small files of a partition, by queue and place in its log; [] for other places."""
    found = [
        path
        for name in names
        if name.endswith(".parquet") and not name.startswith((".", "_"))
        if (path := directory / name).stat().st_size < JOINED_BYTES_MAX
    ]
    return sorted(found, key=_order)


def _have_one_schema(files: Sequence[Path]) -> bool:
    """Whether all files have the same columns; those of an older program may have others."""
    return len({pq.read_schema(path).remove_metadata() for path in files}) == 1


def _order(path: Path) -> tuple[bool, list[int]]:
    is_joined = path.name.startswith(PREFIX)
    return not is_joined, [] if is_joined else [int(one) for one in _NUMBERS.findall(path.stem)]


def _join(partition: Path, small: Sequence[Path], staging: Path) -> None:
    made = staging / "partition"
    made.mkdir(parents=True)
    name = f"{PREFIX}{secrets.token_hex(8)}.parquet"
    schema = pq.read_schema(small[0]).remove_metadata()
    file, rows = OpenFile(LocalDirectory(made), name, schema), 0
    try:
        for path in small:
            with pq.ParquetFile(path) as source:
                rows += source.metadata.num_rows
                for batch in source.iter_batches(BATCH_ROWS):
                    file.add(batch)
        written = file.complete(b"")
    except BaseException:
        file.remove()
        raise
    if written.rows != rows or pq.read_metadata(made / name).num_rows != rows:
        raise Corrupt("the joined file has not the rows of its parts", str(partition), 0)
    for path in partition.iterdir():
        if path not in small:
            os.link(path, made / path.name)
    shutil.copystat(partition, made)
    sync_directory(str(made))
    _exchange(made, partition)
    sync_directory(str(partition.parent))
    sync_directory(str(staging))
    shutil.rmtree(made)


def _exchange(one: Path, other: Path) -> None:
    """Exchange two directories at once.

    Raises:
        Denied: the file system cannot do that.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    rename = getattr(libc, "renameat2", None)
    number = errno.ENOSYS
    if rename is not None:
        if rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _SWAP) == 0:
            return
        number = ctypes.get_errno()
    if number in _IMPOSSIBLE:
        raise Denied(
            "files cannot be joined here: the file system cannot exchange two directories at once "
            "(NFS cannot), or the export is the root of a volume",
            str(other),
        )
    raise OSError(number, os.strerror(number), str(other))
