"""Plan of a rebuild of files: lost ones, and their sources."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import orjson

from container.errors import BytesMissing, Finding
from container.metadata.objects import object_name
from container.metadata.records import Extent, IndexFile, Segment
from container.metadata.state import TierState
from container.names.queue_id import QueueId
from container.tier_view import TierReader
from provider.errors import Corrupt, Unavailable
from provider.sequential import ByteSource
from tieredstore.offline.jobs.derived import IndexPart
from tieredstore.offline.jobs.engine import BytesProgress, Engine
from tieredstore.offline.jobs.rebuild_job import (
    INDEX,
    LOG,
    UNITS,
    KnownIndex,
    KnownUnits,
    RebuildReducer,
    RebuildTask,
    rebuild_item,
)
from tieredstore.offline.jobs.report import MadeFile
from tieredstore.offline.scan.sources import Sum, check_sum

LOOKS_MAX = 8
"""Searches for lost objects in a tier that may change meanwhile."""


@dataclass(slots=True)
class RepairTarget:
    """Files or objects to rebuild."""

    tasks: list[RebuildTask] = field(default_factory=list[RebuildTask])
    units: dict[str, KnownUnits] = field(default_factory=dict[str, KnownUnits])
    index: dict[str, KnownIndex] = field(default_factory=dict[str, KnownIndex])
    faults: list[MadeFile] = field(default_factory=list[MadeFile])
    """Files that cannot be rebuilt."""

    @property
    def targets(self) -> list[str]:
        """Targets of the reducers, in order."""
        return [f"{UNITS}{name}" for name in self.units] + [f"{INDEX}{name}" for name in self.index]


@dataclass(slots=True)
class Made:
    """Result of a job: its output and findings."""

    said: dict[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    """Reports of the reducers, by target."""
    messages: int = 0
    findings: list[Finding] = field(default_factory=list[Finding])

    def files(self, todo: RepairTarget) -> list[MadeFile]:
        """Return the outcome of each target of `todo`, in order."""
        nothing = {"fault": "no sound record of its messages is in the log"}
        return [
            MadeFile(target.split("/", 1)[1], said.get("bytes", 0), said.get("fault", ""))
            for target in todo.targets
            for said in [self.said.get(target, nothing)]
        ]


def make(
    todo: RepairTarget, engine: Engine, reducer: RebuildReducer, progress: BytesProgress | None
) -> Made:
    """Run the job that makes everything."""
    total = sum(task.split.end - task.split.start for task in todo.tasks)
    done = 0

    def report(index: int) -> None:
        nonlocal done
        done += todo.tasks[index].split.end - todo.tasks[index].split.start
        if progress is not None:
            progress(done, total)

    made = Made()
    for piece in engine.map_group(todo.tasks, rebuild_item, reducer, progress=report):
        said = orjson.loads(piece.payload)
        if piece.target.startswith(LOG):
            made.messages += sum(one["records"] for one in said)
            made.findings += gap_findings(said)
        else:
            made.said[piece.target] = said
    return made


def gap_findings(said: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    """The gaps that the splits of a queue have met, as findings."""
    return (Finding(**row) for one in said for row in one["findings"])


WantedT = TypeVar("WantedT", bound=RepairTarget)


async def settled(reader: TierReader, look: Callable[[], Awaitable[WantedT]]) -> WantedT:
    """Search for lost objects until two searches in the newest metadata agree.

    A working owner moves and expires objects, which seem lost in older metadata. A second search is
    made only if the first one found lost objects.

    Raises:
        Unavailable: the tier changes faster than it is read.
    """
    before: WantedT | None = None
    for _ in range(LOOKS_MAX):
        try:
            found = await look()
        except BytesMissing:  # of a manifest, which may have been replaced
            if not await reader.refresh(doubted=True):
                raise
            continue
        is_sound = not (found.units or found.index or found.faults)
        agree = before and (before.targets, before.faults) == (found.targets, found.faults)
        if is_sound or agree or not await reader.refresh(doubted=True):
            return found
        before = found
    raise Unavailable("the tier changes faster than it is read: end its owner first", "")


def lost_index_files(
    state: TierState, source: ByteSource, todo: RepairTarget
) -> Mapping[QueueId, list[IndexPart]]:
    """Note the index files that are lost or damaged; which offsets of which queue they need.

    Reads all index files. Blocks.
    """
    found: dict[QueueId, list[IndexPart]] = {}
    for file in state.index_files.values():
        if not is_lost(source, _sum_of(file)):
            continue
        if not file.coverage or file.crc32c is None:
            fault = "it is RocketMQ's own, which does not say what it covers"
            todo.faults.append(MadeFile(file.object_name, 0, fault))
            continue
        todo.index[file.object_name] = KnownIndex(file.size, file.crc32c, file.begin_timestamp)
        for queue, start, behind in file.coverage:
            found.setdefault(queue, []).append(IndexPart(file.object_name, start, behind))
    return found


def _sum_of(file: IndexFile) -> Sum:
    return Sum(file.object_name, 0, file.size, -1 if file.crc32c is None else file.crc32c)


def sum_of(queue: QueueId, segment: Segment, extent: Extent) -> Sum:
    """Return the published checksum of an extent; -1 if none was published."""
    crc = -1 if extent.crc32c is None else extent.crc32c
    return Sum(object_name(queue, segment, extent), extent.object_offset, extent.length, crc)


def is_lost(source: ByteSource, one: Sum) -> bool:
    """Whether some bytes are not what was published; of those without a checksum, not there."""
    try:
        fault = check_sum(source, one)
    except Corrupt:
        return True  # encrypted, and changed
    return fault is not None and (one.crc32c >= 0 or fault.bytes < one.length)
