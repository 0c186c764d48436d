"""The Java store's metadata file: loose and strict forms, old and new, and damage."""

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.java.metadata import (
    UNSET_TIMESTAMP,
    FileKey,
    JavaMetadata,
    JavaQueue,
    JavaSegment,
    JavaTopic,
    Json,
    encode_java_metadata,
    parse_java_metadata,
    parse_loose_json,
)
from container.names.queue_id import QueueId, SegmentType
from provider.errors import Corrupt
from tests.support.golden import GOLDEN_TREES, GoldenSet, tree_name, unpacked
from tests.support.messages import damages, value_or_corrupt

numbers = st.integers(-(2**63), 2**63 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SEGMENT = (
    b'{"baseOffset":0,"beginTimestamp":9223372036854775807,"createTimestamp":5,'
    b'"endTimestamp":9223372036854775807,"path":"p","sealTimestamp":0,"size":720,"status":1,"type":0}'
)


def parse(raw: bytes) -> JavaMetadata:
    return parse_java_metadata(raw, path="meta.json")


@st.composite
def file_keys(draw: st.DrawFn) -> FileKey:
    names = st.text("ab_%é1", min_size=1, max_size=4)
    return FileKey(draw(names), QueueId(draw(names), draw(st.integers(0, 99))))


segments = st.builds(JavaSegment, texts, *[numbers] * 8)
tables = st.dictionaries(
    file_keys(),
    st.lists(segments, max_size=3, unique_by=lambda s: s.base_offset).map(
        lambda found: tuple(sorted(found, key=lambda s: s.base_offset))
    ),
    max_size=3,
)
metadata = st.builds(
    JavaMetadata,
    st.fixed_dictionaries(dict.fromkeys(SegmentType, tables)),
    st.lists(
        st.builds(JavaQueue, texts, texts, *[numbers] * 4),
        max_size=3,
        unique_by=(lambda q: q.topic, lambda q: q.queue_id),
    ).map(tuple),
    st.lists(
        st.builds(JavaTopic, numbers, texts, *[numbers] * 3),
        max_size=3,
        unique_by=lambda t: t.topic,
    ).map(tuple),
    numbers,
)


@given(metadata)
def test_what_is_written_is_strict_json_and_comes_back_equal(one: JavaMetadata) -> None:
    raw = encode_java_metadata(one)
    assert isinstance(orjson.loads(raw), dict)
    assert parse(raw) == one


@pytest.mark.parametrize(("golden", "kind"), GOLDEN_TREES, ids=tree_name)
def test_every_golden_file_is_read_and_survives_our_writing(golden: GoldenSet, kind: str) -> None:
    tree = unpacked(golden, kind)
    one = parse_java_metadata(tree.java_metadata.read_bytes(), path=str(tree.java_metadata))
    assert parse(encode_java_metadata(one)) == one
    logs = one.segments[SegmentType.COMMIT_LOG]
    assert sorted(key.queue for key in logs) == tree.queues()
    for key, found in logs.items():
        assert key.broker_name == golden.broker
        files = tree.segments(key.queue, "COMMIT_LOG")
        assert [segment.base_offset for segment in found] == [base for base, _ in files]
        assert [segment.size for segment in found] == [path.stat().st_size for _, path in files]
    assert {queue.topic for queue in one.queues} == {topic.topic for topic in one.topics}
    assert {topic.topic_id for topic in one.topics} <= set(range(one.topic_serial_number + 1))


def test_written_fields_have_fastjsons_names_and_order() -> None:
    one = JavaMetadata(
        {SegmentType.INDEX: {FileKey("b", QueueId("t", 0)): (JavaSegment("p", *range(8)),)}}, (), ()
    )
    root = orjson.loads(encode_java_metadata(one))
    assert list(root) == [
        "commitLogFileSegmentTable",
        "consumeQueueFileSegmentTable",
        "indexFileSegmentTable",
        "queueMetadataTable",
        "topicMetadataTable",
        "topicSerialNumber",
    ]
    segment = root["indexFileSegmentTable"]["b/t/0"]["1"]
    assert ",".join(segment) == (
        "path,type,baseOffset,status,size,createTimestamp,beginTimestamp,endTimestamp,sealTimestamp"
    )


def test_objects_as_keys_are_read_as_510_wrote_them() -> None:
    raw = (
        b'{"commitLogFileSegmentTable":{{"brokerName":"b","queueId":3,"topic":"t"}:{0:'
        + SEGMENT
        + b'}},"maxTopicId":4,"queueMetadataTable":{"t":{3:{"maxOffset":9,"minOffset":1,'
        b'"queue":{"brokerName":"b","queueId":3,"topic":"t"},"updateTimestamp":7}}}}'
    )
    one = parse(raw)
    (segment,) = one.segments[SegmentType.COMMIT_LOG][FileKey("b", QueueId("t", 3))]
    assert (segment.size, segment.begin_timestamp) == (720, UNSET_TIMESTAMP)
    assert one.queues == (JavaQueue("b", "t", 3, 1, 9, 7),)
    assert one.topic_serial_number == 3


def test_text_that_looks_like_loose_json_inside_a_string_is_left_alone() -> None:
    loose = rb'{0:"{1:{2:\"x\"}}", a_b : [1,-2.5e1,true,null], "q\"{3:" : "\u00e9\ud83d\ude00\/"}'
    assert parse_loose_json(loose, path="m") == {
        "0": '{1:{2:"x"}}',
        "a_b": [1, -25.0, True, None],
        'q"{3:': "é😀/",
    }


json_values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=12,
)


@given(json_values)
def test_strict_json_is_read_as_any_parser_reads_it(value: Json) -> None:
    raw = orjson.dumps(value)
    assert parse_loose_json(raw, path="m") == orjson.loads(raw)


@given(st.one_of(metadata.map(encode_java_metadata), st.just(SEGMENT)).flatmap(damages))
def test_damage_gives_a_value_or_corrupt_with_its_place(raw: bytes) -> None:
    found = value_or_corrupt(lambda: parse(raw))
    if isinstance(found, Corrupt):
        assert found.path == "meta.json"
        assert 0 <= found.position <= len(raw)
    else:
        assert parse(encode_java_metadata(found)) == found


@pytest.mark.parametrize(
    ("raw", "position"),
    [
        (b"", 0),
        (b"{} x", 3),
        (b'{"a" 1}', 5),
        (b"{0:1 2}", 5),
        (b"[1 2]", 3),
        (b'{"\xc3\xa9":"x', 8),
        (b'{"a":\xff}', 5),
        (b"{a:nul}", 3),
        (b'{a:1, {"b":2}:nul}', 14),
    ],
)
def test_each_damage_has_its_place(raw: bytes, position: int) -> None:
    with pytest.raises(Corrupt, match="metadata is not") as caught:
        parse_loose_json(raw, path="m")
    assert caught.value.position == position


@pytest.mark.parametrize(
    "raw",
    [
        b"[]",
        b'{"topicSerialNumber":true}',
        b'{"topicSerialNumber":9223372036854775808}',
        b'{"commitLogFileSegmentTable":{"no path":{}}}',
        b'{"commitLogFileSegmentTable":{"b/t/0":{0:7}}}',
        b'{"commitLogFileSegmentTable":{{"topic":"t"}:{}}}',
        b'{"topicMetadataTable":{"t":{"topic":5}}}',
        b'{"queueMetadataTable":{"t":{0:{}}}}',
    ],
)
def test_wrong_types_are_corrupt(raw: bytes) -> None:
    with pytest.raises(Corrupt):
        parse(raw)
