"""Packed records go to a snapshot and come from it with the bytes that their records have there."""

from copy import deepcopy
from random import Random
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from container.errors import NewerVersion
from container.metadata import tables
from container.metadata.codec import decode_state, state_pieces
from container.metadata.record_codecs import RECORD_CODECS, DecodeError
from container.metadata.records import Gap, Part, Queue, Segment
from container.metadata.resting_queue import pack, packed_of, raw_of
from container.metadata.state import TierState
from container.metadata.tables import QueueTable
from container.names.queue_id import QueueId, SegmentType
from provider.ranges import QueueOffset
from tests.support.tier_values import extent, queues, usual_queues

CODEC = RECORD_CODECS.of(Queue)
JUNK = (
    None,
    True,
    False,
    0,
    1,
    -1,
    7,
    2**64 - 1,
    1.5,
    "",
    "ab",
    "@a",
    [],
    [1],
    [0, 0],
    {},
    {"x": 1},
)
FULL = Queue(
    QueueId("T", 1),
    QueueOffset(0),
    QueueOffset(9),
    (Segment(SegmentType.COMMIT_LOG, 0, 1, 1, (extent(0, 5, 0), extent(5, 5, 4)), 3),),
    (Segment(SegmentType.CONSUME_QUEUE, 0, 1, 1, (extent(0, 20, 0, object_name="@p"),)),),
    gaps=(Gap(QueueOffset(1), QueueOffset(2), "lost", 4),),
    used_below=(0, 0),
)


def as_decoded(raw: Any) -> tuple[QueueId, Any] | None:
    """What the codec and packing make of a value; None where that is no record."""
    try:
        record = CODEC.decode(raw)
    except (DecodeError, NewerVersion):
        return None
    return record.id, pack(record)


def places(raw: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where a JSON value has values."""
    inner = raw.items() if isinstance(raw, dict) else enumerate(raw) if type(raw) is list else ()
    return [path, *(one for key, value in inner for one in places(value, (*path, key)))]


def put(raw: Any, path: tuple[Any, ...], value: object) -> Any:
    """The same with another value at one place."""
    if not path:
        return value
    changed, at = deepcopy(raw), path[:-1]
    holder = changed
    for key in at:
        holder = holder[key]
    holder[path[-1]] = value
    return changed


@given(usual_queues())
@example(FULL)
def test_a_usual_record_needs_no_codec(record: Queue) -> None:
    text = orjson.dumps(CODEC.encode(record))
    assert orjson.dumps(raw_of(pack(record), record.id)) == text
    assert packed_of(orjson.loads(text)) == (record.id, pack(record))


@given(queues)
def test_any_record_is_written_as_the_codec_writes_it_and_read_so_or_by_it(record: Queue) -> None:
    text = orjson.dumps(CODEC.encode(record))
    assert orjson.dumps(raw_of(pack(record), record.id)) == text
    assert packed_of(orjson.loads(text)) in {None, (record.id, pack(record))}


@given(usual_queues() | st.just(FULL), st.randoms(use_true_random=False))
def test_what_we_would_not_write_is_read_as_the_codec_reads_it(record: Queue, rng: Random) -> None:
    raw = orjson.loads(orjson.dumps(CODEC.encode(record)))
    for _ in range(20):
        changed = put(raw, rng.choice(places(raw)), rng.choice(JUNK))
        before = deepcopy(changed)
        found = packed_of(changed)
        assert changed == before
        assert found is None or found == as_decoded(changed)


def test_every_place_of_a_record_takes_no_junk_that_the_codec_refuses() -> None:
    raw = orjson.loads(orjson.dumps(CODEC.encode(FULL)))
    for path in places(raw):
        for junk in JUNK:
            changed = put(raw, path, junk)
            found = packed_of(changed)
            assert found is None or found == as_decoded(changed), (path, junk)
    for name in ("generation", "repacks", "used_below", "commit_log", "manifests", "newer"):
        for junk in JUNK:
            changed = {**raw, name: junk}
            found = packed_of(changed)
            assert found is None or found == as_decoded(changed), (name, junk)


@given(st.lists(usual_queues() | queues, max_size=6, unique_by=lambda one: one.id))
def test_a_snapshot_has_the_same_bytes_whichever_records_rest(records: list[Queue]) -> None:
    resting, awake = TierState(queues=QueueTable(records)), TierState()
    for record in records:
        awake.queues[record.id] = record
    expected = b",".join(orjson.dumps(CODEC.encode(record)) for record in records)
    payload = b"".join(state_pieces(awake))
    assert b'"queues":[%b],"tombstones"' % expected in payload
    assert b"".join(state_pieces(resting)) == payload
    assert decode_state(payload, path="p").queues == resting.queues


def test_a_start_and_a_snapshot_of_usual_records_make_none(monkeypatch: pytest.MonkeyPatch) -> None:
    known = TierState(queues=QueueTable([FULL]), parts={"@p": Part("@p", 1)})
    payload = b"".join(state_pieces(known))
    for name in ("pack", "unpack"):
        monkeypatch.delattr(tables, name)
    state = decode_state(payload, path="p")
    assert b"".join(state_pieces(state)) == payload
