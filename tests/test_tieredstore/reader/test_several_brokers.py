"""`tieredstore.open` of several brokers: all together equal the sum of each."""

import shutil
from pathlib import Path

import pytest

import tieredstore
import tieredstore.sync
from provider.errors import Closed, Corrupt, NotFound
from tests.support.three_brokers import CLUSTER, MESSAGES, damage, tier_of_three
from tieredstore import Message, Origin
from tieredstore.config.sources import ConfigError


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tier_of_three(tmp_path_factory.mktemp("brokers"))


def rotten_copy(tier: Path, to: Path) -> Path:
    """A copy of the tier in which a body of east-2 has a bad byte."""
    copy = Path(shutil.copytree(tier, to / "tier"))
    (log,) = copy.glob("*/east-2/Orders/0/COMMIT_LOG/*")
    log.write_bytes(log.read_bytes().replace(b"east-2:2", b"east-2?2"))
    return copy


async def of_each(tier: Path, topic: str) -> list[tuple[Origin, bytes]]:
    """The messages of each broker, opened alone."""
    found: list[tuple[Origin, bytes]] = []
    for name in MESSAGES:
        async with tieredstore.open(tier, broker=name) as one:
            if topic in one.topics():
                found += [(Origin(CLUSTER, name), m.body) async for m in one.messages(topic)]
    return found


def bodies(found: list[tuple[Origin, Message]]) -> list[tuple[Origin, bytes]]:
    return [(origin, message.body) for origin, message in found]


@pytest.mark.parametrize("broker", ["*", ["*"], ["east-?", "west-1"], ("west-1", "east-*")])
async def test_all_brokers_are_the_sum_of_each(tier: Path, broker: list[str]) -> None:
    async with tieredstore.open(tier, broker=broker) as tiers:
        assert [one.broker for one in tiers.tiers] == list(MESSAGES)
        assert tiers.topics() == ["Alone", "Orders"]
        counts = {(origin.broker, one.topic): one.messages for origin, one in tiers.queues()}
        assert counts == {(name, "Orders"): n for name, n in MESSAGES.items()} | {
            ("west-1", "Alone"): 1
        }
        for topic in tiers.topics():
            found = [pair async for pair in tiers.messages(topic)]
            assert bodies(found) == await of_each(tier, topic)
        assert [finding async for finding in tiers.check()] == []
        assert await tiers.refresh() is False


async def test_messages_of_all_brokers_come_in_one_order_of_time(tier: Path) -> None:
    async with tieredstore.open(tier, broker="*") as tiers:
        found = [pair async for pair in tiers.messages("Orders", by_time=True)]
        times = [message.store_timestamp for _, message in found]
        assert times == sorted(times)
        assert sorted(bodies(found)) == sorted(await of_each(tier, "Orders"))
        assert [origin.broker for origin, _ in found[:4]] == [
            "east-1",
            "east-2",
            "west-1",
            "east-1",
        ]
        for count in (0, 1, 5, 13, 20):
            some = [p async for p in tiers.messages("Orders", messages_max=count, by_time=True)]
            assert some == found[:count]
            some = [p async for p in tiers.messages("Orders", 0, messages_max=count)]
            assert bodies(some) == (await of_each(tier, "Orders"))[:count]
        since, until = times[2], times[7]
        some = [
            pair async for pair in tiers.messages("Orders", by_time=True, since=since, until=until)
        ]
        assert some == found[2:7]


async def test_a_key_is_found_in_all_brokers(tier: Path) -> None:
    async with tieredstore.open(tier, broker="*") as tiers:
        found = await tiers.query_message("Orders", "the-key", messages_max=5)
        newest = [b"east-2:5", b"east-2:4", b"east-2:3", b"east-1:3", b"west-1:2"]
        assert [message.body for _, message in found.messages] == newest
        assert [origin.broker.encode() for origin, _ in found.messages] == [
            body.partition(b":")[0] for body in newest
        ]
        assert not found.is_complete
        whole = await tiers.query_message("Orders", "the-key", newest_first=False)
        assert (len(whole.messages), whole.is_complete, whole.unsearched) == (13, True, 0)
        assert [message.body for _, message in whole.messages[:2]] == [b"east-1:0", b"east-2:0"]
        assert (await tiers.query_message("Orders", "no-key")).messages == []


async def test_what_one_broker_lacks_is_read_of_the_others(tier: Path) -> None:
    async with tieredstore.open(tier, broker="*") as tiers:
        (found,) = [pair async for pair in tiers.messages("Alone", 2)]
        assert bodies([found]) == [(Origin(CLUSTER, "west-1"), b"alone")]
        for lacking in (("Nowhere", None), ("Alone", 7)):
            with pytest.raises(NotFound):
                tiers.messages(*lacking)
        with pytest.raises(NotFound):
            await tiers.query_message("Nowhere", "k")
    with pytest.raises(Closed):
        tiers.topics()


async def test_arguments_that_fit_no_brokers_are_refused(tier: Path) -> None:
    with pytest.raises(ConfigError, match="no broker of the tier in"):
        await tieredstore.open(tier, broker=["north-*"]).__aenter__()
    with pytest.raises(ConfigError, match="java_metadata is the file of one broker"):
        tieredstore.open(tier, broker="*", java_metadata="x.json")  # pyright: ignore[reportCallIssue]


@pytest.mark.leaves_findings("journal", why="the metadata of one broker are overwritten")
async def test_a_damaged_broker_is_reported_and_the_others_are_answered(
    tier: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(tier, tmp_path / "tier"))
    damage(copy, "east-2")
    with pytest.raises(Corrupt):
        await tieredstore.open(copy, broker="*").__aenter__()
    failed: list[tuple[str, str]] = []

    def note(cluster: str, broker: str, error: Exception) -> None:
        assert isinstance(error, Corrupt)
        failed.append((cluster, broker))

    async with tieredstore.open(copy, broker="*", on_broker_failure=note) as tiers:
        assert failed == [(CLUSTER, "east-2")]
        rest = [one for one in await of_each(tier, "Orders") if one[0].broker != "east-2"]
        assert bodies([pair async for pair in tiers.messages("Orders")]) == rest
        assert not (await tiers.query_message("Orders", "the-key")).is_complete
    for name in MESSAGES:
        damage(copy, name)
    with pytest.raises(Corrupt):
        await tieredstore.open(copy, broker="*", on_broker_failure=note).__aenter__()


@pytest.mark.leaves_findings("checksum", "body-crc", why="a body is overwritten")
@pytest.mark.parametrize("by_time", [False, True])
async def test_a_log_that_rots_ends_one_broker_and_no_other(
    tier: Path, tmp_path: Path, *, by_time: bool
) -> None:
    copy = rotten_copy(tier, tmp_path)
    failed: list[str] = []
    opened = tieredstore.open(
        copy, broker="*", on_broker_failure=lambda _, name, __: failed.append(name)
    )
    async with opened as tiers:
        found = [pair async for pair in tiers.messages("Orders", by_time=by_time)]
    assert failed == ["east-2"]
    others = [one for one in await of_each(tier, "Orders") if one[0].broker != "east-2"]
    assert sorted(one for one in bodies(found) if one[0].broker != "east-2") == sorted(others)


def test_without_await_all_brokers_are_read_alike(tier: Path) -> None:
    with tieredstore.sync.open(tier, broker="*") as tiers:
        assert [one.broker for one in tiers.brokers] == list(MESSAGES)
        assert tiers.topics() == ["Alone", "Orders"]
        found = list(tiers.messages("Orders", by_time=True))
        assert len(found) == sum(MESSAGES.values())
        assert bodies(found[:1]) == [(Origin(CLUSTER, "east-1"), b"east-1:0")]
        assert len(tiers.query_message("Orders", "the-key").messages) == 13
        assert len(tiers.queues("Orders")) == 3
        assert tiers.check() == []
        table = tiers.to_arrow("Orders", columns=["queue_offset", "broker", "body:text"]).read_all()
        assert table.column_names == ["queue_offset", "broker", "body"]
        rows = [(row["broker"], row["body"].encode()) for row in table.to_pylist()]
        assert rows == [
            (origin.broker, body) for origin, body in bodies(list(tiers.messages("Orders")))
        ]
        assert tiers.to_arrow("Alone").read_all().column_names[:2] == ["cluster", "broker"]
        some = tiers.to_arrow("Orders", columns=["broker"], messages_max=6).read_all()
        assert some["broker"].to_pylist() == ["east-1"] * 4 + ["east-2"] * 2
