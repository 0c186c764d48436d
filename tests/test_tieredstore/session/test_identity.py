"""The right store under the right name: what a store says of itself, against the configuration."""

import json
import logging
from pathlib import Path

import pytest

import tieredstore
from tests.support.cli import run
from tests.support.fake_broker import FakeBroker
from tests.support.golden import ROCKETMQ_533, ROCKETMQ_550, GoldenSet, unpacked
from tieredstore.following.directory.layout import StoreNames, read_store_names

assert tieredstore.Follower  # its imports read files, so they are not left to a running loop

BROKER, CLUSTER = "rmq_sys_SYNC_BROKER_MEMBER_", "rmq_sys_REVIVE_LOG_"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of a broker `a` of cluster `C`, with one message."""
    broker = FakeBroker(tmp_path / "store")
    broker.put("T", 0)
    broker.create_topic(f"{BROKER}a")
    broker.create_topic(f"{CLUSTER}C")
    return broker.directory


async def opened(store: Path, tier: Path, **settings: object) -> list[str]:
    """Topics of the tier after one run under these settings."""
    async with tieredstore.follow(store, tier, settings=settings) as follower:
        await follower.drain()
        return [topic.topic for topic in follower.topics()]


@pytest.mark.parametrize("golden", [ROCKETMQ_533, ROCKETMQ_550], ids=["5.3.3", "5.5.0"])
def test_a_real_brokers_store_says_whose_it_is(golden: GoldenSet) -> None:
    names = read_store_names(unpacked(golden).store)
    assert names == StoreNames((golden.broker,), (golden.cluster,))


async def test_a_store_is_tiered_under_its_own_name(store: Path, tmp_path: Path) -> None:
    assert await opened(store, tmp_path / "t", brokerName="a", brokerClusterName="C") == ["T"]


@pytest.mark.parametrize(
    ("name", "cluster", "wrong"),
    [("b", "C", "brokerName is b (settings)"), ("a", "D", "brokerClusterName is D (settings)")],
)
async def test_another_brokers_store_is_refused_also_for_a_tier_that_is_there(
    store: Path, tmp_path: Path, name: str, cluster: str, wrong: str
) -> None:
    tier, given = tmp_path / "tier", {"brokerName": name, "brokerClusterName": cluster}
    other = FakeBroker(tmp_path / "other")
    other.put("Other", 0)
    await opened(other.directory, tier, **given)
    with pytest.raises(tieredstore.ConfigError) as refusal:
        await opened(store, tier, **given)
    said = str(refusal.value)
    assert said.startswith(f"the store {store} is that of a of cluster C by its config/topics")
    assert wrong in said
    assert "-D brokerName=a -D brokerClusterName=C" in said
    assert await opened(other.directory, tier, **given) == ["Other"]  # nothing of `store` is in it


async def test_the_check_can_be_switched_off(store: Path, tmp_path: Path) -> None:
    given = {"brokerName": "b", "tieredStoreNameCheckEnable": False}
    assert await opened(store, tmp_path / "tier", **given) == ["T"]


async def test_a_store_with_several_names_is_any_of_theirs(store: Path, tmp_path: Path) -> None:
    """A broker that was renamed, or whose table of topics was copied from another one."""
    table = json.loads((store / "config" / "topics.json").read_text())
    table["topicConfigTable"][f"{BROKER}b"] = {}
    (store / "config" / "topics.json").write_text(json.dumps(table))
    given = {"brokerClusterName": "C"}
    assert await opened(store, tmp_path / "tier", brokerName="a", **given) == ["T"]
    assert await opened(store, tmp_path / "tier", brokerName="b", **given) == ["T"]
    with pytest.raises(tieredstore.ConfigError, match="that of a or b of cluster C"):
        await opened(store, tmp_path / "tier", brokerName="c", **given)


@pytest.mark.parametrize("raw", [None, b"", b"{", b"[]", b'{"topicConfigTable": 3}', b"\xff"])
def test_a_store_whose_table_cannot_be_read_says_nothing(store: Path, raw: bytes | None) -> None:
    path = store / "config" / "topics.json"
    names = read_store_names(store)
    path.with_suffix(".json.bak").write_bytes(path.read_bytes())
    path.unlink()
    if raw is not None:
        path.write_bytes(raw)
    assert read_store_names(store) == names  # the broker's own copy of the file before
    path.with_suffix(".json.bak").unlink()
    assert read_store_names(store) == StoreNames()


async def test_a_store_without_names_is_refused_if_it_has_none_of_the_tiers_topics(
    tmp_path: Path,
) -> None:
    tier = tmp_path / "tier"
    first, other = FakeBroker(tmp_path / "store"), FakeBroker(tmp_path / "other")
    empty = FakeBroker(tmp_path / "empty")
    for topic in ("T", "U"):
        first.put(topic, 0)
    other.put("BenchmarkTest", 0)  # a topic of every broker's, which says nothing
    await opened(first.directory, tier, brokerName="a")
    assert await opened(empty.directory, tier, brokerName="a") == ["T", "U"]
    assert await opened(other.directory, tier, brokerName="a") == ["T", "U"]
    for topic in ("A", "B", "C", "D"):
        other.put(topic, 0)
    with pytest.raises(tieredstore.ConfigError) as refusal:
        await opened(other.directory, tier, brokerName="a")
    said = str(refusal.value)
    assert said.startswith(f"the store {other.directory} has no broker name and none")
    assert "it has A, B, C and 1 more, and" in said
    assert "has T, U: " in said
    assert await opened(first.directory, tier, brokerName="a") == ["T", "U"]  # nothing was tiered
    switched_off = {"brokerName": "a", "tieredStoreNameCheckEnable": False}
    assert len(await opened(other.directory, tier, **switched_off)) == 6


async def test_a_store_that_has_one_of_the_tiers_topics_or_its_name_is_accepted(
    tmp_path: Path,
) -> None:
    tier = tmp_path / "tier"
    first, more, anew = (FakeBroker(tmp_path / name) for name in ("store", "more", "anew"))
    first.put("T", 0)
    more.put("T", 0)
    more.put("New", 0)
    anew.put("Newer", 0)
    anew.create_topic(f"{BROKER}a")
    for broker in (first, more, anew):
        await opened(broker.directory, tier, brokerName="a")
    assert "Newer" in await opened(anew.directory, tier, brokerName="a")


async def test_no_tier_is_begun_under_the_hosts_name_and_one_that_is_there_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "vm")
    broker, tier = FakeBroker(tmp_path / "store"), tmp_path / "tier"
    broker.put("T", 0)
    with pytest.raises(tieredstore.ConfigError) as refusal:
        await opened(broker.directory, tier)
    assert "no tier is begun under the host's name (vm)" in str(refusal.value)
    assert "use -D brokerName=NAME" in str(refusal.value)
    assert not tier.exists()
    assert await opened(broker.directory, tier, brokerName="vm") == ["T"]
    assert await opened(broker.directory, tier) == ["T"]


def test_without_a_name_the_command_says_what_the_store_is_called(
    store: Path, tmp_path: Path
) -> None:
    given = ["-D", f"tieredStoreFilePath={tmp_path / 'tier'}"]
    refused = run(*given, "tier", store, status=2)
    assert "-D brokerName=a -D brokerClusterName=C" in refused.err
    assert "the host's name" in refused.err
    assert not (tmp_path / "tier").exists()


async def test_the_first_line_says_broker_cluster_store_and_tier(
    store: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "tieredstore")
    await opened(store, tmp_path / "tier", brokerName="a", brokerClusterName="C")
    first, second = (record.getMessage() for record in caplog.records[:2])
    directory = next((tmp_path / "tier").glob("*_C/a"))
    assert first == f"a of cluster C: from the store {store} into the tier {directory}"
    assert second == "this process owns the tier (epoch 1), which has 0 messages of 0 queues"
    assert caplog.records[0].__dict__["fields"]["tier"] == str(directory)


async def test_a_retention_that_has_no_effect_is_said_at_the_start(
    store: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = {"brokerName": "a", "brokerClusterName": "C", "tieredStoreFileReservedTime": 72}
    await opened(store, tmp_path / "tier", **given)
    said = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert [one.partition(":")[0] for one in said] == [
        "tieredStoreFileReservedTime (settings) has no effect"
    ]


def test_the_store_may_come_from_the_brokers_own_file(store: Path, tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(f"brokerName=a\nbrokerClusterName=C\nstorePathRootDir={store}\n")
    given = ["--conf", conf, "-D", f"tieredStoreFilePath={tmp_path / 'tier'}"]
    assert [row["topic"] for row in run(*given, "tier", "--json").rows] == ["T"]
    conf.write_text("brokerName=a\nbrokerClusterName=C\n")
    assert "give STORE_DIR, or storePathRootDir" in run(*given, "tier", status=2).err


def test_no_queue_is_cut_to_another_brokers_log(store: Path, tmp_path: Path) -> None:
    (other := FakeBroker(tmp_path / "other")).put("T", 0)
    given = ["-D", "brokerName=b", "-D", f"tieredStoreFilePath={tmp_path / 'tier'}"]
    run(*given, "tier", other.directory)
    cut = ["repair", "T", "0", "--cut-to-hot", "--yes", "--store", store]
    assert "is that of a of cluster C" in run(*given, *cut, status=2).err
