"""More of the protocol with one rule changed: owners, upkeep, index files and files that grow.

As `protocol_mutants.py`, whose docstring says what a mutant is.
"""

from typing import Any

import pytest

from container.journal.ownership import EntryWriter, Outcome, Written
from container.metadata.records import IndexFile
from container.names.tier_objects import EntryName
from container.upkeep import index_merge
from container.upkeep.index_files import IndexWriter
from provider.object_store import Buffer
from provider.stores.in_place_segments import InPlaceSegments
from tests.support.protocol_mutants import Mutant


def an_index_file_says_that_it_has_more(patch: pytest.MonkeyPatch) -> None:
    """Its coverage has one message more at each end of a queue than its items."""
    write = IndexWriter.write

    async def proud(self: IndexWriter, raw: Any, coverage: Any) -> IndexFile:
        more = tuple((queue, start, end + 1) for queue, start, end in coverage)
        return await write(self, raw, more)

    patch.setattr(IndexWriter, "write", proud)


def a_segment_of_another_owner_goes_on(patch: pytest.MonkeyPatch) -> None:
    """A new owner appends to the files of the one before it."""
    patch.setattr(InPlaceSegments, "must_roll", lambda _self, _epoch: False)


def what_can_be_seen_counts_as_durable(patch: pytest.MonkeyPatch) -> None:
    """An entry of ours that a read shows is believed, without a create that vouches for it."""
    create = EntryWriter._create

    async def seen(self: EntryWriter, name: EntryName, raw: bytes) -> Buffer | None:
        found = await self._read_or_none(name)
        return found if found is not None else await create(self, name, raw)

    patch.setattr(EntryWriter, "_create", seen)


def a_merge_of_index_files_loses_one(patch: pytest.MonkeyPatch) -> None:
    """The first of the files that are merged is left out, and its coverage is kept."""
    merge = index_merge.merge_sealed
    patch.setattr(index_merge, "merge_sealed", lambda parts: merge(parts[1:] or parts))


def a_lost_reply_makes_an_entry_anothers(patch: pytest.MonkeyPatch) -> None:
    """An entry that was read back is not known by its bytes."""
    write = EntryWriter.write

    async def forgetful(self: EntryWriter, name: EntryName, raw: bytes) -> Written:
        before = self.retries
        written = await write(self, name, raw)
        if written.outcome == Outcome.LANDED and self.retries > before:
            return Written(Outcome.TAKEN, written.found)
        return written

    patch.setattr(EntryWriter, "write", forgetful)


OF_STORES: list[Mutant] = [
    an_index_file_says_that_it_has_more,
    a_merge_of_index_files_loses_one,
]
"""Mutants that the simulation of whole stores kills."""

OF_FILES: list[Mutant] = [a_segment_of_another_owner_goes_on]
"""Those that it kills where segments are files that grow."""

OF_JOURNALS: list[Mutant] = [
    what_can_be_seen_counts_as_durable,
    a_lost_reply_makes_an_entry_anothers,
]
"""Mutants that the simulation of the journal alone kills."""
