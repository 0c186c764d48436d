"""Records and operations survive JSON, also what a newer version put into them."""

from contextlib import suppress
from dataclasses import replace
from typing import get_args

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.errors import NewerVersion
from container.metadata.codec import (
    OPERATIONS,
    decode_operations,
    decode_segments,
    decode_state,
    encode_operations,
    encode_segments,
    encoding_of,
    join_operations,
    state_pieces,
)
from container.metadata.operations import (
    AddTombstones,
    Operation,
    PutIndexFile,
    PutTopic,
    TakeOwnership,
)
from container.metadata.records import Broker, IndexFile, Tombstone, Topic
from container.metadata.state import TierState
from container.metadata.tables import QueueTable
from container.names.queue_id import QueueId
from provider.errors import Corrupt
from provider.ranges import QueueOffset
from tests.support import tier_values as tv


def test_every_operation_has_a_shape() -> None:
    assert set(OPERATIONS) == set(get_args(Operation))


@given(st.lists(st.lists(tv.operations, max_size=3), max_size=3))
def test_operations_come_back_as_they_were(transactions: list[list[Operation]]) -> None:
    payload = join_operations([encode_operations(one) for one in transactions])
    assert decode_operations(payload, path="p") == [o for one in transactions for o in one]


@given(
    st.lists(tv.topics), st.lists(tv.queues, max_size=3), st.lists(tv.tombstones),
    st.lists(tv.attempts), st.tuples(st.lists(tv.index_files), st.lists(tv.parts, min_size=1)),
)  # fmt: skip
def test_a_state_comes_back_as_it_was(topics, queues, tombstones, attempts, objects) -> None:
    state = TierState()
    state.broker = Broker("c", "b", 3, "me", 5, {"x-new": [1]})
    state.sequence, state.next_topic_id, state.extra = 9, 4, {"x-more": {"a": None}}
    state.topics = {topic.name: topic for topic in topics}
    state.queues = QueueTable(queues)
    state.tombstones.update({dead.object_name: dead for dead in tombstones})
    state.attempts = {attempt.attempt_id: attempt for attempt in attempts}
    state.index_files = {file.object_name: file for file in objects[0]}
    state.parts = {part.object_name: part for part in objects[1]}
    assert decode_state(b"".join(state_pieces(state)), path="p") == state


@given(st.lists(tv.segments, max_size=4))
def test_segments_of_a_manifest_come_back(segments) -> None:
    queue = QueueId("T", 3)
    raw = encode_segments(queue, segments)
    assert decode_segments(raw, path="p") == (queue, tuple(segments))


def test_a_coverage_is_short_and_that_of_older_programs_is_read() -> None:
    rows = [("A", 0, 0, 9), ("A", 0, 12, 20), ("A", 3, 5, 6), ('"coverage":["', 1, 2, 3)]
    coverage = tuple(
        (QueueId(topic, queue), QueueOffset(a), QueueOffset(b)) for topic, queue, a, b in rows
    )
    file = IndexFile("i", 1, 36, 0, 0, 0, 0, coverage)
    payload = join_operations([encode_operations([PutIndexFile(file)])])
    (raw,) = orjson.loads(payload)["operations"]
    assert raw["index_file"]["coverage"] == [
        "A", [0, 0, 9, 0, 12, 20, 3, 5, 6], '"coverage":["', [1, 2, 3]
    ]  # fmt: skip
    assert encoding_of(payload) == 1, "so that an older program refuses it"
    raw["index_file"]["coverage"] = [[[topic, queue], a, b] for topic, queue, a, b in rows[::-1]]
    old = orjson.dumps({"operations": [raw]})
    assert encoding_of(old) == 0
    assert encoding_of(join_operations([encode_operations([PutTopic(Topic(rows[3][0], 1))])])) == 0
    assert decode_operations(old, path="p") == [
        PutIndexFile(replace(file, coverage=tuple(sorted(coverage))))
    ]


def test_older_programs_refuse_a_fence_with_tombstones() -> None:
    fence = TakeOwnership(1, "o", "C", "b", 0)
    topic = PutTopic(Topic('{"op":"AddTombstones"', 1))
    dead = AddTombstones((Tombstone("@parts/1", 0, "left out"),))
    for operations, encoding in (
        ([fence, topic], 0),
        ([topic, dead], 0),
        ([fence, topic, dead], 3),
    ):
        assert encoding_of(join_operations([encode_operations(operations)])) == encoding


def test_an_operation_of_a_newer_version_is_refused_by_name() -> None:
    with pytest.raises(NewerVersion, match="Teleport"):
        decode_operations(b'{"operations":[{"op":"Teleport"}]}', path="p")


def test_a_new_field_of_an_operation_is_refused_and_of_a_record_kept() -> None:
    raw = b'{"operations":[{"op":"EndAttempt","attempt_id":"a","because":1}]}'
    with pytest.raises(NewerVersion, match="because"):
        decode_operations(raw, path="p")
    raw = b'{"operations":[{"op":"PutTopic","topic":{"name":"T","topic_id":1,"colour":"red"}}]}'
    (operation,) = decode_operations(raw, path="p")
    assert isinstance(operation, PutTopic)
    assert operation.topic.extra == {"colour": "red"}
    assert orjson.loads(join_operations([encode_operations([operation])])) == orjson.loads(raw)


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(tv.operations, min_size=1, max_size=2), _json, st.randoms())
def test_a_value_of_the_wrong_kind_is_a_verdict_not_a_crash(operations, junk, rng) -> None:
    raw = orjson.loads(join_operations([encode_operations(operations)]))
    place = raw
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return
        key = rng.choice(keys)
        if not isinstance(place[key], dict | list) or rng.random() < 0.2:
            place[key] = junk
            break
        place = place[key]
    with suppress(Corrupt, NewerVersion):
        decode_operations(orjson.dumps(raw), path="p")


@given(st.binary(max_size=60))
def test_any_bytes_are_a_verdict_not_a_crash(raw: bytes) -> None:
    for decode in (decode_operations, decode_segments, decode_state):
        with pytest.raises(Corrupt):
            decode(raw, path="p")
