"""What a round reads together is what each queue would have read alone, whatever is damaged."""

import tracemalloc
from pathlib import Path
from random import Random

import numpy as np
import pytest

from container.names.queue_id import QueueId
from container.record.batch import MessageBatch
from container.record.unit import UNIT_DTYPE
from dispatcher.ports import Wanted
from provider.errors import Corrupt, NotFound, OutOfRange, StoreError
from provider.posix.files import BufferPool
from provider.ranges import QueueOffset
from tests.support.messages import make_record
from tieredstore.following.directory.layout import FileRun
from tieredstore.following.log import round_read
from tieredstore.following.log.commit_log import CommitLogFiles, table_of
from tieredstore.following.log.mapped_files import MappedFiles
from tieredstore.following.log.round_read import gather_round

QUEUES = [QueueId("A", 0), QueueId("A", 1), QueueId("B", 0), QueueId("A", 2)]
FILE_BYTES = 64 << 10
ALL = 1 << 40


class Log:
    """CommitLog files with records of several queues in any order, and what their units say."""

    def __init__(self, directory: Path, *, messages: int, seed: int, body_bytes_max: int) -> None:
        self.directory = directory
        self.records: dict[QueueId, list[bytes]] = {queue: [] for queue in QUEUES}
        self.places: dict[QueueId, list[int]] = {queue: [] for queue in QUEUES}
        rng, end = Random(seed), 0
        raw = bytearray()
        for _ in range(messages):
            queue = rng.choice(QUEUES)
            offset = len(self.records[queue])
            body = rng.randbytes(rng.randrange(1, body_bytes_max))
            size = len(make_record(queue.topic, queue.queue_id, offset, body))
            if end % FILE_BYTES + size + 8 > FILE_BYTES:
                end = (end // FILE_BYTES + 1) * FILE_BYTES
                raw = raw.ljust(end, b"\0")
            record = make_record(queue.topic, queue.queue_id, offset, body, physical_offset=end)
            self.records[queue].append(record)
            self.places[queue].append(end)
            raw += record
            end = len(raw)
        directory.mkdir()
        raw = raw.ljust(-(-len(raw) // FILE_BYTES) * FILE_BYTES, b"\0")
        bases = range(0, len(raw), FILE_BYTES)
        for base in bases:
            (directory / f"{base:020d}").write_bytes(raw[base : base + FILE_BYTES])
        run = FileRun(directory, tuple(bases), FILE_BYTES)
        self.files = CommitLogFiles(MappedFiles(8, 1 << 20), table_of(run, {}))

    def wanted(self, queue: QueueId, first: int = 0, last: int | None = None) -> Wanted:
        part = slice(first, last)
        units = np.zeros(len(self.places[queue][part]), UNIT_DTYPE)
        units["position"] = self.places[queue][part]
        units["size"] = [len(record) for record in self.records[queue][part]]
        units["tag_hash"] = np.arange(len(units)) + first
        return Wanted(queue, QueueOffset(first), units)

    def gather(self, *wanted: Wanted, bytes_max: int = ALL) -> list[MessageBatch | StoreError]:
        buffers = BufferPool(1 << 20)
        return gather_round(self.files, wanted, bytes_max=bytes_max, buffers=buffers)

    def path(self, queue: QueueId, offset: int) -> Path:
        base = self.places[queue][offset] // FILE_BYTES * FILE_BYTES
        return self.directory / f"{base:020d}"

    def damage(self, queue: QueueId, offset: int, at: int) -> None:
        path = self.path(queue, offset)
        raw = bytearray(path.read_bytes())
        raw[self.places[queue][offset] % FILE_BYTES + at] ^= 0xFF
        path.write_bytes(raw)


def made(tmp_path: Path, *, messages: int = 400, seed: int = 1, body_bytes_max: int = 900) -> Log:
    directory = tmp_path / f"commitlog-{seed}"
    return Log(directory, messages=messages, seed=seed, body_bytes_max=body_bytes_max)


def batch(answer: MessageBatch | StoreError) -> MessageBatch:
    assert isinstance(answer, MessageBatch), answer
    return answer


def records_of(answer: MessageBatch | StoreError) -> list[bytes]:
    found = batch(answer)
    rows = zip(found.starts.tolist(), found.sizes.tolist(), strict=True)
    return [found.data[start : start + size].tobytes() for start, size in rows]


@pytest.mark.parametrize("seed", range(20))
def test_any_parts_of_any_queues_are_read_together(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = Random(seed)
    monkeypatch.setattr(round_read, "WINDOW_BYTES", rng.choice([300, 4000, 1 << 20]))
    monkeypatch.setattr(round_read, "GAP_BYTES_MAX", rng.choice([0, 1000, 1 << 20]))
    log = made(tmp_path, seed=seed, messages=200)
    chosen = rng.sample(QUEUES, rng.randrange(1, 5))
    parts = {queue: sorted(rng.sample(range(len(log.records[queue]) + 1), 2)) for queue in chosen}
    answers = log.gather(*(log.wanted(queue, *parts[queue]) for queue in chosen))
    for queue, answer in zip(chosen, answers, strict=True):
        first, last = parts[queue]
        assert records_of(answer) == log.records[queue][first:last]
        found = batch(answer)
        assert found.first_offset == first
        assert found.tag_hashes.tolist() == list(range(first, last))
        assert found.data.flags.writeable


def test_a_damaged_record_ends_its_own_queue_and_no_other(tmp_path: Path) -> None:
    log = made(tmp_path)
    bad, *others = QUEUES
    log.damage(bad, 7, 4)
    answers = log.gather(*map(log.wanted, QUEUES))
    assert records_of(answers[0]) == log.records[bad][:7]
    for queue, answer in zip(others, answers[1:], strict=True):
        assert records_of(answer) == log.records[queue]
    first, second = log.gather(log.wanted(bad, 7), log.wanted(others[0], 3))
    assert isinstance(first, Corrupt)
    assert (first.path, first.position) == (
        str(log.path(bad, 7)),
        log.places[bad][7] % FILE_BYTES,
    )
    assert first.reason == f"the record of {bad} at 7: unknown magic"
    assert records_of(second) == log.records[others[0]][3:]


def test_units_that_lie_about_their_place_end_their_own_queue(tmp_path: Path) -> None:
    log = made(tmp_path)
    liar, other = QUEUES[0], QUEUES[1]
    wanted = log.wanted(liar)
    units = wanted.references.copy()
    units["position"][5] = log.places[other][40]  # another queue's record
    answers = log.gather(wanted._replace(references=units), log.wanted(other))
    assert records_of(answers[0]) == log.records[liar][:5]
    assert records_of(answers[1]) == log.records[other]
    units["position"][0] = -7
    answers = log.gather(wanted._replace(references=units), log.wanted(other))
    assert isinstance(answers[0], Corrupt)
    assert "impossible unit" in answers[0].reason
    assert records_of(answers[1]) == log.records[other]


def test_two_queues_that_claim_the_same_record_are_told_apart(tmp_path: Path) -> None:
    log = made(tmp_path)
    thief = Wanted(QUEUES[1], QueueOffset(0), log.wanted(QUEUES[0]).references)
    answers = log.gather(log.wanted(QUEUES[0]), thief)
    assert records_of(answers[0]) == log.records[QUEUES[0]]
    assert isinstance(answers[1], Corrupt)


def test_a_round_ends_at_its_bytes_and_every_queue_has_a_message(tmp_path: Path) -> None:
    log = made(tmp_path)
    answers = log.gather(*map(log.wanted, QUEUES), bytes_max=3000)
    sizes = [batch(answer).bytes for answer in answers]
    assert sizes[0] <= 3000
    assert [len(batch(answer)) for answer in answers[1:]] == [1, 1, 1]
    assert records_of(answers[2]) == log.records[QUEUES[2]][:1]


def test_a_file_that_went_is_out_of_range_and_a_hole_is_damage(tmp_path: Path) -> None:
    log = made(tmp_path, messages=600)
    queue = QUEUES[0]
    base = 2 * FILE_BYTES
    (log.directory / f"{base:020d}").unlink()
    count = sum(place < base for place in log.places[queue])
    (whole,) = log.gather(log.wanted(queue))
    assert records_of(whole) == log.records[queue][:count]
    (gone,) = log.gather(log.wanted(queue, count))
    assert isinstance(gone, NotFound)
    bases = tuple(at for at in sorted(log.files.table.paths) if at != base)
    log.files.table = table_of(FileRun(log.directory, bases, FILE_BYTES), {})
    (hole,) = log.gather(log.wanted(queue, count))
    assert isinstance(hole, Corrupt)
    assert "no such file, though the CommitLog begins at 0" in hole.reason
    bases = tuple(at for at in bases if at > base)
    log.files.table = table_of(FileRun(log.directory, bases, FILE_BYTES), {})
    (deleted,) = log.gather(log.wanted(queue, count))
    assert isinstance(deleted, OutOfRange)


def test_a_file_cut_short_ends_the_queues_whose_records_it_held(tmp_path: Path) -> None:
    log = made(tmp_path)
    queue = QUEUES[0]
    middle = len(log.records[queue]) // 2
    path = log.path(queue, middle)
    kept = log.places[queue][middle] % FILE_BYTES + 10
    path.write_bytes(path.read_bytes()[:kept])
    answers = log.gather(*map(log.wanted, QUEUES))
    for name, answer in zip(QUEUES, answers, strict=True):
        cut = log.places[queue][middle]
        count = sum(place < cut for place in log.places[name])
        assert records_of(answer) == log.records[name][:count]
    (error,) = log.gather(log.wanted(queue, middle))
    assert isinstance(error, Corrupt)
    assert error.reason.endswith(f"ends behind the file's end at {kept}")


def test_a_file_that_was_deleted_reads_on_until_the_next_look(tmp_path: Path) -> None:
    log = made(tmp_path)
    queue = QUEUES[0]
    log.gather(log.wanted(queue))
    table = log.files.table
    for path in table.paths.values():
        path.unlink()
    (answer,) = log.gather(log.wanted(queue))
    assert records_of(answer) == log.records[queue]
    log.files.table = table_of(FileRun(log.directory, (), FILE_BYTES), {})
    log.files.table = table
    (gone,) = log.gather(log.wanted(queue))
    assert isinstance(gone, NotFound)


def test_large_records_are_read_past_the_window(tmp_path: Path) -> None:
    log = made(tmp_path, messages=12, body_bytes_max=50_000)
    answers = log.gather(*(log.wanted(queue) for queue in QUEUES if log.records[queue]))
    found = [records_of(answer) for answer in answers]
    assert found == [log.records[queue] for queue in QUEUES if log.records[queue]]


def test_units_that_claim_gigabytes_take_no_memory(tmp_path: Path) -> None:
    log = made(tmp_path)
    wanted = [log.wanted(queue) for queue in QUEUES]
    liars = [item._replace(references=item.references.copy()) for item in wanted[:3]]
    for item in liars:
        item.references["size"][0] = 2**31 - 1
    tracemalloc.start()
    answers = log.gather(*liars, wanted[3])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 << 20
    for item, answer in zip(liars, answers, strict=False):
        assert isinstance(answer, Corrupt)
        assert (answer.path, answer.position) == (
            str(log.path(item.queue, 0)),
            log.places[item.queue][0],
        )
    assert records_of(answers[3]) == log.records[QUEUES[3]]
