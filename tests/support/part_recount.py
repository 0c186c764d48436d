"""Counts of parts compared with a recount, after every entry of a tier in memory."""

from collections.abc import Sequence

from container.metadata.objects import recounted
from container.metadata.records import Segment
from container.metadata.state import StateChange, TierState
from container.names.tier_objects import JOURNAL_PREFIX, EntryName
from container.queue.manifest import decode_manifest
from container.tier import Tier
from provider.testing.memory import MemoryStore


class PartRecount:
    """A listener of a journal: each entry leaves the counts as a recount has them (P1)."""

    def __init__(self, memory: MemoryStore, tier: Tier) -> None:
        self._memory = memory
        self._state = tier.state
        self._manifests: dict[str, tuple[Segment, ...]] = {}
        self.entries = 0
        self.freed = 0

    def __call__(self, changes: Sequence[StateChange]) -> None:
        self.entries += 1
        for change in changes:
            for name, part in change.parts.changed.items():
                if part is None:
                    self.freed += 1
                    dead = change.tombstones.changed.get(name)
                    assert dead is not None, f"{name} lost its last reference and has no tombstone"
        self.check()

    def check(self) -> None:
        assert_counted(self._state, self._manifests, self._memory)


def assert_counted(
    state: TierState, manifests: dict[str, tuple[Segment, ...]], memory: MemoryStore
) -> None:
    """Compare the counts with a recount; `manifests` keeps those that were read."""
    if not state.parts_counted:
        return
    objects = memory._shared.objects
    for queue in state.queues.values():
        for ref in queue.manifests:
            if ref.object_name in manifests:
                continue
            if ref.object_name not in objects:
                # An owner that slept at its last entry: a newer one went on and deleted it since.
                assert _newest_entry(memory) > str(EntryName(state.sequence)), ref.object_name
                return
            manifests[ref.object_name] = decode_manifest(objects[ref.object_name], ref)
    counts = {part.object_name: part.references for part in state.parts.values()}
    assert counts == recounted(state.queues.values(), manifests), "P1"
    assert not state.parts.keys() & state.tombstones.keys(), "a part in use has a tombstone"
    state.check()


def _newest_entry(memory: MemoryStore) -> str:
    """The name of the last entry of the journal; not empty here."""
    return max(name for name in memory._shared.objects if name.startswith(JOURNAL_PREFIX))
