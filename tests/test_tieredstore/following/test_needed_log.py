"""Which part of the CommitLog is still needed, as a table."""

import pytest

from tieredstore.following.queues.pinned_units import QueueNeed, first_needed

DONE = QueueNeed(is_known=True, has_end=True, end_position=900, next_position=None)
BEHIND = QueueNeed(is_known=True, has_end=True, end_position=900, next_position=300)
DAMAGED = QueueNeed(is_known=True, has_end=False, end_position=200, next_position=None)
NEVER_READ = QueueNeed(is_known=True, has_end=False, end_position=0, next_position=None)
UNREADABLE = QueueNeed(is_known=True, has_end=True, end_position=900, next_position=0)
NEW = QueueNeed(is_known=False, has_end=False, end_position=0, next_position=None)


@pytest.mark.parametrize(
    ("needs", "low"),
    [
        ([], 500),
        ([DONE], 500),
        ([DONE, BEHIND], 300),
        ([BEHIND, DAMAGED, DONE], 200),
        ([DONE, NEVER_READ], 0),
        ([DONE, UNREADABLE], 0),
        ([BEHIND, NEW], 0),
    ],
)
def test_the_first_byte_that_a_queue_may_need(needs: list[QueueNeed], low: int) -> None:
    assert first_needed(needs, 500) == low
    assert first_needed(reversed(needs), 500) == low


def test_nothing_is_released_beyond_what_all_queues_were_looked_for_in() -> None:
    assert first_needed([DONE], 100) == 100
    assert first_needed([DONE], -4096) == -4096
