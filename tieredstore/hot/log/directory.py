"""Store directory of the hot log: lock, clean-shutdown marker, identity."""

import fcntl
import json
import os
import struct
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from os.path import samestat
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from container.errors import InUse
from container.names.rocketmq import parse_cluster_directory
from dispatcher.topic_filter import LMQ_PREFIX
from provider.clock import Clock
from provider.errors import Closed, Denied, Unavailable
from provider.names import is_directory, is_regular_file, is_there
from provider.posix.files import (
    posix_errors,
    refuse_other_systems,
    sync_data,
    sync_directory,
)
from provider.posix.locks import lock_call
from tieredstore.following.directory.layout import RESTORING, UNFINISHED
from tieredstore.hot.log.durable_ends import Checkpoint
from tieredstore.hot.log.files import FLAGS, birth_of, replace_file, write_all
from tieredstore.process_name import moment_text, process_name, process_words

IDENTITY = Path("config", "storeIdentity.json")
PLACE = Path("config", "storePlace.json")
"""File with inode and birth of `durableEnds` when hot log and tier were last compared."""


class StoreIdentity(NamedTuple):
    """Broker of a store directory."""

    cluster: str
    broker: str
    has_tier: bool
    """Whether a tier was ever configured, so that messages may wait for it."""


def read_identity(root: Path) -> StoreIdentity | None:
    """Read the identity of the store in `root`; None if the file is missing or has another form.

    Raises:
        OSError: it cannot be read.
    """
    path = root / IDENTITY
    if not is_regular_file(path):
        return None
    try:
        row = cast("dict[str, Any]", json.loads(path.read_bytes()))
        return StoreIdentity(str(row["cluster"]), str(row["broker"]), row["hasTier"] is True)
    except (ValueError, KeyError, TypeError):
        return None


def write_identity(root: Path, identity: StoreIdentity) -> None:
    """Replace the file if it has another identity. Durable on return. The caller has the lock.

    A store that had a tier keeps `has_tier`, for messages may wait for it.

    Raises:
        OSError: it cannot be written; the old file stays.
    """
    known = read_identity(root)
    if known is not None and known.has_tier:
        identity = identity._replace(has_tier=True)
    if known != identity:
        row = {"cluster": identity.cluster, "broker": identity.broker, "hasTier": identity.has_tier}
        replace_file(root / IDENTITY, json.dumps(row, ensure_ascii=False, indent="\t").encode())


def is_copy(root: Path) -> bool:
    """Whether the store was copied file by file since it was last compared with its tier.

    False if that is unknown. A snapshot of a whole disk, which keeps inodes, is not noticed.

    Raises:
        OSError: a file cannot be read.
    """
    if not (is_regular_file(root / PLACE) and is_there(root / DURABLE_ENDS)):
        return False
    try:
        row = cast("dict[str, Any]", json.loads((root / PLACE).read_bytes()))
        inode, birth = birth_of(root / DURABLE_ENDS)
        is_other = 0 not in {row["birth"], birth} and row["birth"] != birth
        return row["inode"] != inode or is_other
    except (ValueError, KeyError, TypeError):
        return False


def remember_place(root: Path) -> None:
    """Record that the store was compared with its tier. Durable on return.

    Raises:
        OSError: the file cannot be written.
    """
    inode, birth = birth_of(root / DURABLE_ENDS)
    raw = json.dumps({"inode": inode, "birth": birth}).encode()
    if not is_regular_file(root / PLACE) or (root / PLACE).read_bytes() != raw:
        replace_file(root / PLACE, raw)


_F_OFD_GETLK: Final = 36  # linux/fcntl.h, as the next
_F_OFD_SETLK: Final = 37  # linux/fcntl.h, the same on every architecture
_FLOCK: Final = struct.Struct("hhqqi4x")  # struct flock: type, whence, start, length, pid
LOCK = "lock"
ABORT = "abort"
CHECKPOINT = "checkpoint"
COMMIT_LOG = "commitlog"
DURABLE_ENDS = "durableEnds"
TRUNCATED = "truncated"
OTHER_QUEUES: Final = {
    "batchconsumequeue": "batch ConsumeQueues",
    "consumequeue_ext": "extended ConsumeQueues",
    "consumequeue_rocksdb": "ConsumeQueues in RocksDB",
}


class StoreDirectory:
    """Store directory that this process alone writes, until `close`."""

    def __init__(self, root: Path, commit_log: Path | None = None) -> None:
        """Create the directory if needed, and take its lock: a Java broker's, on byte 0 of `lock`.

        The directory of the CommitLog is locked, too: it may lie elsewhere, and `lock` may be
        deleted while a process has it.

        `commit_log`: directory of the CommitLog; None: in the store directory.

        Raises:
            InUse: another process writes it, or another store of this process.
            Denied: the CommitLog is that of another store; or the directory is a tier's, or not
                restored to its end, or none can be created there; or this is not Linux.
            OSError: it cannot be created or locked.
        """
        self.root = root
        self.commit_log = commit_log or root / COMMIT_LOG
        """Directory of the CommitLog files."""
        self._lock_fd = self._log_fd = -1
        self._kept = threading.Lock()
        refuse_other_systems(str(root))
        _refuse_other_store(root, self.commit_log)
        _refuse_tier(root)
        if is_there(root / RESTORING):
            raise Denied(UNFINISHED, str(root))
        for path in (root, self.commit_log, self.consume_queue, root / "config"):
            _make_directory(path)
        self.identities = {path: path.stat() for path in (root, self.commit_log)}
        """Directories of store and CommitLog, as they were opened."""
        self._lock_fd = os.open(root / LOCK, FLAGS | os.O_CREAT, 0o644)
        try:
            lock_call(self._lock_fd, _F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, 0, 0, 1, 0))
            self._log_fd = _locked_directory(
                self.commit_log, fcntl.LOCK_EX, must_lock=commit_log is not None
            )
            write_all(self._lock_fd, 0, LOCK.encode())
        except BlockingIOError as error:
            self.close()
            raise InUse(_in_use(root), str(root)) from error
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"<StoreDirectory {self.root}>"

    @property
    def is_held(self) -> bool:
        """Whether this object has the lock, as until `close`."""
        return self._lock_fd >= 0

    @property
    def consume_queue(self) -> Path:
        """Directory of the ConsumeQueues."""
        return self.root / "consumequeue"

    @property
    def topics(self) -> Path:
        """File of the topics."""
        return self.root / "config" / "topics.json"

    @property
    def deleted_queues(self) -> Path:
        """File of the deleted queues."""
        return self.root / "config" / "deletedQueues.json"

    @property
    def durable_ends(self) -> Path:
        """File of the durable watermarks. It has a copy beside it."""
        return self.root / DURABLE_ENDS

    @property
    def truncated(self) -> Path:
        """Directory of bytes that were truncated although sound records followed them."""
        return self.root / TRUNCATED

    @property
    def was_closed(self) -> bool:
        """Whether the last writer ended cleanly."""
        return not is_there(self.root / ABORT)

    def refuse_other_queues(self, is_entered: Callable[[str], bool]) -> None:
        """Refuse a directory with queues that are not written here. Writing would destroy them.

        Light queues whose topic is in `config/topics.json` (`is_entered`) were written by an older
        version of this store: a broker never enters its own there.

        Raises:
            Denied: a Java broker keeps queues of other kinds in it.
        """
        for name, kind in OTHER_QUEUES.items():
            if is_directory(path := self.root / name) and any(path.iterdir()):
                raise Denied(
                    f"{kind} are not written by this store; use another directory", str(path)
                )
        for path in self.consume_queue.iterdir():
            if path.name.startswith(LMQ_PREFIX) and not is_entered(path.name):
                raise Denied("light queues are not written by this store", str(path))

    def checkpoint(self) -> Checkpoint:
        """Read the checkpoint; zeros if there is none.

        Raises:
            OSError: it cannot be read.
        """
        path = self.root / CHECKPOINT
        return Checkpoint.decode(path.read_bytes()) if is_there(path) else Checkpoint()

    def write_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint in place, as the broker does: it fits one sector.

        Durable on return.

        Raises:
            OSError: it cannot be written.
        """
        fd = os.open(self.root / CHECKPOINT, FLAGS | os.O_CREAT, 0o644)
        try:
            write_all(fd, 0, checkpoint.encode())
            sync_data(fd)
        finally:
            os.close(fd)

    def begin(self, clock: Clock) -> None:
        """Write the marker of an open store, with process and time. Durable on return.

        The first line is the process id, as a Java broker writes it.

        Raises:
            OSError: it cannot be written.
        """
        fd = os.open(self.root / ABORT, FLAGS | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            write_all(fd, 0, f"{os.getpid()}\n{process_name(clock)}".encode())
            os.fsync(fd)
        finally:
            os.close(fd)
        for path in (self.root, self.root.parent, self.commit_log.parent):
            sync_directory(str(path))

    def end(self) -> None:
        """Remove the marker: all is durable. The last step of a clean shutdown.

        Raises:
            OSError: the next start scans the CommitLog.
        """
        (self.root / ABORT).unlink(missing_ok=True)
        sync_directory(str(self.root))

    def close(self) -> None:
        """Release the lock. Waits for a block of `kept`. Idempotent."""
        with self._kept:
            for fd in (self._log_fd, self._lock_fd):
                if fd >= 0:
                    os.close(fd)
            self._lock_fd = self._log_fd = -1

    @contextmanager
    def kept(self) -> Generator[None]:
        """Keep the lock for the block, which reads or replaces a file. One thread at a time.

        Raises:
            Closed: the lock was released.
            Unavailable: the directory is elsewhere now. A file would be of another store.
        """
        with self._kept:
            if not self.is_held:
                raise Closed("the store was closed", str(self.root))
            with posix_errors(str(self.root)):
                self.refuse_if_moved()
            yield

    def refuse_if_moved(self) -> None:
        """Refuse to open files by name where the directory is another one by now. 4 us.

        Raises:
            Unavailable: it was moved or deleted, or the CommitLog's was. A file there is of another
                store.
            OSError: that is unknown, as the directory cannot be described.
        """
        refuse_moved(self.identities)


def refuse_moved(identities: Mapping[Path, os.stat_result]) -> None:
    """Refuse directories that are others by now; see `StoreDirectory.refuse_if_moved`."""
    for path, identity in identities.items():
        with suppress(FileNotFoundError, NotADirectoryError):
            if samestat(path.stat(), identity):
                continue
        raise Unavailable("the store directory was moved or deleted", str(path))


def _refuse_other_store(root: Path, commit_log: Path) -> None:
    """Refuse a CommitLog in another store's directory: its units would not fit.

    A broker's configuration does that if only its store directory is overridden.

    Raises:
        Denied: names both.
    """
    parent = commit_log.parent
    if parent.resolve() != root.resolve() and is_there(parent / CHECKPOINT):
        raise Denied(
            f"the CommitLog {commit_log} (storePathCommitLog) is that of the store {parent}, not"
            f" of {root}: name both, or neither",
            str(commit_log),
        )


def _locked_directory(path: Path, kind: int, *, must_lock: bool) -> int:
    """Return a descriptor of a directory that is locked, if the file system can.

    Raises:
        BlockingIOError: another process has the lock.
        OSError: the directory cannot be opened, or not be locked although it must.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except OSError as error:  # NFS has no such lock of a directory
        if must_lock or isinstance(error, BlockingIOError):
            os.close(fd)
            raise
    return fd


def refuse_if_written(root: Path, commit_log: Path | None = None) -> None:
    """Refuse a store that a process writes now: see `StoreDirectory`.

    Tests the lock of the file without taking it. Shares that of the directory for a moment.

    Raises:
        InUse: another process writes it, or this one.
        OSError: the locks cannot be tested.
    """
    is_free = True
    try:
        fd = os.open(root / LOCK, FLAGS)
    except FileNotFoundError:
        pass
    else:
        try:
            raw = lock_call(fd, _F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, 0, 0, 1, 0))
        finally:
            os.close(fd)
        is_free = _FLOCK.unpack(raw)[0] == fcntl.F_UNLCK
    try:
        path = commit_log or root / COMMIT_LOG
        os.close(_locked_directory(path, fcntl.LOCK_SH, must_lock=False))
    except FileNotFoundError:
        pass
    except BlockingIOError:
        is_free = False
    if not is_free:
        raise InUse(_in_use(root), str(root))


def _in_use(root: Path) -> str:
    return f"{_writer_of(root)} writes the store {root}: stop it first"


def _refuse_tier(root: Path) -> None:
    """Refuse to create a store in the directory of a tier, which would then hold both.

    Raises:
        Denied: it holds a tier.
    """
    if is_there(root / COMMIT_LOG) or not is_directory(root):
        return
    if any(parse_cluster_directory(path.name) for path in root.iterdir()):
        raise Denied(
            "this directory holds a tier (tieredStoreFilePath): give the store one of its own",
            str(root),
        )


def _make_directory(path: Path) -> None:
    """Create a directory and its parents, unless it exists.

    Raises:
        Denied: a file is in the way, or the file system creates no directories there.
        OSError: it cannot be created.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise Denied("a file stands where a directory is needed", str(path)) from error
    except FileNotFoundError as error:
        raise Denied("no directory can be made here", str(path)) from error


def _writer_of(root: Path) -> str:
    """Describe the writer of a store by its `abort`. A Java broker writes the first line alone."""
    try:
        number, _, name = (root / ABORT).read_text().strip().partition("\n")
        since = moment_text(int((root / ABORT).stat().st_mtime * 1000))
    except (OSError, ValueError):
        number = name = since = ""
    if name:
        words = process_words(name)
        return words[0].upper() + words[1:]
    return f"Process {number} (since {since})" if number.isdecimal() else "Another process"
