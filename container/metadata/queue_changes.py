"""Queue record after each operation: pure functions from record to record."""

from bisect import bisect_left
from dataclasses import replace

from container.metadata.operations import (
    ALL_EXTENTS,
    CommitQueue,
    CutQueue,
    MoveToManifest,
    RecordGap,
    Release,
    SegmentChange,
    SetSegmentState,
    TrimQueue,
)
from container.metadata.records import (
    ENDS_A_QUEUE,
    CopyState,
    Extent,
    Gap,
    ManifestRef,
    Queue,
    QueueBasis,
    Segment,
    check_queue,
    queue_path,
    refuse_unless,
)
from container.names.queue_id import FLAT_FILES, SegmentType
from container.record.unit import UNIT_BYTES
from provider.stores.two_stores import is_offloaded

LEGAL_NEXT: dict[CopyState | None, frozenset[CopyState]] = {
    None: frozenset({CopyState.COPY_STARTED}),
    CopyState.COPY_STARTED: frozenset(
        {CopyState.COPY_STARTED, CopyState.COPY_FINISHED, CopyState.DELETE_STARTED}
    ),
    CopyState.COPY_FINISHED: frozenset({CopyState.COPY_FINISHED, CopyState.DELETE_STARTED}),
    CopyState.DELETE_STARTED: frozenset({CopyState.DELETE_STARTED, CopyState.DELETE_FINISHED}),
    CopyState.DELETE_FINISHED: frozenset({CopyState.DELETE_FINISHED}),
}
"""Legal transitions of a copy from each state. None is the state of an unknown copy."""


def is_legal(now: CopyState | None, wanted: CopyState) -> bool:
    """Whether a copy in state `now` may move to `wanted`. Staying is legal for a known copy."""
    return wanted in LEGAL_NEXT[now]


def commit(queue: Queue, operation: CommitQueue) -> Queue:
    """Extend the queue by new messages. Published data stays unchanged."""
    path = queue_path(queue.id)
    expected, reached = operation.expected_offset, operation.next_offset
    refuse_unless(
        queue.next_offset == expected,
        f"planned on commit offset {expected}, it is {queue.next_offset}",
        path,
    )
    refuse_unless(reached >= expected, f"commit offset goes back to {reached}", path)
    files = {kind: queue.segments(kind) for kind in FLAT_FILES}
    for change in operation.changes:
        live = files.get(change.type)
        refuse_unless(live is not None, f"a queue has no {change.type.name}", path)
        assert live is not None, "refused otherwise"
        if live and live[-1].base == change.base:
            files[change.type] = (*live[:-1], _changed(queue, live[-1], change, operation))
        else:
            begun = _begun(queue, live, change, operation)
            files[change.type] = (*live, begun)
    after = queue.extended(reached, *files.values())
    _units_reach_the_end(after)
    return after


def _changed(
    queue: Queue, segment: Segment, change: SegmentChange, operation: CommitQueue
) -> Segment:
    """Extend or seal the newest segment of a flat file."""
    path, count = queue_path(queue.id), len(segment.extents)
    keep = count if change.keep == ALL_EXTENTS else change.keep
    kept = segment.extents[:keep]
    extends = bool(change.extents) or keep != count
    refuse_unless(
        segment.sealed_ms is None or not extends, f"segment {segment.base} is sealed (I2)", path
    )
    refuse_unless(0 <= keep <= count, f"keeps {keep} of {count} extents", path)
    _extents_touch(path, kept[-1].end if kept else 0, change, operation.next_offset)
    after = kept + change.extents
    refuse_unless(
        (after[-1].end if after else 0) >= segment.size,
        f"segment {segment.base} would lose published bytes",
        path,
        segment.base,
    )
    sealed_ms = segment.sealed_ms if change.sealed_ms is None else change.sealed_ms
    return segment.extended(after, sealed_ms)


def _begun(
    queue: Queue, live: tuple[Segment, ...], change: SegmentChange, operation: CommitQueue
) -> Segment:
    """Begin a new segment at the end of its flat file."""
    path = queue_path(queue.id)
    refuse_unless(
        change.keep in {0, ALL_EXTENTS}, f"no segment at {change.base} to keep extents of", path
    )
    refuse_unless(
        not live or live[-1].sealed_ms is not None,
        "the segment before is not sealed (I2)",
        path,
        change.base,
    )
    end = live[-1].end if live else queue.flat_end(change.type)
    if change.type == SegmentType.CONSUME_QUEUE:
        end = max(end, UNIT_BYTES * operation.expected_offset)
    refuse_unless(
        change.base == end, f"segment at {change.base} overlaps or leaves a hole: {end}", path
    )
    _extents_touch(path, 0, change, operation.next_offset)
    return Segment(
        change.type,
        change.base,
        change.created_ms,
        change.epoch,
        change.extents,
        change.sealed_ms,
    )


def _extents_touch(path: str, begin: int, change: SegmentChange, next_offset: int) -> None:
    """Check that new extents are adjacent from `begin` on and name offsets of this commit."""
    end = begin
    for extent in change.extents:
        if not (
            extent.position == end
            and extent.length > 0
            and extent.first_offset < next_offset
            and (
                change.type != SegmentType.CONSUME_QUEUE
                or UNIT_BYTES * extent.first_offset == change.base + extent.position
            )
        ):
            refuse_unless(False, f"{_brief(extent)} does not follow {end} (I1)", path, change.base)  # noqa: FBT003 - the condition
        end = extent.end


def _brief(extent: Extent) -> str:
    return f"extent [{extent.position}, {extent.end}) of offset {extent.first_offset}"


def _units_reach_the_end(queue: Queue) -> None:
    """Check the part of I5 that a commit can violate."""
    end = queue.flat_end(SegmentType.CONSUME_QUEUE)
    wanted = UNIT_BYTES * queue.next_offset
    if end == wanted:
        return
    gap_ends_here = queue.gaps and queue.gaps[-1].end == queue.next_offset
    if not (gap_ends_here and end == UNIT_BYTES * queue.gaps[-1].start):
        refuse_unless(
            False,  # noqa: FBT003 - the condition
            f"units end at {end}, the commit offset wants {wanted} (I5)",
            queue_path(queue.id),
            end,
        )


def record_gap(queue: Queue, operation: RecordGap) -> Queue:
    """Continue after lost offsets. The open segments are sealed."""
    gap = operation.gap
    path = queue_path(queue.id)
    refuse_unless(
        gap.start == queue.next_offset < gap.end,
        f"gap [{gap.start}, {gap.end}) does not begin at the commit offset {queue.next_offset}",
        path,
    )
    gaps = queue.gaps
    if gaps and gaps[-1].end == gap.start:  # nothing was committed in between: one longer gap
        last = gaps[-1]
        gaps = (*gaps[:-1], Gap(last.start, gap.end, gap.reason, gap.found_ms))
    else:
        gaps = (*gaps, gap)
    units = queue.consume_queue
    if units and not units[-1].extents:  # begun by a roll; the next one begins higher
        units = units[:-1]
    return replace(
        queue,
        next_offset=gap.end,
        commit_log=_sealed_last(queue.commit_log, gap.found_ms),
        consume_queue=_sealed_last(units, gap.found_ms),
        gaps=gaps,
    )


def _sealed_last(segments: tuple[Segment, ...], now_ms: int) -> tuple[Segment, ...]:
    if not segments or segments[-1].sealed_ms is not None or not segments[-1].extents:
        return segments  # an empty one continues: the next would begin at the same byte
    return (*segments[:-1], replace(segments[-1], sealed_ms=now_ms))


def refuse_other_basis(
    queue: Queue, planned_on: QueueBasis | None, release: Release | None
) -> None:
    """Refuse a change of a whole record that was planned on another record.

    Without a `release`, merges are not compared: the record named no part, or an older program
    planned the change, which merges nothing and does not know `repacks`. A record with objects in
    the second store is always compared: a program that writes `repacks` put them there, perhaps
    after the plan.
    """
    if planned_on is None:
        return
    now = QueueBasis.of(queue)
    if release is None and not _names_second_store(queue):
        now = replace(now, repacks=planned_on.repacks)
    refuse_unless(
        now == planned_on, f"planned on {planned_on}, by now it is {now}", queue_path(queue.id)
    )


def _names_second_store(queue: Queue) -> bool:
    return any(
        is_offloaded(extent.object_name)
        for kind in FLAT_FILES
        for segment in queue.segments(kind)
        for extent in segment.extents
    )


def cut(queue: Queue, operation: CutQueue) -> Queue:
    """Truncate the newest messages, to the record that the caller provides."""
    refuse_other_basis(queue, operation.planned_on, operation.release)
    after = replace(operation.queue, generation=queue.generation + 1, used_below=_used_below(queue))
    path = queue_path(queue.id)
    refuse_unless(
        after.next_offset <= queue.next_offset,
        f"a cut to {after.next_offset} does not shorten {queue.next_offset}",
        path,
    )
    check_queue(after)
    return after


def _used_below(queue: Queue) -> tuple[int, int] | None:
    """Value of `Queue.used_below` after a truncation of the queue."""
    if queue.used_below is None:
        return None
    log, units = (max(queue.used_below[kind], queue.flat_end(kind)) for kind in FLAT_FILES)
    return log, units


def move_to_manifest(queue: Queue, operation: MoveToManifest) -> Queue:
    """Replace the oldest sealed segments, or adjacent manifests, by one reference."""
    ref, path = operation.ref, queue_path(queue.id)
    refuse_unless(
        operation.generation in {None, queue.generation},
        f"planned on generation {operation.generation}, it is {queue.generation}",
        path,
    )
    refuse_unless(
        operation.repacks in {None, queue.repacks},
        f"planned on repacking {operation.repacks}, it is {queue.repacks}",
        path,
    )
    live = queue.segments(ref.type)
    leaving = live[: len(operation.segment_bases)]
    refuse_unless(
        tuple(segment.base for segment in leaving) == operation.segment_bases,
        "the segments that leave are not the oldest ones (I3)",
        path,
        ref.base,
    )
    refuse_unless(
        all(segment.sealed_ms is not None for segment in leaving),
        "a segment that leaves is not sealed (I2)",
        path,
        ref.base,
    )
    replaced = [old for old in queue.manifests if old.object_name in operation.replaced]
    refuse_unless(
        len(replaced) == len(operation.replaced) and all(old.type == ref.type for old in replaced),
        "a manifest that is replaced is not there",
        path,
    )
    dying = {tombstone.object_name for tombstone in operation.tombstones}
    refuse_unless(
        dying.issuperset(operation.replaced), "a replaced manifest gets no tombstone", path
    )
    parts: list[Segment | ManifestRef] = [*replaced, *leaving]
    refuse_unless(bool(parts), "nothing moves", path)
    refuse_unless(
        (ref.base, ref.end) == (parts[0].base, parts[-1].end),
        f"[{ref.base}, {ref.end}) is not what moves",
        path,
        ref.base,
    )
    manifests: list[ManifestRef] = []
    if not replaced:
        manifests = [*queue.manifests, ref]
    else:
        for old in queue.manifests:
            if old is replaced[0]:
                manifests.append(ref)
            elif old not in replaced:
                manifests.append(old)
    after = _with_segments(queue, ref.type, live[len(leaving) :])
    after = replace(after, manifests=tuple(manifests))
    check_queue(after)
    return after


def trim(queue: Queue, operation: TrimQueue) -> Queue:
    """Truncate the oldest messages."""
    refuse_other_basis(queue, operation.planned_on, operation.release)
    path = queue_path(queue.id)
    refuse_unless(
        queue.min_offset == operation.expected_offset,
        f"planned on first offset {operation.expected_offset}, it is {queue.min_offset}",
        path,
    )
    refuse_unless(
        queue.min_offset <= operation.min_offset <= queue.next_offset,
        f"cannot trim [{queue.min_offset}, {queue.next_offset}) to {operation.min_offset}",
        path,
    )
    after = replace(
        queue,
        min_offset=operation.min_offset,
        manifests=operation.manifests,
        gaps=_gaps_from(queue.gaps, operation.gaps_from),
    )
    bases = (operation.commit_log_base, operation.consume_queue_base)
    for kind, base in zip(FLAT_FILES, bases, strict=True):
        live = queue.segments(kind)
        kept = tuple(segment for segment in live if segment.base >= base)
        refuse_unless(bool(kept) or not live, "the last segment must stay", path, base)
        dropped = live[len(live) - len(kept) - 1 :][:1] if len(kept) < len(live) else ()
        refuse_unless(
            not dropped or dropped[0].end <= base, f"{base} lies inside a segment", path, base
        )
        after = _with_segments(after, kind, kept)
    check_queue(after)
    return after


def _gaps_from(gaps: tuple[Gap, ...], first: int) -> tuple[Gap, ...]:
    """Gaps of a queue that matters from `first` on."""
    old = bisect_left(gaps, first, key=lambda gap: gap.end)
    ends = [gap for gap in gaps[:old] if gap.reason in ENDS_A_QUEUE]
    return (*ends[-1:], *gaps[old:])


def set_segment_state(queue: Queue, operation: SetSegmentState) -> Queue:
    """Move one copy to its next state. A copy whose deletion is finished leaves the record."""
    path, live = queue_path(queue.id), queue.segments(operation.type)
    at = next((n for n, segment in enumerate(live) if segment.base == operation.base), -1)
    refuse_unless(at >= 0, f"no segment at {operation.base}", path, operation.base)
    segment = live[at]
    refuse_unless(
        is_legal(segment.state, operation.state),
        f"{segment.state.name} to {operation.state.name} is not a step of a copy's life",
        path,
        operation.base,
    )
    deleting = operation.state in {CopyState.DELETE_STARTED, CopyState.DELETE_FINISHED}
    refuse_unless(
        not deleting or at < len(live) - 1, "the last segment must stay", path, operation.base
    )
    changed = replace(segment, state=operation.state)
    middle = () if operation.state == CopyState.DELETE_FINISHED else (changed,)
    after = _with_segments(queue, operation.type, (*live[:at], *middle, *live[at + 1 :]))
    check_queue(after)
    return after


def _with_segments(queue: Queue, kind: SegmentType, segments: tuple[Segment, ...]) -> Queue:
    if kind == SegmentType.COMMIT_LOG:
        return replace(queue, commit_log=segments)
    return replace(queue, consume_queue=segments)
