"""What is wrong with the tier's own metadata objects."""

from collections.abc import AsyncIterator, Iterator, Mapping
from itertools import pairwise

from container.check.finding import Finding
from container.errors import NewerVersion
from container.journal.frame import Frame, FrameKind
from container.journal.snapshot import decode_snapshot
from container.metadata.state import TierState
from container.names.tier_objects import (
    BoundaryName,
    EntryName,
    ManifestName,
    SnapshotName,
    parse_name,
)
from provider.errors import Corrupt, NotFound
from provider.object_store import ObjectStore

_KINDS = {
    EntryName: FrameKind.ENTRY,
    SnapshotName: FrameKind.SNAPSHOT,
    ManifestName: FrameKind.MANIFEST,
    BoundaryName: FrameKind.BOUNDARY,
}


def own_objects(state: TierState) -> Iterator[str]:
    """Names outside `@` that the metadata knows besides the segments of live queues."""
    yield from state.tombstones
    yield from state.index_files


async def check_journal(
    store: ObjectStore, state: TierState, sizes: Mapping[str, int]
) -> AsyncIterator[Finding]:
    """Yield damaged, missing and unknown objects below `@`. Reads each of them once.

    An object that housekeeping deletes while we look is not a finding.
    """
    names = {name: parsed for name in sorted(sizes) if (parsed := parse_name(name)) is not None}
    boundary = max((n.sequence for n in names.values() if isinstance(n, BoundaryName)), default=0)
    entries = [n.sequence for n in names.values() if isinstance(n, EntryName)]
    for before, after in pairwise([sequence for sequence in entries if sequence > boundary]):
        if after != before + 1:
            yield Finding("journal-hole", str(EntryName(before + 1)), 0, f"the next is {after}")
    for name, parsed in names.items():
        try:
            raw = await store.read(name)
            if isinstance(parsed, SnapshotName):
                decode_snapshot(raw, parsed)
            else:
                Frame.decode(raw, _KINDS[type(parsed)], path=name)
        except NotFound:
            continue
        except (Corrupt, NewerVersion) as error:
            kind = _KINDS[type(parsed)].name.lower()
            yield Finding(f"{kind}-damaged", name, error.position, error.reason)
    referenced = {ref.object_name for queue in state.queues.values() for ref in queue.manifests}
    for name in sorted(referenced - sizes.keys()):
        yield Finding("manifest-missing", name, 0, "a queue refers to it")
