"""ConsumeQueue files that are deleted while other threads search them."""

from pathlib import Path
from unittest.mock import patch

import pytest

from container.names.queue_id import QueueId
from container.record.unit import ConsumeQueueUnit
from tieredstore.hot.log.consume_queues import QueueFiles

QUEUE = QueueId("Orders", 0)
UNITS_A_FILE = 10


@pytest.fixture
def files(tmp_path: Path) -> QueueFiles:
    """Four files of units at positions 0, 1, 2 and so on."""
    files = QueueFiles(tmp_path, 20 * UNITS_A_FILE, 4)
    units = [ConsumeQueueUnit(number, 1, 0).encode() for number in range(4 * UNITS_A_FILE)]
    files.write(QUEUE, 0, b"".join(units))
    return files


def test_a_search_finds_the_first_unit_while_the_files_before_it_go(files: QueueFiles) -> None:
    real_unit, looked_at = files.unit, list[int]()

    def unit_after_a_deletion(queue: QueueId, offset: int) -> ConsumeQueueUnit:
        if not looked_at:
            files.delete_below(QUEUE, 35)
        looked_at.append(offset)
        return real_unit(queue, offset)

    with patch.object(files, "unit", unit_after_a_deletion):
        found = files.partition_point(QUEUE, lambda unit: unit.size > 0 and unit.position < 35)
    assert looked_at[0] < 30, "the first file that is looked at is one that went"
    assert found == 35


def test_a_file_that_cannot_be_deleted_stays_the_first(files: QueueFiles) -> None:
    with patch.object(Path, "unlink", side_effect=PermissionError), pytest.raises(OSError):  # noqa: PT011 - any verdict
        files.delete_below(QUEUE, 35)
    assert files.first_offset(QUEUE) == 0
    assert files.delete_below(QUEUE, 35) == 3
    assert files.first_offset(QUEUE) == 30
