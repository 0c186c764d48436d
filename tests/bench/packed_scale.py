"""What an owner's metadata costs on a store of parts: `python -m tests.bench.packed_scale --help`.

For each number of queues a state is made as rounds, merges and manifests leave it: in each queue an
open segment of either flat file with some extents in shared parts, and the segments before them in
manifests. Measured are the memory of the state at rest, a snapshot written and read (which a start
is made of), and a round of commits of every tenth queue planned, encoded and installed; then the
memory of a whole owner of such a tier (`packed_owner`). With several `--segments-of-a-queue` every
number of queues is measured with each.
"""

import argparse
import gc
import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ParamSpec, TypeVar

from container.metadata.codec import decode_state, encode_operations, state_pieces
from container.metadata.operations import ALL_EXTENTS, CommitQueue, Operation, SegmentChange
from container.metadata.records import (
    Broker,
    Extent,
    ManifestRef,
    Part,
    Queue,
    Segment,
    Topic,
)
from container.metadata.state import TierState
from container.names.queue_id import FLAT_FILES, QueueId, SegmentType
from container.names.tier_objects import ManifestName
from container.record.unit import UNIT_BYTES
from provider.ranges import QueueOffset
from provider.stores.packed_segments import PartName
from tests.bench.packed_owner import OwnerFigure, owner_figure, resident_bytes, write_tier
from tests.bench.rows import Goal, Row, goals_beside, keep

P = ParamSpec("P")
Result = TypeVar("Result")

MIB = 1 << 20
QUEUES_OF_A_TOPIC = 8
RECORD_BYTES = 300
MESSAGES_OF_A_ROUND = 4
LISTED_MAX = 64
"""Segments of a manifest of the first merged level."""
EXTENTS_OF_AN_OPEN_SEGMENT = 4
GOALS = [
    Goal("own_turn_ms", "ms of a turn while owning", most=50.0),
    Goal("snapshot_turn_ms", "ms of a turn in a snapshot", most=50.0),
]
GOALS_OF_MANY = [Goal("bytes_a_queue", "bytes a queue at rest", most=1_100.0)]
MANY_QUEUES = 100_000
"""With fewer queues their memory is mostly that which every process needs once."""


@dataclass(frozen=True)
class PackedScaleFigure:
    """What one number of queues and segments costs."""

    queues: int
    segments: int
    parts: int
    bytes_a_queue: int
    """Resident memory of the state at rest."""
    snapshot_mib: float
    snapshot_write_s: float
    """CPU time of encoding it."""
    start_s: float
    """CPU time of decoding it."""
    commit_us_a_queue: float
    """CPU time of planning, encoding and installing a commit, in a round of every tenth queue."""


def made_state(queues: int, segments_of_a_queue: int) -> TierState:
    """A state of so many queues whose history has so many segments each."""
    state = TierState()
    state.broker = Broker("cluster", "broker", 1, "bench")
    state.sequence = 1
    names = [str(PartName(1, f"{number:032x}")) for number in range(max(16, queues // 200))]
    counts = dict.fromkeys(names, 0)
    for number in range(queues):
        topic = f"topic-{number // QUEUES_OF_A_TOPIC}"
        if topic not in state.topics:
            state.topics[topic] = Topic(topic, len(state.topics))
        queue = made_queue(
            QueueId(topic, number % QUEUES_OF_A_TOPIC), number, names, segments_of_a_queue
        )
        state.queues[queue.id] = queue
        for segment in (*queue.commit_log, *queue.consume_queue):
            for extent in segment.extents:
                counts[extent.object_name] += 1
    for name, references in counts.items():
        state.parts[name] = Part(name, references + segments_of_a_queue)
    state.next_topic_id = len(state.topics)
    return state


def made_queue(queue: QueueId, number: int, parts: Sequence[str], segments: int) -> Queue:
    """A queue with an open segment in either flat file, and the others in manifests."""
    in_manifests = max(0, segments // 2 - 1)
    messages = 1_000 * in_manifests
    refs: list[ManifestRef] = []
    live: dict[SegmentType, Segment] = {}
    for kind in FLAT_FILES:
        item = RECORD_BYTES if kind == SegmentType.COMMIT_LOG else UNIT_BYTES
        for first in range(0, in_manifests, LISTED_MAX):
            count = min(LISTED_MAX, in_manifests - first)
            base, end = 1_000 * item * first, 1_000 * item * (first + count)
            name = ManifestName(queue, kind, 1, base, 1, f"{number:032x}")
            refs.append(ManifestRef(str(name), kind, base, end, count, end - base, 10, 20, 1))
        length = MESSAGES_OF_A_ROUND * item
        extents = tuple(
            Extent(
                n * length,
                length,
                1_234_567_890,
                QueueOffset(messages + MESSAGES_OF_A_ROUND * n),
                1_700_000_000_000,
                1_700_000_000_000,
                parts[(number + n) % len(parts)],
                number * length,
            )
            for n in range(EXTENTS_OF_AN_OPEN_SEGMENT)
        )
        live[kind] = Segment(kind, messages * item, 1_700_000_000_000, 1, extents)
    next_offset = QueueOffset(messages + MESSAGES_OF_A_ROUND * EXTENTS_OF_AN_OPEN_SEGMENT)
    return Queue(
        queue,
        QueueOffset(0),
        next_offset,
        (live[SegmentType.COMMIT_LOG],),
        (live[SegmentType.CONSUME_QUEUE],),
        tuple(refs),
        used_below=(0, 0),
    )


def commits(state: TierState, part: str) -> Iterator[Operation]:
    """A commit of every tenth queue, all in one part."""
    for number, queue in enumerate(state.queues.values()):
        if number % 10:
            continue
        changes: list[SegmentChange] = []
        for kind in FLAT_FILES:
            (segment,) = queue.segments(kind)
            item = RECORD_BYTES if kind == SegmentType.COMMIT_LOG else UNIT_BYTES
            extent = Extent(
                segment.size,
                MESSAGES_OF_A_ROUND * item,
                1_234_567_890,
                queue.next_offset,
                1_700_000_000_000,
                1_700_000_000_000,
                part,
                number * item,
            )
            changes.append(SegmentChange(kind, segment.base, ALL_EXTENTS, (extent,), 1, 1))
        reached = QueueOffset(queue.next_offset + MESSAGES_OF_A_ROUND)
        yield CommitQueue(queue.id, queue.next_offset, reached, tuple(changes))


def payload_of(queues: int, segments_of_a_queue: int) -> bytes:
    """The snapshot of a state of that size."""
    return b"".join(state_pieces(made_state(queues, segments_of_a_queue)))


def measured(queues: int, segments: int, payload: bytes) -> PackedScaleFigure:
    """Read a snapshot as a start does, and measure; in a process that has done nothing else."""
    gc.collect()
    before = resident_bytes()
    began_s = time.process_time()
    state = decode_state(payload, path="bench")
    start_s = time.process_time() - began_s
    gc.collect()
    at_rest = resident_bytes() - before
    began_s = time.process_time()
    pieces = list(state_pieces(state))
    write_s = time.process_time() - began_s
    del pieces
    operations = list(commits(state, str(PartName(1, "f" * 32))))
    began_s = time.process_time()
    change = state.plan(operations)
    encode_operations(operations)
    state.install(change)
    commit_s = time.process_time() - began_s
    return PackedScaleFigure(
        queues,
        segments,
        len(state.parts),
        round(at_rest / queues),
        round(len(payload) / MIB, 1),
        round(write_s, 2),
        round(start_s, 2),
        round(1e6 * commit_s / len(operations), 1),
    )


def owned(queues: int, segments_of_a_queue: int) -> OwnerFigure:
    """The figures of an owner of a tier of that size."""
    with TemporaryDirectory() as directory:
        alone(write_made, Path(directory), queues, segments_of_a_queue)
        return alone(owner_figure, Path(directory))


def write_made(directory: Path, queues: int, segments_of_a_queue: int) -> None:
    """Write a tier of that size."""
    write_tier(directory, made_state(queues, segments_of_a_queue))


def alone(work: Callable[P, Result], *args: P.args, **options: P.kwargs) -> Result:
    """What `work` returns in a process of its own, whose memory is new."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(work, *args, **options).result()


def main() -> None:
    """Measure, print and perhaps keep the rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--queues", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--segments-of-a-queue", type=int, nargs="+", default=[100])
    parser.add_argument("--store-results", type=Path, help="a JSON file for the rows")
    options = parser.parse_args()
    rows: list[Row] = []
    print(
        f"1 round without warm-up, times are CPU time; a commit has {MESSAGES_OF_A_ROUND} messages "
        "in every tenth queue"
    )
    for queues, each in product(options.queues, options.segments_of_a_queue):
        payload = alone(payload_of, queues, each)
        state = asdict(alone(measured, queues, queues * each, payload))
        rows.append({**state, **asdict(owned(queues, each))})
        goals = [*GOALS, *(GOALS_OF_MANY if queues >= MANY_QUEUES else [])]
        print(f"{json.dumps(rows[-1])} {goals_beside(rows[-1], goals)}", flush=True)
    if options.store_results:
        keep(rows, options.store_results)


if __name__ == "__main__":
    main()
