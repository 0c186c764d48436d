"""One call's way over a queue: which messages it takes from which runs, and where it stops."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from container.metadata.records import Gap
from container.record.header import locate_parts
from container.record.properties import TAGS, decode_properties
from fetcher.result import FetchedMessages, Selection
from fetcher.run import Run
from fetcher.tag_filter import Subscription, matching


def gap_at(gaps: Sequence[Gap], offset: int) -> Gap | None:
    """The gap that `offset` lies in."""
    for gap in gaps:
        if gap.start <= offset < gap.end:
            return gap
    return None


class Walk:
    """Takes messages from `at` on until a limit is met; pure bookkeeping, nothing waits.

    I1  `limit` is the first offset not looked at in any case, and at most the queue's end.
    I2  The last message taken may exceed `bytes_max`: it is compared after adding, as RocketMQ
        does, so that a large message gets through.
    """

    def __init__(
        self,
        offset: int,
        end: int,
        *,
        messages_max: int,
        bytes_max: int | None,
        looked_max: int,
        subscription: Subscription | None,
        exact_tags: bool,
    ) -> None:
        """`end`: the queue's. `looked_max`: offsets looked at, those in gaps not counted."""
        self.at = offset
        self.limit = min(end, offset + looked_max)
        self.messages_left = messages_max
        self._end = end
        self._bytes_left = bytes_max
        self._subscription = subscription
        self._exact_tags = exact_tags
        self._selections: list[Selection] = []
        self._count = 0
        self._is_full = False

    @property
    def is_done(self) -> bool:
        """Whether a limit was met."""
        return self._is_full or self.at >= self.limit

    @property
    def messages(self) -> FetchedMessages:
        """What was taken so far."""
        return FetchedMessages(tuple(self._selections), self._count)

    @property
    def has_found(self) -> bool:
        """Whether anything was taken."""
        return self._count > 0

    def skip(self, gap: Gap) -> None:
        """Go on behind a gap."""
        self.limit = min(self._end, self.limit + gap.end - self.at)
        self.at = gap.end

    def take(self, run: Run) -> None:
        """Look at what `run` covers, which begins at or before `at`, and take what is wanted."""
        until = min(run.end, self.limit)
        if run.is_whole and self._subscription is None:
            self._take_slice(run, self.at - run.first, until - run.first)
        else:
            self._take_matching(run, until)

    def _take_slice(self, run: Run, start: int, until: int) -> None:
        stop = min(until, start + self.messages_left)
        if self._bytes_left is not None:
            stop = run.cut(start, stop, self._bytes_left)
        self._add(Selection(run, start, stop), stop - start)
        self.at = run.first + stop
        self._count_bytes(run.size_before[stop] - run.size_before[start])

    def _take_matching(self, run: Run, until: int) -> None:
        start = int(np.searchsorted(run.offsets, self.at))
        stop = int(np.searchsorted(run.offsets, until))
        indices: NDArray[np.int64] = np.arange(start, stop)
        if run.is_whole and self._subscription is not None:
            indices = indices[matching(run.tag_hashes[start:stop], self._subscription)]
        if self._exact_tags and self._subscription is not None:
            tags = self._subscription.tags
            indices = indices[np.array([_tag(run, i) in tags for i in indices.tolist()], np.bool_)]
        picked = indices[: self.messages_left]
        if self._bytes_left is not None:
            sums = np.cumsum(run.sizes[picked])
            picked = picked[: int(np.searchsorted(sums, self._bytes_left)) + 1]
        self._add(Selection(run, 0, 0, picked), len(picked))
        self._count_bytes(int(run.sizes[picked].sum()))
        self.at = int(run.offsets[picked[-1]]) + 1 if self._is_full else until

    def _add(self, selection: Selection, count: int) -> None:
        if count:
            self._selections.append(selection)
        self._count += count
        self.messages_left -= count
        self._is_full = self.messages_left <= 0

    def _count_bytes(self, count: int) -> None:
        if self._bytes_left is not None:
            self._bytes_left -= count
            self._is_full |= self._bytes_left <= 0


def _tag(run: Run, index: int) -> str:
    """The TAGS property of one message, for callers who do not trust hashes."""
    start = int(run.starts[index])
    raw = run.data[start : start + int(run.sizes[index])]
    _, parts = locate_parts(raw, path="cached run", position=start)
    return decode_properties(bytes(raw[parts.properties :])).get(TAGS, "")
