"""Sealed segments leave the snapshot, and are found again; references stay few."""

import math

import pytest

from container.errors import BytesMissing
from container.journal.journal import Journal
from container.metadata.codec import state_pieces
from container.metadata.records import Queue, Segment
from container.names.queue_id import SegmentType
from container.options import UpkeepOptions
from container.queue.manifest import ManifestReader, plan_manifest
from container.upkeep.upkeep import Upkeep
from provider.errors import Corrupt
from provider.testing.manual_clock import ManualClock, settle
from tests.support.journal_run import own, own_with_upkeep, running
from tests.support.journal_store import DictStore
from tests.support.tier_values import Q0, begin_queue, commit

OPTIONS = UpkeepOptions(
    sealed_segments_max=3,
    manifests_per_level_max=3,
    snapshot_entries_max=20,
    interval_s=1.0,
    grace_s=30.0,
)
BOTH = (SegmentType.COMMIT_LOG, SegmentType.CONSUME_QUEUE)


async def kept_up(store: DictStore, clock: ManualClock, commits: int) -> tuple[Journal, Upkeep]:
    """A queue with `commits` sealed segments of each type, kept up."""
    journal, upkeep = await own_with_upkeep(store.view(), clock, upkeep=OPTIONS)
    async with running(journal, upkeep):
        await journal.publish(begin_queue())
        for _ in range(commits):
            await journal.publish([commit(journal.state.queues[Q0], 5, seal=True)])
            await clock.advance(2)
        await clock.advance(300)
    return journal, upkeep


async def history(store: DictStore, clock: ManualClock, commits: int) -> Journal:
    journal, _ = await kept_up(store, clock, commits)
    return journal


async def all_segments(reader: ManifestReader, queue: Queue, kind: SegmentType) -> list[Segment]:
    found: list[Segment] = []
    for ref in queue.manifests:
        if ref.type == kind:
            found += await reader.segments(ref)
    return [*found, *queue.segments(kind)]


async def test_every_segment_is_found_once_and_in_order() -> None:
    store, clock = DictStore(), ManualClock()
    journal = await history(store, clock, 40)
    queue = journal.state.queues[Q0]
    reader = ManifestReader(store.view())
    for kind in BOTH:
        segments = await all_segments(reader, queue, kind)
        size = 500 if kind == SegmentType.COMMIT_LOG else 100
        assert [segment.base for segment in segments] == [size * n for n in range(40)]
        assert len(queue.segments(kind)) <= OPTIONS.sealed_segments_max + 1
    journal.state.check()


async def test_references_grow_with_the_logarithm() -> None:
    journal = await history(DictStore(), ManualClock(), 200)
    refs = journal.state.queues[Q0].manifests
    levels = {ref.level for ref in refs}
    per_level = OPTIONS.manifests_per_level_max
    assert max(levels) >= 2
    assert len(refs) <= 2 * per_level * (1 + math.ceil(math.log(200, per_level)))
    assert sum(ref.segments for ref in refs) >= 2 * (200 - OPTIONS.sealed_segments_max - 1)


async def test_merged_manifests_are_deleted_after_the_lag_and_only_they() -> None:
    store, clock = DictStore(), ManualClock()
    journal, upkeep = await kept_up(store, clock, 40)
    used = {ref.object_name for ref in journal.state.queues[Q0].manifests}
    assert set(store.names("@manifest/")) == used
    assert journal.state.tombstones == {}
    assert upkeep.statistics().figures["objects_deleted"] > 0


async def test_starting_neither_reads_manifests_nor_grows_with_history() -> None:
    sizes: list[int] = []
    costs: list[int] = []
    for commits in (30, 240):
        store, clock = DictStore(), ManualClock()
        await history(store, clock, commits)
        view = store.view()
        read = view.read
        names: list[str] = []

        async def watched(name, wanted=None, *, read=read, names=names):
            names.append(name)
            return await read(name, wanted)

        view.read = watched  # type: ignore[method-assign]
        before = store.requests
        journal = await own(view, clock, seed=1)
        costs.append(store.requests - before)
        sizes.append(sum(len(piece) for piece in state_pieces(journal.state)))
        assert not [name for name in names if name.startswith("@manifest/")]
    assert costs[1] <= costs[0] + OPTIONS.snapshot_entries_max
    assert sizes[1] < 2 * sizes[0]


async def test_a_manifest_is_read_once_and_a_damaged_one_is_named() -> None:
    store, clock = DictStore(), ManualClock()
    journal = await history(store, clock, 10)
    ref = journal.state.queues[Q0].manifests[0]
    reader = ManifestReader(store.view())
    before = store.requests
    assert await reader.segments(ref) == await reader.segments(ref)
    assert store.requests == before + 1
    assert repr(reader) == "<ManifestReader: 1 kept, 1 read>"
    store.damage(ref.object_name)
    with pytest.raises(Corrupt) as caught:
        await ManifestReader(store.view()).segments(ref)
    assert caught.value.path == ref.object_name
    del store.objects[ref.object_name]
    with pytest.raises(BytesMissing):
        await ManifestReader(store.view()).segments(ref)


async def test_the_cache_is_bounded() -> None:
    store, clock = DictStore(), ManualClock()
    journal = await history(store, clock, 40)
    reader = ManifestReader(store.view(), extents_max=7)
    for kind in BOTH:
        await all_segments(reader, journal.state.queues[Q0], kind)
    assert "1 kept" in repr(reader) or "0 kept" in repr(reader)


async def test_a_damaged_manifest_does_not_stop_the_snapshots() -> None:
    store, clock = DictStore(), ManualClock()
    journal, upkeep = await kept_up(store, clock, 12)
    for name in store.names("@manifest/"):
        store.damage(name)
    snapshots = upkeep.statistics().figures["snapshots"]
    async with running(journal, upkeep):
        for _ in range(40):
            await journal.publish([commit(journal.state.queues[Q0], 5, seal=True)])
            await clock.advance(2)
        assert "checksum" in upkeep.statistics().last_error
    assert upkeep.statistics().figures["snapshots"] > snapshots


async def test_an_earlier_owners_unpublished_manifest_is_deleted() -> None:
    store, clock = DictStore(), ManualClock()
    await history(store, clock, 12)
    orphan = store.names("@manifest/")[0].replace("-0000000001-", "-0000000000-")
    store.put(orphan, b"left by an owner that died")
    journal, upkeep = await own_with_upkeep(store.view(), clock, seed=1, upkeep=OPTIONS)
    async with running(journal, upkeep):
        await journal.publish([commit(journal.state.queues[Q0], 5)])
        await settle()
        await clock.advance(1000)
    assert orphan not in store.objects
    used = {ref.object_name for ref in journal.state.queues[Q0].manifests}
    assert used <= set(store.objects)


async def test_nothing_is_planned_for_a_short_queue() -> None:
    journal = await history(DictStore(), ManualClock(), 3)
    queue = journal.state.queues[Q0]
    assert plan_manifest(queue, sealed_segments_max=3, manifests_per_level_max=3) is None
