"""A store without ConsumeQueue files is read on from where the last owner came to, or anew."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

import tieredstore
from container.names.tier_objects import FollowedName
from tests.support.cli import run
from tests.support.fake_broker import FakeBroker
from tests.support.random_tier import owned
from tieredstore.config.effective import Config
from tieredstore.following.log_reader.log_scan import FollowScan, ScanStep

assert tieredstore.Follower  # its imports read files, so they are not left to a running loop

TOPICS = [f"T{number}" for number in range(5)]


@pytest.fixture
def broker(tmp_path: Path) -> FakeBroker:
    broker = FakeBroker(tmp_path / "store", commit_log_bytes=1 << 16)
    (broker.directory / "consumequeue" / "CURRENT").write_text("MANIFEST-000004\n")
    put(broker, 300)
    return broker


def put(broker: FakeBroker, count: int) -> None:
    for number in range(count):
        broker.put(TOPICS[number % 5], 0, bytes(200))


@pytest.fixture
def read_from(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Where every start began to read the log."""
    begun: list[int] = []
    seen: set[int] = set()
    read = FollowScan.read

    def watched(self: FollowScan, *args: object, **more: object) -> ScanStep:
        if id(self) not in seen:
            seen.add(id(self))
            begun.append(self.position)
            kept.append(self)
        return read(self, *args, **more)  # pyright: ignore[reportArgumentType] - as given

    kept: list[FollowScan] = []  # so that no two have one id
    monkeypatch.setattr(FollowScan, "read", watched)
    return begun


def remembered(tier: Path) -> list[FollowedName]:
    paths = tier.glob("*/*/@followed/*")
    found = [FollowedName.parse(f"@followed/{path.name}") for path in paths]
    return [name for name in found if name is not None]


async def tier_once(broker: FakeBroker, tier: Path) -> int:
    """Tier what is there; how many messages that were."""
    async with tieredstore.follow(broker.directory, tier, cluster="C", broker="b") as follower:
        messages = (await follower.drain()).messages
        assert follower.losses() == []
    async with tieredstore.open(tier) as opened:
        assert [finding async for finding in opened.check()] == []
        counts = [opened.queue(topic, 0).messages for topic in TOPICS]
        assert counts == [broker.next_offsets[queue] for queue in sorted(broker.next_offsets)]
    return messages


async def test_a_start_reads_what_came_since(
    broker: FakeBroker, tmp_path: Path, read_from: list[int]
) -> None:
    tier = tmp_path / "tier"
    ends = [0]
    assert await tier_once(broker, tier) == 300
    for _ in range(3):
        ends.append(broker.position)
        assert [name.position for name in remembered(tier)] == [broker.position]
        put(broker, 50)
        assert await tier_once(broker, tier) == 50
    assert await tier_once(broker, tier) == 0
    assert read_from == [*ends, broker.position]


async def test_a_store_that_is_read_on_is_no_stranger_for_having_only_new_topics(
    broker: FakeBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tier = tmp_path / "tier"
    await tier_once(broker, tier)
    broker.put("New", 0)
    async with tieredstore.follow(broker.directory, tier, cluster="C", broker="b") as follower:
        assert (await follower.drain()).messages == 1
        assert [one.queue.topic for one in follower.statistics().queues] == ["New"]
    assert "none of the tier's topics" not in caplog.text


def lose(path: Path) -> None:
    path.unlink()


def flip(path: Path) -> None:
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b'"position":', b'"position":1'))


def of_an_older_owner(path: Path) -> None:
    path.rename(path.with_name("0000000000" + path.name[10:]))


def of_a_journal_that_was_restored(path: Path) -> None:
    path.rename(path.with_name(path.name[:11] + "9" * 20 + path.name[31:]))


def of_another_record(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    at = raw.index(b'"', raw.index(b"[")) + 30
    raw[at : at + 2] = b"00" if raw[at : at + 2] != b"00" else b"11"
    path.write_bytes(raw)


def without_its_owner(path: Path) -> None:
    """As older versions wrote it."""
    said = orjson.loads(path.read_bytes())
    del said["owner"]
    path.write_bytes(orjson.dumps(said))


@pytest.mark.parametrize(
    "change",
    [
        lose,
        flip,
        of_an_older_owner,
        of_a_journal_that_was_restored,
        of_another_record,
        without_its_owner,
    ],
)
async def test_what_does_not_hold_is_not_believed(
    change: Callable[[Path], None], broker: FakeBroker, tmp_path: Path, read_from: list[int]
) -> None:
    tier = tmp_path / "tier"
    await tier_once(broker, tier)
    (path,) = tier.glob("*/*/@followed/*")
    change(path)
    put(broker, 10)
    assert await tier_once(broker, tier) == 10
    assert read_from == [0, 0]
    assert len(remembered(tier)) == 1


def copied_journal(tier: Path) -> Callable[[], None]:
    """Copy the journal; the result puts the copy back, and nothing else."""
    (broker,) = tier.glob("*/*")
    parts = [broker / name for name in ("@journal", "@snapshot", "@boundary")]
    copy = {path: path.read_bytes() for part in parts for path in part.glob("*")}

    def put_back() -> None:
        for path in [path for part in parts for path in part.glob("*")]:
            path.unlink()
        for path, raw in copy.items():
            path.write_bytes(raw)

    return put_back


async def test_a_position_of_a_lost_journal_is_not_believed(
    broker: FakeBroker, tmp_path: Path, read_from: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restored copy, another owner has the epoch and the entries of the position."""
    tier = tmp_path / "tier"
    await tier_once(broker, tier)
    put_back = copied_journal(tier)
    put(broker, 50)
    await tier_once(broker, tier)
    (lost,) = remembered(tier)
    put_back()
    named = {"brokerClusterName": "C", "brokerName": "b", "tieredStoreFilePath": str(tier)}
    with monkeypatch.context() as patch:
        patch.setattr("tieredstore.session.owner.owner_name", lambda *_, **__: "elsewhere:1")
        async with owned(Config.load(settings=named)) as repairing:
            assert repairing.journal.epoch == lost.epoch
            while repairing.state.sequence < lost.sequence:
                await repairing.set_topics({"T0": repairing.state.sequence})
    assert remembered(tier) == [lost]
    assert await tier_once(broker, tier) == 50
    assert read_from[-1] == 0


async def test_a_position_of_lost_entries_of_one_owner_is_not_believed(
    broker: FakeBroker, tmp_path: Path, read_from: list[int]
) -> None:
    """The copy ends within the epoch of the position, and the next fence has its number."""
    tier = tmp_path / "tier"
    await tier_once(broker, tier)
    async with tieredstore.follow(broker.directory, tier, cluster="C", broker="b") as follower:
        put_back = copied_journal(tier)
        put(broker, 50)
        assert (await follower.drain()).messages == 50
    put_back()
    assert await tier_once(broker, tier) == 50
    assert read_from[-1] == 0


async def test_messages_that_a_cut_took_out_are_tiered_again(
    broker: FakeBroker, tmp_path: Path, read_from: list[int]
) -> None:
    """The tier has what the log had before the broker lost its tail and gave offsets again."""
    tier = tmp_path / "tier"
    await tier_once(broker, tier)
    broker.crash(broker.position - broker.unit("T0", 0, 50).position)
    for topic in TOPICS:
        broker.next_offsets[next(q for q in broker.next_offsets if q.topic == topic)] = 50
    for number in range(100):
        broker.put(TOPICS[number % 5], 0, b"another" * 9)
    async with tieredstore.follow(broker.directory, tier, cluster="C", broker="b") as follower:
        statistics = await follower.drain()
        assert {queue.state.value for queue in statistics.queues} == {"stopped"}
    named = ("-D", "brokerClusterName=C", "-D", "brokerName=b", "-D", f"tieredStoreFilePath={tier}")
    repair = ("repair", "--cut-to-hot", "--yes", "--store", str(broker.directory))
    await asyncio.to_thread(run, *named, *repair)
    assert await tier_once(broker, tier) == 100
    assert read_from[-1] == 0


async def test_a_store_with_files_is_not_remembered(tmp_path: Path) -> None:
    broker = FakeBroker(tmp_path / "store")
    put(broker, 10)
    await tier_once(broker, tmp_path / "tier")
    assert remembered(tmp_path / "tier") == []
