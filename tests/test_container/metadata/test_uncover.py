"""What cuts and deletions take out of the coverage of index files, in one pass for all of them."""

import random
from dataclasses import replace

import pytest

from container.metadata import coverage
from container.metadata import state as state_change
from container.metadata.coverage import CoverageRows
from container.metadata.operations import DropQueue, PutIndexFile, PutQueue, PutTopic
from container.metadata.records import Coverage, IndexFile, Queue, Topic
from container.metadata.state import TierState
from container.names.queue_id import QueueId
from provider.ranges import QueueOffset

QUEUES = [QueueId(topic, number) for topic in ("A", "B", "C") for number in range(3)]


def one_by_one(file: IndexFile, queue: QueueId, end: int) -> IndexFile:
    """The coverage after one cut, by a look at every row."""
    if not any(name == queue and stop > end for name, _, stop in file.coverage):
        return file
    coverage = tuple(
        (name, start, stop if name != queue else QueueOffset(min(stop, end)))
        for name, start, stop in file.coverage
        if name != queue or start < end
    )
    cuts = file.cuts + any(name == queue for name, _, _ in coverage)
    return replace(file, coverage=coverage, cuts=cuts)


def some_coverage(rng: random.Random) -> Coverage:
    rows = []
    for queue in rng.sample(QUEUES, rng.randrange(len(QUEUES))):
        at = rng.randrange(10)
        for _ in range(rng.randrange(1, 3)):
            end = at + rng.randrange(1, 10)
            rows.append((queue, QueueOffset(at), QueueOffset(end)))
            at = end + rng.randrange(1, 5)
    return tuple(sorted(rows))


@pytest.fixture(params=[1, 2, 5, 512])
def chunk_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(coverage, "CHUNK_ROWS", request.param)
    return request.param


@pytest.mark.usefixtures("chunk_rows")
@pytest.mark.parametrize("seed", range(20))
def test_all_cuts_of_a_transaction_take_what_each_would(seed: int) -> None:
    rng = random.Random(seed)
    files = [
        IndexFile(f"f{number}", number, 1, 0, 0, 1, 1, some_coverage(rng)) for number in range(3)
    ]
    state = TierState(index_files={one.object_name: one for one in files})
    change = state_change.StateChange(state)
    expected = files
    for queue in rng.sample(QUEUES, rng.randrange(1, 5)):
        end = rng.choice([0, rng.randrange(25)])
        change.uncovered[queue] = QueueOffset(end)
        expected = [one_by_one(one, queue, end) for one in expected]
    state_change.uncover(change)
    assert [change.index_files.get(one.object_name) for one in files] == expected
    assert not change.uncovered


@pytest.mark.usefixtures("chunk_rows")
@pytest.mark.parametrize("seed", range(10))
def test_rows_in_chunks_are_read_as_a_tuple(seed: int) -> None:
    rng = random.Random(seed)
    rows = some_coverage(rng)
    chunked = CoverageRows.of(rng.sample(rows, len(rows)))
    assert (tuple(chunked), len(chunked), chunked) == (rows, len(rows), rows)
    assert CoverageRows.of(chunked) is chunked
    assert [chunked[at] for at in range(-len(rows), len(rows))] == [*rows, *rows]
    for start in range(len(rows) + 2):
        for end in range(start, len(rows) + 2):
            assert chunked[start:end] == rows[start:end]
    with pytest.raises(IndexError):
        chunked[len(rows)]
    assert chunked.without_ends({QueueId("none", 0): QueueOffset(0)}) == (chunked, 0)


def test_a_change_copies_the_chunk_of_its_queue_alone() -> None:
    names = [QueueId(f"T{number:04}", 0) for number in range(5_000)]
    rows = CoverageRows.of((name, QueueOffset(0), QueueOffset(9)) for name in names)
    less, cuts = rows.without_ends({names[2_000]: QueueOffset(0), names[2_001]: QueueOffset(4)})
    assert (len(less), cuts) == (4_999, 1)
    kept = {id(chunk) for chunk in rows._chunks} & {id(chunk) for chunk in less._chunks}
    assert len(kept) == len(rows._chunks) - 1


def test_a_file_that_is_published_after_a_deletion_keeps_what_it_covers() -> None:
    queue = QUEUES[0]
    rows: Coverage = ((queue, QueueOffset(0), QueueOffset(5)),)
    old, new = (IndexFile(name, 0, 1, 0, 0, 1, 1, rows) for name in ("old", "new"))
    state = TierState()
    put = PutQueue(Queue(queue, QueueOffset(0), QueueOffset(0)))
    state.apply([PutTopic(Topic(queue.topic, 0)), put, PutIndexFile(old)])
    state.apply([DropQueue(queue), PutIndexFile(new)])
    assert state.index_files["old"].coverage == ()
    assert state.index_files["new"].coverage == rows
