"""RocketMQ's names for directories and files, and which names are safe."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from container.names import rocketmq as names
from container.names.queue_id import QueueId, SegmentType, check_path_component

safe = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=60).filter(
    lambda name: check_path_component(name) is None
)
bases = st.integers(0, names.INT64_MAX)
queue_ids = st.integers(0, names.INT32_MAX)


def test_names_are_those_of_a_java_store() -> None:
    assert names.hash8("DefaultCluster") == "212d6b50"
    assert names.cluster_directory("TieredStorageDailyTest") == "161c08ff_TieredStorageDailyTest"
    assert names.base_file_name(0) == "cfcd208400000000000000000000"
    assert names.base_file_name(4294937144) == "b10da56800000000004294937144"
    assert names.index_name(0) == "rmq_sys_INDEX/0/INDEX/cfcd208400000000000000000000"
    assert names.broker_directory("GoldenCluster", "a") == "1cfb8c9b_GoldenCluster/a"


@given(safe, queue_ids, bases)
def test_a_segment_name_is_read_back(topic: str, queue_id: int, base: int) -> None:
    assume(QueueId(topic, queue_id) != names.INDEX_QUEUE)  # has index files alone
    for kind in (SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE):
        name = names.SegmentName(QueueId(topic, queue_id), kind, base)
        assert names.parse_segment_name(str(name)) == name
        assert str(name) == names.segment_name(name.queue, kind, base)


@given(bases)
def test_index_and_local_names_are_read_back(base: int) -> None:
    parsed = names.parse_segment_name(names.index_name(base))
    assert parsed == names.SegmentName(names.INDEX_QUEUE, SegmentType.INDEX, base)
    assert names.parse_local_file_name(names.local_file_name(base)) == base


@given(safe)
def test_a_cluster_directory_is_read_back(cluster: str) -> None:
    assert names.parse_cluster_directory(names.cluster_directory(cluster)) == cluster


@given(st.text(max_size=80))
def test_any_text_is_a_name_only_if_we_would_write_it(text: str) -> None:
    parsed = names.parse_segment_name(text)
    assert parsed is None or str(parsed) == text
    assert names.parse_cluster_directory(text) is None or "_" in text


GOOD = "T/0/COMMIT_LOG/cfcd208400000000000000000000"


@pytest.mark.parametrize(
    "foreign",
    [
        GOOD.replace("cfcd", "cfce"),
        GOOD.replace("T/0", "T/00"),
        GOOD.replace("T/0", "T/-1"),
        GOOD.replace("T/0", "T/2147483648"),
        GOOD.replace("T/0", "T/٣"),
        GOOD.replace("T/", "../"),
        GOOD.replace("T/", "@T/"),
        GOOD.replace("COMMIT_LOG", "INDEX"),
        GOOD.replace("COMMIT_LOG", "__members__"),
        GOOD + "0",
        GOOD + ".tmp",
        "/" + GOOD,
        "@journal/00000000000000000001",
        "rmq_sys_INDEX/0/COMMIT_LOG/cfcd208400000000000000000000",
        "T/0/COMMIT_LOG/" + names.hash8("9" * 20) + "9" * 20,
    ],
)
def test_foreign_names_are_nothing(foreign: str) -> None:
    assert names.parse_segment_name(GOOD) is not None
    assert names.parse_segment_name(foreign) is None


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", "a/b", "/", "a\\b", "a\0", "a\n", "\x1f", "\x7f", "\x80", "\x9f", "@a"),
        *("\ud800", "a" * 256, "é" * 128),
    ],
)
def test_unsafe_names_are_refused_with_a_reason(name: str) -> None:
    reason = check_path_component(name)
    assert reason is not None
    assert reason.startswith("it ")


@pytest.mark.parametrize(
    "name", ["a", "...", "%RETRY%g", "a@b", " ", "é" * 127, "漢字", "😀", "\xa0"]
)
def test_other_names_are_safe(name: str) -> None:
    assert check_path_component(name) is None
