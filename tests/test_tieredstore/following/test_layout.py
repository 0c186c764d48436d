"""What counts as a RocketMQ store directory, and what the refusals say."""

from collections.abc import Callable
from pathlib import Path

import pytest

from container.names.queue_id import QueueId
from dispatcher.ports import HotQueueState
from dispatcher.topic_filter import TopicFilter
from tests.support.fake_broker import FakeBroker
from tieredstore.following.directory.layout import NotAStore, open_layout, scan_run
from tieredstore.following.hot_log import StoreScan
from tieredstore.following.options import HotLogOptions


def test_a_directory_without_a_commit_log_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(NotAStore, match="storePathRootDir"):
        open_layout(tmp_path, HotLogOptions())
    with pytest.raises(NotAStore, match="no such directory"):
        open_layout(tmp_path / "nothing", HotLogOptions(commit_log_path=str(tmp_path)))


def test_a_commit_log_with_files_of_other_names_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "commitlog" / "segment-1").write_text("x")
    with pytest.raises(NotAStore, match="20 digits"):
        open_layout(tmp_path, HotLogOptions())


def test_a_commit_log_elsewhere_is_found_by_its_setting(tmp_path: Path) -> None:
    broker = FakeBroker(tmp_path / "store")
    broker.put("A", 0)
    elsewhere = tmp_path / "elsewhere"
    (tmp_path / "store" / "commitlog").rename(elsewhere)
    options = HotLogOptions(commit_log_path=str(elsewhere))
    scan = StoreScan(tmp_path / "store", options, TopicFilter("c", "b"))
    assert [seen.max_offset for seen in scan.poll(0.0).values()] == [1]


def test_a_store_that_has_just_been_made_is_empty(tmp_path: Path) -> None:
    FakeBroker(tmp_path)
    scan = StoreScan(tmp_path, HotLogOptions(), TopicFilter("c", "b"))
    assert scan.poll(0.0) == {}


def test_a_file_that_is_being_created_is_left_out(tmp_path: Path) -> None:
    for name, size in (("0" * 20, 100), (f"{100:020d}", 100), (f"{200:020d}", 0)):
        (tmp_path / name).write_bytes(bytes(size))
    run = scan_run(tmp_path)
    assert (run.bases, run.file_bytes, run.end) == ((0, 100), 100, 200)


def test_a_file_that_is_deleted_between_listing_and_stat_does_not_hide_the_others(
    tmp_path: Path,
) -> None:
    for base in (100, 200):
        (tmp_path / f"{base:020d}").write_bytes(bytes(100))
    (tmp_path / f"{0:020d}").symlink_to("gone")  # listed, and not there when it is looked at
    run = scan_run(tmp_path)
    assert (run.bases, run.file_bytes, run.end) == ((100, 200), 100, 300)


def test_sizes_are_those_of_the_files_whatever_the_defaults(tmp_path: Path) -> None:
    broker = FakeBroker(tmp_path, commit_log_bytes=5000, consume_queue_bytes=60)
    broker.put_many("A", 0, [bytes(500)] * 50)
    scan = StoreScan(tmp_path, HotLogOptions(), TopicFilter("c", "b"))
    assert [seen.max_offset for seen in scan.poll(0.0).values()] == [50]
    assert scan.log.table.file_bytes == 5000


@pytest.mark.parametrize(
    "changes", [{"poll_s_max": -1.0}, {"files_mapped_max": 0}, {"pinned_bytes_max": -1}]
)
def test_options_that_cannot_work_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        HotLogOptions(**changes)  # pyright: ignore[reportArgumentType] - wrong on purpose


@pytest.mark.parametrize("parent", ["consumequeue", "batchconsumequeue"])
@pytest.mark.parametrize("topic", [" ", "\u3000", "@lock", "tab\there"], ids=ascii)
def test_a_topic_that_its_name_keeps_out_is_refused_with_a_sentence(
    tmp_path: Path, parent: str, topic: str
) -> None:
    FakeBroker(tmp_path).put("A", 0)
    (tmp_path / parent / topic / "0").mkdir(parents=True)
    seen = StoreScan(tmp_path, HotLogOptions(), TopicFilter("c", "b")).poll(0.0)
    assert seen.keys() == {QueueId("A", 0), QueueId(topic, 0)}
    refused = seen[QueueId(topic, 0)]
    assert refused.state is HotQueueState.REFUSED
    assert "name" in refused.detail


def test_topics_of_rocketmq_itself_are_counted_and_nothing_is_said_of_them(tmp_path: Path) -> None:
    FakeBroker(tmp_path).put("TBW102", 0)
    (tmp_path / "batchconsumequeue" / "rmq_sys_X" / "0").mkdir(parents=True)
    scan = StoreScan(tmp_path, HotLogOptions(), TopicFilter("c", "b"))
    assert scan.poll(0.0) == {}
    assert scan.statistics.excluded_topics == 2
    assert scan.statistics.findings == []


@pytest.mark.parametrize("name", ["x", "-1", "007", "9" * 11, "1.5", "\uff10", " 1"], ids=ascii)
def test_a_directory_that_is_no_queues_is_a_finding_once(tmp_path: Path, name: str) -> None:
    FakeBroker(tmp_path).put("A", 0)
    (tmp_path / "consumequeue" / "A" / name).mkdir()
    scan = StoreScan(tmp_path, HotLogOptions(), TopicFilter("c", "b"))
    for now_s in (0.0, 10.0):
        scan.poll(now_s)
    (finding,) = scan.statistics.findings
    assert ascii(name).strip("'") in finding
    assert "ignored" in finding


def make_file(path: Path) -> None:
    path.write_bytes(bytes(5000))


def make_loop(path: Path) -> None:
    path.symlink_to(path)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("segment-1", make_file),
        ("lost+found", Path.mkdir),
        ("00000000000000000000.bak", make_file),
        (f"{5000:020d}", Path.mkdir),
        (f"{5000:020d}", make_loop),
        (f"{77:020d}", make_file),
        (f"{5 << 40:020d}", Path.mkdir),
    ],
)
@pytest.mark.parametrize("early", [True, False])
def test_a_foreign_file_in_the_commit_log_is_a_finding_once_and_hides_nothing(
    tmp_path: Path, name: str, make: Callable[[Path], None], *, early: bool
) -> None:
    broker = FakeBroker(tmp_path, commit_log_bytes=5000)
    broker.put("A", 0)
    foreign = tmp_path / "commitlog" / name
    if early:
        make(foreign)
    scan = StoreScan(tmp_path, HotLogOptions(), TopicFilter("c", "b"))
    assert [seen.max_offset for seen in scan.poll(0.0).values()] == [1]
    if not early:
        assert scan.statistics.findings == []
        make(foreign)
    broker.put("A", 0)
    for now_s in (1.0, 2.0, 3.0):
        scan.poll(now_s)
    assert [seen.max_offset for seen in scan.queues.values()] == [2]
    (finding,) = scan.statistics.findings
    assert str(foreign) in finding
    assert "ignored" in finding


@pytest.mark.parametrize("size", [100, 4999, 5001, 9000])
def test_a_commit_log_file_of_another_length_is_a_finding_once(tmp_path: Path, size: int) -> None:
    broker = FakeBroker(tmp_path, commit_log_bytes=5000)
    broker.put_many("A", 0, [bytes(500)] * 30)
    path = broker.log_path(5000)
    whole = path.read_bytes()
    path.write_bytes((whole + bytes(5000))[:size])
    scan = StoreScan(tmp_path, HotLogOptions(), TopicFilter("c", "b"))
    for now_s in (0.0, 1.0):
        scan.poll(now_s)
    (finding,) = scan.statistics.findings
    assert f"{path} has {size} bytes and the CommitLog's files 5000" in finding


@pytest.mark.parametrize("is_there", [True, False])
def test_messages_without_any_queue_are_a_trouble_until_there_is_one(
    tmp_path: Path, *, is_there: bool
) -> None:
    FakeBroker(tmp_path).put("A", 0)
    directory, away = tmp_path / "consumequeue", tmp_path / "away"
    directory.rename(away)
    if is_there:
        directory.mkdir()
    scan = StoreScan(tmp_path, HotLogOptions(), TopicFilter("c", "b"))
    assert scan.poll(0.0) == {}
    (trouble,) = scan.statistics.troubles
    assert str(directory) in trouble
    if is_there:
        directory.rmdir()
    away.rename(directory)
    assert [seen.max_offset for seen in scan.poll(1.0).values()] == [1]
    assert scan.statistics.troubles == []


def test_a_store_without_messages_and_without_queues_is_no_trouble(tmp_path: Path) -> None:
    broker = FakeBroker(tmp_path)
    (tmp_path / "consumequeue").rmdir()
    scan = StoreScan(tmp_path, HotLogOptions(), TopicFilter("c", "b"))
    scan.poll(0.0)
    broker.log_path(0).write_bytes(bytes(5000))  # made before the first message
    scan.poll(1.0)
    assert scan.statistics.troubles == []
