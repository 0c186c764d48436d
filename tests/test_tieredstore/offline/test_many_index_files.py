"""A tier whose keys are in several index files a queue is made again, however it is split."""

import asyncio
import shutil
from functools import partial
from pathlib import Path

import pytest

from container.index.layout import KeyItems, joined
from container.index.sealed import decode_sealed
from container.metadata.coverage import merged
from container.names.queue_id import QueueId
from container.names.tier_objects import INDEX_PREFIX
from container.tier_view import TierReader
from provider.posix.store import PosixStore
from tests.support.cli import run
from tests.support.fake_broker import FakeBroker
from tests.support.golden import ROCKETMQ_533, unpacked
from tests.support.level import by_level
from tests.support.packed_objects import PackedTier, in_thread
from tests.support.patience import Patience, until
from tests.test_tieredstore.offline.test_packed_remake import lose_metadata
from tests.test_tieredstore.offline.test_packed_restore import is_sound, lose_all, published
from tests.test_tieredstore.offline.test_rebuild import (
    all_of,
    broker_of,
    config_of,
    options_of,
    remove_derived,
    remove_metadata,
    same_answers,
)
from tieredstore import Follower, follow
from tieredstore.config.effective import Config
from tieredstore.offline.jobs import derived
from tieredstore.offline.jobs.audit import audit
from tieredstore.offline.jobs.engine import LocalEngine, OneProcess
from tieredstore.offline.jobs.rebuild_files import restore
from tieredstore.offline.jobs.rebuild_metadata import remake
from tieredstore.session.places import directory_of

SPLIT_BYTES = (16 << 10, 64 << 10, 1 << 40)
SPLITS = by_level(quick=SPLIT_BYTES[::2], full=SPLIT_BYTES[::2], nightly=SPLIT_BYTES)
LOG_BYTES, ITEMS_MAX = 48 << 10, 150
"""So few that queues of the golden store need several files, and share some."""
KEYS_OF_ONE_MAX = 5


@pytest.fixture(autouse=True)
def short_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(derived, "INDEX_LOG_BYTES", LOG_BYTES)
    monkeypatch.setattr(derived, "INDEX_ITEMS_MAX", ITEMS_MAX)


async def keys_of(reader: TierReader) -> list[tuple[object, ...]]:
    """The keys of all index files, in one order; no offset is in two files, and few keys in any."""
    parts: list[KeyItems] = []
    covered: dict[QueueId, list[tuple[int, int]]] = {}
    queues_in: list[set[QueueId]] = []
    for file in reader.state.index_files.values():
        _, items = decode_sealed(await reader.store.read(file.object_name), path="")
        assert 0 < len(items) == file.items <= ITEMS_MAX + KEYS_OF_ONE_MAX
        parts.append(items)
        queues_in.append({queue for queue, _, _ in file.coverage})
        for queue, start, behind in file.coverage:
            covered.setdefault(queue, []).append((start, behind))
    for queue, spans in covered.items():
        known, joined_spans = reader.state.queues[queue], merged(spans)
        assert joined_spans == [(known.min_offset, known.next_offset)]
        assert sum(b - a for a, b in spans) == known.next_offset - known.min_offset
    assert max(map(len, queues_in)) > 1
    assert max(sum(queue in found for found in queues_in) for queue in covered) > 3
    items = joined(parts)
    topics = {topic.topic_id: topic.name for topic in reader.state.topics.values()}
    names = ("queue_id", "position", "key_hash", "size")
    rows = zip(*(items[name].tolist() for name in ("topic_id", *names)), strict=True)
    return sorted((topics[row[0]], *row[1:]) for row in rows)


async def read(broker: Path) -> list[tuple[object, ...]]:
    store = PosixStore(broker)
    try:
        return await keys_of(await TierReader.open(store))
    finally:
        await store.close()


@pytest.mark.slow
@pytest.mark.scales
async def test_logs_in_a_directory_give_the_same_keys_however_they_are_split(
    tmp_path: Path,
) -> None:
    tree = unpacked(ROCKETMQ_533)
    run(*options_of(tree, tmp_path / "sound"), "tier", tree.store)
    found: list[list[tuple[object, ...]]] = []
    for split_bytes in SPLITS:
        tier = Path(shutil.copytree(tmp_path / "sound", tmp_path / str(split_bytes)))
        config, broker = config_of(tree, tier), broker_of(tree, tier)
        remove_derived(broker)
        remove_metadata(broker)
        made = await in_thread(partial(remake, config, OneProcess(), split_bytes=split_bytes))
        assert (made.faults, made.findings) == ([], [])
        found.append(await read(broker))
        before = all_of(broker)
        remove_derived(broker)
        again = await in_thread(partial(restore, config, OneProcess(), split_bytes=split_bytes))
        assert (again.faults, again.findings) == ([], [])
        assert all_of(broker) == before
        audited = await asyncio.to_thread(audit, config, OneProcess(), split_bytes=split_bytes)
        assert audited.findings == []
        store = PosixStore(broker)
        await same_answers(await TierReader.open(store, verify=True), tree)
        await store.close()
    assert found == found[:1] * len(SPLITS)


@pytest.mark.slow
@pytest.mark.scales
async def test_parts_give_the_same_keys_however_they_are_split(packed_tier: PackedTier) -> None:
    await lose_metadata(packed_tier)
    left = packed_tier.objects
    config = packed_tier.config
    found: list[list[tuple[object, ...]]] = []
    for split_bytes in SPLITS:
        packed_tier.put(left)
        made = await in_thread(partial(remake, config, OneProcess(), split_bytes=split_bytes))
        assert (made.faults, made.findings) == ([], [])
        found.append(await packed_tier.read(keys_of))
        before = await packed_tier.read(published)
        await lose_all(packed_tier)
        again = await in_thread(partial(restore, config, OneProcess(), split_bytes=split_bytes))
        assert (again.faults, again.findings) == ([], [])
        assert await packed_tier.read(published) == before, "but for where bytes lie"
        assert await packed_tier.read(keys_of) == found[0]
        await is_sound(packed_tier, answers=split_bytes == SPLIT_BYTES[0])
    assert found == found[:1] * len(SPLITS)


@pytest.mark.slow
def test_workers_make_the_same_files(tmp_path: Path) -> None:
    tree = unpacked(ROCKETMQ_533)
    run(*options_of(tree, tmp_path / "one"), "tier", tree.store)
    brokers = [broker_of(tree, tmp_path / name) for name in ("one", "two")]
    remove_derived(brokers[0])
    remove_metadata(brokers[0])
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    remake(config_of(tree, tmp_path / "one"), OneProcess(), split_bytes=SPLIT_BYTES[1])
    with LocalEngine(2, staging=tmp_path) as engine:
        remake(config_of(tree, tmp_path / "two"), engine, split_bytes=SPLIT_BYTES[1])
    one, two = (
        {name: raw for name, raw in all_of(broker).items() if name[0] != "@"} for broker in brokers
    )
    assert one == two
    assert sum(name.startswith(INDEX_PREFIX) for name in one) > len(SPLIT_BYTES)


async def test_files_come_back_while_an_owner_lives_and_writes_more(tmp_path: Path) -> None:
    broker, tier = FakeBroker(tmp_path / "store"), tmp_path / "tier"
    named = {"brokerClusterName": "C", "brokerName": "b", "tieredStoreFilePath": tier}
    config = Config.load(settings=named)

    def put(messages: int) -> None:
        for number in range(messages):
            keys = " ".join(f"key-{number}-{one}" for one in range(number % 4))
            broker.put("Orders", number % 3 // 2, b"%d" % number, keys=keys)

    def follower() -> Follower:
        settings = {"tieredStoreIndexFileMaxIndexNum": 300}
        return follow(broker.directory, tier, cluster="C", broker="b", settings=settings)

    def is_sealed(one: Follower) -> bool:
        return one.upkeep_statistics().figures["index_items_unsealed"] < 300

    put(1_000)
    async with follower() as one:
        await one.drain()
    root = directory_of(config)
    assert isinstance(root, Path)
    remove_derived(root)
    remove_metadata(root)
    await in_thread(partial(remake, config, OneProcess(), split_bytes=SPLIT_BYTES[0]))
    await read(root)
    async with follower() as one:
        put(1_000)
        await one.drain()
        await until(lambda: is_sealed(one), Patience("full buffers of keys are not sealed"))
        before = index_files(root)
        for name in before:
            (root / name).unlink()
        made = await in_thread(partial(restore, config, OneProcess(), split_bytes=SPLIT_BYTES[0]))
        assert (made.faults, {file.path for file in made.files}) == ([], before.keys())
        assert index_files(root) == before
        put(1_000)
        await one.drain()
    assert index_files(root).items() > before.items()
    audited = await asyncio.to_thread(audit, config, OneProcess())
    assert (audited.findings, audited.counts["messages"]) == ([], 3_000)


def index_files(broker: Path) -> dict[str, bytes]:
    return {name: raw for name, raw in all_of(broker).items() if name.startswith(INDEX_PREFIX)}
