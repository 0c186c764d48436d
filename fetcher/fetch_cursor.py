"""One call's way over a queue: which messages it takes from which runs, and where it stops."""

import numpy as np
from numpy.typing import NDArray

from container.metadata.records import Gap
from container.record.unit import UNIT_BYTES
from fetcher.cached_run import REPLACEMENT, CachedRun
from fetcher.result import FetchedMessages, Selection
from fetcher.tag_filter import Subscription, matching
from provider.errors import Corrupt


class FetchCursor:
    """Takes messages from `at` on until a limit is met; pure bookkeeping, nothing waits.

    C1  `at <= limit <=` the queue's end. No offset from `limit` on is examined.
    C2  What was taken are messages below `at`, ascending, `messages_max` at most.
    C3  What was taken is below `bytes_max` without its last message. That one may exceed it: sizes
        are compared after adding, as in RocketMQ, so that a large message is delivered.
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
        """`end`: the queue's. `looked_max`: offsets examined, those in gaps not counted."""
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
        """Continue after a gap, which `at` lies in."""
        self.limit = min(self._end, self.limit + gap.end - self.at)
        self.at = gap.end

    def take(self, run: CachedRun) -> None:
        """Take what is wanted of a run, which begins at or before `at`.

        Raises:
            Corrupt: the message at `at` has other tags than its unit says.
        """
        until = min(run.end, self.limit)
        if run.has_all and self._subscription is None:
            self._take_slice(run, self.at - run.first, until - run.first)
        else:
            self._take_matching(run, until)

    def check(self) -> None:
        """Assert the invariants; for tests. O(messages taken)."""
        assert self.at <= self.limit <= self._end, f"C1: {self.at}, {self.limit}, {self._end}"
        messages = self.messages
        offsets, sizes = messages.offsets, messages.sizes
        assert len(offsets) == self._count, "C2"
        assert self.messages_left >= 0, "C2"
        assert (np.diff(offsets) > 0).all(), f"C2: {offsets}"
        if self._count:
            assert offsets[-1] < self.at, f"C2: {offsets}, {self.at}"
            assert self._bytes_left is None or self._bytes_left + sizes[-1] > 0, "C3"
        if self.messages_left == 0 or (self._bytes_left is not None and self._bytes_left <= 0):
            assert self.is_done, "C2, C3"

    def _take_slice(self, run: CachedRun, start: int, until: int) -> None:
        stop = min(until, start + self.messages_left)
        if self._bytes_left is not None:
            stop = run.cut(start, stop, self._bytes_left)
        self._add(Selection(run, start, stop), stop - start)
        self.at = run.first + stop
        self._count_bytes(run.size_before[stop] - run.size_before[start])

    def _take_matching(self, run: CachedRun, until: int) -> None:
        start = int(np.searchsorted(run.offsets, self.at))
        stop = int(np.searchsorted(run.offsets, until))
        untrue = run.first_untrue_tag(start, stop)
        if untrue < stop:
            stop, until = untrue, int(run.offsets[untrue])
            if until == self.at:
                path = f"{run.key.queue}/CONSUME_QUEUE"
                raise Corrupt(
                    "the unit has another hash of tags than the record", path, UNIT_BYTES * until
                )
        indices: NDArray[np.int64] = np.arange(start, stop)
        if run.has_all and self._subscription is not None:
            indices = indices[matching(run.tag_hashes[start:stop], self._subscription)]
        if self._exact_tags and self._subscription is not None:
            wanted = self._subscription.tags
            tags = [one.tags for one in run.decode(indices)]
            same = [one in wanted or REPLACEMENT in one for one in tags]
            indices = indices[np.array(same, np.bool_)]
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
