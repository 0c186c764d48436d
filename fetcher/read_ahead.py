"""Read-ahead: positions of the consumer groups, and reads that start before a call needs them."""

from collections.abc import Iterator

from container.metadata.records import gap_at
from container.names.queue_id import QueueId
from fetcher.options import FetcherOptions
from fetcher.plan import rounded_end, stretch_end
from fetcher.reads import RunReads
from fetcher.run_cache import CachedRun, CacheKey
from fetcher.source import TierQueue
from fetcher.window import GroupPosition, WindowLimits


class ReadAhead:
    """Positions of the most recent groups, and the rules for reading ahead of them.

    No method waits; `RunReads` owns the reads. At most `readers_max` positions are kept. The
    position that is longest without a chance to read ahead is dropped first.
    """

    def __init__(self, options: FetcherOptions, reads: RunReads) -> None:
        self._options = options
        self._reads = reads
        self._limits = WindowLimits(
            messages_min=options.window_messages_min,
            messages_max=options.run_messages_max,
            step_messages=options.window_step_messages,
        )
        self._positions: dict[tuple[QueueId, str], GroupPosition] = {}

    def __len__(self) -> int:
        return len(self._positions)

    def windows(self) -> Iterator[tuple[QueueId, str, int]]:
        """Yield queue, group, and messages of the next read-ahead of each position."""
        for (queue, group), position in self._positions.items():
            yield queue, group, position.window_messages

    def forget(self, queue: QueueId) -> None:
        """Drop the positions in a queue."""
        self._positions = {key: one for key, one in self._positions.items() if key[0] != queue}

    def check(self) -> None:
        """Assert the bound on positions, and their invariants; for tests."""
        assert len(self._positions) <= self._options.readers_max
        for position in self._positions.values():
            position.check()

    def demand_messages(self, queue: QueueId, group: str, offset: int) -> int:
        """Return the messages of a demand read at `offset`.

        That is the window of a group that reads in order, else the smallest window.
        """
        position = self._positions.get((queue, group))
        if position is None or not position.is_sequential(offset):
            return self._limits.messages_min
        return position.window_messages

    def follow(
        self,
        group: str,
        source: TierQueue,
        key: CacheKey,
        run: CachedRun,
        *,
        offset: int,
        next_offset: int,
        now_s: float,
    ) -> None:
        """Record a call of `group` from `offset` to `next_offset`, and read ahead if it is due.

        `run` had the last messages of the call. Returns at once.
        """
        position = self._positions.get((key.queue, group))
        if position is None:
            position = self._keep(key.queue, group, now_s)
        is_occasion = position.advance(offset, next_offset, now_s)
        if is_occasion and self._options.cache_enabled:
            self._keep(key.queue, group, now_s)
            self._read_ahead(position, source, key, run, now_s)

    def _keep(self, queue: QueueId, group: str, now_s: float) -> GroupPosition:
        """Return the position, created if missing, and make it the last one to be dropped."""
        key = queue, group
        position = self._positions.pop(key, None) or GroupPosition(self._limits, now_s)
        self._positions[key] = position
        while len(self._positions) > self._options.readers_max:
            del self._positions[next(iter(self._positions))]
        return position

    def _read_ahead(
        self,
        position: GroupPosition,
        source: TierQueue,
        key: CacheKey,
        run: CachedRun,
        now_s: float,
    ) -> None:
        """Start a read-ahead, unless enough is cached, the queue ends or there is no room."""
        if not self._reads.may_read_ahead:
            return
        at, run_messages_max = position.next_offset, self._options.run_messages_max
        far = min(source.next_offset, at + run_messages_max)
        frontier = self._reads.frontier(key, at, far)
        if frontier >= source.next_offset or gap_at(source.gaps, frontier) is not None:
            position.wait_until(frontier)
            return
        if frontier - at >= position.window_messages:
            position.wait_until(frontier - position.window_messages)
            return
        position.wait_until(frontier)
        messages = position.widen(
            now_s,
            mean_bytes=run.nbytes // max(len(run), 1),
            run_bytes_max=self._options.run_bytes_max,
            room_bytes=self._reads.room_bytes,
        )
        if messages is None:
            return
        units = messages if key.subscription is None else run_messages_max
        limit = stretch_end(source, frontier)
        end = min(limit, frontier + units)
        if key.subscription is None:
            end = min(limit, rounded_end(source, frontier, end, run_messages_max))
            messages = end - frontier
        self._reads.read_ahead(source, key, frontier, end, position, messages=messages)
