"""The end of a followed CommitLog is noticed by a bounded number of small reads a look."""

from pathlib import Path

import pytest

from tests.support.messages import make_record
from tieredstore.following.directory.layout import FileRun
from tieredstore.following.log.commit_log import CommitLogFiles, table_of
from tieredstore.following.log.followed_log import PASSED_MAX, CommitLogTail
from tieredstore.following.log.mapped_files import MappedFiles

FILE_BYTES = 1 << 20
RECORDS = 4 * PASSED_MAX


class CountedFiles(CommitLogFiles):
    """Says how often a few bytes were asked for."""

    reads = 0

    def peek(self, position: int, length: int) -> bytes:
        """One more."""
        self.reads += 1
        return super().peek(position, length)


@pytest.fixture
def log(tmp_path: Path) -> CountedFiles:
    """One file of many records, the next of which has nothing yet."""
    raw = b"".join(make_record("A", 0, offset, b"body") for offset in range(RECORDS))
    (tmp_path / f"{0:020d}").write_bytes(raw.ljust(FILE_BYTES, b"\0"))
    return CountedFiles(MappedFiles(8, 1 << 20), table_of(FileRun(tmp_path, (0,), FILE_BYTES), {}))


def test_a_look_passes_over_no_more_records_than_it_names(log: CountedFiles) -> None:
    tail = CommitLogTail()
    tail.take_passed()
    assert tail.reach(log, 0)
    assert log.reads <= PASSED_MAX + 2
    assert not tail.take_passed().is_all


def test_what_is_beyond_shows_as_growth_until_it_was_passed(log: CountedFiles) -> None:
    tail, end = CommitLogTail(), RECORDS * len(make_record("A", 0, 0, b"body"))
    looks = 0
    while tail.has_grown(log):
        assert tail.reach(log, 0)
        looks += 1
    assert tail.position == end
    assert looks >= RECORDS // (PASSED_MAX + 1)
    assert not tail.reach(log, 0)


def test_whoever_read_the_units_lets_the_end_go_there_at_once(log: CountedFiles) -> None:
    tail, end = CommitLogTail(), RECORDS * len(make_record("A", 0, 0, b"body"))
    tail.reach(log, end)
    assert tail.position == end
    assert not tail.has_grown(log)
    assert log.reads <= 3


def test_a_file_that_is_gone_is_not_kept_mapped(tmp_path: Path) -> None:
    for base in (0, FILE_BYTES):
        (tmp_path / f"{base:020d}").write_bytes(bytes(FILE_BYTES))
    mapped = MappedFiles(8, 1 << 20)
    log = CommitLogFiles(mapped, table_of(FileRun(tmp_path, (0, FILE_BYTES), FILE_BYTES), {}))
    log.view(0)
    log.view(FILE_BYTES)
    log.table = table_of(FileRun(tmp_path, (FILE_BYTES,), FILE_BYTES), {})
    assert len(mapped) == 1, "else a deleted file would keep its room on the disk"
