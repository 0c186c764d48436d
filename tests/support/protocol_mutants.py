"""The protocol with one rule changed: the simulations must notice every one of these.

Each mutant is a function that changes one rule by a monkeypatch; its docstring says which rule is
broken. What a mutant breaks may be hidden by chance in one seed, so a test gives it many.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest

from container.journal import journal, reader, truncation
from container.journal.journal import Transaction
from container.journal.ownership import EntryWriter, Outcome, Written
from container.journal.reader import encode_snapshot
from container.journal.truncation import VerifiedSnapshot
from container.metadata import objects
from container.metadata.operations import Release
from container.metadata.records import Queue
from container.move import repack
from container.move.repack import Repacker
from container.names.tier_objects import EntryName, SnapshotName
from container.queue.commit_plan import CommitPlan
from container.steps import OwnedTier
from container.tier import Tier
from container.upkeep import retention
from container.upkeep.garbage import PartsStep
from provider.errors import AlreadyExists, Unavailable
from provider.file_segments import Placement
from provider.object_store import Buffer
from provider.stores.packed_segments import PackedSegments, PartName

Mutant = Callable[[pytest.MonkeyPatch], None]


def a_part_goes_one_reference_early(patch: pytest.MonkeyPatch) -> None:
    """The tombstone is made while one extent still names the part."""
    count = objects.count

    def early(known: Any, dead: Any, delta: Any, **options: Any) -> None:
        count(known, dead, delta, **options)
        for name in delta:
            part = known.get(name)
            due_ms = options.get("not_before_ms")
            if part is not None and part.references == 1 and delta[name] < 0 and due_ms is not None:
                count(known, dead, {name: -1}, **options)

    patch.setattr(objects, "count", early)


def a_commit_counts_every_part_once(patch: pytest.MonkeyPatch) -> None:
    """Two extents of one queue in one part count as one reference."""
    counted = objects.counted_commit
    patch.setattr(
        objects, "counted_commit", lambda *args: Counter(dict.fromkeys(counted(*args), 1))
    )


def repacking_lets_go_of_nothing(patch: pytest.MonkeyPatch) -> None:
    """A merge does not drop the references to the old parts."""
    counted = objects.counted_change

    def kept(before: Queue | None, after: Queue | None, release: Release | None) -> Counter[str]:
        delta = counted(before, after, release)
        if before is not None and after is not None and after.repacks > before.repacks:
            return Counter({name: change for name, change in delta.items() if change > 0})
        return delta

    patch.setattr(objects, "counted_change", kept)


def what_manifests_let_go_of_is_not_counted(patch: pytest.MonkeyPatch) -> None:
    """Expiry and deletion forget the extents in manifests."""
    counted = objects.counted_change
    patch.setattr(
        objects,
        "counted_change",
        lambda before, after, release: counted(before, after, None),
    )


def expiry_says_nothing_of_manifests(patch: pytest.MonkeyPatch) -> None:
    """A trim plans its release without what manifests named."""
    release_of = objects.release_of
    patch.setattr(retention, "release_of", lambda _lost, due_ms: release_of({}, due_ms))


def a_merge_joins_in_the_wrong_order(patch: pytest.MonkeyPatch) -> None:
    """Merged bytes lie one run too far, their checksum made of what is there."""
    joined = repack._joined

    def turned(run: Any, bodies: Any, bytes_max: int) -> Any:
        positions = sorted(bodies)
        return joined(
            run, dict(zip(positions, map(bodies.get, positions[::-1]), strict=True)), bytes_max
        )

    patch.setattr(repack, "_joined", turned)


def a_merge_forgets_where_its_slice_begins(patch: pytest.MonkeyPatch) -> None:
    """Merged extents of all runs name the beginning of the part."""
    placed = repack._placed

    def at_zero(extent: Any, place: Placement, shift: int) -> Any:
        return placed(extent, place, shift - place.object_offset)

    patch.setattr(repack, "_placed", at_zero)


def a_merge_publishes_before_it_writes(patch: pytest.MonkeyPatch) -> None:
    """The part is named by the journal first, and made afterwards."""
    write = PackedSegments.write

    async def later(self: PackedSegments, slices: Any, *, alone: bool = False) -> list[Placement]:
        if not any(one.position == 0 for one in slices) and len(slices) == 1:
            name = str(PartName(self._epoch, self._rng.randbytes(16).hex()))
            return [Placement(name, 0)]
        return await write(self, slices, alone=alone)

    patch.setattr(PackedSegments, "write", later)


def the_search_buries_parts_in_use(patch: pytest.MonkeyPatch) -> None:
    """Parts of earlier owners get tombstones whether anything names them or not."""

    async def search(self: PartsStep) -> None:
        await self._add_tombstones(await self._segments.earlier_objects())
        self._searched = True

    patch.setattr(PartsStep, "_search", search)


def nobody_looks_for_what_others_left(patch: pytest.MonkeyPatch) -> None:
    """Parts that dead owners never published stay for ever."""

    async def search(self: PartsStep) -> None:
        self._searched = True

    patch.setattr(PartsStep, "_search", search)


def an_unclear_part_counts_as_made(patch: pytest.MonkeyPatch) -> None:
    """A part whose create failed without a reply is published."""
    make = PackedSegments._make

    async def hopeful(self: PackedSegments, name: str, buffers: Sequence[Buffer]) -> None:
        try:
            await self._store.create(name, buffers)
        except (Unavailable, AlreadyExists):
            return

    assert make is not None
    patch.setattr(PackedSegments, "_make", hopeful)


def a_commit_is_published_before_it_is_durable(patch: pytest.MonkeyPatch) -> None:
    """The entry names a part that is made afterwards."""
    commit = Tier.commit

    async def hasty(self: Tier, plans: Sequence[CommitPlan]) -> None:
        write = self._segments.write
        made: list[Any] = []

        async def promised(slices: Any, *, alone: bool = False) -> list[Placement]:
            name = str(PartName(self.journal.epoch, f"{len(self.state.parts):032x}"))
            made.append(slices)
            placed, at = list[Placement](), 0
            for one in slices:
                placed.append(Placement(name, at))
                at += sum(map(len, one.buffers))
            return placed

        self._segments.write = promised  # type: ignore[method-assign]
        try:
            await commit(self, plans)
        finally:
            self._segments.write = write  # type: ignore[method-assign]

    patch.setattr(Tier, "commit", hasty)


def an_entry_below_the_boundary_counts(patch: pytest.MonkeyPatch) -> None:
    """Whoever wakes below the boundary believes its entry."""
    write = EntryWriter.write

    async def proud(self: EntryWriter, name: EntryName, raw: bytes) -> Written:
        written = await write(self, name, raw)
        if written.outcome == Outcome.STALE and bytes(written.found) == raw:
            return Written(Outcome.LANDED, written.found)
        return written

    patch.setattr(EntryWriter, "write", proud)


def an_unclear_entry_counts_as_landed(patch: pytest.MonkeyPatch) -> None:
    """A create without a reply is taken for a success."""

    async def create(self: EntryWriter, name: EntryName, raw: bytes) -> Buffer | None:
        try:
            await self._store.create(str(name), [raw])
        except Unavailable:
            return raw
        except AlreadyExists:
            return await self._read_or_none(name)
        return raw

    patch.setattr(EntryWriter, "_create", create)


def a_taken_number_counts_as_ours(patch: pytest.MonkeyPatch) -> None:
    """Another owner's entry under our number is taken for our own."""
    write = EntryWriter.write

    async def blind(self: EntryWriter, name: EntryName, raw: bytes) -> Written:
        written = await write(self, name, raw)
        outcome = Outcome.LANDED if written.outcome == Outcome.TAKEN else written.outcome
        return Written(outcome, raw if outcome == Outcome.LANDED else written.found)

    patch.setattr(EntryWriter, "write", blind)


def the_boundary_passes_the_newest_snapshot(patch: pytest.MonkeyPatch) -> None:
    """Entries go although only one snapshot, perhaps a damaged one, holds them."""

    def newest(
        verified: list[VerifiedSnapshot], now_s: float, grace_s: float
    ) -> SnapshotName | None:
        del now_s, grace_s
        return verified[-1].name if verified else None

    patch.setattr("container.upkeep.snapshots.plan_boundary", newest)
    patch.setattr("container.upkeep.snapshots.TruncationStep.check", lambda _: None)


def entries_go_before_the_boundary_stands(patch: pytest.MonkeyPatch) -> None:
    """The journal is cut, and no boundary says so."""

    cut = truncation.truncate_journal

    async def unannounced(store: Any, *args: Any, **options: Any) -> int:
        async def nothing(name: str, buffers: Any) -> None:
            del name, buffers

        create, store.create = store.create, nothing
        try:
            return await cut(store, *args, **options)
        finally:
            store.create = create

    patch.setattr("container.upkeep.snapshots.truncate_journal", unannounced)


def transactions_are_planned_on_what_is_published(patch: pytest.MonkeyPatch) -> None:
    """An operation does not see those that wait before it."""
    accept = journal.Journal._accept

    def published(self: journal.Journal, operations: Any) -> Any:
        accepted = accept(self, operations)
        return self._state.plan(operations), accepted[1]

    patch.setattr(journal.Journal, "_accept", published)


def a_merge_checks_only_its_first_extent(patch: pytest.MonkeyPatch) -> None:
    """The checksum of a merged extent is that of its first piece."""
    joined = repack._joined

    def hasty(run: Any, bodies: Any, bytes_max: int) -> Any:
        done = joined(run, bodies, bytes_max)
        first = done.extents[0]._replace(crc32c=run.extents[0].crc32c)
        return done._replace(extents=(first, *done.extents[1:]))

    patch.setattr(repack, "_joined", hasty)


def a_merge_mixes_up_its_queues(patch: pytest.MonkeyPatch) -> None:
    """The places of a job's slices are given out in the wrong order."""
    operations = Repacker._operations

    def mixed(self: Repacker, copied: Any, placed: Sequence[Placement]) -> Any:
        return operations(self, copied, placed[::-1])

    patch.setattr(Repacker, "_operations", mixed)


def a_name_is_used_twice(patch: pytest.MonkeyPatch) -> None:
    """All parts of an owner have one name, and whoever finds it taken is content."""

    async def content(self: PackedSegments, name: str, buffers: Sequence[Buffer]) -> None:
        del name
        self.settled += 1
        with suppress(AlreadyExists):
            await self._store.create(f"@parts/{self._epoch:010d}/{0:032x}", buffers)

    write = PackedSegments.write

    async def same(self: PackedSegments, slices: Any, *, alone: bool = False) -> list[Placement]:
        placed = await write(self, slices, alone=alone)
        name = f"@parts/{self._epoch:010d}/{0:032x}"
        return [Placement(name, one.object_offset) for one in placed]

    patch.setattr(PackedSegments, "_make", content)
    patch.setattr(PackedSegments, "write", same)


def units_are_not_counted_in_a_changed_record(patch: pytest.MonkeyPatch) -> None:
    """A change of a whole record counts the extents of its CommitLog only."""
    patch.setattr(objects, "FLAT_FILES", objects.FLAT_FILES[:1])


def upkeep_believes_what_is_not_published(patch: pytest.MonkeyPatch) -> None:
    """Snapshots, manifests and deletions go by accepted transactions, durable or not."""
    patch.setattr(OwnedTier, "state", property(lambda self: self.journal.planned))


def a_transaction_is_acknowledged_before_it_is_durable(patch: pytest.MonkeyPatch) -> None:
    """`publish` returns once the transaction is accepted."""
    accept = journal.Journal._accept

    async def hasty(self: journal.Journal, operations: Any) -> int:
        transaction = Transaction(*accept(self, tuple(operations)))
        self._waiting.append(transaction)
        self._idle.clear()
        self._wake.set()
        return self._state.sequence + 1

    patch.setattr(journal.Journal, "publish", hasty)


def nobody_looks_at_the_boundary(patch: pytest.MonkeyPatch) -> None:
    """Readers and owners believe what lies below the boundary."""
    posted = reader.JournalReader.posted

    async def lowest(self: reader.JournalReader) -> reader.Posted:
        return (await posted(self))._replace(boundary=0)

    patch.setattr(reader.JournalReader, "posted", lowest)


def a_snapshot_is_not_read_back(patch: pytest.MonkeyPatch) -> None:
    """A snapshot counts as soon as it is written, damaged or not."""

    async def write(store: Any, state: Any, *, epoch: int, rng: Any, clock: Any) -> SnapshotName:
        nonce = rng.randbytes(16)
        name, chunks = await encode_snapshot(state.copy(), epoch=epoch, nonce=nonce, clock=clock)
        await store.create(str(name), chunks)
        return name

    patch.setattr("container.upkeep.snapshots.write_snapshot", write)


OF_STORES: list[Mutant] = [
    a_part_goes_one_reference_early,
    a_commit_counts_every_part_once,
    repacking_lets_go_of_nothing,
    what_manifests_let_go_of_is_not_counted,
    expiry_says_nothing_of_manifests,
    a_merge_joins_in_the_wrong_order,
    a_merge_forgets_where_its_slice_begins,
    a_merge_publishes_before_it_writes,
    the_search_buries_parts_in_use,
    nobody_looks_for_what_others_left,
    an_unclear_part_counts_as_made,
    a_commit_is_published_before_it_is_durable,
    a_taken_number_counts_as_ours,
    transactions_are_planned_on_what_is_published,
    a_merge_checks_only_its_first_extent,
    a_merge_mixes_up_its_queues,
    a_name_is_used_twice,
    units_are_not_counted_in_a_changed_record,
    upkeep_believes_what_is_not_published,
]
"""Mutants that the simulation of whole stores kills."""

OF_JOURNALS: list[Mutant] = [
    an_entry_below_the_boundary_counts,
    an_unclear_entry_counts_as_landed,
    the_boundary_passes_the_newest_snapshot,
    entries_go_before_the_boundary_stands,
    a_transaction_is_acknowledged_before_it_is_durable,
    nobody_looks_at_the_boundary,
    a_snapshot_is_not_read_back,
]
"""Mutants that the simulation of the journal alone kills."""
