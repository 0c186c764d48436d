"""Messages as a stream: Spark asks how far there is something, and reads between two offsets."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from container.metadata.records import Queue, Topic
from container.names.queue_id import QueueId
from provider.clock import Clock, SystemClock
from provider.errors import NotFound
from tieredstore.config.sources import ConfigError
from tieredstore.offline.scan.planning import Selection
from tieredstore.offline.scan.split import Seen
from tieredstore.offline.spark.conversion import ToSpark, keep_what_is_loaded
from tieredstore.offline.spark.options import LATEST, StreamOptions
from tieredstore.offline.spark.stream_offsets import (
    ENTRY_MARK,
    MARK,
    SEQUENCE_MARK,
    Offsets,
    TieredOffsets,
    advances,
    begun_anew,
    capped,
    end_of_first_batch,
    initial,
    is_first_batch_of_older_program,
    is_initial,
    marked,
    parse_queue,
    refuse_ahead,
    refuse_deleted,
    refuse_other_generation,
    refuse_other_tier,
    refuse_unknown_beginning,
    stretches,
)
from tieredstore.offline.tables.open_tier import OpenTier
from tieredstore.offline.tables.planning import MessagesPart
from tieredstore.offline.tables.reading import rows_of
from tieredstore.reader.arrow import RecordBatch

NEVER_S = float("-inf")
ENTRIES_MAX = 64
"""Journal entries whose checksums are kept: those of recent polls, and of the checkpoint."""


class MessagePartition(InputPartition):
    """A stretch of one queue, for one task."""

    def __init__(self, part: MessagesPart) -> None:
        super().__init__(part)
        self.part = part


class RefusedStream(DataSourceStreamReader):
    """A stream with wrong options: raises when the query begins."""

    def __init__(self, error: ConfigError) -> None:
        self._error = error

    def initialOffset(self) -> Offsets:  # noqa: N802 - Spark's name
        """Raise the error."""
        raise self._error

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: ARG002, N802 - Spark's
        """Raise the error; a restarted query asks for this first."""
        raise self._error

    def partitions(self, start: Offsets, end: Offsets) -> list[InputPartition]:  # noqa: ARG002 - Spark's
        """Raise the error; a query that was ended in a batch asks for this first."""
        raise self._error

    def read(self, partition: InputPartition | None) -> Iterator[RecordBatch]:  # noqa: ARG002 - Spark's
        """Raise the error."""
        raise self._error


class MessageStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stream reader of a query. Spark keeps it on the driver, where it holds the tier open.

    A batch consists of the messages between two offsets, whenever it is read, and a message keeps
    its offset for ever. So a sink that takes each batch once has each message once. The first batch
    is empty: it keeps the beginning of the stream in the checkpoint.
    """

    def __init__(
        self, options: StreamOptions, to_spark: ToSpark, *, clock: Clock | None = None
    ) -> None:
        self._options = options
        self._to_spark = to_spark
        self._clock = clock or SystemClock()
        self._tier: OpenTier | None = None
        self._looked_s = NEVER_S
        self._seen: dict[str, TieredOffsets] = {}
        self._journal = Seen()
        self._entries: dict[int, int] = {}
        """Checksums of journal entries by number, all of the present history."""
        self._history = 0
        self._cap: Mapping[str, int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the open tier: executors open only the bytes that they read."""
        return {**self.__dict__, "_tier": None, "_clock": SystemClock()}

    def initialOffset(self) -> Offsets:  # noqa: N802 - Spark's name
        """The beginning of a new query; a restarted one continues at its checkpoint.

        Spark asks again where the first batch is repeated, for an answer that is not used.

        Raises:
            NotFound: there is no queue of a topic that is wanted, or of one of `startingOffsets`.
            ConfigError: one of those is past the end of its queue.
        """
        options, tier = self._options, self._opened()
        if options.fails_on_loss:
            self._refuse_wrong_beginning(tier)
        queues = tier.queues_there(options.wanted)
        offsets = {
            str(name): options.starts.get(str(name), self._beginning(tier, name, queue))
            for name, queue in queues.items()
        }
        return initial(marked(offsets, self._seen, self._journal))

    def _refuse_wrong_beginning(self, tier: OpenTier) -> None:
        """Refuse options that name what the tier does not have; raises as `initialOffset`."""
        options = self._options
        # A queue with the number that is wanted may come later, as topics of a pattern may.
        tier.queues(replace(options.wanted, queues=None))
        for name, start in options.starts.items():
            if name not in self._seen:
                raise NotFound(
                    f"startingOffsets names {name}, which is no queue of the tier that is wanted",
                    tier.place.location,
                )
            if start > (end := self._seen[name].end) and options.fails_on_loss:
                raise ConfigError(f"startingOffsets: {name} ends at {end}, before {start}")

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """`maxRowsPerTrigger`."""
        rows_max = self._options.rows_max
        return ReadAllAvailable() if rows_max is None else ReadMaxRows(rows_max)

    def latestOffset(self, start: Offsets, limit: ReadLimit) -> Offsets:  # noqa: N802 - Spark's name
        """The end of the next batch; the first batch is empty.

        Raises:
            MissingMessages: the tier has fewer messages than the stream was given, or others, or
                lacks one of its queues.
            NotFound, ConfigError: of the first batch, as `initialOffset`.
            Unavailable, Corrupt: as `OpenTier.refresh`.
        """
        if is_initial(start):
            self._refuse_wrong_beginning(self._opened())
            return end_of_first_batch(start)
        bounds = self._bounds()
        self._refuse_other_history(start, bounds)
        if self._options.fails_on_loss:
            refuse_ahead(start, bounds)
            refuse_deleted(self._wanted_of(start), bounds)
        begun = start if self._options.fails_on_loss else begun_anew(start, bounds)
        if self._cap is not None:
            bounds = {
                name: one._replace(end=min(one.end, self._cap[name]))
                for name, one in bounds.items()
                if name in self._cap
            }
        end = capped(begun, bounds, limit.max_rows if isinstance(limit, ReadMaxRows) else None)
        end = marked(end, bounds, self._journal)
        return end if advances(start, end) else start

    def reportLatestOffset(self) -> Offsets:  # noqa: N802 - Spark's name
        """Return the end of the tier, for the query's progress."""
        bounds = self._bounds()
        return marked({name: one.end for name, one in bounds.items()}, bounds, self._journal)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """End the stream at the present end of the tier."""
        self._looked_s = NEVER_S
        self._cap = {name: one.end for name, one in self._bounds().items()}

    def partitions(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        """The parts of a batch.

        Raises:
            MissingMessages: messages of the batch are not in the tier, or others have their place.
            Unavailable, Corrupt, Denied: of manifests.
        """
        return self._opened().by_newest(partial(self._partitions, start, end))

    def _partitions(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        if is_initial(start) and not is_first_batch_of_older_program(start, end):
            return []
        options, bounds, tier = self._options, self._bounds(), self._opened()
        self._refuse_other_history(end, bounds)
        if is_initial(start) and options.fails_on_loss and options.begins_at_a_moving_place:
            refuse_unknown_beginning()
        wanted = stretches(start, end, bounds, fail_on_data_loss=options.fails_on_loss)
        selection = Selection(by_queue={one.queue: (one.start, one.end) for one in wanted})
        found = tier.plan(selection, options.split_bytes)
        return [
            MessagePartition(
                MessagesPart(split, options.skips_damage, skips_expired=not options.fails_on_loss)
            )
            for split in found.splits
        ]

    def read(self, partition: InputPartition | None) -> Iterator[RecordBatch]:
        """The messages of a part; raises as `rows_of`."""
        if isinstance(partition, MessagePartition):
            for batch in rows_of(partition.part, self._to_spark.columns):
                yield self._to_spark.converted(batch)
        keep_what_is_loaded()

    def commit(self, end: Offsets) -> None:
        """Nothing: the tier is the same for everybody who reads it."""

    def stop(self) -> None:
        """Close the tier."""
        tier, self._tier = self._tier, None
        if tier is not None:
            tier.close()

    def _opened(self) -> OpenTier:
        if self._tier is None:
            self._tier = OpenTier.at(self._options.address)
            self._look(self._tier)
        return self._tier

    def _bounds(self) -> dict[str, TieredOffsets]:
        """Return the bounds of the wanted queues in the tier; poll the tier if a poll is due."""
        tier = self._opened()
        is_due = self._clock.monotonic_s() - self._looked_s >= self._options.refresh_s
        if (is_due and tier.refresh()) or tier.sequence != self._journal.sequence:
            self._look(tier)
        elif is_due:
            self._looked_s = self._clock.monotonic_s()
        return self._seen

    def _refuse_other_history(self, offsets: Offsets, bounds: Mapping[str, TieredOffsets]) -> None:
        refuse_other_tier(offsets, self._journal, self._entry_of(offsets))
        if self._options.fails_on_loss:
            refuse_other_generation(offsets, bounds)

    def _entry_of(self, offsets: Offsets) -> int:
        """Return the checksum of the journal's entry that offsets name; 0: unknown.

        One request for an entry that this process has not seen.
        """
        sequence = offsets.get(SEQUENCE_MARK, 0)
        if not offsets.get(ENTRY_MARK) or sequence > self._journal.sequence:
            return 0
        if sequence not in self._entries:
            self._keep_entry(sequence, self._opened().entry_crc(sequence))
        return self._entries[sequence]

    def _keep_entry(self, sequence: int, crc: int) -> None:
        self._entries[sequence] = crc
        if len(self._entries) > ENTRIES_MAX:
            del self._entries[next(iter(self._entries))]

    def _wanted_of(self, offsets: Offsets) -> Offsets:
        """Keep the offsets of wanted queues; a restart may have other options."""
        return {
            name: offset
            for name, offset in offsets.items()
            if not name.startswith(MARK) and self._options.wanted.has(parse_queue(name))
        }

    def _look(self, tier: OpenTier) -> None:
        state = tier.state()
        if tier.histories != self._history:
            self._entries, self._history = {}, tier.histories
        self._keep_entry(state.sequence, tier.entry_crc(state.sequence))
        self._journal = Seen.of(state, self._entries[state.sequence])
        wanted = self._options.wanted
        # A topic that is deleted later on is missing messages, not a wrong option.
        queues = tier.queues_there(wanted)
        self._seen = {
            str(name): _bounds_of(queue, state.topics.get(name.topic))
            for name, queue in queues.items()
        }
        self._looked_s = self._clock.monotonic_s()

    def _beginning(self, tier: OpenTier, name: QueueId, queue: Queue) -> int:
        if self._options.since_ms is not None:
            found = tier.offset_by_time(name, self._options.since_ms)
            return queue.next_offset if found is None else found
        return queue.next_offset if self._options.begins_at == LATEST else queue.min_offset


def _bounds_of(queue: Queue, topic: Topic | None) -> TieredOffsets:
    return TieredOffsets(
        queue.min_offset,
        queue.next_offset,
        queue.gaps,
        queue.generation,
        is_made_again=bool(queue.generation) and queue.used_below is None,
        topic_id=None if topic is None else topic.topic_id,
    )
