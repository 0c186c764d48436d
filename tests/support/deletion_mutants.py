"""The protocol with one rule changed: deletions, plans that come too late, ownership, offload.

As `protocol_mutants.py`, whose docstring says what a mutant is.

Some rules have no mutant here, for another rule does the same:

- *A deletion verifies the owner.* A fenced owner deletes what has a durable tombstone, and so what
  the newer owner deletes, too: names of parts, manifests and index files never come again, and a
  file whose name was used before is begun only where no other owner lives. The rule stays: that
  last thing rests on locks, which some file systems only pretend to keep. That an owner learns of
  its fence at all is a mutant of the files and of the journal.
- *A merge, or an offload, compares the extents that it copied.* What does not fit is refused by the
  state itself, which compares generation, place and offsets; what fits has the same bytes.
- *A taken-up message counts once it is published.* Whoever asks for the end of a queue has awaited
  its publication by then.

Others want a moment that no seed of some hundreds has met; a test makes it, and fails without them:

- *The search takes no part of our own epoch*: `test_parts.py`, `test_offload_faults.py` of upkeep.
- *A topic begins again once its files are gone*: `test_retention.py`. What begins too early takes
  files over whose bytes a reader of the deleted topic may still ask for.
- *First files are announced*: `test_first_files.py`. Here every queue is begun at last.
- *A merge of index files is compared with its plan*: `test_index_merge.py`; nobody cuts here.
- *A grace time begins when something is unpublished, not with the plan of it*: `test_deletion.py`,
  and a seed of `test_store_owners.py`.
- *Commits wait for deletions, and unclear ones are repeated*: `test_cuts.py`, likewise.
"""

from dataclasses import replace
from typing import Any

import pytest

from container.journal import ownership
from container.journal.journal import Journal
from container.journal.reader import JournalReader
from container.metadata import queue_changes
from container.move import offload_copies
from container.names.queue_id import QueueId
from container.steps import OwnedTier, plan_deletions
from container.upkeep import garbage, tombstones
from container.upkeep.garbage import OrphanStep, PartsStep
from container.upkeep.tombstones import TombstoneStep
from provider.object_store import ObjectEntry
from provider.stores.in_place_segments import InPlaceSegments
from tests.support.protocol_mutants import Mutant


def what_is_freed_may_go_at_once(patch: pytest.MonkeyPatch) -> None:
    """Tombstones are due when they are planned, without the grace time, and nobody adds one."""
    patch.setattr(OwnedTier, "due_ms", lambda self: self.clock.now_ms())
    _nothing_rests(patch)


def _nothing_rests(patch: pytest.MonkeyPatch) -> None:
    """What is due goes, whenever it was unpublished."""
    patch.setattr(TombstoneStep, "_rests", lambda *_, **__: False)


def tombstones_go_before_they_are_due(patch: pytest.MonkeyPatch) -> None:
    """What is freed has its grace time, and nobody waits for it."""
    _nothing_rests(patch)
    patch.setattr(
        tombstones.TombstoneStep,
        "_candidates",
        lambda self, *, is_last: list(self.tier.state.tombstones),
    )
    patch.setattr(
        tombstones,
        "plan_deletions",
        lambda state, _now_ms, *a, **o: plan_deletions(state, 2**62, *a, **o),
    )


def an_owner_never_learns_that_it_was_fenced(patch: pytest.MonkeyPatch) -> None:
    """`verify_owner` finds every owner to be the newest."""

    async def trusting(self: Journal) -> None:
        del self

    patch.setattr(Journal, "verify_owner", trusting)


def the_search_looks_at_what_is_published(patch: pytest.MonkeyPatch) -> None:
    """The search for parts that nothing names does not see what earlier owners published."""

    async def search(self: PartsStep) -> None:
        state = self.tier.state
        listed = await self._segments.earlier_objects()
        used = {name for name, part in state.parts.items() if part.level == 0}
        await self._add_tombstones(sorted(set(listed) - used - state.tombstones.keys()))
        self._searched = True

    patch.setattr(PartsStep, "_search", search)


def queues_are_not_searched(patch: pytest.MonkeyPatch) -> None:
    """Files that dead owners never published stay for ever."""

    async def search(self: OrphanStep) -> None:
        self._left.clear()
        self._own_done = True

    patch.setattr(OrphanStep, "_search_listed", search)


def an_orphan_counts_as_an_offloaded_file(patch: pytest.MonkeyPatch) -> None:
    """Manifests of offloaded queues are read only where there are more files than they list."""
    sort = garbage.sort_files

    def counted(state: Any, queue: QueueId, names: Any) -> Any:
        files = sort(state, queue, names)
        more = tuple((ref, some) for ref, some in files.doubtful if len(some) > ref.segments)
        return replace(files, doubtful=more)

    patch.setattr(garbage, "sort_files", counted)


def an_offload_forgets_what_manifests_named(patch: pytest.MonkeyPatch) -> None:
    """Manifests that are written anew let go of nothing."""
    release_of = offload_copies.release_of
    patch.setattr(offload_copies, "release_of", lambda _lost, due_ms: release_of({}, due_ms))


def an_offload_moves_what_grows(patch: pytest.MonkeyPatch) -> None:
    """Offloaded bytes lie where the segment's first extent lay."""
    make = offload_copies.Offloader._copy

    async def shifted(self: Any, queue: QueueId, segment: Any, run: Any) -> Any:
        moved = await make(self, queue, segment, run)
        return [one._replace(object_offset=moved[0].object_offset) for one in moved]

    patch.setattr(offload_copies.Offloader, "_copy", shifted)


def a_new_owner_has_the_old_epoch(patch: pytest.MonkeyPatch) -> None:
    """A fence is of the epoch that it should end."""
    take = ownership.replace

    def same(fence: Any, **fields: Any) -> Any:
        epoch = max(1, fields["epoch"] - 1)
        return take(fence, **{**fields, "epoch": epoch})

    patch.setattr(ownership, "replace", same)


def a_file_is_taken_over_beside_its_owner(patch: pytest.MonkeyPatch) -> None:
    """A file that another owner left is written, though that owner may live."""

    async def hopeful(self: InPlaceSegments) -> bool:
        del self
        return True

    patch.setattr(InPlaceSegments, "_is_alone_by_now", hopeful)


def changes_are_not_compared_with_their_plan(patch: pytest.MonkeyPatch) -> None:
    """A trim, a cut or a deletion is published on another record than it was planned on."""
    patch.setattr(queue_changes, "refuse_other_basis", lambda *_: None)


def a_slow_listing_is_believed(patch: pytest.MonkeyPatch) -> None:
    """A listing counts however long it took."""

    async def listed(self: JournalReader, prefix: str, *, after: str = "") -> list[ObjectEntry]:
        return await self._store.list(prefix, after=after)

    patch.setattr(JournalReader, "listed", listed)


def old_boundaries_go_at_once(patch: pytest.MonkeyPatch) -> None:
    """A boundary goes with the next one, though a listing may be on its way that shows neither."""
    patch.setattr(
        "container.upkeep.snapshots.plan_old_boundaries",
        lambda made, _now_s, _listing_s_max: max((one.sequence for one in made), default=0),
    )


OF_STORES: list[Mutant] = [
    what_is_freed_may_go_at_once,
    tombstones_go_before_they_are_due,
    changes_are_not_compared_with_their_plan,
    the_search_looks_at_what_is_published,
    queues_are_not_searched,
    an_offload_moves_what_grows,
    an_offload_forgets_what_manifests_named,
]
"""Mutants that the simulation of object stores kills."""

OF_FILES: list[Mutant] = [
    an_owner_never_learns_that_it_was_fenced,
    a_file_is_taken_over_beside_its_owner,
    an_orphan_counts_as_an_offloaded_file,
]
"""Those that it kills where segments are files that grow."""

OF_JOURNALS: list[Mutant] = [
    an_owner_never_learns_that_it_was_fenced,
    a_new_owner_has_the_old_epoch,
    a_slow_listing_is_believed,
    old_boundaries_go_at_once,
]
"""Mutants that the simulation of the journal alone kills."""
