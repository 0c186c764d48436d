"""A CommitLog in several directories is followed as if it lay in one; one in DLedger is named."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from container.names.queue_id import QueueId
from provider.errors import Closed, Denied, Unavailable
from provider.testing.manual_clock import ManualClock
from tests.support.fake_broker import FakeBroker
from tests.support.followed import bodies, clock, follow, logs, poll_later
from tests.support.pinned import read
from tieredstore.following.directory.layout import (
    NotAStore,
    commit_log_directories,
    open_layout,
    split_paths,
)
from tieredstore.following.hot_log import RocketMqHotLog
from tieredstore.following.log.followed_log import Pins
from tieredstore.following.options import HotLogOptions

__all__ = ["clock", "logs"]  # fixtures

A0 = QueueId("A", 0)


@pytest.fixture
def places(tmp_path: Path) -> list[Path]:
    return [tmp_path / name / "commitlog" for name in ("disk1", "disk2", "disk3")]


@pytest.fixture
def broker(tmp_path: Path, places: list[Path]) -> FakeBroker:
    return FakeBroker(
        tmp_path / "store", commit_log_bytes=4096, consume_queue_bytes=400, commit_logs=places
    )


def named(places: Sequence[Path]) -> str:
    return ",".join(map(str, places))


def fill(broker: FakeBroker, count: int) -> None:
    for number in range(count):
        broker.put("A", 0, b"%03d" % number + bytes(400), tags=f"Tag{number % 3}")


async def test_files_that_are_dealt_out_over_directories_are_one_log(
    broker: FakeBroker, places: list[Path], clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    fill(broker, 40)
    assert [len(list(place.iterdir())) for place in places] == [2, 2, 1]
    log = await follow(broker, clock, logs, commit_log_path=named(places))
    await log.poll()
    fill(broker, 40)
    await poll_later(log, clock)
    found = await read(log, A0, 0)
    assert [offset for offset, _, _ in found] == list(range(80))
    assert [body[:3] for _, body, _ in found] == [b"%03d" % n for n in range(40)] * 2
    assert log.statistics.findings == []


async def test_read_only_directories_hold_the_older_files(
    broker: FakeBroker, places: list[Path], clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    fill(broker, 40)
    log = await follow(
        broker,
        clock,
        logs,
        commit_log_path=named(places[:1]),
        read_only_commit_log_paths=named(places[1:]),
    )
    await log.poll()
    assert await bodies(log, A0, 0, 40) == 40


async def test_the_oldest_files_may_go_from_any_directory(
    broker: FakeBroker, places: list[Path], clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    fill(broker, 16)  # two files
    log = await follow(broker, clock, logs, commit_log_path=named(places))
    await log.poll()
    broker.delete_oldest_file()  # its directory is empty now
    ((low, high),) = (await poll_later(log, clock)).values()
    assert low > 0
    assert await bodies(log, A0, low, high) == high - low


async def test_each_volume_has_its_pins(
    broker: FakeBroker, places: list[Path], clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    fill(broker, 40)
    pins = [broker.directory.parent / name for name in ("pins1", "pins2")]
    log = await follow(broker, clock, logs, commit_log_path=named(places), pin_path=named(pins))
    await log.poll()
    for _ in range(3):
        broker.delete_oldest_file()
    await poll_later(log, clock)
    assert [offset for offset, _, _ in await read(log, A0, 0)] == list(range(40))
    log.check()


def test_a_volume_without_a_directory_of_pins_is_refused(
    broker: FakeBroker, places: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stat(path: Path, *, follow_symlinks: bool = True, real=Path.stat):
        found = real(path, follow_symlinks=follow_symlinks)
        if "disk2" not in path.parts:
            return found
        values = list(found)
        values[2] = found.st_dev + 1
        return type(found)(values)

    monkeypatch.setattr(Path, "stat", stat)
    with pytest.raises(Denied, match=r"volume of .*disk2"):
        Pins([broker.directory.parent / "pins"], places, 1 << 30)


async def test_a_directory_that_is_away_is_no_deletion(
    broker: FakeBroker, places: list[Path], clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    fill(broker, 40)
    log = await follow(broker, clock, logs, commit_log_path=named(places))
    await log.poll()
    away = places[0].with_name("away")
    places[0].rename(away)
    with pytest.raises(Unavailable, match="away"):
        await poll_later(log, clock)
    away.rename(places[0])
    assert await poll_later(log, clock) == {}
    assert await bodies(log, A0, 0, 40) == 40


async def test_a_file_replaced_in_any_directory_is_another_log(
    broker: FakeBroker, places: list[Path], clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    fill(broker, 40)
    log = await follow(broker, clock, logs, commit_log_path=named(places))
    await log.poll()
    path = broker.log_path(4096)
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    copy.replace(path)
    with pytest.raises(Closed, match="replaced") as caught:
        await poll_later(log, clock)
    assert caught.value.path == str(path)


async def test_a_name_in_two_directories_is_a_finding(
    broker: FakeBroker, places: list[Path], clock: ManualClock, logs: list[RocketMqHotLog]
) -> None:
    fill(broker, 8)
    double = places[1] / broker.log_path(0).name
    double.write_bytes(bytes(4096))
    log = await follow(broker, clock, logs, commit_log_path=named(places))
    await log.poll()
    assert await bodies(log, A0, 0, 8) == 8
    (finding,) = log.statistics.findings
    assert str(double) in finding


def test_settings_name_one_directory_or_several(tmp_path: Path) -> None:
    colon = tmp_path / "a:b"
    colon.mkdir()
    assert split_paths("") == []
    assert split_paths("/a, /b ,,/a") == [Path("/a"), Path("/b")]
    assert split_paths("/a:/b") == [Path("/a"), Path("/b")]
    assert split_paths(f"{colon},/c") == [colon, Path("/c")]
    both = HotLogOptions(commit_log_path="/a,/b", read_only_commit_log_paths="/b,/c")
    assert commit_log_directories(tmp_path, both) == (Path("/a"), Path("/b"), Path("/c"))
    assert commit_log_directories(tmp_path, HotLogOptions()) == (tmp_path / "commitlog",)


def test_several_directories_of_which_none_is_there_are_no_store(tmp_path: Path) -> None:
    options = HotLogOptions(commit_log_path=f"{tmp_path / 'a'},{tmp_path / 'b'}")
    with pytest.raises(NotAStore, match="storePathCommitLog"):
        open_layout(tmp_path, options)


@pytest.mark.parametrize("with_commit_log", [True, False])
def test_a_dledger_log_is_said_to_be_one(tmp_path: Path, *, with_commit_log: bool) -> None:
    data = tmp_path / "dledger-n0" / "data"
    data.mkdir(parents=True)
    (data / ("0" * 20)).write_bytes(bytes(4096))
    if with_commit_log:
        (tmp_path / "commitlog").mkdir()
    with pytest.raises(NotAStore, match=r"DLedger.*controller mode") as caught:
        open_layout(tmp_path, HotLogOptions())
    assert caught.value.path == str(tmp_path / "dledger-n0")


def test_a_commit_log_beside_an_old_dledger_log_is_followed_unless_the_broker_says_dledger(
    tmp_path: Path,
) -> None:
    FakeBroker(tmp_path).put("A", 0)
    (tmp_path / "dledger-n0" / "data").mkdir(parents=True)
    assert open_layout(tmp_path, HotLogOptions()).commit_logs == (tmp_path / "commitlog",)
    with pytest.raises(NotAStore, match="DLedger"):
        open_layout(tmp_path, HotLogOptions(in_dledger=True))
