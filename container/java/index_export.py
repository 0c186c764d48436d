"""Export of index files for a Java broker, with its configured number of slots.

RocketMQ takes the number of slots of a sealed file from its configuration, and identifies its files
by their begin times. Messages that no index file of ours covers are read for their keys, so that
the broker finds every message.
"""

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from container.index.layout import IndexHeader, KeyItems, joined, place_of
from container.index.merging import MergedPart, merge_sealed
from container.index.sealed import fitting_begin, fitting_slots, seal_index
from container.lookup.coverage import covered_by_files, readable, without
from container.lookup.find import part_of, read_whole
from container.metadata.records import IndexFile
from container.names.rocketmq import index_name
from container.names.tier_objects import INDEX_PREFIX, IndexBase
from container.queue.lenient_scan import key_items_of, read_verified_records
from container.record.checksum import crc32c
from container.tier_view import TierReader
from provider.errors import Corrupt, Denied, OutOfRange
from provider.ranges import QueueOffset

FILE_ITEMS_MAX = 1 << 21
"""Items of one file, unless one of ours has more. Some 250 bytes of memory each, with its parts."""
COLLECTED_ITEMS_MAX = 1 << 18
PIECE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class JavaIndexLimits:
    """Limits of index files from the broker's configuration."""

    slots: int
    """Number of slots of a file (`tieredStoreIndexFileMaxHashSlotNum`)."""
    items_max: int = FILE_ITEMS_MAX
    """Items of one file. A broker also reads files with more items than its own limit."""


async def rebuild_index(reader: TierReader, limits: JavaIndexLimits) -> list[IndexFile]:
    """Write index files for a Java broker into the tier. They are not part of our metadata.

    A file of an earlier call is reused. Reads the index files, and every message that none of them
    covers. Costs one listing, and one or two requests a file. Holds `limits.items_max` items at
    some 250 bytes, and the slots of a file.

    Raises:
        Denied, Unavailable: the tier cannot be read, or written to.
        ValueError: this number of slots does not fit into a file.
    """
    writer = _Writer(reader, limits)
    await writer.prepare()
    group: list[MergedPart] = []
    total = 0
    async for part, items in _parts(reader):
        if group and total + items > limits.items_max:
            await writer.write(group)
            group, total = [], 0
        group.append(part)
        total += items
    if group:
        await writer.write(group)
    return writer.written


async def _parts(reader: TierReader) -> AsyncIterator[tuple[MergedPart, int]]:
    """Keys of all messages: from files, and read for messages that no good file covers."""
    good: list[IndexFile] = []
    ours = [one for one in reader.state.index_files.values() if one.coverage]
    for file in sorted(ours, key=lambda one: (one.end_timestamp, one.base)):
        if file.cuts:
            continue  # it has items of other messages, which a Java broker would accept
        try:
            raw = await read_whole(reader.store, file)
        except (Corrupt, Denied, OutOfRange):
            continue  # its messages are read
        yield part_of(reader.state, file, raw), file.items
        good.append(file)
    collected: list[KeyItems] = []
    async for items in _read_items(reader, good):
        collected.append(items)
        if sum(map(len, collected)) >= COLLECTED_ITEMS_MAX:
            yield _sealed(collected)
            collected = []
    if collected:
        yield _sealed(collected)


async def _read_items(reader: TierReader, good: Iterable[IndexFile]) -> AsyncIterator[KeyItems]:
    """Read the keys of messages that no file covers. Damaged messages have none."""
    covered = covered_by_files(good)
    for queue in sorted(reader.state.queues.values(), key=lambda one: one.id):
        container = reader.container(queue.id)
        assert container is not None, "a reader's state does not change by itself"
        for span in without(readable(queue), covered.get(queue.id, ())):
            at, end = span
            while at < end:
                found = await read_verified_records(
                    container, QueueOffset(at), QueueOffset(end), bytes_max=PIECE_BYTES
                )
                yield key_items_of(found, queue.id, reader.state.topics[queue.id.topic].topic_id)
                at = found.end


def _sealed(collected: list[KeyItems]) -> tuple[MergedPart, int]:
    """Seal collected items to a part like any other."""
    items = joined(collected)
    begin = fitting_begin(int(items["store_timestamp"].min())) if len(items) else 0
    raw = seal_index(items, slots=fitting_slots(len(items)), begin_timestamp=begin)
    queues = np.unique(items[["topic_id", "queue_id"]])
    places = np.array([place_of(*one) for one in queues.tolist()], np.int64)
    return MergedPart("", raw.data, places, np.zeros(len(places), np.int64)), len(items)


class _Writer:
    """Writes files after those that a Java broker has written."""

    def __init__(self, reader: TierReader, limits: JavaIndexLimits) -> None:
        self._reader = reader
        self._limits = limits
        theirs = [one for one in reader.state.index_files.values() if not one.coverage]
        self._begins = {one.begin_timestamp for one in theirs}
        self._next_base = max((one.base + one.size for one in theirs), default=0)
        self._left: dict[int, list[tuple[int, str]]] = {}
        """Files that an earlier export may have left, by size."""
        self.written: list[IndexFile] = []

    async def prepare(self) -> None:
        """Find the existing files. One listing."""
        for entry in await self._reader.store.list(INDEX_PREFIX):
            base = IndexBase.parse(entry.name)
            if base is None or base.epoch:
                continue
            self._next_base = max(self._next_base, base.number + entry.size_bytes)
            if entry.name not in self._reader.state.index_files:
                self._left.setdefault(entry.size_bytes, []).append((base.number, entry.name))

    async def write(self, group: list[MergedPart]) -> None:
        """Merge some parts into one file, under the next base."""
        begin = self._free_begin(group)
        raw = merge_sealed(
            group, slots=self._limits.slots, begin_timestamp=begin, newest_first=True
        )
        header = IndexHeader.decode(raw.data, path="")
        if not header.items:
            return
        checksum = crc32c(raw.data)
        base, name = await self._stored(raw, checksum)
        self._begins.add(begin)
        self.written.append(
            IndexFile(
                name,
                base,
                len(raw),
                begin,
                header.end_timestamp,
                header.used_slots,
                header.items,
                crc32c=checksum,
            )
        )

    def _free_begin(self, group: list[MergedPart]) -> int:
        """Begin that no other file has: a Java broker keeps one file of each."""
        headers = [IndexHeader.decode(part.raw, path=part.path) for part in group]
        begin = min((one.begin_timestamp for one in headers if one.items), default=0)
        while begin in self._begins:
            begin -= 1
        return begin

    async def _stored(self, raw: NDArray[np.uint8], checksum: int) -> tuple[int, str]:
        """Write the bytes, unless they exist. Return their base and name."""
        store = self._reader.store
        for base, name in self._left.get(len(raw), ()):
            if crc32c(await store.read(name)) == checksum:
                return base, name
        base = self._next_base
        name = index_name(base)
        await store.create(name, [raw.data])
        self._next_base = base + len(raw)
        return base, name
