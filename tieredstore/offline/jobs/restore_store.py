"""A store directory written from a tier: plan, workers, and the files of the whole directory.

The CommitLog has the records in the order of their store times, at new positions, because a tier
does not keep those of its broker. It begins above the end that a filler states (`log_start`), as
after the deletion of the files before. The plan follows from the tier's metadata alone, so that a
run that was ended is continued by the next one, and workers need not know of each other (decision
0066).
"""

import asyncio
import fcntl
import json
import os
import re
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple, Self, cast, overload

import numpy as np
import orjson
from numpy.typing import NDArray

from container.errors import InUse
from container.metadata.records import TOPIC_DELETED_REASON, Queue
from container.metadata.state import TierState
from container.names.queue_id import QueueId
from container.names.rocketmq import local_file_name
from container.queue.message_queue_container import MessageQueueContainer
from container.record.header import BlankRecord
from container.record.unit import FILLER_SIZE, UNIT_BYTES
from container.tier_view import TierReader
from dispatcher.topic_filter import is_system_topic
from provider.clock import Clock, SystemClock
from provider.errors import Unavailable
from provider.names import is_directory, is_there
from provider.posix.files import posix_errors, refuse_other_systems
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
from tieredstore.hot.log.topics import CONFIRMED, RESERVE_TIME, row_of, with_queues
from tieredstore.offline.jobs.engine import BytesProgress, Engine, Piece, temporary_directory
from tieredstore.offline.jobs.restore_group import (
    BEGINS,
    MARKER,
    LogExtract,
    RestoreGroup,
    as_said,
    incarnation_of,
    open_sparse,
    restore_group,
    write_units,
)
from tieredstore.offline.scan.log_rows import ROW, LogRow, Rows, rows_of_log
from tieredstore.offline.scan.planning import as_seen, with_open_tier
from tieredstore.offline.scan.split import Seen, Split, TierPlace
from tieredstore.process_name import boot_id
from tieredstore.session.owner import refuse_overlap
from tieredstore.session.reader import AS_OPTIONS

GROUP_BYTES = 64 << 20
"""Records that a worker sorts at once. Neighbours overlap by the time of an extent at most."""
PLANS_MAX = 20
"""Corrected plans of one run: damage takes one more, retention beside the run some."""
DIGESTED_ROWS = WRITTEN_ROWS = 1 << 16
"""Extents whose columns are in memory at once; more of a tier are in a file."""
SPARE_BYTES = 64 << 20
"""Free space beyond the files, for what the broker writes first."""
BLOCK_BYTES = 4096
"""Of a directory, and of the page at the end of a file."""
OFFSETS = "consumerOffset.json"
IGNORED = frozenset({"lost+found"})
"""Names in an empty directory at the root of a file system."""
DAMAGED, GAP, NOT_WANTED = "damage in the tier", "a gap", "not asked for"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Messages that are wanted in the directory; each queue ends where it does in the tier."""

    topics: frozenset[str] | None = None
    """None: all."""
    since_ms: int | None = None
    """From the first extent on with a message that was stored at this time or later."""


@dataclass(slots=True)
class Corrections:
    """Contradictions of records to the metadata, so that the next plan fits them."""

    begins: dict[str, int] = field(default_factory=dict[str, int])
    """First offset after damage, by incarnation of the queue."""
    sizes: dict[str, int] = field(default_factory=dict[str, int])
    """Length of the records of an extent, by queue and position: a coda is none of them."""


@dataclass(frozen=True, slots=True)
class RestoredQueue:
    """Offsets of one queue in the directory and in the tier."""

    topic: str
    queue_id: int
    first: int
    """First offset in the directory; `end` if it has no message."""
    end: int
    tier_first: int
    why: str = ""
    """Why offsets from `tier_first` to `first` are not in the directory; "" if there are none."""


class Stretch(NamedTuple):
    """Stretch of the restored CommitLog, which one worker writes."""

    number: int
    position: int
    """Of the first record, in the restored CommitLog."""
    extents: tuple[int, int]
    """Extents `[from, to)` of it, in the order of the plan."""
    bytes: int
    """Length of the records."""
    ends_file: bool
    """Whether the rest of its CommitLog file stays empty, and another one follows."""


@dataclass(slots=True)
class RestorePlan:
    """Everything that is to be written. It follows from the metadata and the corrections."""

    state: TierState
    place: TierPlace
    seen: Seen
    root: Path
    queues: list[RestoredQueue]
    rows: Rows
    """Extents that are wanted, by queue. `first_ms`: no record is sorted before this time, which is
    the latest store time of the queue before it."""
    order: NDArray[np.uint32]
    """Numbers of the rows in the order of their times."""
    names: Sequence[str]
    """Names of objects, by their numbers in the rows."""
    groups: list[Stretch]
    deleted: list[str]
    """Topics that their broker deleted."""
    newest_ms: int
    log_file_bytes: int
    queue_file_bytes: int

    @property
    def digest(self) -> str:
        """Digest of all that workers are to write."""
        said = sha256(repr((self.groups, self.queues, self.log_file_bytes, self.queue_file_bytes))
                      .encode())  # fmt: skip
        for start in range(0, len(self.order), DIGESTED_ROWS):
            rows = self.rows[self.order[start : start + DIGESTED_ROWS]]
            for name in ("queue", "first_offset", "next_offset", "bytes"):
                said.update(rows[name].tobytes())
        return said.hexdigest()

    def group(self, stretch: Stretch) -> RestoreGroup:
        """Return the task of a worker."""
        rows = self.rows[self.order[slice(*stretch.extents)]]
        return RestoreGroup(
            str(self.root),
            stretch.number,
            stretch.position,
            tuple(self._extract(LogRow(*values)) for values in rows.tolist()),
            self.log_file_bytes,
            self.queue_file_bytes,
            stretch.ends_file,
        )

    def _extract(self, row: LogRow) -> LogExtract:
        one = self.queues[row.queue]
        queue = self.state.queues[QueueId(one.topic, one.queue_id)]
        piece = row.piece(queue.id, self.names)
        split = Split(
            queue.id,
            piece.position,
            piece.end,
            piece.position,
            piece.end,
            (piece,),
            place=self.place,
            generation=queue.generation,
            seen=self.seen,
        )
        crc = None if row.crc32c < 0 else row.crc32c
        return LogExtract(split, row.first_offset, row.next_offset, row.bytes, row.first_ms, crc)

    @property
    def bytes(self) -> int:
        """Length of all records, units and fillers."""
        units = sum(one.end - _filled_from(one, self.queue_file_bytes) for one in self.queues)
        return sum(one.bytes for one in self.groups) + units * UNIT_BYTES

    @property
    def inodes(self) -> int:
        """Number of all files and directories."""
        units = self.queue_file_bytes // UNIT_BYTES
        files = sum(
            -(-one.end // units) - _filled_from(one, self.queue_file_bytes) // units
            for one in self.queues
        )
        logs = 1 + sum(one.ends_file for one in self.groups)
        topics = len({one.topic for one in self.queues})
        return files + len(self.queues) + logs + topics

    def rows_in_tier(self) -> dict[str, dict[str, Any]]:
        """Return the settings that the tier has, in the form of `topics.json`, by topic."""
        rows = {one.topic: self._row_in_tier(one.topic) for one in self.queues}
        return {topic: row for topic, row in rows.items() if row is not None}

    def reserve_time(self, topic: str) -> str | None:
        """Return the retention of a topic in the tier; None for the default."""
        known = self.state.topics.get(topic)
        if known is not None and known.retention_hours > 0:
            return str(known.retention_hours)
        row = self._row_in_tier(topic)
        return None if row is None else row["attributes"].get(RESERVE_TIME)

    def _row_in_tier(self, topic: str) -> dict[str, Any] | None:
        known = self.state.topics.get(topic)
        return None if known is None else row_of(topic, known.settings)


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


def planned(config: Config, root: Path, wanted: Wanted, corrections: Corrections) -> RestorePlan:
    """Plan a directory. Reads the metadata.

    Many extents are in a temporary file, which is mapped: 80 bytes for each. Memory: 4 bytes for
    each, 30 while they are sorted, and the objects of one manifest.

    Raises:
        ConfigError: there is no such topic, or an extent is longer than a file of the CommitLog.
        NotFound, Corrupt, NewerVersion, Denied, Unavailable: as `planning.plan`.
    """
    with tempfile.TemporaryFile(dir=temporary_directory(), buffering=0) as file:

        async def work(reader: TierReader, place: TierPlace) -> RestorePlan:
            return await _Planning(config, root, wanted, corrections, file).plan(reader, place)

        return with_open_tier(config, work, naming=AS_OPTIONS)


class _Planning:
    """Planning of one directory from one state of a tier."""

    def __init__(
        self,
        config: Config,
        root: Path,
        wanted: Wanted,
        corrections: Corrections,
        file: FileIO,
    ) -> None:
        """`file`: for the extents; a mapping of it is in the plan."""
        self._file = file
        self._waiting: list[Rows] = []
        self._added = self._written = 0
        """All rows, and those in the file."""
        self._config = config
        self._root = root
        self._wanted = wanted
        self._corrections = corrections
        self._sizes: defaultdict[str, dict[int, int]] = defaultdict(dict)
        for place, length in corrections.sizes.items():
            incarnation, _, start = place.rpartition("@")
            self._sizes[incarnation][int(start)] = length
        self._queues: list[RestoredQueue] = []
        self._names: dict[str, int] = {}
        self._newest_ms = 0

    async def plan(self, reader: TierReader, place: TierPlace) -> RestorePlan:
        """As `planned`."""
        state = reader.state.copy()
        place, seen = await as_seen(reader, state, place)
        missing = (self._wanted.topics or frozenset()) - {queue.topic for queue in state.queues}
        if missing:
            topic = min(missing)
            raise ConfigError(f"the tier has no topic {topic}: `tieredstore topics` lists them")
        deleted: set[str] = set()
        for queue in (state.queues[name] for name in sorted(state.queues)):
            container = reader.container(queue.id)
            if _is_deleted(queue):
                deleted.add(queue.id.topic)
            elif container is not None:
                await self._add(queue, container.as_of(queue))
        rows = await asyncio.to_thread(self._mapped)
        order = np.argsort(rows["first_ms"], kind="stable").astype(np.uint32)
        hot = self._config.hot_write
        # A queue may be from before, its topic created again.
        deleted -= {one.topic for one in self._queues}
        groups = list(_stretches(rows, order, self._queues, hot.commit_log_bytes))
        return RestorePlan(
            state, place, seen, self._root, self._queues, rows, order, [*self._names], groups,
            sorted(deleted), self._newest_ms, hot.commit_log_bytes, hot.queue_file_bytes,
        )  # fmt: skip

    def _write(self) -> None:
        rows = np.concatenate(self._waiting)
        with posix_errors(temporary_directory()):
            self._file.seek(self._written * ROW.itemsize)
            left = memoryview(rows.tobytes())
            while left:
                left = left[self._file.write(left) :]
        self._written, self._waiting = self._added, []

    def _mapped(self) -> Rows:
        if not self._written:
            return np.concatenate([np.empty(0, ROW), *self._waiting])
        if self._waiting:
            self._write()
        return np.asarray(np.memmap(self._file, ROW, "r", shape=(self._written,)))

    async def _add(self, queue: Queue, container: MessageQueueContainer) -> None:
        """Add a queue, and the extents of it that are wanted."""
        begin = _begin_of(queue, self._wanted, self._corrections)
        since_ms = self._wanted.since_ms
        first, latest_ms = queue.next_offset, 0
        sizes = self._sizes.get(incarnation_of(queue.id, queue.generation), {})
        async for found in rows_of_log(container, len(self._queues), self._names):
            if since_ms is not None:
                young = found["first_offset"][found["last_ms"] >= since_ms]
                if not len(young):
                    continue
                begin, since_ms = max(begin, (int(young[0]), NOT_WANTED)), None
            rows = found[found["first_offset"] >= begin[0]]
            if not len(rows):
                continue
            first = min(first, int(rows["first_offset"][0]))
            corrected = np.isin(rows["start"], [*sizes])
            rows["bytes"][corrected] = [sizes[start] for start in rows["start"][corrected].tolist()]
            latest = np.maximum.accumulate(np.concatenate(([latest_ms], rows["last_ms"])))
            rows["first_ms"] = np.maximum(rows["first_ms"], latest[:-1])
            latest_ms = int(latest[-1])
            self._waiting.append(rows)
            self._added += len(rows)
            if self._added >= self._written + WRITTEN_ROWS:
                await asyncio.to_thread(self._write)
        if since_ms is not None:
            begin = max(begin, (queue.next_offset, NOT_WANTED))
        why = begin[1] if first > queue.min_offset else ""
        self._queues.append(
            RestoredQueue(*queue.id, first, queue.next_offset, queue.min_offset, why)
        )
        self._newest_ms = max(self._newest_ms, latest_ms)


def _is_deleted(queue: Queue) -> bool:
    last = queue.gaps[-1] if queue.gaps else None
    return (
        last is not None and last.end == queue.next_offset and last.reason == TOPIC_DELETED_REASON
    )


def _begin_of(queue: Queue, wanted: Wanted, corrections: Corrections) -> tuple[int, str]:
    """First offset that a queue may have in the directory at all times, and the reason for it.

    Offsets without a message have no unit that a broker passes over: a queue begins after its last
    gap.
    """
    if wanted.topics is not None and queue.id.topic not in wanted.topics:
        return queue.next_offset, NOT_WANTED
    gap = queue.gaps[-1].end if queue.gaps else 0
    damaged = corrections.begins.get(incarnation_of(queue.id, queue.generation), 0)
    return max((0, ""), (gap, GAP), (damaged, DAMAGED))


def log_start(file_bytes: int) -> int:
    """Return the position at which a CommitLog with such files begins. Pure.

    A filler states position 0 and the largest size. A Java broker takes the end of a queue's last
    unit for the position up to which the queue is built, so that it would build no unit of the
    first messages of a queue that has fillers alone (`ConsumeQueue.putMessagePositionInfo`).
    """
    return -(-(FILLER_SIZE + 1) // file_bytes) * file_bytes


def _stretches(
    rows: Rows, order: NDArray[np.uint32], queues: Sequence[RestoredQueue], file_bytes: int
) -> Iterator[Stretch]:
    """Divide extents, in order of their times, into stretches of the files of a CommitLog."""
    sizes = rows["bytes"][order]
    if len(sizes) and sizes.max() > file_bytes - BlankRecord.SIZE:
        one = queues[int(rows["queue"][int(order[int(sizes.argmax())])])]
        raise ConfigError(
            f"mappedFileSizeCommitLog is {file_bytes}, and an extent of {one.topic}/{one.queue_id} "
            f"has {sizes.max()} bytes: make it larger"
        )
    ends = np.cumsum(sizes)
    position, first, before, number = log_start(file_bytes), 0, 0, 0
    while first < len(ends):
        room = file_bytes - position % file_bytes - BlankRecord.SIZE
        fitting = int(np.searchsorted(ends, before + room, side="right"))
        end = min(fitting, int(np.searchsorted(ends, before + GROUP_BYTES)) + 1)
        ends_file = end == fitting < len(ends)
        length = int(ends[end - 1]) - before
        yield Stretch(number, position, (first, end), length, ends_file)
        number, first, before, position = number + 1, end, before + length, position + length
        if ends_file:
            position += file_bytes - position % file_bytes


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


def _filled_from(queue: RestoredQueue, file_bytes: int) -> int:
    """First offset of the file in which a queue begins. Fillers are before its first message.

    A queue without messages ends with a filler, so that a broker finds its end.
    """
    last = queue.first if queue.first < queue.end else max(queue.end - 1, 0)
    return last - last % (file_bytes // UNIT_BYTES)


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
        start = _filled_from(one, file_bytes)
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
