"""A store remembers its broker and its tier: what another opening of the directory may do."""

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import tieredstore
from provider.clock import SystemClock
from provider.errors import Denied
from tests.support.hot_store import SMALL
from tieredstore import ConfigError, LocalMessageStore, NewMessage
from tieredstore.cli.main import cli

FILES = {"mappedFileSizeCommitLog": 4096, "mappedFileSizeConsumeQueue": 200}
OLD_S = 80 * 3600


def command(root: Path, *words: str, status: int = 0, **settings: object) -> Result:
    given = {"storePathRootDir": root / "store", "tieredStoreFilePath": root / "tier", **FILES}
    parts = [one for key, value in (given | settings).items() for one in ("-D", f"{key}={value}")]
    result = CliRunner().invoke(cli, [*parts, *words])
    assert result.exit_code == status, (result.stdout, result.stderr)
    return result


async def filled(root: Path, level: str, broker: str = "a", count: int = 100) -> None:
    async with tieredstore.open_store(
        root / "store", root / "tier", broker=broker, level=level, settings={**FILES}
    ) as store:
        await store.put_messages([NewMessage("Orders", 0, bytes(100))] * count)


def make_old(root: Path) -> None:
    then = SystemClock().now_ms() / 1000 - OLD_S
    for path in (root / "store/commitlog").iterdir():
        os.utime(path, (then, then))


@pytest.mark.parametrize("level", ["DISABLE", "NOT_IN_DISK"])
@pytest.mark.parametrize("has_tier", [True, False])
async def test_a_hot_log_opened_without_its_tier_deletes_nothing_that_waits_for_it(
    level: str, tmp_path: Path, *, has_tier: bool
) -> None:
    if has_tier:
        await filled(tmp_path, level)
    else:
        async with LocalMessageStore(tmp_path / "store", options=SMALL) as store:
            await store.put_messages([NewMessage("Orders", 0, bytes(100))] * 100)
    make_old(tmp_path)
    async with LocalMessageStore(tmp_path / "store", options=SMALL) as store:
        found = await store.trim()
        assert bool(found.files) != has_tier
        assert (await store.min_offset("Orders", 0) == 0) == has_tier


@pytest.mark.parametrize("level", ["DISABLE", "NOT_IN_DISK"])
async def test_a_store_is_refused_under_another_brokers_name_until_that_is_said(
    level: str, tmp_path: Path
) -> None:
    await filled(tmp_path, level)
    with pytest.raises(ConfigError, match="is that of a of cluster DefaultCluster by its config/"):
        await filled(tmp_path, level, broker="b")
    await filled(tmp_path, level, count=1)
    unchecked = {**FILES, "tieredStoreNameCheckEnable": False}
    async with tieredstore.open_store(
        tmp_path / "store",
        tmp_path / "tier",
        broker="b",
        level=level,
        settings=unchecked,
        new_tier=True,
    ) as store:
        assert await store.max_offset("Orders", 0) == 101
    await filled(tmp_path, level, broker="b", count=1)
    with pytest.raises(ConfigError, match="is that of b"):
        await filled(tmp_path, level, broker="a")


def test_put_remembers_the_broker_and_is_refused_under_another_name(tmp_path: Path) -> None:
    command(tmp_path, "put", "Orders", "x", brokerName="a")
    row = json.loads((tmp_path / "store/config/storeIdentity.json").read_text())
    assert row == {"cluster": "DefaultCluster", "broker": "a", "hasTier": True}
    refused = command(tmp_path, "put", "Orders", "x", brokerName="b", status=2)
    assert "name the store of that broker" in refused.stderr
    assert command(tmp_path, "put", "Orders", "x", brokerName="a").stdout == "Orders\t0\t1\n"


def test_a_store_of_an_older_version_takes_the_first_name(tmp_path: Path) -> None:
    asyncio.run(filled(tmp_path, "NOT_IN_DISK"))
    (tmp_path / "store/config/storeIdentity.json").unlink()
    asyncio.run(filled(tmp_path, "NOT_IN_DISK", count=1))
    assert (tmp_path / "store/config/storeIdentity.json").exists()


def put_alone(root: Path, *words: str) -> Result:
    """`put` without a word about the tier."""
    place = ("-D", f"storePathRootDir={root / 'store'}")
    files = [one for key, value in FILES.items() for one in ("-D", f"{key}={value}")]
    return CliRunner().invoke(cli, [*place, *files, "put", *words])


def put_back_older(root: Path) -> None:
    """Put a store back from a copy with 5 messages. Its tier has 10."""
    asyncio.run(filled(root, "NOT_IN_DISK", count=5))
    shutil.copytree(root / "store", root / "copy")
    asyncio.run(filled(root, "NOT_IN_DISK", count=5))
    shutil.rmtree(root / "store")
    (root / "copy").rename(root / "store")


def test_a_copy_takes_nothing_from_put_until_its_tier_is_named(tmp_path: Path) -> None:
    put_back_older(tmp_path)
    for _ in range(2):  # a refusal is no comparison
        refused = put_alone(tmp_path, "Orders", "x")
        assert refused.exit_code == 2
        assert "copied to this place, perhaps from an older one" in refused.stderr
        assert "name its tier (tieredStoreFilePath, --tier)" in refused.stderr
    assert command(tmp_path, "put", "Orders", "x", brokerName="a").stdout == "Orders\t0\t10\n"
    assert put_alone(tmp_path, "Orders", "x").stdout == "Orders\t0\t11\n"  # it was compared


async def refused_there(store: Any) -> None:
    with pytest.raises(Denied, match="name its tier"):
        await store.put_message(NewMessage("Orders", 0, b"x"))
    with pytest.raises(Denied, match="name its tier"):
        await store.put_messages([NewMessage("Orders", 0, b"x")] * 9, together=True)
    assert await store.max_offset("Orders", 0) == 5
    found = await store.get_message("g", "Orders", 0, 0)
    assert [message.queue_offset for message in found.messages] == [0, 1, 2, 3, 4]


def test_a_copy_is_read_and_takes_nothing_from_a_program_that_names_no_tier(tmp_path: Path) -> None:
    put_back_older(tmp_path)

    async def live() -> None:
        async with LocalMessageStore(tmp_path / "store", options=SMALL) as local:
            await refused_there(local)
        async with tieredstore.open_store(
            tmp_path / "store", level="DISABLE", settings=FILES
        ) as it:
            await refused_there(it)
        async with tieredstore.open_store(
            tmp_path / "store", tmp_path / "tier", broker="a", settings=FILES
        ) as store:
            assert (await store.put_message(NewMessage("Orders", 0, b"x"))).queue_offset == 10

    asyncio.run(live())


def test_a_moved_store_and_one_without_a_tier_need_no_tier(tmp_path: Path) -> None:
    asyncio.run(filled(tmp_path, "NOT_IN_DISK", count=5))
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").rename(tmp_path / "store")
    assert put_alone(tmp_path, "Orders", "x").stdout == "Orders\t0\t5\n"
    shutil.rmtree(tmp_path / "store")
    assert put_alone(tmp_path, "Orders", "x").stdout == "Orders\t0\t0\n"
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    shutil.rmtree(tmp_path / "store")
    (tmp_path / "copy").rename(tmp_path / "store")
    assert put_alone(tmp_path, "Orders", "x").stdout == "Orders\t0\t1\n"


def test_an_emptied_log_takes_nothing_until_its_tier_is_named(tmp_path: Path) -> None:
    asyncio.run(filled(tmp_path, "NOT_IN_DISK", count=5))
    for path in (tmp_path / "store").iterdir():
        if path.is_file():
            path.unlink()
        elif path.name != "config":
            shutil.rmtree(path)
    assert "the hot log is empty" in put_alone(tmp_path, "Orders", "x").stderr
    assert command(tmp_path, "put", "Orders", "x", brokerName="a").stdout == "Orders\t0\t5\n"
