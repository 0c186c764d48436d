"""A random tier in an object store comes back from its parts; `make rebuild-million` for more."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import fsspec
import pytest

from container.metadata.records import Extent
from container.names.queue_id import QueueId, SegmentType
from container.names.tier_objects import INDEX_PREFIX
from container.queue.manifest import ManifestReader
from container.tier_view import TierReader
from provider.clock import SystemClock
from provider.object_store import ObjectStore
from tests.support.packed_objects import all_segments
from tests.support.patience import HANGS_AFTER_S
from tests.test_tieredstore.offline.test_packed_restore import published
from tests.test_tieredstore.offline.test_random_tier import (
    SPLIT_BYTES,
    RandomTier,
    is_sound,
    made_at,
    same_offsets,
)
from tieredstore.offline.jobs.engine import Engine, LocalEngine, OneProcess
from tieredstore.offline.jobs.rebuild_files import restore
from tieredstore.offline.jobs.rebuild_metadata import remake
from tieredstore.session.places import directory_of, storage_at

pytestmark = [pytest.mark.slow, pytest.mark.timeout(HANGS_AFTER_S)]

PARTS = "@parts/"
KEPT = (PARTS, "@keys/")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class Seen:
    """What a tier must have again."""

    published: dict[str, Any]
    units: dict[QueueId, bytes]
    """A hash of each queue's units."""


@asynccontextmanager
async def stored(tier: RandomTier) -> AsyncGenerator[ObjectStore]:
    config = tier.config
    store = storage_at(config, directory_of(config), clock=SystemClock())
    try:
        yield store
    finally:
        await store.close()


def read(tier: RandomTier, work: Callable[[TierReader], Awaitable[ResultT]]) -> ResultT:
    async def done() -> ResultT:
        async with stored(tier) as store:
            return await work(await TierReader.open(store, verify=True))

    return asyncio.run(done())


def seen(tier: RandomTier) -> Seen:
    async def look(reader: TierReader) -> Seen:
        units: dict[QueueId, bytes] = {}
        for name, queue in reader.state.queues.items():
            container = reader.container(name)
            assert container is not None
            hashed = hashlib.blake2b()
            start = queue.min_offset
            for gap in [*queue.gaps, None]:
                end = queue.next_offset if gap is None else gap.start
                if start < end:
                    hashed.update((await container.units(start, end)).tobytes())
                start = end if gap is None else gap.end
            units[name] = hashed.digest()
        same_offsets(reader.state, tier.written)
        return Seen(await published(reader), units)

    return read(tier, look)


def lose(tier: RandomTier, *, metadata: bool) -> None:
    """Take away index files and the bytes of all units, and with `metadata` all but the parts."""

    async def lost(reader: TierReader) -> None:
        store = reader.store
        manifests = ManifestReader(store)
        units: dict[str, list[Extent]] = {}
        for queue in reader.state.queues.values():
            for segment in await all_segments(queue, SegmentType.CONSUME_QUEUE, manifests):
                for extent in segment.extents:
                    units.setdefault(extent.object_name, []).append(extent)
        for name, extents in units.items():
            raw = bytearray(await store.read(name))
            for one in extents:
                raw[one.object_offset : one.object_offset + one.length] = bytes(one.length)
            await store.delete([name])
            await store.create(name, [bytes(raw)])
        names = [one.name for one in await store.list("")]
        gone = [
            name
            for name in names
            if name.startswith(INDEX_PREFIX) or (metadata and not name.startswith(KEPT))
        ]
        await store.delete(gone)

    read(tier, lost)


def comes_back(tier: RandomTier, engine: Engine, split_bytes: int) -> None:
    """Lost units and index files come back, and so do all metadata when they are lost, too."""
    before = seen(tier)
    lose(tier, metadata=False)
    report = restore(tier.config, engine, split_bytes=split_bytes)
    assert (report.faults, report.findings) == ([], [])
    assert seen(tier) == before, "but for where bytes lie"
    is_sound(tier, OneProcess(), split_bytes)
    lose(tier, metadata=True)
    report = remake(tier.config, engine, split_bytes=split_bytes)
    assert (report.faults, report.findings) == ([], [])
    assert report.messages == tier.written.messages
    assert seen(tier).units == before.units
    is_sound(tier, OneProcess(), split_bytes)


@pytest.fixture(scope="module")
def sound() -> Iterator[RandomTier]:
    """A tier in this process's memory."""
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    yield made_at("memory://bucket/random")
    memory.store.clear()


@pytest.mark.parametrize("split_bytes", SPLIT_BYTES)
def test_parts_give_all_back(
    sound: RandomTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split_bytes: int
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    memory = fsspec.filesystem("memory")
    for name in [one for one in memory.store if one.startswith("/bucket/random/")]:
        memory.pipe_file(name.replace("random", tmp_path.name, 1), memory.cat_file(name))
    tier = RandomTier(f"memory://bucket/{tmp_path.name}", sound.written)
    comes_back(tier, OneProcess(), split_bytes)
    for name in [one for one in memory.store if one.startswith(f"/bucket/{tmp_path.name}/")]:
        memory.rm_file(name)


@pytest.mark.nightly
def test_parts_on_s3_give_all_back_to_several_processes(s3_url: str, tmp_path: Path) -> None:
    with LocalEngine(2, staging=tmp_path) as engine:
        comes_back(made_at(s3_url), engine, SPLIT_BYTES[1])
