"""An audit: everything that a tier holds, compared in both directions, by many workers at once.

`check` finds the same in one process; an audit needs no more time for a tier ten times as large
with ten times the workers. Findings of metadata and listings alone are found as `check` finds it.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from anyio.from_thread import start_blocking_portal

from container.check.queue import still_stands
from container.errors import BytesMissing, Finding
from container.metadata.records import IndexFile, Queue, Segment
from container.metadata.state import TierState
from container.names.queue_id import QueueId, SegmentType
from container.names.rocketmq import parse_segment_name
from container.record.unit import UNIT_BYTES
from container.tier_view import TierReader
from provider.clock import SystemClock
from provider.errors import StoreError
from tieredstore.config.effective import Config
from tieredstore.offline.jobs.audit_job import (
    INDEX,
    SPLIT,
    AuditReducer,
    AuditTask,
    Covered,
    QueueOffsets,
    SumTask,
    audit_item,
)
from tieredstore.offline.jobs.engine import BytesProgress, Engine
from tieredstore.offline.jobs.repair_plan import sum_of
from tieredstore.offline.jobs.report import AuditReport
from tieredstore.offline.scan.planning import (
    SPLIT_BYTES,
    Selection,
    TierPlan,
    extents_of,
    piece_of,
    plan_of,
)
from tieredstore.offline.scan.relocation import by_newest
from tieredstore.offline.scan.sources import Sum, place_of
from tieredstore.offline.scan.split import ALL_OFFSETS, LogPiece, Split, TierPlace, pieces_between
from tieredstore.reader.readable_tier import findings_of
from tieredstore.session.reader import AS_OPTIONS, existing_tier, open_reader, read_bytes

ROUNDS_MAX = 8
"""Times that queues are judged whose bytes an owner moves or trims meanwhile."""
COUNTS = ("queues", "records", "bytes", "units", "extents", "index_files", "index_items",
          "findings_more")  # fmt: skip
SUMS_AT_ONCE = 64
"""Extents of units in one task."""


@dataclass(slots=True)
class _Tasks:
    """Tasks of the workers, with the bytes of messages of each."""

    items: list[AuditTask | SumTask] = field(default_factory=list[AuditTask | SumTask])
    bytes: list[int] = field(default_factory=list[int])

    def add(self, item: AuditTask | SumTask, size: int) -> None:
        """Another task."""
        self.items.append(item)
        self.bytes.append(size)


def audit(
    config: Config,
    engine: Engine,
    *,
    split_bytes: int = SPLIT_BYTES,
    bodies: bool = False,
    java_metadata: Path | None = None,
    progress: BytesProgress | None = None,
    naming: str = AS_OPTIONS,
) -> AuditReport:
    """Verify a whole tier. Reads every byte once, a few twice; changes nothing.

    Args:
        config: configuration that names the tier.
        engine: engine that runs the tasks.
        split_bytes: bytes of logs of a task.
        bodies: also decompress every compressed body.
        java_metadata: a `tieredStoreMetadata.json`, for a tier that RocketMQ's own store wrote.
        progress: callback for bytes done, and all bytes.
        naming: form in which the caller's user names a broker, for errors.

    Raises:
        NotFound, ConfigError, NewerVersion, Denied: as `planning.splits`.
        Corrupt: no part of the journal is sound.
        Unavailable: the storage does not answer, or workers died repeatedly.
    """

    async def audited() -> AuditReport:
        found = await asyncio.to_thread(existing_tier, config, naming)
        java = None if java_metadata is None else await asyncio.to_thread(read_bytes, java_metadata)
        async with open_reader(
            found, java, java_path=str(java_metadata or ""), damaged=True
        ) as reader:
            place = await asyncio.to_thread(place_of, found)
            is_java = java is not None
            findings = [
                finding
                async for finding in findings_of(
                    reader, is_java, SystemClock(), lambda _: None, bodies=bodies, contents=False
                )
            ]
            return await _audited(
                reader, place, engine, split_bytes, bodies, is_java, progress, findings
            )

    with start_blocking_portal() as portal:
        return portal.call(audited)


async def _audited(  # noqa: PLR0917 - one caller
    reader: TierReader,
    place: TierPlace,
    engine: Engine,
    split_bytes: int,
    bodies: bool,  # noqa: FBT001 - as above
    is_java: bool,  # noqa: FBT001 - as above
    progress: BytesProgress | None,
    findings: list[Finding],
) -> AuditReport:
    """Judge everything once, and what changed meanwhile again, for an owner may be at work."""
    selection = Selection()
    before = reader.state.copy()
    judged: dict[str, dict[str, Any]] = {}
    changed: set[QueueId] = set()
    deleted: set[QueueId] = set()
    for _ in range(ROUNDS_MAX):

        async def planned(wanted: Selection = selection) -> tuple[TierPlan, _Tasks]:
            plan = await plan_of(reader, place, wanted, split_bytes)
            with_keys = wanted.by_queue is None
            return plan, await _tasks(
                reader, plan, bodies=bodies, is_java=is_java, with_keys=with_keys
            )

        plan, tasks = await by_newest(reader, planned)
        judged |= await _judged(place, plan, tasks, engine, progress)
        await reader.refresh()
        for target in _merged(judged, reader.state):
            judged[target]["findings"] = []
        changed = _changed(judged, plan.state, reader.state)
        deleted |= {queue for queue in changed if reader.queue(queue) is None}
        changed -= deleted
        if not changed:
            break
        selection, progress = Selection(by_queue=dict.fromkeys(changed, ALL_OFFSETS)), None
    counts: dict[str, int] = dict.fromkeys(COUNTS, 0)
    changed |= deleted
    for target, said in judged.items():
        found = said.pop("findings")
        findings += [] if _queue_of(target) in changed else [Finding(**one) for one in found]
        for name, number in said.items():
            counts[name] += number
    stood = [one for one in findings if _still_stands(_queue_in(one.path), before, reader.state)]
    more = counts.pop("findings_more")
    counts["messages"] = counts.pop("records")
    broker = reader.state.broker
    return AuditReport(broker.cluster, broker.name, _once(stood), counts, sorted(changed), more)


async def _judged(
    place: TierPlace, plan: TierPlan, tasks: _Tasks, engine: Engine, progress: BytesProgress | None
) -> dict[str, dict[str, Any]]:
    """Results of the workers, by queue and index file."""
    queues = {
        queue.id: QueueOffsets(
            queue.min_offset, queue.next_offset, tuple((gap.start, gap.end) for gap in queue.gaps)
        )
        for queue in plan.state.queues.values()
    }
    reducer = AuditReducer(place, queues, plan.state.index_files)
    total, done = sum(tasks.bytes), 0

    def report(index: int) -> None:
        nonlocal done
        done += tasks.bytes[index]
        if progress is not None:
            progress(done, total)

    pieces = await asyncio.to_thread(
        engine.map_group, tasks.items, audit_item, reducer, progress=report
    )
    return {piece.target: orjson.loads(piece.payload) for piece in pieces}


def _merged(judged: Mapping[str, Mapping[str, Any]], now: TierState) -> list[str]:
    """The targets of index files that were merged or expired meanwhile."""
    return [
        target
        for target in judged
        if target.startswith(INDEX) and target.removeprefix(INDEX) not in now.index_files
    ]


def _changed(
    judged: Mapping[str, Mapping[str, Any]], before: TierState, now: TierState
) -> set[QueueId]:
    """The queues with findings that were moved, trimmed, truncated or deleted meanwhile."""
    named = {_queue_of(target) for target, said in judged.items() if said["findings"]}
    return {one for one in named if one is not None and not _still_stands(one, before, now)}


def _still_stands(name: QueueId | None, before: TierState, now: TierState) -> bool:
    """Whether the verdict on a queue holds. True without a verdict."""
    judged = None if name is None else before.queues.get(name)
    queue = None if name is None else now.queues.get(name)
    if judged is None:
        return True
    return queue is not None and still_stands(judged, queue) and queue.repacks == judged.repacks


def _queue_of(target: str) -> QueueId | None:
    """The queue of a target; None of an index file's."""
    if not target.startswith(SPLIT):
        return None
    topic, _, number = target.removeprefix(SPLIT).rpartition("/")
    return QueueId(topic, int(number))


def _queue_in(path: str) -> QueueId | None:
    """The queue that a finding's path names; None if it names none."""
    parsed = parse_segment_name(path)
    if parsed is not None:
        return parsed.queue
    topic, _, number = path.removesuffix("/COMMIT_LOG").rpartition("/")
    return QueueId(topic, int(number)) if topic and number.isdigit() else None


def _once(findings: Sequence[Finding]) -> list[Finding]:
    """Each kind at each place once: two ways may find the same."""
    seen = {(one.finding, one.path, one.position): one for one in reversed(findings)}
    return sorted(seen.values(), key=lambda one: (one.path, one.position, one.finding))


async def _tasks(
    reader: TierReader, plan: TierPlan, *, bodies: bool, is_java: bool, with_keys: bool
) -> _Tasks:
    """Plan the tasks: splits with their units and keys, and checksums of bytes in no split.

    `with_keys` verifies index files, too, which needs all queues that they cover.
    """
    tasks = _Tasks()
    covered = _covered(plan.state.index_files.values()) if with_keys else {}
    by_queue: dict[QueueId, list[Split]] = {}
    for split in plan.splits:
        by_queue.setdefault(split.queue, []).append(split)
    for queue_id, logs in plan.segments.items():
        queue, container = plan.state.queues[queue_id], reader.container(queue_id)
        if container is None:
            continue
        try:
            rows = await container.as_of(queue).segments(SegmentType.CONSUME_QUEUE)
        except BytesMissing:
            await reader.refresh(doubted=True)
            if reader.state.sequence > plan.state.sequence:
                raise  # it was replaced: plan again
            continue  # it is reported already
        except StoreError:
            continue  # the manifest is reported already
        known = {extent.piece.position: extent for extent in extents_of(queue, logs)}
        log_sums = {piece.position: one for piece, one in _sums(queue, logs)}
        unit_sums = _sums(queue, rows)
        units = [piece for piece, _ in unit_sums]
        topic = plan.state.topics.get(queue_id.topic)
        for split in by_queue.get(queue_id, ()):
            inside = [piece for piece in split.pieces if _is_within(piece, split)]
            sums = [log_sums.pop(piece.position) for piece in inside]
            first = min(known[piece.position].first_offset for piece in split.pieces)
            behind = max(known[piece.position].next_offset for piece in split.pieces)
            task = AuditTask(
                split,
                -1 if topic is None else topic.topic_id,
                tuple(one for one in sums if one is not None),
                pieces_between(units, UNIT_BYTES * first, UNIT_BYTES * behind),
                tuple(
                    one
                    for one in covered.get(queue_id, ())
                    if one.start < behind and first < one.end
                ),
                bodies,
                not is_java,
            )
            tasks.add(task, split.end - split.start)
        left = [*log_sums.values(), *(one for _, one in unit_sums)]
        left = [one for one in left if one is not None]
        for at in range(0, len(left), SUMS_AT_ONCE):
            tasks.add(SumTask(plan.place, queue_id, tuple(left[at : at + SUMS_AT_ONCE])), 0)
    return tasks


def _covered(files: Iterable[IndexFile]) -> dict[QueueId, list[Covered]]:
    """By queue, which offsets have their keys in which file."""
    found: dict[QueueId, list[Covered]] = {}
    for file in files:
        for queue, start, end in file.coverage:
            found.setdefault(queue, []).append(Covered(file.object_name, start, end))
    return found


def _is_within(piece: LogPiece, split: Split) -> bool:
    """Whether a split reads all of a piece, and nothing of it comes to it in a second way."""
    return split.start == split.anchor and split.start <= piece.position and piece.end <= split.end


def _sums(queue: Queue, segments: Sequence[Segment]) -> list[tuple[LogPiece, Sum | None]]:
    """Return the pieces of readable segments, each with its checksum if it is known."""
    return [
        (
            piece_of(queue.id, segment, extent),
            None if extent.crc32c is None else sum_of(queue.id, segment, extent),
        )
        for segment in segments
        if segment.is_readable
        for extent in segment.extents
    ]
