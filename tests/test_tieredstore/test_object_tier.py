"""A tier in an object store, from each way in: programs, both forms, and the command line."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from click.testing import CliRunner, Result

import tieredstore
from container.journal.frame import Frame
from container.names.rocketmq import broker_directory
from provider.errors import Denied, NotFound
from tests.support.fake_broker import FakeBroker
from tests.support.golden import GOLDEN_TREES, GoldenSet, expected, tree_name, unpacked
from tests.support.golden_reads import normal, read_all, without
from tieredstore import sync
from tieredstore.cli.main import cli
from tieredstore.config.sources import ConfigError

BROKER: dict[str, Any] = {"cluster": "C", "broker": "broker-a"}
NAMED = ("-D", "brokerClusterName=C", "-D", "brokerName=broker-a")
AT_ONCE = {"tieredStoreGroupCommitTimeout": 100}


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """A place of its own."""
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    yield f"memory://bucket/{tmp_path.name}"
    memory.store.clear()


def objects_of(url: str) -> list[str]:
    """Names of all objects of the broker's tier, and nothing of the cluster's directory."""
    root = url.partition(":/")[2]
    names = [name.removeprefix(root) for name in fsspec.filesystem("memory").store]
    return sorted(name.split("/", 3)[3] for name in names)


def invoke(url: str, *words: str | Path, status: int = 0) -> Result:
    result = CliRunner().invoke(cli, ["--tier", url, *map(str, words)])
    assert result.exit_code == status, result.output
    return result


async def tiered(store_dir: Path, url: str, count: int = 10) -> FakeBroker:
    """A broker's store with `count` messages, tiered."""
    broker = FakeBroker(store_dir)
    for number in range(count):
        broker.put("Orders", 0, b"%d" % number)
    async with tieredstore.follow(store_dir, url, **BROKER) as follower:
        await follower.drain()
    return broker


async def test_a_store_of_our_own_tiers_there_and_reads_back(tmp_path: Path, url: str) -> None:
    async with tieredstore.open_store(
        tmp_path / "store", url, level="FORCE", settings=AT_ONCE, **BROKER
    ) as store:
        for number in range(10):
            await store.put_message(tieredstore.NewMessage("Orders", 0, b"%d" % number))
        assert store.location.startswith(f"{url}/")
        with pytest.raises(ConfigError, match="is in no directory"):
            _ = store.directory
    async with tieredstore.open(url) as tier:
        assert (tier.cluster, tier.broker) == ("C", "broker-a")
        assert [one.body async for one in tier.messages("Orders", 0)] == [
            b"%d" % number for number in range(10)
        ]
        assert [finding async for finding in tier.check(bodies=True)] == []
    assert {name.split("/")[0] for name in objects_of(url)} == {"@journal", "@owner", "@parts"}


async def test_a_followed_broker_is_tiered_there_and_goes_on_after_a_restart(
    tmp_path: Path, url: str
) -> None:
    broker = await tiered(tmp_path / "store", url)
    broker.put("Orders", 0, b"10")
    async with tieredstore.follow(tmp_path / "store", url, **BROKER) as follower:
        assert follower.location == f"{url}/{objects_root(url)}"
        done = await follower.drain()
        assert done.messages == 1

    def read() -> list[bytes]:
        with sync.open(url) as tier:
            assert tier.location == f"{url}/{objects_root(url)}"
            return [message.body for message in tier.messages("Orders", 0)]

    assert await asyncio.to_thread(read) == [b"%d" % number for number in range(11)]


def objects_root(url: str) -> str:
    """The broker's place below the root."""
    root = url.partition(":/")[2]
    name = next(iter(fsspec.filesystem("memory").store)).removeprefix(f"{root}/")
    return "/".join(name.split("/")[:2])


@pytest.mark.parametrize(("golden", "kind"), GOLDEN_TREES, ids=tree_name)
async def test_every_golden_message_reads_as_the_client_saw_it(
    golden: GoldenSet, kind: str, url: str
) -> None:
    tree = unpacked(golden, kind)
    sizes = {
        "tieredStoreCommitLogMaxSize": golden.commit_log_segment_bytes,
        "tieredStoreConsumeQueueMaxSize": golden.consume_queue_segment_bytes,
    }
    named: dict[str, Any] = {"cluster": golden.cluster, "broker": golden.broker}
    async with tieredstore.follow(tree.store, url, settings=sizes, **named) as follower:
        await follower.drain()
    assert {name[0] for name in objects_of(url)} == {"@"}, "every byte is in a part"
    async with tieredstore.open(url) as tier:
        found = await read_all(tier.reader, expected(golden, "messages"))
        assert [finding async for finding in tier.check()] == []
    wanted = [normal(row, golden) for row in expected(golden, "messages")]
    if golden.has_codas:
        found = [without(row, "tier_physical_offset") for row in found]
        wanted = [without(row, "tier_physical_offset") for row in wanted]
    if golden.has_record_crc:
        for row in (*found, *wanted):
            row["properties"] = without(row["properties"], "__CRC32#")
    assert found == wanted


async def test_who_gives_no_broker_finds_the_only_one_or_is_told_all(
    tmp_path: Path, url: str
) -> None:
    with pytest.raises(NotFound, match="no tier in this place"):
        async with tieredstore.open(url):
            pass
    await tiered(tmp_path / "store", url)
    async with tieredstore.open(url) as tier:
        assert tier.broker == "broker-a"
    for part in (f"{url}/{objects_root(url)}", f"{url}/{objects_root(url).split('/')[0]}"):
        with pytest.raises(NotFound, match="which is a part of one: give the one above"):
            async with tieredstore.open(part):
                pass
    with pytest.raises(ConfigError, match=r"belongs to broker-a of cluster C, not to other"):
        async with tieredstore.open(url, broker="other"):
            pass
    with pytest.raises(NotFound, match="there is no journal here"):
        async with tieredstore.open(url, cluster="C", broker="other"):
            pass


async def test_two_owners_on_one_host_find_each_other(tmp_path: Path, url: str) -> None:
    await tiered(tmp_path / "store", url)
    async with tieredstore.follow(tmp_path / "store", url, **BROKER):
        with pytest.raises(tieredstore.Owned, match="owns the tier and lives"):
            async with tieredstore.follow(tmp_path / "store", url, **BROKER):
                pass
    async with tieredstore.follow(tmp_path / "store", url, **BROKER):
        pass


async def test_the_environment_of_a_start_hides_no_owner(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await tiered(tmp_path / "store", url)
    async with tieredstore.follow(tmp_path / "store", url, **BROKER):
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "another session"))
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        with pytest.raises(tieredstore.Owned, match="owns the tier and lives"):
            async with tieredstore.follow(tmp_path / "store", url, **BROKER):
                pass


async def test_no_tier_is_begun_among_files_of_another(tmp_path: Path, url: str) -> None:
    await tiered(tmp_path / "store", url)
    root, memory = objects_root(url), fsspec.filesystem("memory")
    for name in list(memory.store):
        memory.rm_file(name)
    memory.pipe_file(f"{url}/{root}/Orders/0/COMMIT_LOG/x", b"theirs")
    with pytest.raises(ConfigError, match=r"holds a tier's files, such as Orders, and no journal"):
        await tiered(tmp_path / "store", url, 0)


@pytest.mark.parametrize("journal_is_kept", [False, True])
async def test_empty_directories_that_a_service_keeps_are_no_tier(
    tmp_path: Path, url: str, *, journal_is_kept: bool
) -> None:
    root, memory = broker_directory("C", "broker-a"), fsspec.filesystem("memory")
    memory.makedirs(f"{url}/{root}/Orders/0/COMMIT_LOG")
    if journal_is_kept:
        memory.makedirs(f"{url}/{root}/@journal")
        memory.pipe_file(f"{url}/{root}/Paid/0/COMMIT_LOG/x", b"theirs")
        with pytest.raises(ConfigError, match=r"files, such as Paid, and no journal"):
            await tiered(tmp_path / "store", url)
        return
    await tiered(tmp_path / "store", url)


@pytest.mark.parametrize("command", ["check", "scrub"])
def test_what_is_verified_is_what_the_storage_has_and_not_what_is_kept_on_disk(
    tmp_path: Path, url: str, command: str
) -> None:
    asyncio.run(tiered(tmp_path / "store", url))
    kept = ("-D", f"readAheadDiskCachePath={tmp_path / 'cache'}")
    invoke(url, *kept, "read", "Orders", "0", "--json")
    invoke(url, *kept, command)
    memory = fsspec.filesystem("memory")
    part = next(name for name in memory.store if "/@parts/" in name)
    body = bytearray(memory.cat_file(part))
    memory.pipe_file(part, bytes(byte ^ 1 for byte in body))
    assert len(invoke(url, *kept, "read", "Orders", "0", "--json").stdout.splitlines()) == 10
    assert "checksum" in invoke(url, *kept, command, "--json", status=1).stdout


async def test_a_storage_that_is_not_installed_is_named(tmp_path: Path) -> None:
    with pytest.raises(Denied, match="nothing is installed for nosuch:// URLs"):
        async with tieredstore.open("nosuch://bucket/tier", **BROKER):
            pass


def test_every_reading_command_takes_a_url(tmp_path: Path, url: str) -> None:
    asyncio.run(tiered(tmp_path / "store", url))
    rows = invoke(url, "topics", "--json").stdout.splitlines()
    assert json.loads(rows[0])["topic"] == "Orders"
    assert "Orders" in invoke(url, "segments").output
    assert len(invoke(url, "read", "Orders", "0", "--json").stdout.splitlines()) == 10
    assert json.loads(invoke(url, "brokers", "--json").stdout)["directory"].startswith(url)
    assert invoke(url, "check", "--json").stdout == ""


def test_metadata_of_java_are_of_directories(tmp_path: Path, url: str) -> None:
    asyncio.run(tiered(tmp_path / "store", url))
    file = tmp_path / "java.json"
    done = invoke(url, "metadata", "export", file, status=2)
    assert "RocketMQ's tiered store reads files" in done.output
    assert not file.exists()
    file.write_text("{}")
    done = invoke(url, *NAMED, "metadata", "import", file, status=2)
    assert "imported where it lies, which is a directory" in done.output


def test_a_damaged_journal_is_cut_there(tmp_path: Path, url: str) -> None:
    asyncio.run(tiered(tmp_path / "store", url))
    entries = [name for name in objects_of(url) if name.startswith("@journal/")]
    memory = fsspec.filesystem("memory")
    newest = f"{url}/{objects_root(url)}/{entries[-1]}"
    raw = bytearray(memory.cat_file(newest))
    raw[Frame.SIZE + 3] ^= 1
    memory.pipe_file(newest, bytes(raw))
    assert "repair --journal-to" in invoke(url, "topics", status=1).output
    last_whole = str(int(entries[-1].rpartition("/")[2]) - 1)
    invoke(url, "repair", "--journal-to", last_whole, "--yes")
    invoke(url, "topics")


def test_config_says_which_defaults_are_those_of_an_object_store(url: str) -> None:
    shown = invoke(url, "config").output
    assert "tieredStoreGroupCommitTimeout = 75000 ms   (default in an object store)" in shown
    rows = [json.loads(row) for row in invoke(url, "config", "--json").stdout.splitlines()]
    by_key = {row["key"]: row for row in rows}
    assert by_key["tieredStoreBytesInFlight"]["default"] is True
    given = invoke(url, "-D", "tieredStoreGroupCommitTimeout=500", "config").output
    assert "tieredStoreGroupCommitTimeout = 500 ms   (-D)" in given


def test_config_says_what_the_settings_cost(url: str) -> None:
    shown = invoke(url, "-D", "objectStoreUploadRateMax=67108864", "config").output
    assert "by the prices of Amazon S3 Standard, us-east-1:" in shown
    assert "    idle: 0.083 requests a second, 0.65 USD a month\n" in shown
    assert "    busy, by age: 0.082 requests a second, 0.72 USD a month\n" in shown
    assert "    uploading all it may: 2.002 requests a second, 25.95 USD a month\n" in shown
    assert "    each TiB that is stored: 23.55 USD a month\n" in shown
    rows = [json.loads(row) for row in invoke(url, "config", "--json").stdout.splitlines()]
    assert [row["value"] for row in rows if row["key"] == "estimate"] == ["idle", "busy, by age"]
    assert "a month" not in invoke("directory", "config").output


def test_status_compares_the_bill_with_the_forecast(
    tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(tiered(tmp_path / "store", url))
    (row,) = [json.loads(one) for one in invoke(url, "status", "--json").stdout.splitlines()]
    assert row["cost"]["kept_a_month"] > 0
    assert row["cost"]["counted_a_month"] is None
    shown = invoke(url, "status").stdout
    assert "USD a month for the " in shown
    assert "USD a month expected for " in shown
    assert "counted" not in shown
    asked = {"page": "p", "ready": True, "hours": 72.0, "requests": 300.0, "request_cost": 0.2}
    monkeypatch.setattr("tieredstore.reader.status.process_figures", lambda _: asked)
    shown = invoke(url, "-D", "tieredStoreMetricsPort=1", "status").stdout
    assert "2.00 USD a month for 3,000 requests, as its process counted so far" in shown


async def test_requests_and_their_cost_are_metrics_and_bytes_have_a_limit(
    tmp_path: Path, url: str
) -> None:
    broker = FakeBroker(tmp_path / "store")
    broker.put_many("Orders", 0, [bytes(300_000)] * 3)
    settings = {"objectStoreUploadRateMax": 10_000}
    async with tieredstore.follow(tmp_path / "store", url, settings=settings, **BROKER) as follower:
        assert follower.limits.upload_bytes_per_s == 10_000
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await follower.drain()
        follower.limits.upload_bytes_per_s = 0
        await follower.drain()
        puts = await asyncio.to_thread(value_of, follower, "requests_total", kind="PUT")
        assert puts >= 2
        cost = await asyncio.to_thread(value_of, follower, "request_cost_total", currency="USD")
        assert cost >= puts * 0.005 / 1000
    async with tieredstore.open(url) as tier:
        assert tier.limits.download_bytes_per_s == 0


def value_of(follower: tieredstore.Follower, name: str, **labels: str) -> float:
    whole = f"tieredstore_object_store_{name}"
    samples = [sample for family in follower.registry.collect() for sample in family.samples]
    (found,) = [
        sample.value
        for sample in samples
        if sample.name == whole and labels.items() <= sample.labels.items()
    ]
    return found


async def test_what_was_read_once_is_read_from_disk_when_the_storage_has_it_no_more(
    tmp_path: Path, url: str
) -> None:
    await tiered(tmp_path / "store", url, count=50)
    settings = {"readAheadDiskCachePath": str(tmp_path / "cache")}
    parts = {
        name: body for name, body in fsspec.filesystem("memory").store.items() if "/@parts/" in name
    }
    assert parts
    for _ in range(2):
        async with tieredstore.open(url, settings=settings) as tier:
            found = [one.body async for one in tier.messages("Orders", 0)]
            assert found == [b"%d" % number for number in range(50)]
        for name in parts:
            fsspec.filesystem("memory").store.pop(name, None)
    fsspec.filesystem("memory").store.update(parts)
