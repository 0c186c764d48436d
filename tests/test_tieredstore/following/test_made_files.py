"""Files that are made from the CommitLog: what they hold, and what their memory counts as."""

from pathlib import Path

import pytest

from container.names.queue_id import QueueId
from container.record.unit import FILLER_SIZE, UNIT_DTYPE, ConsumeQueueUnit
from tests.support.fake_broker import FakeBroker
from tieredstore.following.directory.layout import scan_run
from tieredstore.following.log.commit_log import CommitLogFiles, table_of
from tieredstore.following.log.mapped_files import MappedFiles
from tieredstore.following.queues.files import Hole, MadeFiles, RebuildBudget

A0 = QueueId("A", 0)
FILE_BYTES = 400
FILE_UNITS = 20
FILLER = ConsumeQueueUnit(0, FILLER_SIZE, 0)


@pytest.fixture
def broker(tmp_path: Path) -> FakeBroker:
    broker = FakeBroker(tmp_path / "store", commit_log_bytes=4096, consume_queue_bytes=FILE_BYTES)
    for number in range(90):
        broker.put("A", 0, str(number).encode(), tags=f"Tag{number % 3}")
    return broker


def log_of(broker: FakeBroker) -> CommitLogFiles:
    table = table_of(scan_run(broker.directory / "commitlog"), {})
    return CommitLogFiles(MappedFiles(8, 1 << 20), table)


def hole(broker: FakeBroker, start: int, end: int, before: ConsumeQueueUnit | None = None) -> Hole:
    if before is None:
        before = broker.unit("A", 0, start - 1)
    return Hole(start, end, before=before, after=broker.unit("A", 0, end))


def test_made_files_are_the_missing_ones_byte_for_byte(broker: FakeBroker) -> None:
    log, made = log_of(broker), MadeFiles(RebuildBudget())
    bases = made.make(log, A0, hole(broker, 20, 60), FILE_BYTES)
    assert bases == [400, 800]
    for base, path in zip(bases, broker.queue_files(A0)[1:], strict=False):
        file = made.get(base)
        assert file is not None
        assert file.tobytes() == path.read_bytes()
        last = broker.unit("A", 0, base // 20 + FILE_UNITS - 1)
        assert made.position_max(base) == last.position
    log.close()


def test_memory_is_given_back_file_by_file(broker: FakeBroker) -> None:
    log, budget = log_of(broker), RebuildBudget(1000)
    made = MadeFiles(budget)
    made.make(log, A0, hole(broker, 20, 60), FILE_BYTES)
    assert (made.bytes, budget.taken, budget.room) == (800, 800, 200)
    for base in made.bases:
        file = made.get(base)
        assert file is not None
        assert file.base is None, "a view would keep the memory of its neighbours"
    made.drop(400)
    assert (made.bytes, budget.taken, list(made.bases)) == (400, 400, [800])
    made.drop(800)
    assert (made.bytes, budget.taken, len(made)) == (0, 0, 0)
    log.close()


def test_what_the_broker_deleted_of_a_hole_has_fillers(broker: FakeBroker) -> None:
    while broker.min_position <= broker.unit("A", 0, 25).position:
        broker.log_path(broker.min_position).unlink()
        broker.min_position += broker.commit_log_bytes
    log, made = log_of(broker), MadeFiles(RebuildBudget())
    made.make(log, A0, hole(broker, 20, 80, before=FILLER), FILE_BYTES)
    rows = [
        ConsumeQueueUnit(*row)
        for base in made.bases
        if (file := made.get(base)) is not None
        for row in file.view(UNIT_DTYPE).tolist()
    ]
    first = next(place for place, unit in enumerate(rows) if not unit.is_filler)
    assert first > 0
    assert rows[first:] == [broker.unit("A", 0, offset) for offset in range(20 + first, 80)]
    assert rows[first].position >= broker.min_position
    log.close()


def test_nothing_is_made_of_a_hole_whose_first_record_is_not_found(broker: FakeBroker) -> None:
    broker.damage(broker.unit("A", 0, 20).position, bytes(8))
    log, budget = log_of(broker), RebuildBudget()
    assert MadeFiles(budget).make(log, A0, hole(broker, 20, 40), FILE_BYTES) == []
    assert budget.taken == 0
    log.close()
