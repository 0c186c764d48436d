"""Diagnosis of a directory: owner, space, and capabilities of the file system."""

import asyncio
import errno
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from random import Random, SystemRandom
from typing import Final, TypeVar

from provider.clock import Clock, SystemClock
from provider.errors import AlreadyExists, Denied, NotFound, StoreError, Unavailable
from provider.names import TEMPORARY_PREFIX, is_directory, is_there
from provider.object_store import ObjectStore
from provider.posix.store import PosixStore
from provider.ranges import ByteRange
from provider.stores.verified import DELETABLE, PROBE_PREFIX, probe


class Grade(Enum):
    """Severity of a line."""

    GOOD = "good"
    NOTE = "note"
    """Worth knowing, or not known."""
    BAD = "bad"
    """To be changed before a tier is kept there."""


@dataclass(frozen=True, slots=True)
class Line:
    """Result of a check."""

    check: str
    """Such as `versioning`."""
    grade: Grade
    detail: str
    advice: str = ""
    """Remedy; "" if none is needed."""
    is_final: bool = False
    """Whether nothing else can be diagnosed before it is remedied."""


ResultT = TypeVar("ResultT")
PROBES = 3
"""Times that the probe runs, with three rounds of rivals each."""
SAMPLES = 10
"""Number of timed reads."""


async def tried_calls(store: ObjectStore) -> list[Line]:
    """Create, read, list and delete a throw-away object: one line each.

    Raises:
        Unavailable: the storage does not answer.
    """
    name = f"{PROBE_PREFIX}{DELETABLE}"  # where deletions are denied, one object is left

    async def create() -> None:
        with suppress(AlreadyExists):
            await store.create(name, [b"doctor"])

    return [
        await _line("create", create),
        await _line("read", lambda: store.read(name, ByteRange(0, 6))),
        await _line("size", lambda: store.size(name)),
        await _line("list", lambda: store.list(PROBE_PREFIX)),
        await _line("delete", lambda: store.delete([name])),
    ]


async def tried_promises(store: ObjectStore, *, rng: Random) -> Line:
    """Create-if-absent under concurrency, ranges and listings, as an owner's start tries them.

    Raises:
        Unavailable: the storage does not answer.
    """
    try:
        for _ in range(PROBES):
            await probe(store, rng=rng)
    except Denied as error:
        return Line("conditional writes", Grade.BAD, error.reason)
    return Line("conditional writes", Grade.GOOD, "one of two rivals wins, however often they race")


async def taken_latency(store: ObjectStore, *, clock: Clock) -> Line:
    """The time that a small question takes.

    Raises:
        Unavailable: the storage does not answer.
    """
    times_s: list[float] = []
    for _ in range(SAMPLES):
        began_s = clock.monotonic_s()
        with suppress(NotFound, Denied):
            await store.list(f"{PROBE_PREFIX}latency")
        times_s.append(clock.monotonic_s() - began_s)
    median_ms, most_ms = sorted(times_s)[SAMPLES // 2] * 1000, max(times_s) * 1000
    detail = f"a listing takes {median_ms:.1f} ms, at most {most_ms:.1f} ms"
    slow_ms = 500
    if median_ms < slow_ms:
        return Line("latency", Grade.GOOD, detail)
    return Line("latency", Grade.NOTE, detail, "keep the tier nearer to this host")


async def _line(check: str, call: Callable[[], Awaitable[ResultT]]) -> Line:
    try:
        await call()
    except Unavailable:
        raise
    except StoreError as error:
        return Line(check, Grade.BAD, error.reason)
    return Line(check, Grade.GOOD, "allowed")


SPACE_BYTES_MIN = 1 << 30
SYNC_MS_MAX = 100.0
_OWNER: Final = "give this user the directory, or run as its owner"
_ROOM: Final = "free space, or raise the quota"
CURES: Final = {
    errno.EACCES: _OWNER,
    errno.EPERM: _OWNER,
    errno.EROFS: "mount it for writing; a failing disk may have made it read-only",
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
}
"""Advice where no file can be created, by the number of the error."""


def diagnose_directory(path: Path) -> list[Line]:
    """Diagnose a directory. Blocks. Removes the files that it writes there.

    Raises:
        Unavailable: the file system fails, for example because it is full.
    """
    lines = [_identity(path)]
    if not is_directory(path):
        if is_there(path):
            return [*lines, Line("directory", Grade.BAD, f"{path} is a file", "name a directory")]
        absent = "make it, or check the path; a mount may be missing"
        return [*lines, Line("directory", Grade.BAD, f"there is no directory {path}", absent)]
    lines += [_file_system(path), *_space(path)]
    try:
        work = tempfile.mkdtemp(prefix=f"{TEMPORARY_PREFIX}doctor-", dir=path)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        advice = CURES.get(error.errno or 0, "see the kernel's log")
        return [*lines, Line("create files", Grade.BAD, f"{path}: {why}", advice)]
    try:
        return lines + asyncio.run(_tried(Path(work)))
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _identity(path: Path) -> Line:
    try:
        found = path.stat()
        owner = f"; {path} belongs to user {found.st_uid}, mode {found.st_mode & 0o7777:o}"
    except OSError:
        owner = ""
    return Line("who we are", Grade.GOOD, f"user {os.getuid()}, group {os.getgid()}{owner}")


def _file_system(path: Path) -> Line:
    kind, where = "", ""
    try:
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    except OSError:
        mounts = []
    whole = str(path.resolve())
    for words in mounts:
        point = words[1].replace("\\040", " ")
        if whole == point or whole.startswith(point.rstrip("/") + "/"):
            kind, where = words[2], point
    detail = f"{kind or 'unknown'}, mounted at {where or '?'}"
    if kind in {"tmpfs", "ramfs"}:
        return Line("file system", Grade.BAD, detail, "it is gone after a restart: use a disk")
    return Line("file system", Grade.GOOD, detail)


def _space(path: Path) -> list[Line]:
    found = os.statvfs(path)
    free = found.f_bavail * found.f_frsize
    total = max(1, found.f_blocks * found.f_frsize)
    detail = f"{free / (1 << 30):,.1f} GiB free, {100 * free / total:.0f} %"
    is_enough = free >= SPACE_BYTES_MIN
    lines = [
        Line(
            "free space",
            Grade.GOOD if is_enough else Grade.BAD,
            detail,
            "" if is_enough else "free space, or set retention (tieredStoreDeleteFileEnable)",
        )
    ]
    if found.f_files:
        share = 100 * found.f_favail / found.f_files
        is_low = share < 1
        advice = "delete files, or make the file system with more inodes" if is_low else ""
        grade = Grade.BAD if is_low else Grade.GOOD
        lines.append(Line("inodes", grade, f"{share:.0f} % free", advice))
    return lines


async def _tried(work: Path) -> list[Line]:
    store, clock, rng = PosixStore(work), SystemClock(), SystemRandom()
    try:
        lines = [await _locks(store)]
        began_s = clock.monotonic_s()
        lines += await tried_calls(store)
        if any(line.grade is Grade.BAD for line in lines):
            return lines
        took_ms = (clock.monotonic_s() - began_s) * 1000
        is_slow = took_ms > SYNC_MS_MAX
        lines.append(
            Line(
                "sync of files and directories",
                Grade.NOTE if is_slow else Grade.GOOD,
                f"a file that is created, synced and deleted takes {took_ms:.1f} ms",
                "a faster disk tiers sooner" if is_slow else "",
            )
        )
        return [*lines, await tried_promises(store, rng=rng)]
    finally:
        await store.close()


async def _locks(store: PosixStore) -> Line:
    try:
        await store.register("@lock")
    except StoreError as error:
        return Line("locks", Grade.BAD, error.reason, "use another file system")
    return Line("locks", Grade.GOOD, "locks of open file descriptions work")
