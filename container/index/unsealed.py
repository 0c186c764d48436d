"""Keys that were collected and are in no sealed file yet, in memory, found by their hash."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from container.index.items import KEY_ITEM_DTYPE, KeyItems, joined, no_items
from container.names.queue_id import QueueId

BLOCK_ITEMS = 65_536
LATE_SHARE = 4
"""Which part of a full memory is still taken until whoever seals comes: one in four."""


@dataclass(slots=True)
class Collected:
    """Items, and the offsets of each queue that they are of."""

    blocks: list[KeyItems] = field(default_factory=list[KeyItems])
    """All but the last are full."""
    last_items: int = 0
    """How many of the last block's places are used."""
    spans: dict[QueueId, list[tuple[int, int]]] = field(
        default_factory=dict[QueueId, list[tuple[int, int]]]
    )
    """Offsets `[from, to)` in order; those that touch are one."""
    record_bytes: int = 0
    """Length of the records together."""
    since_s: float | None = None
    """Monotonic time at which the first of them were collected."""

    @property
    def items(self) -> int:
        """How many items there are."""
        return max(0, len(self.blocks) - 1) * BLOCK_ITEMS + self.last_items

    def parts(self) -> list[KeyItems]:
        """The items, without a copy."""
        return [*self.blocks[:-1], self.blocks[-1][: self.last_items]] if self.blocks else []

    def add(self, items: KeyItems) -> None:
        """Copy items in. O(items)."""
        while len(items):
            if not self.blocks or self.last_items == BLOCK_ITEMS:
                self.blocks.append(np.empty(BLOCK_ITEMS, KEY_ITEM_DTYPE))
                self.last_items = 0
            room = BLOCK_ITEMS - self.last_items
            part, items = items[:room], items[room:]
            self.blocks[-1][self.last_items : self.last_items + len(part)] = part
            self.last_items += len(part)

    def cover(self, queue: QueueId, start: int, end: int) -> None:
        """Note that the keys of `[start, end)` are in it. O(1) where it continues the last span."""
        spans = self.spans.setdefault(queue, [])
        if spans and spans[-1][1] == start:
            spans[-1] = (spans[-1][0], end)
        elif not spans or spans[-1][1] < start:
            spans.append((start, end))
        else:
            rest = sorted([*spans, (start, end)])
            spans.clear()
            for one in rest:
                if spans and spans[-1][1] >= one[0]:
                    spans[-1] = (spans[-1][0], max(spans[-1][1], one[1]))
                else:
                    spans.append(one)


class UnsealedIndex:
    """What was collected, and what is being made a file of.

    U1  The keys of every offset in `spans` are in it, as far as the messages have any.
    U2  It holds `items_max` items, a quarter more until sealing begins, and what one commit adds;
        and as many that are to be sealed. What is collected beyond is dropped, so that it is read
        again later.
    """

    has_exact_times = True

    def __init__(self, *, items_max: int) -> None:
        self.items_max = items_max
        self.collecting = Collected()
        self.revision = 0
        """Another one whenever `spans` may say another thing."""
        self.sealing: Collected | None = None
        """Items of a file that is being written, or is to be; they stay until it is published."""

    def __repr__(self) -> str:
        sealing = self.sealing.items if self.sealing else 0
        return f"<UnsealedIndex: {self.collecting.items} items, {sealing} being sealed>"

    @property
    def items(self) -> int:
        """How many items are in memory."""
        return self.collecting.items + (self.sealing.items if self.sealing else 0)

    @property
    def is_full(self) -> bool:
        """Whether a file is due because of the number of items."""
        return self.collecting.items >= self.items_max

    def add(  # noqa: PLR0917 - a row of one table
        self,
        queue: QueueId,
        start: int,
        end: int,
        items: KeyItems,
        record_bytes: int,
        now_s: float,
    ) -> bool:
        """Take the keys of the messages `[start, end)` of a queue; False if there is no room."""
        if self.is_full and self.sealing is not None:
            return False
        if self.collecting.items >= self.items_max + self.items_max // LATE_SHARE:
            self.begin_sealing()  # whoever seals does not come
        self.revision += 1
        into = self.collecting
        if into.since_s is None:
            into.since_s = now_s
        into.add(items)
        into.cover(queue, start, end)
        into.record_bytes += record_bytes
        return True

    def begin_sealing(self) -> Collected:
        """What is to be sealed: from now on others are collected apart. The same until `sealed`."""
        if self.sealing is None:
            self.sealing, self.collecting = self.collecting, Collected()
        return self.sealing

    def sealed(self) -> None:
        """The file of what was being sealed is published."""
        self.revision += 1
        self.sealing = None

    def forget(self, queue: QueueId, topic_id: int | None, next_offset: int, log_end: int) -> None:
        """A queue was cut: drop what is not published any more, items from `log_end` on.

        O(items). `topic_id` None: the queue has no items.
        """
        self.revision += 1
        for part in (self.collecting, self.sealing):
            if part is None or queue not in part.spans:
                continue
            spans = [(a, min(b, next_offset)) for a, b in part.spans[queue] if a < next_offset]
            part.spans[queue] = spans
            if not spans:
                del part.spans[queue]
            kept: list[KeyItems] = []
            for items in part.parts():
                mine = (items["topic_id"] == topic_id) & (items["queue_id"] == queue.queue_id)
                kept.append(items[~(mine & (items["position"] >= log_end))])
            part.blocks, part.last_items = [], 0
            part.add(joined(kept))

    def items_of(self, key_hash: int, topic_id: int) -> KeyItems:
        """Those of a hash. O(items), about half a nanosecond each."""
        found: list[KeyItems] = []
        for part in (self.sealing, self.collecting):
            for items in part.parts() if part is not None else ():
                mine = items[items["key_hash"] == key_hash]
                found.append(mine[mine["topic_id"] == topic_id])
        return joined(found) if found else no_items()

    def spans(self, queue: QueueId) -> Sequence[tuple[int, int]]:
        """The offsets of a queue whose keys it has."""
        parts = (self.sealing, self.collecting)
        return [span for part in parts if part is not None for span in part.spans.get(queue, ())]
