"""A store knows its tier: another tier, or an empty place, is refused without an explicit word."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import tieredstore
from provider.clock import SystemClock
from provider.errors import Unavailable
from tests.support.fake_broker import FakeBroker
from tieredstore.cli.main import cli
from tieredstore.config.sources import ConfigError

assert tieredstore.TieredMessageStore  # its imports read files, so they are not left to a loop

AT_ONCE = {"tieredStoreGroupCommitTimeout": 50}
BEATS = {**AT_ONCE, "tieredStoreOwnerHeartbeatInterval": 100, "tieredStoreOwnerLease": 300}


async def life(
    store: Path, tier: Path, count: int = 1, *, broker: str = "b1", new_tier: bool = False
) -> int:
    """One life of a store of our own; its next offset."""
    async with tieredstore.open_store(
        store, tier, broker=broker, settings=AT_ONCE, new_tier=new_tier
    ) as opened:
        for number in range(count):
            await opened.put_message(tieredstore.NewMessage("Orders", 0, b"%d" % number))
        return await opened.max_offset("Orders", 0)  # leaving the block tiers them


def tiered(store: Path, tier: Path, count: int = 1, **given: Any) -> int:
    return asyncio.run(life(store, tier, count, **given))


def test_a_volume_that_is_not_mounted_is_no_new_tier(tmp_path: Path) -> None:
    store, mount = tmp_path / "hot", tmp_path / "mnt"
    assert tiered(store, mount / "tier", 3) == 3
    mount.rename(tmp_path / "away")
    mount.mkdir()
    with pytest.raises(ConfigError, match=r"there is no tier in .*mount that volume") as raised:
        tiered(store, mount / "tier")
    assert "--new-tier" in str(raised.value)
    assert not list(mount.iterdir()), "nothing was begun there"
    mount.rmdir()
    (tmp_path / "away").rename(mount)
    assert tiered(store, mount / "tier") == 4


def test_a_store_that_was_moved_away_while_it_was_open_is_not_begun_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Else the directory could not be moved back: it would go into the new one."""
    store, away = tmp_path / "hot", tmp_path / "away"

    async def moved() -> None:
        settings = {**AT_ONCE, "flushDiskType": "SYNC_FLUSH"}
        async with tieredstore.open_store(
            store, tmp_path / "tier", broker="b1", settings=settings
        ) as opened:
            await opened.put_message(tieredstore.NewMessage("Orders", 0, b"0"))
            store.rename(away)
            await opened.put_message(tieredstore.NewMessage("Orders", 0, b"1"))

    with pytest.raises(Unavailable, match="renamed or deleted while the store was open"):
        asyncio.run(moved())
    assert "the identity of the tier cannot be kept" in caplog.text
    assert not store.exists()
    away.rename(store)
    assert tiered(store, tmp_path / "tier") in {2, 3}  # the refused message may be there


def test_topics_are_not_deleted_without_the_tier_that_has_them(tmp_path: Path) -> None:
    store, mount = tmp_path / "hot", tmp_path / "mnt"
    tiered(store, mount / "tier", 3)
    mount.rename(tmp_path / "away")
    words = ["-D", f"storePathRootDir={store}", "-D", f"tieredStoreFilePath={mount / 'tier'}"]
    words += ["-D", "brokerName=b1", "delete-topic", "Orders"]
    refused = CliRunner().invoke(cli, words)
    assert refused.exit_code == 2, refused.stderr
    assert "mount that volume" in refused.stderr
    (tmp_path / "away").rename(mount)
    deleted = CliRunner().invoke(cli, words)
    assert deleted.exit_code == 0, deleted.stderr
    line = next(line for line in deleted.stdout.splitlines() if "Orders" in line)
    assert line.split()[:4] == ["Orders", "1", "1", "3"]


def test_another_tier_in_its_place_is_refused(tmp_path: Path) -> None:
    store, tier = tmp_path / "hot", tmp_path / "tier"
    tiered(store, tier, 3)
    tiered(tmp_path / "other hot", tmp_path / "other", 3)
    tier.rename(tmp_path / "kept")
    (tmp_path / "other").rename(tier)
    with pytest.raises(ConfigError, match="is another one than the store"):
        tiered(store, tier)
    shutil.rmtree(tier)
    (tmp_path / "kept").rename(tier)
    assert tiered(store, tier) == 4


def test_the_place_of_the_tier_may_change_but_not_its_broker(tmp_path: Path) -> None:
    store = tmp_path / "hot"
    tiered(store, tmp_path / "tier", 3)
    (tmp_path / "tier").rename(tmp_path / "moved")
    assert tiered(store, tmp_path / "moved") == 4
    with pytest.raises(ConfigError, match="is that of b1 of cluster DefaultCluster"):
        tiered(store, tmp_path / "moved", broker="b2")


def test_a_new_tier_is_begun_on_an_explicit_word_once(tmp_path: Path) -> None:
    store = tmp_path / "hot"
    tiered(store, tmp_path / "tier", 3)
    shutil.rmtree(tmp_path / "tier")
    assert tiered(store, tmp_path / "tier", new_tier=True) == 4
    assert tiered(store, tmp_path / "tier") == 5, "it is known from then on"


def test_a_tier_that_was_put_back_from_a_copy_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, tier = tmp_path / "hot", tmp_path / "tier"
    tiered(store, tier, 3)
    shutil.copytree(tier, tmp_path / "copy")
    tiered(store, tier, 3)
    assert "put back from a copy" not in caplog.text
    shutil.rmtree(tier)
    (tmp_path / "copy").rename(tier)
    assert tiered(store, tier) == 7
    assert "the tier was put back from a copy: it ended at entry" in caplog.text


def test_a_copy_of_a_killed_owners_tier_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The store knows the entries that were written since its start, for no clean end said so."""
    store, tier, copy = tmp_path / "hot", tmp_path / "tier", tmp_path / "copy"
    memory = store / "config" / "tieredStore.json"

    async def killed() -> None:
        async with tieredstore.open_store(store, tier, broker="b1", settings=BEATS) as opened:
            await put_and_tier(opened)
            shutil.copytree(tier, copy)
            await put_and_tier(opened)
            newest = max(int(one.name) for one in tier.glob("*/*/@journal/*"))
            while json.loads(memory.read_text())["sequence"] < newest:
                await SystemClock().sleep(0.01)
            shutil.copy(memory, tmp_path / "at the kill")

    async def put_and_tier(opened: Any) -> None:
        put = await opened.put_message(tieredstore.NewMessage("Orders", 0, b"body"))
        while await opened.commit_offset("Orders", 0) <= put.queue_offset:
            await SystemClock().sleep(0.01)

    asyncio.run(killed())
    shutil.copy(tmp_path / "at the kill", memory)
    shutil.rmtree(tier)
    copy.rename(tier)
    assert tiered(store, tier) == 3
    assert "the tier was put back from a copy: it ended at entry" in caplog.text


def invoke(*words: str) -> Result:
    return CliRunner().invoke(cli, words)


@pytest.mark.parametrize("pins", [True, False])
def test_a_follower_knows_its_tier_with_and_without_pins(tmp_path: Path, *, pins: bool) -> None:
    broker = FakeBroker(tmp_path / "store")
    broker.put_many("A", 0, [b"body"] * 10)
    given = ["-D", f"tieredStorePinPath={tmp_path / 'pins'}"] if pins else []
    where = ["-D", "brokerName=b", "-D", f"tieredStoreFilePath={tmp_path / 'mnt' / 'tier'}"]
    words = [*where, *given, "tier", str(broker.directory)]
    assert invoke(*words).exit_code == 0
    (tmp_path / "mnt").rename(tmp_path / "away")
    done = invoke(*words)
    assert (done.exit_code, "mount that volume" in done.stderr) == (2, True)
    assert "--new-tier" in done.stderr
    assert invoke(*words, "--new-tier").exit_code == 0
    shutil.rmtree(tmp_path / "mnt")
    (tmp_path / "away").rename(tmp_path / "mnt")
    assert "is another one than the store" in invoke(*words).stderr


def test_a_follower_without_a_place_for_its_memory_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user id of a container, without a home: an empty place would not be noticed."""

    def homeless(path: Path) -> Path:
        raise RuntimeError(path)

    for name in ("STATE_DIRECTORY", "XDG_STATE_HOME", "TIEREDSTORE_TIERED_STORE_STATE_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "expanduser", homeless)
    broker = FakeBroker(tmp_path / "store")
    broker.put_many("A", 0, [b"body"])
    where = ["-D", "brokerName=b", "-D", f"tieredStoreFilePath={tmp_path / 'tier'}"]
    done = invoke(*where, "tier", str(broker.directory))
    assert done.exit_code == 0, done.stderr
    assert "set tieredStoreStatePath or tieredStorePinPath" in done.stderr


@pytest.mark.slow
def test_a_tier_that_was_made_again_from_its_messages_is_the_same(tmp_path: Path) -> None:
    broker = FakeBroker(tmp_path / "store")
    broker.put_many("A", 0, [b"body"] * 10)
    where = ["-D", "brokerName=b", "-D", f"tieredStoreFilePath={tmp_path / 'tier'}"]
    words = [*where, "tier", str(broker.directory)]
    assert invoke(*words).exit_code == 0
    for name in ("@journal", "@snapshot", "@boundary", "@manifest"):
        for path in (tmp_path / "tier").glob(f"*/*/{name}"):
            shutil.rmtree(path)
    assert invoke(*where, "rebuild", "--metadata").exit_code == 0
    broker.put_many("A", 0, [b"body"] * 5)
    again = invoke(*words)
    assert again.exit_code == 0, again.stderr
    assert invoke(*where, "check").exit_code == 0
