"""A queue that `rebuild --metadata` leaves out: its messages stay, and nothing speaks of them."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import fsspec
import pytest

from container.metadata.state import TierState
from container.names.queue_id import QueueId
from container.tier_view import TierReader
from provider.clock import SystemClock
from tests.support.fake_broker import FakeBroker
from tests.support.packed_objects import in_thread
from tests.test_tieredstore.offline.test_rebuild import remove_derived, remove_metadata
from tieredstore import follow
from tieredstore.config.effective import Config
from tieredstore.offline.jobs import derived, rebuild_metadata
from tieredstore.offline.jobs.audit import audit
from tieredstore.offline.jobs.engine import OneProcess
from tieredstore.offline.jobs.rebuild_files import restore
from tieredstore.offline.jobs.rebuild_metadata import LEFT_OUT, NEVER_MS, remake
from tieredstore.session.owner import running_owner
from tieredstore.session.places import directory_of, storage_at

MESSAGES = 30


async def tiered(broker: FakeBroker, where: Any, *topics: str) -> None:
    """Tier more messages of these topics, one round of commits for each."""
    async with follow(broker.directory, where, cluster="C", broker="b") as follower:
        for topic in topics:
            for number in range(MESSAGES):
                broker.put(topic, 0, b"x" * 50, keys=f"{topic}{number}")
            await follower.drain()


async def state_of(config: Config) -> TierState:
    store = storage_at(config, directory_of(config), clock=SystemClock())
    try:
        return (await TierReader.open(store)).state
    finally:
        await store.close()


def config_at(where: object) -> Config:
    named = {"brokerClusterName": "C", "brokerName": "b", "tieredStoreFilePath": where}
    return Config.load(settings=named)


def start_of(raw: bytes, number: int) -> int:
    """Where a record of a log begins."""
    at = 0
    for _ in range(number):
        at += int.from_bytes(raw[at : at + 4], "big")
    return at


def out_of_order(raw: bytes) -> bytes:
    """One of the records has the offset of another one."""
    at = start_of(raw, MESSAGES // 2) + 20
    return raw[:at] + (5).to_bytes(8, "big") + raw[at + 8 :]


def with_another_version(raw: bytes) -> bytes:
    """Another key of the last message, of which no checksum tells."""
    assert raw.count(b"KEYS\x01B29\x02") == 1
    return raw.replace(b"KEYS\x01B29\x02", b"KEYS\x01B28\x02")


@asynccontextmanager
async def killed_after_first_entry(config: Config, **given: Any) -> AsyncIterator[Any]:
    async with running_owner(config, **given):
        raise KeyboardInterrupt
    yield


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.parametrize("is_changed", [True, False])
async def test_its_messages_stay_in_an_object_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_changed: bool, is_killed: bool
) -> None:
    """One is left out when its log was read, the other one when its runs are put together."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    url = f"memory://bucket/{tmp_path.name}"
    broker, config = FakeBroker(tmp_path / "store"), config_at(url)
    await tiered(broker, url, "A", "B")
    parts = [name for name in memory.store if "/@parts/" in name]
    for name in set(memory.store) - set(parts):
        memory.rm_file(name)
    (mine,) = [name for name in parts if b"KEYS\x01B7" in memory.cat_file(name)]
    raw = memory.cat_file(mine)
    if is_changed:
        memory.pipe_file(mine, out_of_order(raw))
    else:
        another = f"{mine[:-1]}{'1' if mine.endswith('0') else '0'}"  # names end at random
        memory.pipe_file(another, with_another_version(raw))
    kept = {name: memory.cat_file(name) for name in memory.store if name.startswith(mine[:-1])}
    assert len(kept) == 2 - is_changed
    with monkeypatch.context() as patched:
        if is_killed:
            patched.setattr(rebuild_metadata, "running_owner", killed_after_first_entry)
            with pytest.raises(KeyboardInterrupt):
                await in_thread(lambda: remake(config, OneProcess()))
        else:
            report = await in_thread(lambda: remake(config, OneProcess()))
            said = [(one.finding, one.path) for one in report.findings]
            assert said == [("queue-left-out", "B/0")]
    await tiered(broker, url, "A")
    tombstones = (await state_of(config)).tombstones
    for name, raw in kept.items():
        told = tombstones[name[name.index("@parts/") :]]
        assert (told.not_before_ms, told.reason) == (NEVER_MS, LEFT_OUT)
        assert memory.cat_file(name) == raw
    assert sum(one.not_before_ms == NEVER_MS for one in tombstones.values()) == len(kept)
    memory.store.clear()


async def damaged(broker: FakeBroker, tier: Path) -> Config:
    """A tier in a directory without metadata; queue B is out of order."""
    await tiered(broker, tier, "A", "B")
    config = config_at(tier)
    root = directory_of(config)
    assert isinstance(root, Path)
    remove_derived(root)
    remove_metadata(root)
    (log,) = root.glob("B/0/COMMIT_LOG/*")
    log.write_bytes(out_of_order(log.read_bytes()))
    return config


@pytest.mark.parametrize("log_bytes", [derived.INDEX_LOG_BYTES, 100])
async def test_no_index_file_has_its_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log_bytes: int
) -> None:
    """Whether it would share one with others, or have some of its own."""
    monkeypatch.setattr(derived, "INDEX_LOG_BYTES", log_bytes)
    config = await damaged(FakeBroker(tmp_path / "store"), tmp_path / "tier")
    report = await in_thread(lambda: remake(config, OneProcess()))
    assert [(one.finding, one.path) for one in report.findings] == [("queue-left-out", "B/0")]
    assert (report.messages, len(report.files)) == (MESSAGES, 2)
    state = await state_of(config)
    (file,) = state.index_files.values()
    assert file.coverage == ((QueueId("A", 0), 0, MESSAGES),)
    assert file.items == MESSAGES
    root = directory_of(config)
    assert isinstance(root, Path)
    (root / file.object_name).unlink()
    again = await in_thread(lambda: restore(config, OneProcess()))
    assert [(one.path, one.fault) for one in again.files] == [(file.object_name, "")]
    found = (await in_thread(lambda: audit(config, OneProcess()))).findings
    assert [(one.finding, one.path) for one in found] == [("unknown-queue", "B/0")]


async def test_where_no_queue_is_kept_no_file_is_said_to_be_made(tmp_path: Path) -> None:
    config = await damaged(FakeBroker(tmp_path / "store"), tmp_path / "tier")
    root = directory_of(config)
    assert isinstance(root, Path)
    shutil.rmtree(root / "A")
    left = {path for path in root.rglob("*") if path.is_file()}
    report = await in_thread(lambda: remake(config, OneProcess()))
    assert [(one.finding, one.path) for one in report.findings] == [("queue-left-out", "B/0")]
    assert (report.messages, report.files) == (0, [])
    assert {path for path in root.rglob("*") if path.is_file()} == left
