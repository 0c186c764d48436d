"""A store directory written from a tier: workers, and the files of the whole directory.

The CommitLog has the records in the order of their store times, at new positions, because a tier
does not keep those of its broker. It begins above the end that a filler states (`log_start`), as
after the deletion of the files before. The plan follows from the tier's metadata alone, so that a
run that was ended is continued by the next one, and workers need not know of each other (decision
0066).
"""

import fcntl
import json
import os
import re
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self, cast, overload

import orjson

from container.errors import InUse
from container.names.queue_id import QueueId
from container.names.rocketmq import local_file_name
from dispatcher.topic_filter import is_system_topic
from provider.clock import Clock, SystemClock
from provider.errors import Unavailable
from provider.names import is_directory, is_there
from provider.posix.files import refuse_other_systems
from tieredstore.config.effective import Config
from tieredstore.config.sources import ConfigError
from tieredstore.following.directory.layout import (
    CHECKPOINT,
    COMMIT_LOG,
    RESTORING,
    TOPICS,
    UNFINISHED,
)
from tieredstore.following.options import HotLogOptions
from tieredstore.hot.log.consume_queues import FILLER
from tieredstore.hot.log.directory import StoreIdentity, write_identity
from tieredstore.hot.log.durable_ends import Checkpoint
from tieredstore.hot.log.files import replace_file, sync_directories
from tieredstore.hot.log.topics import CONFIRMED, RESERVE_TIME, with_queues
from tieredstore.offline.jobs.engine import BytesProgress, Engine, Piece
from tieredstore.offline.jobs.restore_group import (
    BEGINS,
    MARKER,
    RestoreGroup,
    as_said,
    open_sparse,
    restore_group,
    write_units,
)
from tieredstore.offline.jobs.restore_plan import (
    DAMAGED,
    GAP,
    Corrections,
    RestoredQueue,
    RestorePlan,
    Stretch,
    Wanted,
    filled_from,
    log_start,
    planned,
)
from tieredstore.process_name import boot_id
from tieredstore.session.owner import refuse_overlap

PLANS_MAX = 20
"""Corrected plans of one run: damage takes one more, retention beside the run some."""
SPARE_BYTES = 64 << 20
"""Free space beyond the files, for what the broker writes first."""
BLOCK_BYTES = 4096
"""Of a directory, and of the page at the end of a file."""
OFFSETS = "consumerOffset.json"
IGNORED = frozenset({"lost+found"})
"""Names in an empty directory at the root of a file system."""


class GroupMessages(NamedTuple):
    """Number of messages of a queue that one consumer group does not get from the directory."""

    topic: str
    group: str
    queue_id: int
    messages: int


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """Offsets of consumer groups for the directory, and messages between these and its queues."""

    table: Mapping[str, Mapping[int, int]]
    """By `topic@group` and queue; none is beyond the end of its queue."""
    beyond: Sequence[GroupMessages]
    """Consumed, and not in the tier."""
    before: Sequence[GroupMessages]
    """Not consumed, and before the first offset in the directory."""


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """Result of a restore."""

    cluster: str
    broker: str
    queues: Sequence[RestoredQueue]
    messages: int
    bytes: int
    groups: int
    groups_before: int
    """Of these, written by an earlier run."""
    newest_ms: int
    """Store time of the newest message; 0: there is none."""
    deleted: Sequence[str]
    offsets: GroupOffsets
    guessed: Sequence[str]
    """Topics with as many queues as have messages, because their settings are known nowhere."""

    @property
    def is_whole(self) -> bool:
        """Whether the directory has all that was asked for and is in the tier."""
        return not self.offsets.beyond and not any(one.why in {DAMAGED, GAP} for one in self.queues)

    @property
    def summary(self) -> dict[str, object]:
        """All but the queues, for programs."""
        named = ("cluster", "broker", "messages", "bytes", "newest_ms", "deleted")
        return {
            **{name: getattr(self, name) for name in named},
            "consumed_and_lost": [one._asdict() for one in self.offsets.beyond],
            "passed_over": [one._asdict() for one in self.offsets.before],
            "guessed_topics": list(self.guessed),
        }


class Ledger:
    """The file by which an unfinished directory is known: corrections, plan, and what is done."""

    def __init__(self, root: Path) -> None:
        """Lock the directory, which is created if needed.

        Raises:
            ConfigError: it is a file, or not empty.
            InUse: another process restores into it.
            OSError: it cannot be created.
        """
        self.root = root
        self.path = root / RESTORING
        self._marker = root / COMMIT_LOG / MARKER
        try:
            root.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:
            raise ConfigError(f"{root} is no directory: give a new one") from error
        found = {path.name for path in root.iterdir()} - IGNORED
        if found and RESTORING not in found:
            raise _not_empty(root)
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._fd)
            raise InUse("another process restores into this directory", str(root)) from error
        raw = self.path.read_bytes()
        said = _head(raw.partition(b"\n")[0])
        self.corrections = Corrections(said.get("begins", {}), said.get("sizes", {}))
        self.digest = said.get("digest")
        """Digest of the plan that is under way; None: there is none."""
        boot = boot_id()
        self._is_of_boot = boot != "" and said.get("boot") == boot
        if self.digest is None and not is_there(self._marker) and self._has_other_files():
            os.close(self._fd)
            raise _not_empty(root)
        self.done = {int(number) for number in re.findall(rb"^(\d+) \1$", raw, re.MULTILINE)}
        """Numbers of the groups that are written. A full disk may have cut a line off."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Let others go on."""
        os.close(self._fd)

    def _has_other_files(self) -> bool:
        paths = (Path(parent, name) for parent, _, names in os.walk(self.root) for name in names)
        return any(path != self.path for path in paths)

    @property
    def is_complete(self) -> bool:
        """Whether only this file is left to be removed."""
        return self.digest is not None and not is_there(self._marker)

    def begin(self, wanted: RestorePlan) -> None:
        """Continue a plan, or begin it in an empty directory.

        Nothing is synced before the end. So another boot begins again.
        """
        if self.digest == wanted.digest and self._is_of_boot:
            return
        self.digest, self._is_of_boot = wanted.digest, True
        self.done.clear()
        self._marker.parent.mkdir(exist_ok=True)
        with self._marker.open("a+") as marker:
            fcntl.flock(marker, fcntl.LOCK_EX)  # until no worker of a killed run writes
            marker.truncate(0)
            marker.write(f"{UNFINISHED}\n")
            marker.flush()
            os.fsync(marker.fileno())
        # Durable before the head changes, which says without a marker that all files are complete.
        sync_directories([self.root, self._marker.parent])
        os.ftruncate(self._fd, 0)
        kept = {self.path, self._marker.parent, *(self.root / name for name in IGNORED)}
        for path in {*self.root.iterdir()} - kept | {*self._marker.parent.iterdir()}:
            if is_directory(path):
                shutil.rmtree(path)
            elif path != self._marker:
                path.unlink()
        head = {**asdict(self.corrections), "digest": self.digest, "boot": boot_id()}
        os.write(self._fd, orjson.dumps(head) + b"\n")
        os.fsync(self._fd)

    def end(self) -> None:
        """Make all files durable, and then the directory a store.

        Raises:
            OSError: something is not durable; the directory stays unfinished, and the next run
                begins it again, because the kernel reports the loss of a write once only.
        """
        if not self.is_complete:
            try:
                self._sync()
            except OSError:
                os.ftruncate(self._fd, 0)
                raise
            self._marker.unlink()
        sync_directories([self.root.parent, self._marker.parent])
        self.path.unlink()
        sync_directories([self.root])

    def _sync(self) -> None:
        os.sync()  # all at once; then each, because only that reports errors
        for parent, _, names in os.walk(self.root):
            for name in names:
                fd = os.open(Path(parent, name), os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)
            sync_directories([Path(parent)])


def _not_empty(root: Path) -> ConfigError:
    return ConfigError(
        f"{root} is not empty, and no unfinished restore: give a new directory, so that no message "
        f"of a store is overwritten"
    )


def _head(raw: bytes) -> dict[str, Any]:
    try:
        found: object = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def restore_store(
    config: Config,
    engine: Engine,
    root: Path,
    *,
    wanted: Wanted,
    offsets: Mapping[str, Mapping[int, int]],
    topics: Mapping[str, Any] | None = None,
    progress: BytesProgress | None = None,
    clock: Clock | None = None,
) -> RestoreReport:
    """Write a store directory for the configured broker of a tier.

    A run that was ended is continued, if the tier has not changed since. `offsets` are those of
    consumer groups, by `topic@group` and queue. `topics` is a broker's `topics.json`, whose
    settings are kept in place of the tier's, but for retentions.

    Raises:
        ConfigError: the directory is not empty or lies in the tier, or a file of its CommitLog is
            too short.
        InUse: another process restores into it.
        Unavailable: the disk has not the space, the tier does not answer, or it changes repeatedly.
        NotFound, Corrupt, NewerVersion, Denied: as `planning.plan`; Denied also if this is not
            Linux.
    """
    refuse_other_systems(str(root))
    refuse_overlap(root, HotLogOptions(), config.tier_root)
    with Ledger(root) as ledger:
        for _ in range(PLANS_MAX):
            found = planned(config, root, wanted, ledger.corrections)
            if ledger.is_complete and ledger.digest == found.digest:
                waiting = []
                break
            ledger.begin(found)
            waiting = [one for one in found.groups if one.number not in ledger.done]
            _refuse_full(root, found, sum(one.bytes for one in waiting))
            if not _correct(ledger.corrections, _run(engine, found, waiting, progress)):
                break
        else:
            raise Unavailable("the tier changes faster than it is restored", str(root))
        groups = group_offsets(offsets, found.queues, found.deleted)
        _write_rest(found, root, groups.table)
        _write_topics(found, root, topics or {}, (clock or SystemClock()).now_ms())
        ledger.end()
    broker = found.state.broker
    settled = {*found.rows_in_tier(), *(topics or {}).get("topicConfigTable", {})}
    return RestoreReport(
        broker.cluster,
        broker.name,
        found.queues,
        sum(one.end - one.first for one in found.queues),
        sum(one.bytes for one in found.groups),
        len(found.groups),
        len(found.groups) - len(waiting),
        found.newest_ms,
        found.deleted,
        groups,
        sorted({one.topic for one in found.queues} - settled),
    )


class _Tasks(Sequence[RestoreGroup]):
    """Tasks of workers, each made when it is taken: all at once would fill the memory."""

    def __init__(self, found: RestorePlan, waiting: Sequence[Stretch]) -> None:
        self._found = found
        self._waiting = waiting

    def __len__(self) -> int:
        return len(self._waiting)

    @overload
    def __getitem__(self, index: int) -> RestoreGroup: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[RestoreGroup]: ...
    def __getitem__(self, index: int | slice) -> RestoreGroup | Sequence[RestoreGroup]:
        if isinstance(index, slice):
            return _Tasks(self._found, self._waiting[index])
        return self._found.group(self._waiting[index])


def _run(
    engine: Engine, found: RestorePlan, waiting: Sequence[Stretch], progress: BytesProgress | None
) -> Sequence[Piece]:
    total, done = sum(one.bytes for one in waiting), 0

    def move(index: int) -> None:
        nonlocal done
        done += waiting[index].bytes
        if progress is not None:
            progress(done, total)

    return engine.map_group(_Tasks(found, waiting), restore_group, as_said, progress=move)


def _correct(corrections: Corrections, said: Iterable[Piece]) -> bool:
    """Enter what workers said. Return whether there was anything."""
    is_new = False
    for piece in said:
        key, value = orjson.loads(piece.payload)
        if piece.target == BEGINS:
            corrections.begins[key] = max(corrections.begins.get(key, 0), value)
        else:
            corrections.sizes[key] = value
        is_new = True
    return is_new


def _refuse_full(root: Path, found: RestorePlan, bytes_waiting: int) -> None:
    """Refuse to begin what the disk has not the space for.

    Raises:
        Unavailable: says how many bytes or inodes there are, and how many are needed.
    """
    disk = os.statvfs(root)
    free = disk.f_bavail * disk.f_frsize
    share = bytes_waiting / max(sum(one.bytes for one in found.groups), 1)
    inodes = int(found.inodes * share)
    needed = int((found.bytes + found.inodes * BLOCK_BYTES) * share)
    needed += SPARE_BYTES if bytes_waiting else 0
    lacks = f"{free:,} bytes free, and {needed:,} are needed" if free < needed else ""
    if disk.f_files and disk.f_favail < inodes:  # 0 files: their number has no limit
        lacks = f"{disk.f_favail:,} inodes free, and {inodes:,} are needed"
    if lacks:
        raise Unavailable(
            f"the disk has {lacks}: give another directory, or restore less (--since, --topic)",
            str(root),
        )


def group_offsets(
    offsets: Mapping[str, Mapping[int, int]],
    queues: Iterable[RestoredQueue],
    deleted: Collection[str] = (),
) -> GroupOffsets:
    """Return the offsets of groups for a directory with these queues. Pure.

    A group beyond the end would pass over the next messages. A queue that the tier has not begins
    at 0 again. Groups have no offsets of `deleted` topics.
    """
    known = {(one.topic, one.queue_id): one for one in queues}
    table: dict[str, dict[int, int]] = {}
    beyond: list[GroupMessages] = []
    before: list[GroupMessages] = []
    for name, row in sorted(offsets.items()):
        topic, _, group = name.rpartition("@")
        if topic in deleted:
            continue
        table[name] = {}
        for queue_id, offset in sorted(row.items()):
            queue = known.get((topic, queue_id)) or RestoredQueue(topic, queue_id, 0, 0, 0)
            table[name][queue_id] = min(offset, queue.end)
            if offset > queue.end and not is_system_topic(topic):  # those are never tiered
                beyond.append(GroupMessages(topic, group, queue_id, offset - queue.end))
            elif queue.first > (next_offset := max(offset, queue.tier_first)):
                before.append(GroupMessages(topic, group, queue_id, queue.first - next_offset))
    return GroupOffsets(table, beyond, before)


def _write_rest(found: RestorePlan, root: Path, offsets: Mapping[str, Mapping[int, int]]) -> None:
    """Write what is no group's: fillers, offsets, identity and checkpoint.

    Repeating it changes nothing but the offsets, so that it may be done in a complete directory.
    """
    file_bytes = found.queue_file_bytes
    for one in found.queues:
        start = filled_from(one, file_bytes)
        raw = FILLER * (one.first - start)
        write_units(root, QueueId(one.topic, one.queue_id), start, raw, file_bytes)
    if not found.groups:
        log = root / COMMIT_LOG / local_file_name(log_start(found.log_file_bytes))
        os.close(open_sparse(log, found.log_file_bytes))
    config = root / "config"
    config.mkdir(exist_ok=True)
    (config / OFFSETS).unlink(missing_ok=True)  # of an earlier run with other arguments
    if offsets:
        raw = orjson.dumps({"offsetTable": offsets}, option=orjson.OPT_NON_STR_KEYS)
        replace_file(config / OFFSETS, raw)
    broker = found.state.broker
    write_identity(root, StoreIdentity(broker.cluster, broker.name, has_tier=True))
    newest = Checkpoint.LAYOUT.pack(*(found.newest_ms,) * 3, 0, 0)
    replace_file(root / CHECKPOINT, newest.ljust(Checkpoint.SIZE, b"\0"))


def _write_topics(found: RestorePlan, root: Path, given: Mapping[str, Any], now_ms: int) -> None:
    """Write the topics: the given ones but deleted ones, with the tier's queues and retentions.

    Settings of other topics are the tier's. An older retention from a backup would delete messages
    of the tier.
    """
    table = found.rows_in_tier()
    table |= {
        topic: dict(row)
        for topic, row in given.get("topicConfigTable", {}).items()
        if topic not in found.deleted
    }
    version = given.get("dataVersion", {})
    version = {**version, "counter": version.get("counter", 0) + 1, "timestamp": now_ms}
    document: dict[str, Any] = {**given, "dataVersion": version, "topicConfigTable": table}
    document.pop(CONFIRMED, None)
    with_queues(document, [QueueId(one.topic, one.queue_id) for one in found.queues], 1)
    for topic, row in table.items():
        attributes = row.get("attributes")
        kept = dict(cast("dict[str, Any]", attributes)) if isinstance(attributes, dict) else {}
        kept.pop(RESERVE_TIME, None)
        if time := found.reserve_time(topic):
            kept[RESERVE_TIME] = time
        if attributes or kept:
            row["attributes"] = kept
    replace_file(root / TOPICS, json.dumps(document, ensure_ascii=False, indent="\t").encode())
