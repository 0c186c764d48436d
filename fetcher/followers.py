"""After each call: note where its reader stands, and begin to read what it will want next."""

from collections.abc import Iterator

from container.names.queue_id import QueueId
from fetcher.options import FetcherOptions
from fetcher.read_ahead import Reader, Readers, next_window
from fetcher.run import Run
from fetcher.run_cache import Lane
from fetcher.run_reads import RunReads
from fetcher.single_flight import Flight
from fetcher.source import TierQueue
from fetcher.walk import gap_at
from fetcher.window import WindowLimits


class Followers:
    """Every reader's place and window, and the rules for reading ahead of it.

    Nothing here waits; the reads belong to `RunReads`.
    """

    def __init__(self, options: FetcherOptions, limits: WindowLimits, reads: RunReads) -> None:
        self._options = options
        self._limits = limits
        self._reads = reads
        self._readers = Readers(options.readers_max, limits)

    def __len__(self) -> int:
        return len(self._readers)

    def windows(self) -> Iterator[tuple[QueueId, str, int]]:
        """Queue, group, and messages of the next read ahead, for each reader."""
        for queue, group, reader in self._readers:
            yield queue, group, reader.window.messages

    def forget(self, queue: QueueId) -> None:
        """Drop the readers of a queue."""
        self._readers.forget(queue)

    def demand_messages(self, queue: QueueId, group: str, offset: int) -> int:
        """How many messages a call at `offset` that must wait should read at once.

        The window of a reader that reads on, else the least.
        """
        reader = self._readers.get(queue, group)
        if reader is None or not reader.is_sequential(offset):
            return self._limits.messages_min
        return reader.window.messages

    def follow(
        self,
        group: str,
        source: TierQueue,
        lane: Lane,
        run: Run,
        *,
        offset: int,
        next_offset: int,
        now_s: float,
    ) -> None:
        """A call of `group` went from `offset` to `next_offset`, the last of it in `run`."""
        reader = self._readers.get(lane.queue, group)
        if reader is None:
            reader = self._readers.keep(lane.queue, group, now_s)
        is_sequential = offset == reader.next_offset
        if not is_sequential:
            reader.moved(offset, self._limits, now_s)
        reader.last_offset, reader.next_offset = offset, next_offset
        if is_sequential and next_offset > reader.trigger and self._options.cache_enabled:
            self._readers.keep(lane.queue, group, now_s)
            self._read_ahead(reader, source, lane, run, now_s)

    def _read_ahead(
        self, reader: Reader, source: TierQueue, lane: Lane, run: Run, now_s: float
    ) -> None:
        """Begin the next read ahead unless it is there, there is no more, or no room for it."""
        reads = self._reads
        if not reads.is_open or reads.flights.ahead >= self._options.prefetches_max:
            return
        far = min(source.next_offset, reader.next_offset + self._options.run_messages_max)
        frontier = reads.frontier(lane, reader.next_offset, far)
        if frontier >= source.next_offset or gap_at(source.gaps, frontier) is not None:
            reader.trigger = frontier
            return
        if frontier - reader.next_offset >= reader.window.messages:
            reader.trigger = frontier - reader.window.messages
            return
        reader.trigger = frontier
        taken_bytes = reads.cache.unread_bytes + reads.budget.bytes_in_use
        window = next_window(
            reader.window,
            self._limits,
            now_s,
            mean_bytes=run.nbytes // max(len(run), 1),
            run_bytes_max=self._options.run_bytes_max,
            room_bytes=self._options.cache_bytes_max // 2 - taken_bytes,
        )
        if window is None:
            reader.shrink(self._limits, now_s)
            return
        reader.window = window
        messages = window.messages
        units = messages if lane.subscription is None else self._options.run_messages_max
        end = min(stretch_end(source, frontier), frontier + units)
        reads.read_ahead(source, Flight(lane, frontier, end, reader), messages=messages)


def stretch_end(source: TierQueue, offset: int) -> int:
    """Where the messages behind `offset` end: at the next gap, or at the commit offset."""
    starts = (gap.start for gap in source.gaps if gap.start > offset)
    return min([source.next_offset, *starts])
