"""A store directory that was left in any state: what was whole stays, what is torn goes."""

import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.names.queue_id import QueueId
from provider.errors import Corrupt, Denied
from tests.support.hot_store import SMALL, appender_at, contents, new_message, put, units_after
from tieredstore.hot.appender import Appender
from tieredstore.hot.log.directory import InUse, StoreDirectory
from tieredstore.hot.log.durable_ends import Checkpoint
from tieredstore.hot.options import HotWriteOptions

QUEUES = [QueueId("Orders", 0), QueueId("Orders", 1), QueueId("Refunds", 0)]


def fill(store: Appender, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        topic, queue_id = QUEUES[number % 3]
        put(store, [new_message(number, topic=topic, queue_id=queue_id)], 10_000 + number)


def bodies(store: Appender) -> dict[QueueId, list[bytes]]:
    return {queue: [m.body for m in found] for queue, found in contents(store).items()}


def assert_is_prefix(store: Appender, whole: dict[QueueId, list[bytes]], count: int) -> None:
    """The first `count` of the messages that were put in turn are there, and nothing else."""
    for number, queue in enumerate(QUEUES):
        expected = whole[queue][: (count + 2 - number) // 3]
        assert bodies(store).get(queue, []) == expected
        assert units_after(store, queue, len(expected)) == []


Written = tuple[Path, dict[QueueId, list[bytes]], list[tuple[int, int]]]


def write(root: Path, options: HotWriteOptions = SMALL, count: int = 40) -> Written:
    """Messages in several files of each kind, not closed; the bodies, and where records lie."""
    places: list[tuple[int, int]] = []
    with appender_at(root, options) as store:
        for number in range(count):
            topic, queue_id = QUEUES[number % 3]
            message = new_message(number, topic=topic, queue_id=queue_id)
            (place,) = put(store, [message], 10_000 + number)
            places.append((place.position, place.size))
        return root, bodies(store), places


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return write(tmp_path / "store")


def test_what_was_closed_is_found_without_a_look_at_the_records(tmp_path: Path) -> None:
    with appender_at(tmp_path) as store:
        fill(store, 40)
        end, whole = store.end, bodies(store)
        store.close()
    assert not (tmp_path / "abort").exists()
    checkpoint = Checkpoint.decode((tmp_path / "checkpoint").read_bytes())
    assert (checkpoint.log_timestamp, checkpoint.queues_timestamp) == (10_039, 10_039)
    with appender_at(tmp_path) as store:
        assert store.recovered.messages_scanned == 0
        assert (store.end, bodies(store)) == (end, whole)
        fill(store, 3, 40)
        assert [len(found) for found in bodies(store).values()] == [15, 14, 14]


def test_a_process_that_was_killed_loses_nothing(tmp_path: Path) -> None:
    with appender_at(tmp_path) as store:
        fill(store, 40)
        end, whole = store.end, bodies(store)
    assert (tmp_path / "abort").exists()
    with appender_at(tmp_path) as store:
        assert store.recovered.messages_scanned > 0
        assert (store.end, bodies(store)) == (end, whole)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"record_crc": False}, {"record_crc": True}], ids=str)
def test_a_log_torn_at_any_byte_keeps_the_records_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, bool]
) -> None:
    """At each byte of the last two records. What follows is zeros, for the files are sparse."""
    monkeypatch.setattr(os, "fsync", lambda _fd: None)  # thousands, and no power failure here
    monkeypatch.setattr(os, "fdatasync", lambda _fd: None)
    chosen = replace(SMALL, commit_log_bytes=1024, record_crc=options["record_crc"])
    store, whole, places = write(tmp_path / "store", chosen, 10)
    base = 1024
    raw = (store / "commitlog" / f"{base:020d}").read_bytes()
    (first, _), (last, size) = places[-2:]
    for tear in range(first, last + size + 1):
        copy = tmp_path / "copy"
        shutil.copytree(store, copy)
        torn = raw[: tear - base].ljust(1024, b"\0")
        (copy / "commitlog" / f"{base:020d}").write_bytes(torn)
        kept = 8
        while kept < 10 and torn[: sum(places[kept]) - base] == raw[: sum(places[kept]) - base]:
            kept += 1
        with appender_at(copy, chosen) as opened:
            assert opened.end == sum(places[kept - 1])
            assert_is_prefix(opened, whole, kept)
            after = (copy / "commitlog" / f"{base:020d}").read_bytes()[opened.end - base :]
            assert not any(after)
        shutil.rmtree(copy)


def test_a_lost_page_of_properties_shows_without_a_checksum(tmp_path: Path) -> None:
    """The format has none over properties; pages that were never written are zeros."""
    options = replace(SMALL, commit_log_bytes=1 << 16)
    long = new_message(1)._replace(properties={"TAGS": "a", "long": "x" * 13_000})
    with appender_at(tmp_path / "store", options) as store:
        put(store, [new_message(0), long])
    path = "commitlog/" + "0" * 20
    raw = (tmp_path / "store" / path).read_bytes()
    for page in (1, 2, 3):
        copy = tmp_path / f"copy-{page}"
        shutil.copytree(tmp_path / "store", copy)
        torn = raw[: page * 4096] + bytes(4096) + raw[(page + 1) * 4096 :]
        (copy / path).write_bytes(torn)
        with appender_at(copy, options) as opened:
            assert [m.body for m in contents(opened)[QUEUES[0]]] == [new_message(0).body]
    with appender_at(tmp_path / "store", options) as opened:
        assert len(contents(opened)[QUEUES[0]]) == 2


@pytest.mark.parametrize("end", ["closed", "killed"])
@pytest.mark.parametrize("missing", ["consumequeue", "consumequeue/Orders/1", "checkpoint"])
def test_what_is_missing_is_made_anew(
    written: Written,
    missing: str,
    end: str,
) -> None:
    store, whole, places = written
    if end == "closed":
        with appender_at(store) as opened:
            opened.close()
    files = {p: p.read_bytes() for p in (store / "consumequeue").rglob("*") if p.is_file()}
    if (store / missing).is_dir():
        shutil.rmtree(store / missing)
    else:
        (store / missing).unlink()
    with appender_at(store) as opened:
        assert bodies(opened) == whole
        assert opened.end == sum(places[-1])
    assert {p: p.read_bytes() for p in files} == files


@given(st.data())
def test_units_of_any_content_after_the_checkpoint_are_made_anew(data: st.DataObject) -> None:
    """A power failure may leave old, new or no units in any page; the records say what they are."""
    with tempfile.TemporaryDirectory() as directory, patch("os.fsync"), patch("os.fdatasync"):
        root = Path(directory)
        with appender_at(root) as store:
            fill(store, 12)
            store.flush_queues()
            fill(store, 8, 12)
            whole = bodies(store)
            for queue in QUEUES:
                for offset in range(4, store.next_offsets[queue]):
                    wrong = data.draw(st.sampled_from([b"", bytes(20), bytes(8) + b"\x01" * 12]))
                    if wrong:
                        store.queues.write(queue, offset, wrong)
        (root / "checkpoint").write_bytes(Checkpoint(13_011, 13_011).encode())
        with appender_at(root) as opened:
            assert bodies(opened) == whole


def test_units_beyond_the_log_become_zeros(tmp_path: Path) -> None:
    """A power failure took records whose units had reached the disk."""
    with appender_at(tmp_path) as store:
        fill(store, 9)
        whole, end = bodies(store), store.end
        fill(store, 30, 9)
    (tmp_path / "commitlog" / f"{4096:020d}").unlink()
    path = tmp_path / "commitlog" / f"{0:020d}"
    path.write_bytes(path.read_bytes()[:end].ljust(4096, b"\x00"))
    with appender_at(tmp_path) as opened:
        assert bodies(opened) == whole
        assert_is_prefix(opened, whole, 9)
        fill(opened, 30, 9)
        assert [len(found) for found in bodies(opened).values()] == [13, 13, 13]


def test_an_empty_log_is_recovered(tmp_path: Path) -> None:
    for _ in range(2):
        with appender_at(tmp_path) as store:
            assert (store.end, store.next_offsets) == (0, {})
    with appender_at(tmp_path) as store:
        fill(store, 1)
        assert len(bodies(store)[QUEUES[0]]) == 1


def test_a_file_that_a_crash_left_short_is_used(tmp_path: Path) -> None:
    with appender_at(tmp_path) as store:
        fill(store, 3)
        whole = bodies(store)
    (tmp_path / "commitlog" / f"{4096:020d}").touch()
    (tmp_path / "consumequeue/Orders/0" / f"{200:020d}").touch()
    with appender_at(tmp_path) as store:
        assert bodies(store) == whole
        fill(store, 40, 3)
        assert sum(len(found) for found in bodies(store).values()) == 43


def test_other_lengths_than_configured_are_refused(tmp_path: Path) -> None:
    with appender_at(tmp_path) as store:
        fill(store, 40)
        store.close()
    for changes in ({"commit_log_bytes": 2048}, {"commit_log_bytes": 8192}):
        with (
            pytest.raises(Denied, match="mappedFileSizeCommitLog is"),
            appender_at(tmp_path, replace(SMALL, **changes)),
        ):
            pass
    with (
        pytest.raises(Denied, match="mappedFileSizeConsumeQueue is 100"),
        appender_at(tmp_path, replace(SMALL, consume_queue_bytes=100)),
    ):
        pass


def test_a_hole_in_the_log_is_damage(tmp_path: Path) -> None:
    with appender_at(tmp_path) as store:
        fill(store, 80)
        store.close()
    (tmp_path / "commitlog" / f"{4096:020d}").unlink()
    with (
        pytest.raises(Corrupt, match="the file is missing, though a later one is there"),
        appender_at(tmp_path),
    ):
        pass


@pytest.mark.parametrize(
    "name", ["batchconsumequeue/T", "consumequeue_ext/T", "consumequeue/%LMQ%a"]
)
def test_queues_of_other_kinds_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir(parents=True)
    with pytest.raises(Denied, match="not written by this store"), appender_at(tmp_path):
        pass


def test_a_second_owner_is_refused_and_told_of_the_first(tmp_path: Path) -> None:
    with appender_at(tmp_path) as store:
        fill(store, 1)
        writer = rf"Process {os.getpid()} on .* \(since .*Z\)"
        with pytest.raises(InUse, match=f"{writer} writes the store .*: stop it first"):
            StoreDirectory(tmp_path)
        fill(store, 1, 1)
        assert (tmp_path / "lock").read_bytes() == b"lock"
    with appender_at(tmp_path) as store:
        assert sum(map(len, contents(store).values())) == 2
