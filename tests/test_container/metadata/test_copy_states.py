"""The states of a segment copy follow each other as Kafka's do."""

import pytest

from container.metadata.queue_changes import is_legal
from container.metadata.records import CopyState

TABLE = {
    None: "1000",
    CopyState.COPY_STARTED: "1110",
    CopyState.COPY_FINISHED: "0110",
    CopyState.DELETE_STARTED: "0011",
    CopyState.DELETE_FINISHED: "0001",
}


@pytest.mark.parametrize("now", TABLE)
@pytest.mark.parametrize("wanted", CopyState)
def test_twenty_transitions_are_those_of_kafka(now: CopyState | None, wanted: CopyState) -> None:
    assert is_legal(now, wanted) == (TABLE[now][wanted] == "1")
