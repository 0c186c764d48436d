"""Every tier of ours that a test leaves is checked: in memory, and on disk below `tmp_path`."""

import asyncio
import os
from collections import deque
from collections.abc import Collection, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from container.check.tier import check_tier
from container.errors import Finding
from container.names.tier_objects import JOURNAL_PREFIX
from container.tier_view import TierReader
from provider.errors import NotFound, StoreError
from provider.object_store import ObjectStore
from provider.posix.store import PosixStore
from provider.stores.packed_segments import OFFLOAD_PREFIX
from provider.stores.two_stores import TwoStores
from provider.testing.memory import MemoryObjects, MemoryStore

MEMORIES_MAX = 3
"""Memories of one test that are checked, the newest: a test of properties makes hundreds."""

_Result = TypeVar("_Result")


@contextmanager
def made_memories() -> Iterator[deque[MemoryObjects]]:
    """Collects what memory stores have in common, the newest `MEMORIES_MAX` of them."""
    made: deque[MemoryObjects] = deque(maxlen=MEMORIES_MAX)
    construct = MemoryObjects.__init__

    def noting(self: MemoryObjects) -> None:
        construct(self)
        made.append(self)

    MemoryObjects.__init__ = noting
    try:
        yield made
    finally:
        MemoryObjects.__init__ = construct


def findings_in_memories(memories: Collection[MemoryObjects]) -> list[Finding]:
    """What is wrong with the tiers that memories hold; any of them may be a second store."""
    second = MemoryObjects()
    for one in memories:
        away = {name: raw for name, raw in one.objects.items() if name.startswith(OFFLOAD_PREFIX)}
        second.objects.update(away)
    found: list[Finding] = []
    for one in memories:
        if any(name.startswith(JOURNAL_PREFIX) for name in one.objects):
            found += _completed(_findings(TwoStores(MemoryStore(one), MemoryStore(second))))
    return found


def findings_below(directory: Path) -> list[Finding]:
    """What is wrong with the tiers below a directory."""
    found: list[Finding] = []
    # A third of the time of two `rglob`: each test pays for this.
    below = [(Path(path), names) for path, names, _ in os.walk(directory)]
    seconds = [path for path, names in below if OFFLOAD_PREFIX.rstrip("/") in names]
    for tier in [path for path, names in below if JOURNAL_PREFIX.rstrip("/") in names]:
        second = next((one for one in seconds if one.name == tier.name), None)
        stores = PosixStore(tier), None if second is None else PosixStore(second)
        found += _completed(_findings(TwoStores(*stores)))
    return found


async def _findings(store: ObjectStore) -> list[Finding]:
    try:
        reader = await TierReader.open(store, damaged=True)
        damage = reader.damage
        found = [finding async for finding in check_tier(reader)]
        if damage is not None:
            found.append(Finding("journal", damage.path, damage.position, damage.reason))
    except NotFound:
        return []
    except StoreError as error:
        return [Finding("journal", error.path, error.position, error.reason)]
    else:
        return found
    finally:
        await store.close()


def _completed(check: Coroutine[Any, Any, _Result]) -> _Result:
    """Run on a loop that no test sees."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(check)
    finally:
        loop.close()
