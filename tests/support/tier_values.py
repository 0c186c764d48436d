"""Tier records for tests: plausible ones by hand, and any at all by hypothesis."""

from hypothesis import strategies as st

from container.metadata import operations as op
from container.metadata.records import (
    Attempt,
    CopyState,
    Extent,
    Gap,
    IndexFile,
    ManifestRef,
    Part,
    Queue,
    QueueBasis,
    Segment,
    Tombstone,
    Topic,
)
from container.names.queue_id import QueueId, SegmentType
from container.names.tier_objects import ManifestName
from container.record.unit import UNIT_BYTES
from provider.ranges import QueueOffset

Q0 = QueueId("T", 0)


def begin_queue(queue: QueueId = Q0, topic_id: int = 0, first: int = 0) -> list[op.Operation]:
    """What publishes an empty queue and its topic."""
    offset = QueueOffset(first)
    return [
        op.PutTopic(Topic(queue.topic, topic_id)),
        op.PutQueue(Queue(queue, offset, offset)),
    ]


def extent(position: int, length: int, first: int, **others: object) -> Extent:
    return Extent(position, length, 7, QueueOffset(first), 10, 20, **others)  # type: ignore[arg-type]


def commit(
    state_queue: Queue, messages: int, *, size: int = 100, seal: bool = False, epoch: int = 1
) -> op.CommitQueue:
    """A commit of `messages` records of `size` bytes behind what is published of a queue."""
    first = state_queue.next_offset
    changes: list[op.SegmentChange] = []
    for kind, item in ((SegmentType.COMMIT_LOG, size), (SegmentType.CONSUME_QUEUE, UNIT_BYTES)):
        live = state_queue.segments(kind)
        last = live[-1] if live and live[-1].sealed_ms is None else None
        end = state_queue.flat_end(kind)
        if kind == SegmentType.CONSUME_QUEUE:
            end = UNIT_BYTES * first
        base = last.base if last else end
        keep = len(last.extents) if last else 0
        added = (extent(last.size if last else 0, item * messages, first),)
        sealed_ms = 5 if seal else None
        changes.append(op.SegmentChange(kind, base, keep, added, 1, epoch, sealed_ms))
    return op.CommitQueue(state_queue.id, first, QueueOffset(first + messages), tuple(changes))


_INT = st.integers(-(2**63), 2**63 - 1)
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_EXTRA = st.dictionaries(
    _TEXT.map(lambda name: f"x-{name}"), st.none() | st.booleans() | _INT | _TEXT, max_size=2
)
queue_ids = st.builds(QueueId, _TEXT, _INT)
_in_own_file = st.builds(
    lambda at, length, crc, first, low, high: Extent(at, length, crc, first, low, high, "", at),
    _INT, _INT, st.none() | _INT, _INT, _INT, _INT,
)  # fmt: skip
extents = _in_own_file | st.builds(
    Extent, _INT, _INT, st.none() | _INT, _INT, _INT, _INT, _TEXT, _INT
)
_types = st.sampled_from(SegmentType)
_states = st.sampled_from(CopyState)
_extents = st.lists(extents, max_size=3).map(tuple)
_sealed = st.none() | _INT
segments = st.builds(Segment, _types, _INT, _INT, _INT, _extents, _sealed, _states, _EXTRA)
refs = st.builds(ManifestRef, _TEXT, _types, _INT, _INT, _INT, _INT, _INT, _INT, _INT, _EXTRA)
gaps = st.builds(Gap, _INT, _INT, _TEXT, _INT, _EXTRA)
_segments = st.lists(segments, max_size=2).map(tuple)
_refs = st.lists(refs, max_size=2).map(tuple)
queues = st.builds(
    Queue, queue_ids, _INT, _INT, _segments, _segments, _refs,
    st.lists(gaps, max_size=2).map(tuple), _INT, st.none() | st.tuples(_INT, _INT), _INT, _EXTRA,
)  # fmt: skip
_U32 = st.integers(0, 2**32 - 1)
_NAMES = st.sampled_from(["", "@parts/1", "@parts/2", "größe"])
_usual_extents = st.builds(Extent, _U32, _U32, _U32, _INT, _INT, _INT, _NAMES, _U32) | st.builds(
    lambda at, length: Extent(at, length, 7, QueueOffset(0), 1, 2, "", at), _U32, _U32
)
_usual_segments = st.lists(
    st.builds(
        Segment, st.sampled_from(SegmentType), _INT, _INT, _INT,
        st.lists(_usual_extents, max_size=5).map(tuple), st.none() | _INT, _states,
    ),
    max_size=3,
).map(tuple)  # fmt: skip


@st.composite
def usual_queues(draw: st.DrawFn) -> Queue:
    """A record as this program makes them: no number too large, no name but a manifest's own."""
    name = draw(queue_ids)
    kinds, levels = st.sampled_from(SegmentType), st.integers(0, 9)
    nonces = st.binary(min_size=16, max_size=16).map(bytes.hex)
    refs: list[ManifestRef] = []
    for _ in range(draw(st.integers(0, 2))):
        kind, level, base = draw(kinds), draw(levels), draw(_INT)
        made = ManifestName(name, kind, level, base, draw(st.integers(0, 10**10 - 1)), draw(nonces))
        end, size, low, high = (draw(_INT) for _ in range(4))
        ref = ManifestRef(str(made), kind, base, end, draw(_U32), size, low, high, level)
        refs.append(ref)
    gaps = draw(st.lists(st.builds(Gap, _INT, _INT, _NAMES, _INT), max_size=2))
    used = draw(st.none() | st.tuples(_INT, _INT))
    numbers = [draw(_INT) for _ in range(4)]
    return Queue(
        name, QueueOffset(numbers[0]), QueueOffset(numbers[1]),
        draw(_usual_segments), draw(_usual_segments), tuple(refs),
        tuple(gaps), numbers[2], used, numbers[3],
    )  # fmt: skip


_basis = st.none() | queues.map(QueueBasis.of)
topics = st.builds(Topic, _TEXT, _INT, _INT, _INT, _TEXT, _EXTRA)
tombstones = st.builds(Tombstone, _TEXT, _INT, _TEXT, _INT, _EXTRA)
parts = st.builds(Part, _TEXT, _INT, _INT, _EXTRA)
attempts = st.builds(Attempt, _TEXT, _TEXT, _INT, _INT, _TEXT, _TEXT, _EXTRA)
_coverage = st.lists(st.tuples(queue_ids, _INT, _INT), max_size=2).map(sorted).map(tuple)
index_files = st.builds(
    IndexFile, _TEXT, _INT, _INT, _INT, _INT, _INT, _INT, _coverage, st.none() | _INT, _INT, _EXTRA
)  # fmt: skip
_dead = st.lists(tombstones, max_size=2).map(tuple)
_counts = st.lists(st.tuples(_TEXT, _INT), max_size=2).map(tuple)
_release = st.none() | st.builds(op.Release, _INT, _counts)
_runs = st.builds(op.RepackedRun, _types, _INT, _INT, _INT, _extents)
_changes = st.builds(op.SegmentChange, _types, _INT, _INT, _extents, _INT, _INT, _sealed)
operations = st.one_of(
    st.builds(op.TakeOwnership, _INT, _TEXT, _TEXT, _TEXT, _INT),
    st.builds(op.PutTopic, topics),
    st.builds(op.PutQueue, queues),
    st.builds(op.CommitQueue, queue_ids, _INT, _INT, st.lists(_changes, max_size=2).map(tuple)),
    st.builds(op.RecordGap, queue_ids, gaps),
    st.builds(op.CutQueue, queues, _TEXT, _dead, _basis, _release),
    st.builds(
        op.MoveToManifest, queue_ids, refs, st.lists(_INT, max_size=2).map(tuple),
        st.lists(_TEXT, max_size=2).map(tuple), _dead, st.none() | _INT, st.none() | _INT,
    ),
    st.builds(
        op.TrimQueue, queue_ids, _INT, _INT, _INT, _INT, _refs, _dead, _basis, _release, _INT
    ),
    st.builds(op.DropQueue, queue_ids, _dead, _basis, _release),
    st.builds(
        op.RepackSegments, queue_ids, _INT, _INT, _INT, st.lists(_runs, max_size=2).map(tuple),
        st.builds(op.Release, _INT, _counts),
    ),
    st.builds(op.CountParts, _counts),
    st.builds(op.SetSegmentState, queue_ids, _types, _INT, _states),
    st.builds(op.AddTombstones, _dead),
    st.builds(op.DropTombstones, st.lists(_TEXT, max_size=2).map(tuple)),
    st.builds(op.PutAttempt, attempts),
    st.builds(op.EndAttempt, _TEXT),
    st.builds(op.PutIndexFile, index_files),
    st.builds(op.DropIndexFile, _TEXT),
)  # fmt: skip
