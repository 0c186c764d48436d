"""Making all metadata of a tier again, where nothing is left of it but the CommitLog files.

Records say of which queue they are, which offset they have and where they lie; so ConsumeQueues,
index files and the journal follow from them. Readers see nothing before the journal's first entry.
This is for a tier in a directory; `remake_objects` is the same for one in an object store.
"""

import asyncio
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from container.check.finding import Finding
from container.java.metadata import KnownOffsets
from container.metadata.operations import Operation, PutQueue
from container.names.queue_id import QueueId, SegmentType
from container.names.rocketmq import parse_segment_name, segment_name
from container.names.tier_objects import BOUNDARY_PREFIX, JOURNAL_PREFIX, SNAPSHOT_PREFIX
from container.record.header import RecordHeader
from provider.errors import Corrupt, NotFound
from provider.posix.files import posix_errors
from provider.posix.staged_files import StagedFiles
from provider.sequential import DirectorySource
from tieredstore.config.effective import Config
from tieredstore.config.location import OFFLOAD_PATH, TierUrl, has_second_store
from tieredstore.config.sources import ConfigError
from tieredstore.offline.cutting import SPLIT_BYTES
from tieredstore.offline.engine import Engine
from tieredstore.offline.log_pieces import HOLE_BYTES_MAX
from tieredstore.offline.lost import Progress
from tieredstore.offline.rebuild_job import RebuildReducer
from tieredstore.offline.remade_records import first_free_number, with_known_gaps
from tieredstore.offline.remake_job import LogFile, RemakeJob
from tieredstore.offline.remake_objects import (
    is_foreign_index_file,
    journal_text,
    publish_remade,
    remake_objects,
)
from tieredstore.offline.report import RebuildReport
from tieredstore.offline.sources import place_of
from tieredstore.opening import AS_OPTIONS, existing_tier
from tieredstore.owner import refuse_any_owner
from tieredstore.places import directory_of

HEAD_BYTES = 128


def remake(
    config: Config,
    engine: Engine,
    *,
    split_bytes: int = SPLIT_BYTES,
    dry_run: bool = False,
    progress: Progress | None = None,
    naming: str = AS_OPTIONS,
    known: Mapping[QueueId, KnownOffsets] | None = None,
) -> RebuildReport:
    """Make ConsumeQueues, index files and the journal of a tier from its CommitLog files alone.

    Reads every message once, and once more where splits do not meet or messages are missing.
    ConsumeQueue files are cut as `tieredStoreConsumeQueueMaxSize` says. All files are made beside
    the tier first; then they are put at their places, and the journal's first entry makes them
    visible together. A run that is killed before leaves no journal, and the next one goes over it.

    `known`: of a metadata export. A gap that ends a queue is taken from it, for no message that
    is left tells of it; so are the gaps' reasons and times.

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
    refuse_journal(root)
    refuse_any_owner(root)
    files = log_files(root)
    if not files:
        raise NotFound("no CommitLog file of a queue is there", str(root))
    with ExitStack() as stack:
        staged = None
        if not dry_run:
            staged = StagedFiles.begin(root)
            stack.callback(staged.close)
            refuse_journal(root)
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
        report = replace(report, findings=[*report.findings, *strangers])
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


def refuse_journal(root: Path) -> None:
    """Refuse a tier that has metadata.

    Raises:
        ConfigError: it has a journal, or a part of one.
    """
    for prefix in (JOURNAL_PREFIX, SNAPSHOT_PREFIX, BOUNDARY_PREFIX):
        if any((root / prefix).glob("*")):
            raise ConfigError(journal_text(root))


def log_files(root: Path) -> list[LogFile]:
    """All CommitLog files below a broker's directory, in order."""
    found: list[tuple[QueueId, int, int]] = []
    for path in root.glob("*/*/COMMIT_LOG/*"):
        name = parse_segment_name(path.relative_to(root).as_posix())
        if name is not None and name.type is SegmentType.COMMIT_LOG and path.stat().st_size:
            found.append((name.queue, name.base, path.stat().st_size))
    found = _without_stale(root, sorted(found))
    follow = [*found[1:], None]
    files: list[LogFile] = []
    for (queue, base, size), after in zip(found, follow, strict=True):
        limit = base + size
        if after is not None and after[0] == queue and after[1] - limit <= HOLE_BYTES_MAX:
            limit = after[1]  # else the files do not touch, and the queue is left out
        files.append(LogFile(queue, base, size, limit))
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
    """Queue offset of the first record; 0 where it cannot be told, which a scan corrects."""
    header = _first_header(root, name)
    return 0 if header is None else max(header.queue_offset, 0)


def _first_header(root: Path, name: str) -> RecordHeader | None:
    """What a file begins with; None if that is no record."""
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
