"""A snapshot read piece by piece says what it says when it is read at once."""

from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from container.metadata import codec
from container.metadata.codec import decode_state, state_pieces
from container.metadata.records import Gap, Queue
from container.metadata.state import TierState
from container.metadata.tables import QueueTable
from container.names.queue_id import QueueId
from provider.errors import Corrupt
from provider.ranges import QueueOffset
from tests.support import tier_values as tv

PIECE = 64


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "QUEUES_PIECE_BYTES", PIECE)


def number(one: int, **fields: Any) -> Queue:
    return Queue(QueueId("T", one), QueueOffset(0), QueueOffset(one), **fields)


def payload_of(queues: list[Queue], extra: dict[str, Any] | None = None) -> bytes:
    state = TierState(extra=extra or {}, queues=QueueTable(queues))
    return b"".join(state_pieces(state))


def pieces(payload: bytes) -> list[Any] | None:
    apart = codec.queues_apart(payload)
    return None if apart is None else list(apart[1])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(tv.queues, max_size=6))
def test_any_queues(queues: list[Queue]) -> None:
    table = QueueTable(queues)
    payload = payload_of(list(table.values()))
    assert decode_state(payload, path="p").queues == table
    assert list(table.values()) == list(decode_state(payload, path="p").queues.values())


def test_the_pieces_are_the_array() -> None:
    payload = payload_of([number(one) for one in range(20)])
    assert pieces(payload) == orjson.loads(payload)["queues"]
    assert pieces(payload_of([])) is None


def test_what_looks_like_queues_in_a_field_of_a_newer_version() -> None:
    like = {"a": 1, "queues": [{"id": ["U", 1]}], "tombstones": []}
    for queues in ([], [number(1), number(2)]):
        payload = payload_of(queues, {"newer": like})
        state = decode_state(payload, path="p")
        assert list(state.queues.values()) == queues
        assert state.extra == {"newer": like}


def test_what_looks_like_a_record_inside_a_record() -> None:
    inner = [{"x": "y" * PIECE}, {"id": ["U", 1]}]
    gap = Gap(QueueOffset(0), QueueOffset(1), ',{"id":["', 0, {"newer": inner})
    queues = [number(1, gaps=(gap,)), number(2, extra={"queues": inner, "tombstones": []})]
    payload = payload_of(queues)
    assert list(decode_state(payload, path="p").queues.values()) == queues


def test_damage_is_told_as_of_the_whole() -> None:
    payload = payload_of([number(one) for one in range(20)])
    cut = payload.replace(b'"next_offset":7', b'"next_offset":,', 1)
    with pytest.raises(Corrupt, match="not JSON") as told:
        decode_state(cut, path="p")
    assert told.value.position > payload.index(b'"next_offset":6')
    with pytest.raises(Corrupt, match="whole number"):
        decode_state(payload.replace(b'"next_offset":7', b'"next_offset":[]', 1), path="p")
    with pytest.raises(Corrupt, match="whole number"):  # `queues` comes twice: the last one counts
        decode_state(payload[:-1] + b',"queues":[{"id":["T",true]}]}', path="p")
