"""Writes index files for steps, and remembers those that may lie in the store unpublished."""

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from container.index.layout import IndexHeader
from container.metadata.records import Coverage, IndexFile
from container.names.index_base import IndexBase
from container.names.rocketmq import index_name
from container.record.crc32c import crc32c
from container.upkeep.step import OwnedTier
from provider.errors import AlreadyExists


@dataclass(frozen=True, slots=True)
class IndexBuilding:
    """What the steps of one owner that make index files share."""

    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    """Those of the owner's files, from 1."""
    memory: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a file is made: one at a time is in memory."""


class IndexWriter:
    """The index files of one step: each is written, then published or given a tombstone."""

    def __init__(self, tier: OwnedTier, building: IndexBuilding) -> None:
        self._tier = tier
        self._building = building
        self._tried: dict[str, None] = {}
        """Names that files of ours may have in the store without being published."""

    def __repr__(self) -> str:
        return f"<IndexWriter: {len(self._tried)} not settled>"

    async def write(self, raw: NDArray[np.uint8], coverage: Coverage) -> IndexFile:
        """Store a file under a name of ours that is free; `settled` follows. One request.

        A name is taken only where a tier was imported again whose journal was lost.

        Raises:
            Unavailable: unknown outcome; `bury_tried` will give it a tombstone.
        """
        while True:
            base = IndexBase(self._tier.journal.epoch, next(self._building.numbers)).number
            name = index_name(base)
            self._tried[name] = None
            try:
                await self._tier.store.create(name, [raw.data])
            except AlreadyExists:
                del self._tried[name]
            else:
                break
        said = IndexHeader.decode(raw.data, path=name)
        return IndexFile(
            name,
            base,
            len(raw),
            said.begin_timestamp,
            said.end_timestamp,
            said.used_slots,
            said.items,
            coverage,
            crc32c(raw.data),
        )

    def settled(self, name: str) -> None:
        """A file is published."""
        self._tried.pop(name, None)

    async def bury_tried(self) -> None:
        """Give tombstones to what earlier runs have perhaps written and did not publish.

        Raises:
            Fenced: a newer owner has the tier.
        """
        planned = self._tier.journal.planned
        await self._tier.bury([name for name in self._tried if name not in planned.index_files])
        for name in list(self._tried):
            if name in planned.tombstones or name in self._tier.state.index_files:
                del self._tried[name]
