"""Confirmation of a replicated broker's messages: those that no clean election takes back.

A unit is written once the broker itself counts its record as confirmed. With
`allAckInSyncStateSet=true` all replicas in sync have it by then. Otherwise the broker confirms
records that it alone has. Such a record is safe below the confirm offset of the checkpoint, which
moves with the replicas' acknowledgements. It is also safe once it is older than the time after
which the broker drops a silent replica from the set that the next master is elected from.
"""

import fcntl
import os
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from provider.errors import Corrupt, NotFound
from provider.names import is_there
from tieredstore.following.directory.layout import (
    CONFIRM_OFFSET_AT,
    StoreLayout,
    scan_runs,
    translated,
)
from tieredstore.following.log.mapped_files import MappedFiles

_INT64 = Struct(">q")
_FLOCK = Struct("hhqqi4x")
"""`struct flock` of Linux on 64-bit machines: type, whence, start, length, process."""
FOREVER_MS = 1 << 62


class Confirmed(NamedTuple):
    """Bounds below which a record with a unit counts. Either of them suffices."""

    position: int
    """Confirm offset of the checkpoint: every replica in sync has the bytes below it."""
    stored_ms: int = -1
    """Unix ms. Records stored at or before this time count, too. -1: none do."""


def confirmed_now(
    files: MappedFiles, layout: StoreLayout, *, hold_s: float, now_ms: int, last_ms: int
) -> Confirmed:
    """Read the confirm offset, and how long the broker has been able to drop a silent replica.

    A broker that was stopped cleanly sent all that it had to its replicas. One that crashed no
    longer drops any: its time ended with its last write. A broker that was started again has not
    compared its log with the new master's before it appends: until then its time stands still.

    Args:
        files: reads the checkpoint.
        layout: the store.
        hold_s: age in seconds from which on a record without acknowledgements is safe; 0: all are.
        now_ms: wall clock.
        last_ms: store timestamp of the newest record that was seen, Unix ms; 0 if none was.

    Raises:
        Unavailable, Denied: the checkpoint cannot be read.
    """
    try:
        raw = files.peek(layout.checkpoint, CONFIRM_OFFSET_AT, _INT64.size)
        position = _INT64.unpack(raw)[0]
    except (NotFound, Corrupt):
        position = 0
    if hold_s == 0 or not is_there(layout.abort):
        return Confirmed(position, FOREVER_MS)
    if not _is_locked(layout.lock):
        now_ms = min(now_ms, max(last_ms, _last_write_ms(layout)))
    elif last_ms < _written_ms(layout.abort):  # which each start writes
        now_ms = min(now_ms, last_ms)
    return Confirmed(position, now_ms - int(hold_s * 1000))


def _is_locked(path: Path) -> bool:
    """Whether a process holds the broker's lock, or this is unknown. Takes no lock."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        asked = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 1, 0)
        answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, asked)
        return _FLOCK.unpack(answer)[0] != fcntl.F_UNLCK
    except OSError:
        return True
    finally:
        os.close(descriptor)


def _last_write_ms(layout: StoreLayout) -> int:
    """Return when the newest CommitLog file was last written, Unix ms; 0 if there is none."""
    run = scan_runs(layout.commit_logs)
    return _written_ms(run.path_of(run.bases[-1])) if run.bases else 0


def _written_ms(path: Path) -> int:
    """Return when a file was last written, Unix ms; 0 if it is gone."""
    try:
        return int(path.stat().st_mtime * 1000)
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise translated(error, path) from error
