"""Rebuild of all metadata from CommitLog files or parts alone."""

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import SystemRandom
from typing import NamedTuple

import orjson
from anyio.from_thread import start_blocking_portal

from container.errors import Finding
from container.java.metadata import KnownOffsets
from container.journal.reader import JournalReader
from container.metadata.objects import references_of
from container.metadata.operations import AddTombstones, Operation, PutIndexFile, PutQueue
from container.metadata.records import Broker, Tombstone
from container.names.queue_id import QueueId, SegmentType
from container.names.rocketmq import INT64_MAX, parse_segment_name, segment_name
from container.names.tier_objects import (
    BOUNDARY_PREFIX,
    FOLLOWED_PREFIX,
    INDEX_PREFIX,
    JOURNAL_PREFIX,
    MANIFEST_PREFIX,
    SCRUB_PREFIX,
    SNAPSHOT_PREFIX,
    ClaimName,
    IndexBase,
)
from container.options import JournalOptions
from container.record.header import RecordHeader
from provider.clock import SystemClock
from provider.errors import Corrupt, NotFound
from provider.object_store import ObjectEntry, ObjectStore
from provider.posix.files import posix_errors
from provider.posix.staged_files import StagedFiles
from provider.sequential import ByteSource, DirectorySource, ObjectRange
from provider.stores.packed_segments import NONCE_BYTES, PARTS_PREFIX
from tieredstore.config.effective import Config
from tieredstore.config.location import OFFLOAD_PATH, Location, TierUrl, has_second_store
from tieredstore.config.sources import ConfigError
from tieredstore.offline.jobs.engine import BytesProgress, Engine, Piece
from tieredstore.offline.jobs.metadata_job import RemakeJob, SegmentFile
from tieredstore.offline.jobs.metadata_records import (
    FILLER_BYTES,
    FIRST_EPOCH,
    HOLE_BYTES_MAX,
    first_free_number,
    overlapping,
    put_together,
    with_filler,
    with_known_gaps,
)
from tieredstore.offline.jobs.part_scan import (
    PartRun,
    PartTask,
    last_record,
    part_item,
    split_by_checksums,
)
from tieredstore.offline.jobs.rebuild_job import INDEX, ObjectSink, RebuildReducer
from tieredstore.offline.jobs.report import RebuildReport
from tieredstore.offline.scan.planning import SPLIT_BYTES
from tieredstore.offline.scan.sources import place_of, source_of, store_at
from tieredstore.offline.scan.split import LogPiece, TierPlace
from tieredstore.session.owner import running_owner
from tieredstore.session.places import directory_of, storage_at
from tieredstore.session.reader import AS_OPTIONS, existing_tier, whole_paths
from tieredstore.session.takeover import owned_error, refuse_any_owner, sign_of_life

LEFT_BEHIND = "the metadata that named it are lost"
"""The reason in tombstones of objects that nothing refers to any more."""
LEFT_OUT = "messages of a queue that was left out are in it"
"""The reason in tombstones that are never due: without one, the next owner would give it one."""
UNKNOWN = "no checksum covers the bytes, and those of the newer owner are taken"
NEVER_MS = INT64_MAX
TOMBSTONES_AT_ONCE = 1_000
PIECE_BYTES = 4 << 20
FILLER = "filler"
"""The target of the object of zeros."""


def journal_error(config: Config) -> ConfigError:
    """The refusal to rebuild metadata of a tier that has a journal. Reads the journal."""
    said = (
        f"the tier in {directory_of(config)} has a journal, which is not replaced: `rebuild` "
        f"without --metadata makes lost files again; "
    )
    if store_at(place_of(config)).call(_is_journal_whole):
        return ConfigError(f"{said}the journal is whole")
    return ConfigError(
        f"{said}if the journal is damaged for good, move its `@journal`, `@snapshot` and "
        f"`@boundary` away"
    )


async def _is_journal_whole(store: ObjectStore) -> bool:
    loaded = await JournalReader(store, JournalOptions()).load_whole_part()
    return loaded.damage is None and loaded.state.sequence > 0


class Logs(NamedTuple):
    """The logs that the parts give."""

    files: list[SegmentFile]
    findings: list[Finding]
    needs_filler: bool
    parts: dict[QueueId, list[str]]
    """By queue, all parts in which a record of it was found."""


@dataclass(frozen=True, slots=True)
class RunsReducer:
    """Puts the runs of one queue together; tells them, or why that cannot be done, as JSON."""

    place: TierPlace

    def __call__(self, target: str, pieces: Sequence[Piece]) -> Iterator[Piece]:
        """The reducer of the first pass. Reads what is there twice.

        Raises:
            Unavailable, Denied: the storage does not answer, or refuses.
        """
        runs = [PartRun(*row) for piece in pieces for row in orjson.loads(piece.payload)]
        with closing(source_of(self.place)) as source:
            doubtful: list[tuple[int, str]] = []
            try:
                found = _put_together(source, runs, doubtful, path=target)
                with_filler([run.piece for run in found], "", path=target)
                said: dict[str, object] = {"runs": [tuple(run) for run in found]}
            except Corrupt as error:
                said = {"fault": error.reason, "position": error.position}
        said["doubtful"] = doubtful
        said["parts"] = sorted({run.object_name for run in runs})
        yield Piece(target, 0, orjson.dumps(said))


def _put_together(
    source: ByteSource,
    runs: Sequence[PartRun],
    doubtful: list[tuple[int, str]],
    *,
    path: str,
) -> list[PartRun]:
    """Put a log together. Where copies differ, the one that passes its checksums counts.

    Two versions of a log differ up to the end of their overlap. Copies whose last record is equal
    are of one version: position and reason are added to `doubtful`, for some bytes of a record
    have no checksum.

    Raises:
        Unavailable, Denied: as `ByteSource.read_into`.
        Corrupt: as `put_together`.
    """
    differ = False

    def are_same(one: LogPiece, other: LogPiece) -> bool:
        nonlocal differ
        is_same = _are_same(source, one, other)
        differ |= not is_same
        return is_same

    with suppress(Corrupt):
        found = put_together(runs, are_same, path=path)
        if not differ:
            return found
    twice = overlapping(runs)
    split = [part for run in sorted(twice) for part in split_by_checksums(source, run)]
    once = [run for run in runs if run not in twice]

    def are_of_one_version(one: LogPiece, other: LogPiece) -> bool:
        if _are_same(source, one, other):
            return True
        at = last_record(source, one)
        if at == one.position or not _are_same(source, one.after(at), other.after(at)):
            return False
        doubtful.append(
            (one.position, f"copies in {one.object_name} and {other.object_name} differ: {UNKNOWN}")
        )
        return True

    return put_together([*once, *split], are_of_one_version, path=path)


def _are_same(source: ByteSource, one: LogPiece, other: LogPiece) -> bool:
    """Whether two places hold the same bytes. Holds 8 MiB."""
    for at in range(0, one.length, PIECE_BYTES):
        size = min(PIECE_BYTES, one.length - at)
        read: list[bytes] = []
        for piece in (one, other):
            room = bytearray(size)
            start = piece.object_offset + at
            source.expect([ObjectRange(piece.object_name, start, size)])
            count = source.read_into(piece.object_name, start, memoryview(room))
            read.append(bytes(room[:count]))
        if read[0] != read[1]:
            return False
    return True


def remake_objects(
    config: Config,
    engine: Engine,
    *,
    split_bytes: int,
    dry_run: bool = False,
    progress: BytesProgress | None = None,
) -> RebuildReport:
    """Rebuild units, index files and the journal of a tier in an object store from its parts alone.

    Reads every part twice. Only records count: other bytes of a part, such as old units, are
    ignored. Bytes of a log that are in no part become a gap of their offsets. All output goes into
    new objects. The journal's first entry makes them visible, and the second one gives tombstones
    to all garbage. A run that is killed earlier leaves no journal, and the next run treats its
    objects as garbage. Parts with messages of a queue that is left out are the only copy of them,
    so their tombstones are never due.

    Raises:
        NotFound: there is no part, or no part has a record.
        ConfigError: the tier has a journal.
        Unavailable: workers died repeatedly, or the storage does not answer.
        Owned: a living process owns the tier.
        Refused: another process began the tier meanwhile.
        Denied: the storage refuses.
    """
    place = place_of(config)
    where = directory_of(config)
    with whole_paths(where):
        listed = store_at(place).call(_listed)
    metadata = (JOURNAL_PREFIX, SNAPSHOT_PREFIX, BOUNDARY_PREFIX)
    if any(one.name.startswith(metadata) and not ClaimName.parse(one.name) for one in listed):
        raise journal_error(config)
    if not dry_run:
        _refuse_living_owner(config, where)
    logs = _logs(config, engine, place, listed, split_bytes, progress)
    if not logs.files and not logs.findings:
        raise NotFound("no part with a record is there", str(where))
    run = SystemRandom().randbytes(NONCE_BYTES).hex()
    sink = ObjectSink(place, FIRST_EPOCH, run, names_in=INDEX)
    if logs.needs_filler and not dry_run:
        filler = sink.write(FILLER, bytes(FILLER_BYTES))
        logs = logs._replace(files=[_renamed(file, filler) for file in logs.files])
    job = RemakeJob(config, place, logs.files, split_bytes, progress, _first_free(listed))
    extent_bytes_max = config.tier.extent_bytes_max

    def reducer_of(number: int) -> RebuildReducer:
        objects = None if dry_run else replace(sink, run=f"{run}-{number}")
        return RebuildReducer(objects=objects, extent_bytes_max=extent_bytes_max)

    operations, _, report = job.result(job.run(engine, reducer_of), is_dry=dry_run)
    if not dry_run and operations:
        with start_blocking_portal() as portal:
            portal.call(publish_remade, config, operations, _left_out(logs, operations))
    return replace(report, findings=[*logs.findings, *report.findings])


def _left_out(logs: Logs, operations: Sequence[Operation]) -> set[str]:
    """The parts with records of queues that are not published."""
    kept = {one.queue.id for one in operations if isinstance(one, PutQueue)}
    return {name for queue, names in logs.parts.items() if queue not in kept for name in names}


def _refuse_living_owner(config: Config, where: Location) -> None:
    """Refuse while an owner lives: it would continue the lost journal. Blocks.

    Raises:
        Owned: there is one, whatever its epoch.
    """

    async def look() -> Broker | None:
        clock = SystemClock()
        store = storage_at(config, where, clock=clock)
        try:
            with whole_paths(where):
                return await sign_of_life(store, where, config.journal, clock=clock)
        finally:
            await store.close()

    with start_blocking_portal() as portal:
        owner = portal.call(look)
    if owner is not None:
        raise owned_error(owner, where)


async def _listed(store: ObjectStore) -> list[ObjectEntry]:
    return await store.list("")


def _first_free(listed: Sequence[ObjectEntry]) -> int:
    bases = [base for one in listed if (base := IndexBase.parse(one.name)) is not None]
    return 1 + max((one.number_of_owner for one in bases if one.epoch == FIRST_EPOCH), default=0)


def _renamed(file: SegmentFile, filler: str) -> SegmentFile:
    parts = tuple(
        one if one.object_name else one._replace(object_name=filler) for one in file.parts
    )
    return replace(file, parts=parts)


def _logs(  # noqa: PLR0917 - one caller
    config: Config,
    engine: Engine,
    place: TierPlace,
    listed: Sequence[ObjectEntry],
    split_bytes: int,
    progress: BytesProgress | None,
) -> Logs:
    """The first pass: the logs of all queues, cut into segments."""
    logs = Logs([], [], needs_filler=False, parts={})
    tasks = list(_part_tasks(place, listed, split_bytes))
    total, done = sum(task.bytes for task in tasks), 0

    def report(index: int) -> None:
        nonlocal done
        done += tasks[index].bytes
        if progress is not None:
            progress(done, total)

    for piece in engine.map_group(tasks, part_item, RunsReducer(place), progress=report):
        said = orjson.loads(piece.payload)
        topic, _, number = piece.target.rpartition("/")
        queue = QueueId(topic, int(number))
        logs.parts[queue] = said["parts"]
        doubtful = said["doubtful"]
        logs.findings.extend(Finding("copies-differ", piece.target, *one) for one in doubtful)
        if "fault" in said:
            finding = Finding("queue-left-out", piece.target, said["position"], said["fault"])
            logs.findings.append(finding)
            continue
        runs = [PartRun(*row) for row in said["runs"]]
        pieces = with_filler([run.piece for run in runs], "", path=piece.target)
        if len(pieces) > len(runs):
            logs = logs._replace(needs_filler=True)
        first_offset = max(runs[0].first_offset, 0)
        logs.files.extend(_files(queue, pieces, first_offset, config.tier.commit_log_bytes_max))
    logs.files.sort(key=lambda file: (file.queue, file.base))
    return logs


def _part_tasks(
    place: TierPlace, listed: Sequence[ObjectEntry], split_bytes: int
) -> Iterator[PartTask]:
    """All parts, as many for each worker as are `split_bytes` together."""
    parts: list[tuple[str, int]] = []
    for one in listed:
        if not one.name.startswith(PARTS_PREFIX):
            continue
        parts.append((one.name, one.size_bytes))
        if sum(size for _, size in parts) >= split_bytes:
            yield PartTask(tuple(parts), place)
            parts = []
    if parts:
        yield PartTask(tuple(parts), place)


def _files(
    queue: QueueId, pieces: Sequence[LogPiece], first_offset: int, bytes_max: int
) -> Iterator[SegmentFile]:
    """A log as segments of at most so many bytes, or of one piece."""
    run: list[LogPiece] = []
    for piece in pieces:
        if run and piece.end - run[0].position > bytes_max:
            yield _file(queue, run, first_offset)
            run = []
        run.append(piece)
    yield _file(queue, run, first_offset)


def _file(queue: QueueId, run: Sequence[LogPiece], first_offset: int) -> SegmentFile:
    base, end = run[0].position, run[-1].end
    return SegmentFile(queue, base, end - base, end, first_offset, tuple(run))


async def publish_remade(
    config: Config, operations: Sequence[Operation], left_out: AbstractSet[str] = frozenset()
) -> None:
    """Begin the journal with all that keeps bytes alive, then add tombstones for other own objects.

    The first entry also holds the tombstones of `left_out`, which are never due: an owner that
    finds a part without a record deletes it. The rest is garbage of before, and of passes that were
    repeated; an owner finds it, too. The replay position is deleted first: the next owner would
    believe it, and without a journal it is worth nothing.

    Raises:
        Refused: the first entry would be too large, or another process has begun the tier.
    """
    store = storage_at(config, directory_of(config), clock=SystemClock())
    try:
        await store.delete([one.name for one in await store.list(FOLLOWED_PREFIX)])
    finally:
        await store.close()
    used: set[str] = set()
    for one in operations:
        if isinstance(one, PutQueue):
            used.update(references_of(one.queue))
        elif isinstance(one, PutIndexFile):
            used.add(one.index_file.object_name)
    never = tuple(Tombstone(name, NEVER_MS, LEFT_OUT) for name in sorted(left_out - used))
    begun = [*operations, *([AddTombstones(never)] if never else [])]
    owned = running_owner(config, clock=SystemClock(), imported=begun, has_upkeep=False)
    async with owned as tier:
        ours = (PARTS_PREFIX, INDEX_PREFIX, MANIFEST_PREFIX, SCRUB_PREFIX)
        names = [one.name for prefix in ours for one in await tier.store.list(prefix)]
        kept = used | left_out
        left = [name for name in names if name not in kept and not is_foreign_index_file(name)]
        due_ms = SystemClock().now_ms() + int(1000 * config.upkeep.grace_s)
        for at in range(0, len(left), TOMBSTONES_AT_ONCE):
            some = left[at : at + TOMBSTONES_AT_ONCE]
            dead = tuple(Tombstone(name, due_ms, LEFT_BEHIND) for name in some)
            await tier.journal.publish([AddTombstones(dead)])


def is_foreign_index_file(name: str) -> bool:
    """Whether an object is an index file of RocketMQ's own store, or made for one."""
    if not name.startswith(INDEX_PREFIX):
        return False
    base = IndexBase.parse(name)
    return base is None or base.epoch < FIRST_EPOCH


HEAD_BYTES = 128


def remake(
    config: Config,
    engine: Engine,
    *,
    split_bytes: int = SPLIT_BYTES,
    dry_run: bool = False,
    progress: BytesProgress | None = None,
    naming: str = AS_OPTIONS,
    known: Mapping[QueueId, KnownOffsets] | None = None,
) -> RebuildReport:
    """Make ConsumeQueues, index files and the journal of a tier from its CommitLog files alone.

    Reads every message once, and once more where splits do not meet or messages are missing.
    ConsumeQueue files are cut as `tieredStoreConsumeQueueMaxSize` says. All files are made beside
    the tier first; then they are put at their places, and the journal's first entry makes them
    visible together. A run that is killed before leaves no journal, and the next one goes over it.

    `known`: of a metadata export. A gap that ends a queue is taken from it, for no message that
    is left tells of it; so are the gaps' reasons and times. A queue that ends below its end there
    is a finding.

    Raises:
        NotFound: there is no tier, or no CommitLog file in it.
        ConfigError: it has a journal or a second store, or a setting is wrong.
        Unavailable: another rebuild is under way, or workers died again and again.
        Owned: the tier's owner lives.
        Denied: the storage refuses.
    """
    found = existing_tier(config, naming)
    refuse_second_store(found)
    root = directory_of(found)
    if isinstance(root, TierUrl):
        return remake_objects(
            found, engine, split_bytes=split_bytes, dry_run=dry_run, progress=progress
        )
    refuse_journal(found)
    refuse_any_owner(root)
    files = log_files(root)
    if not files:
        raise NotFound("no CommitLog file of a queue is there", str(root))
    with ExitStack() as stack:
        staged = None
        if not dry_run:
            staged = StagedFiles.begin(root)
            stack.callback(staged.close)
            refuse_journal(found)
        first_free = first_free_number(root)
        job = RemakeJob(found, place_of(found), files, split_bytes, progress, first_free)
        directory = ""

        def reducer_of(number: int) -> RebuildReducer:
            nonlocal directory
            directory = f"round-{number}"
            staging = "" if staged is None else f"{staged.directory}/{directory}"
            return RebuildReducer(staging, extent_bytes_max=found.tier.extent_bytes_max)

        made = job.run(engine, reducer_of)
        operations, placed, report = job.result(made, is_dry=dry_run)
        operations = [_with_known(one, known or {}) for one in operations]
        strangers = _strangers(root, {name for name, _ in placed}, operations)
        lacking = _lacking(operations, known or {})
        report = replace(report, findings=[*report.findings, *strangers, *lacking])
        if staged is not None and operations:
            for name, target in placed:
                staged.install(name, f"{directory}/{target}")
            _fill_holes(root, operations)
            asyncio.run(publish_remade(found, operations))
    return report


def _with_known(operation: Operation, known: Mapping[QueueId, KnownOffsets]) -> Operation:
    """The operation; a queue with the gaps that an export has of it."""
    if not isinstance(operation, PutQueue) or operation.queue.id not in known:
        return operation
    return replace(operation, queue=with_known_gaps(operation.queue, known[operation.queue.id]))


def _lacking(
    operations: Sequence[Operation], known: Mapping[QueueId, KnownOffsets]
) -> Iterator[Finding]:
    """Yield the queues that end below their end in an export."""
    ends = {one.queue.id: one.queue.next_offset for one in operations if isinstance(one, PutQueue)}
    for queue, export in sorted(known.items()):
        end = ends.get(queue, export.min_offset)
        if end < export.next_offset:
            detail = (
                f"the backup ends at offset {export.next_offset}, and nothing from {end} on was "
                f"found: `tier` adds the messages that the broker still has"
            )
            yield Finding("backup-ahead", str(queue), end, detail)


def refuse_second_store(config: Config) -> None:
    """Refuse a tier that offloads: what the second store has would be missing.

    Raises:
        ConfigError: `tieredStoreOffloadPath` is set.
    """
    if has_second_store(config.settings):
        raise ConfigError(
            f"{OFFLOAD_PATH} is set, and what was offloaded would be missing in a journal that is "
            f"made again: bring @journal, @snapshot, @manifest and @boundary back from a copy, or "
            f"leave that setting out, and it is made of the first store alone"
        )


def refuse_journal(config: Config) -> None:
    """Refuse a tier in a directory that has metadata.

    Raises:
        ConfigError: it has a journal, or a part of one.
    """
    root = directory_of(config)
    assert isinstance(root, Path), "the tier is in a directory"
    for prefix in (JOURNAL_PREFIX, SNAPSHOT_PREFIX, BOUNDARY_PREFIX):
        if any((root / prefix).glob("*")):
            raise journal_error(config)


def log_files(root: Path) -> list[SegmentFile]:
    """All CommitLog files below a broker's directory, in order."""
    found: list[tuple[QueueId, int, int]] = []
    for path in root.glob("*/*/COMMIT_LOG/*"):
        name = parse_segment_name(path.relative_to(root).as_posix())
        if name is not None and name.type is SegmentType.COMMIT_LOG and path.stat().st_size:
            found.append((name.queue, name.base, path.stat().st_size))
    found = _without_stale(root, sorted(found))
    follow = [*found[1:], None]
    files: list[SegmentFile] = []
    for (queue, base, size), after in zip(found, follow, strict=True):
        limit = base + size
        if after is not None and after[0] == queue and after[1] - limit <= HOLE_BYTES_MAX:
            limit = after[1]  # else the files do not touch, and the queue is left out
        files.append(SegmentFile(queue, base, size, limit))
    seen: set[QueueId] = set()
    for number, file in enumerate(files):
        if file.queue not in seen:
            seen.add(file.queue)
            files[number] = replace(file, first_offset=_first_offset(root, file.name))
    return files


def _fill_holes(root: Path, operations: Sequence[Operation]) -> None:
    """Lengthen files that end before the next one begins, by zeros: what was there is a gap."""
    for name, size in _log_names(operations).items():
        with posix_errors(name):
            if (root / name).stat().st_size >= size:
                continue
            with (root / name).open("r+b") as file:
                file.truncate(size)
                os.fsync(file.fileno())


def _log_names(operations: Sequence[Operation]) -> dict[str, int]:
    """The CommitLog files that are published, and to where."""
    return {
        segment_name(one.queue.id, segment.type, segment.base): segment.size
        for one in operations
        if isinstance(one, PutQueue)
        for segment in one.queue.commit_log
    }


def _without_stale(
    root: Path, found: Sequence[tuple[QueueId, int, int]]
) -> list[tuple[QueueId, int, int]]:
    """All but files that begin before the one before them ends, and not with a record of theirs.

    A log that ended before such a file was written on in the one before.
    """
    kept: list[tuple[QueueId, int, int]] = []
    for queue, base, size in found:
        if kept and kept[-1][0] == queue and base < kept[-1][1] + kept[-1][2]:
            header = _first_header(root, segment_name(queue, SegmentType.COMMIT_LOG, base))
            if header is None or header.physical_offset != base:
                continue
        kept.append((queue, base, size))
    return kept


def _first_offset(root: Path, name: str) -> int:
    """Return the queue offset of the first record; 0 if it is unknown, which a scan corrects."""
    header = _first_header(root, name)
    return 0 if header is None else max(header.queue_offset, 0)


def _first_header(root: Path, name: str) -> RecordHeader | None:
    """Return the header of the first record of a file; None if it begins with no record."""
    head = bytearray(HEAD_BYTES)
    source = DirectorySource(root)
    count = source.read_into(name, 0, memoryview(head))
    source.close()
    try:
        return RecordHeader.decode(bytes(head[:count]), path=name, position=0)
    except Corrupt:
        return None


def _strangers(root: Path, made: set[str], operations: Sequence[Operation]) -> Iterator[Finding]:
    """Files that nothing refers to from now on: all but index files of ours, which go.

    Not the messages of queues that were left out, which were named and may be read by a person.
    """
    used = made | _log_names(operations).keys()
    kept = {one.queue.id for one in operations if isinstance(one, PutQueue)}
    for kind in SegmentType:
        for path in sorted(root.glob(f"*/*/{kind.name}/*")):
            name = path.relative_to(root).as_posix()
            parsed = parse_segment_name(name)
            if name in used or parsed is None:
                continue
            if kind is SegmentType.INDEX and not is_foreign_index_file(name):
                continue
            if kind is SegmentType.COMMIT_LOG and (size := path.stat().st_size):
                if parsed.queue in kept:
                    detail = f"no message of its log is in it: move these {size} bytes away"
                    yield Finding("orphan", name, 0, f"{detail} before more is written")
                continue
            yield Finding("orphan", name, 0, "nothing refers to it: it may be deleted")
