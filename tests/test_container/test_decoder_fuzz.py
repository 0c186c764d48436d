"""Whatever bytes stand where metadata should be: a value or a verdict, never another error.

The frame's checksum finds what storage did to an object; here the checksum is right and what it
covers is not, as a faulty or hostile writer would have it.
"""

import asyncio
import random
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from container.errors import NewerVersion
from container.java.metadata import parse_java_metadata
from container.java.tier import load_java_tier
from container.journal.frame import Frame, FrameKind
from container.journal.reader import decode_snapshot
from container.metadata.codec import (
    decode_operations,
    decode_segments,
    decode_state,
    encode_operations,
    encode_segments,
    join_operations,
    state_pieces,
)
from container.metadata.records import ManifestRef
from container.metadata.state import TierState
from container.metadata.tables import QueueTable
from container.names.queue_id import QueueId, SegmentType
from container.names.tier_objects import ManifestName, SnapshotName
from container.queue.manifest import decode_manifest
from container.record.batch import decode_units
from container.record.header import RecordHeader, locate_parts
from container.record.message import StoredMessage
from provider.errors import Corrupt, StoreError
from provider.posix.store import PosixStore
from tests.support import tier_values as tv
from tests.support.golden import VARIANTS_520, unpacked
from tests.support.messages import damages, messages

NONCE = bytes(16)
QUEUE = QueueId("T", 3)
Decoder = Callable[[bytes], object]


def payload_of_a_state(queues: list[Any], topics: list[Any]) -> bytes:
    state = TierState()
    state.queues = QueueTable(queues)
    state.topics = {topic.name: topic for topic in topics}
    return b"".join(state_pieces(state))


def snapshot(payload: bytes) -> TierState:
    raw = Frame(FrameKind.SNAPSHOT, 1, 0, NONCE, payload).encode()
    return decode_snapshot(raw, SnapshotName(0, 1, NONCE.hex()))


def manifest(payload: bytes) -> object:
    name = ManifestName(QUEUE, SegmentType.COMMIT_LOG, 0, 0, 1, NONCE.hex())
    ref = ManifestRef(str(name), SegmentType.COMMIT_LOG, 0, 100, 1, 100, 0, 0)
    return decode_manifest(Frame(FrameKind.MANIFEST, 1, 9, NONCE, payload).encode(), ref)


entries = st.lists(tv.operations, min_size=1, max_size=2).map(
    lambda operations: join_operations([encode_operations(operations)])
)
manifests = st.lists(tv.segments, min_size=1, max_size=2).map(partial(encode_segments, QUEUE))
states = st.builds(
    payload_of_a_state, st.lists(tv.queues, max_size=2), st.lists(tv.topics, max_size=2)
)
cases: st.SearchStrategy[tuple[bytes, Decoder]] = st.one_of(
    st.tuples(entries, st.just(partial(decode_operations, path="p"))),
    st.tuples(manifests, st.sampled_from([partial(decode_segments, path="p"), manifest])),
    st.tuples(states, st.sampled_from([partial(decode_state, path="p"), snapshot])),
)
junk = st.sampled_from([
    None, True, -1, 2**63, 2**64 - 1, 1.5, 1e300, "", "x" * 100, [], {}, [[]], {"": {}}, "\ud7ff\0",
])  # fmt: skip


def with_junk(raw: bytes, value: object, rng: random.Random) -> bytes:
    """A JSON document with one of its values, at any depth, replaced."""
    document = orjson.loads(raw)
    place = document
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return raw
        key = rng.choice(keys)
        if not isinstance(place[key], dict | list) or rng.random() < 0.2:
            place[key] = value
            return orjson.dumps(document)
        place = place[key]


def verdict_of(decode: Decoder, raw: bytes) -> object:
    """What is decoded, or the verdict; every other exception is the test's failure."""
    try:
        return decode(raw)
    except (Corrupt, NewerVersion) as error:
        return error


@given(cases, st.data())
def test_changed_bytes_of_metadata_are_a_value_or_a_verdict(
    case: tuple[bytes, Decoder], data: st.DataObject
) -> None:
    payload, decode = case
    verdict_of(decode, data.draw(damages(payload)))


@given(cases, junk, st.randoms())
def test_a_value_of_the_wrong_kind_anywhere_is_a_value_or_a_verdict(
    case: tuple[bytes, Decoder], value: object, rng: random.Random
) -> None:
    payload, decode = case
    verdict_of(decode, with_junk(payload, value, rng))


@pytest.mark.parametrize("decode", [decode_operations, decode_segments, decode_state])
@pytest.mark.parametrize("opening", [b"[", b'{"operations":', b'{"a":['])
def test_deep_nesting_is_corrupt_and_not_a_full_stack(decode: Any, opening: bytes) -> None:
    with pytest.raises(Corrupt):
        decode(opening * 200_000, path="p")


record_decoders = st.sampled_from([RecordHeader.decode, StoredMessage.decode, locate_parts])


@given(record_decoders, messages().flatmap(lambda message: damages(message.encode())))
def test_changed_bytes_of_a_record_are_a_value_or_a_verdict(decode: Any, raw: bytes) -> None:
    for buffer in (raw, bytearray(raw), memoryview(raw)):
        verdict_of(partial(decode, path="log", position=0), buffer)  # pyright: ignore[reportArgumentType] - any buffer


@given(record_decoders, st.binary(max_size=300))
def test_any_bytes_are_no_record(decode: Any, raw: bytes) -> None:
    with pytest.raises(Corrupt):
        decode(raw, path="log", position=0)


@given(st.binary(max_size=100))
def test_any_bytes_are_units_or_corrupt(raw: bytes) -> None:
    found = verdict_of(decode_units, raw)
    assert isinstance(found, Corrupt) == bool(len(raw) % 20)


@settings(max_examples=100)
@given(st.data(), st.randoms())
def test_a_java_tier_with_changed_metadata_is_loaded_or_a_verdict(
    data: st.DataObject, rng: random.Random
) -> None:
    tree = unpacked(VARIANTS_520)
    raw = tree.java_metadata.read_bytes()
    if data.draw(st.booleans()):
        raw = data.draw(damages(raw))
    else:
        value = data.draw(st.sampled_from([-(2**63), -20, -1, 0, 1, 19, 2**31, 2**62, 2**63 - 1]))
        number = rng.choice(list(re.finditer(rb"[0-9]+", raw)))
        raw = raw[: number.start()] + b"%d" % value + raw[number.end() :]
    golden = tree.golden

    async def load() -> None:
        store = PosixStore(tree.broker_directory)
        try:
            metadata = parse_java_metadata(raw, path="metadata")
            await load_java_tier(store, metadata, cluster=golden.cluster, broker=golden.broker)
        except StoreError:
            pass
        finally:
            await store.close()

    asyncio.run(load())
