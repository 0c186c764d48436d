"""Changes of the files of a hot log, in blocking calls for its threads.

A1  A group of messages is appended wholly or not at all: bytes of a failed write are zeroed.
A2  A CommitLog file is begun only after the units of all earlier records were synced.
A3  After a failed sync, or a write that cannot be undone, all appends fail: the content of the disk
    is unknown until the next start recovers it.
"""

import logging
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from container.names.queue_id import QueueId
from container.record.unit import UNIT_BYTES
from dispatcher.topic_filter import untiered_reason
from provider.clock import Clock
from provider.errors import Unavailable
from provider.posix.files import as_verdict
from tieredstore.hot.batch_plan import plan_alike, plan_one
from tieredstore.hot.encoding import Appended, AppendPlan, NewMessage, Prepared, plan_append
from tieredstore.hot.log.commit_log import CommitLogWriter
from tieredstore.hot.log.consume_queues import QueueFiles
from tieredstore.hot.log.deleted_queues import DeletedQueue, DeletedQueues
from tieredstore.hot.log.directory import StoreDirectory
from tieredstore.hot.log.durable_ends import Checkpoint, DurableEnds, DurableEndsFile
from tieredstore.hot.log.files import (
    FileGone,
    NotSynced,
    SyncFailed,
    passing_open_errors,
    refuse_if_gone,
)
from tieredstore.hot.log.recovery import Directory, LogEnd, finish_deletion, recover
from tieredstore.hot.log.topics import TopicsFile
from tieredstore.hot.options import HotWriteOptions

LOGGER = logging.getLogger("tieredstore.hot")


@dataclass(frozen=True, slots=True)
class Deletion:
    """Result of a deletion of queues."""

    flushed: int
    """CommitLog position up to which all is durable. It covers all earlier appends."""
    queues: frozenset[QueueId] = frozenset()
    """Deleted queues."""
    failed: Exception | None = None
    """Error that left files of them on disk. A repeated call, or the next start, deletes them."""


class Appender:
    """Writer of one store directory.

    One thread at a time plans and appends. Another one may call `flush` meanwhile.
    """

    def __init__(self, directory: StoreDirectory, options: HotWriteOptions, clock: Clock) -> None:
        """Recover the directory.

        Raises:
            Denied: files have other lengths than configured, or there are queues of other kinds.
            Corrupt: records or topics contradict the format, or a file is missing.
            OSError: something cannot be read or written.
        """
        self.directory = directory
        self.options = options
        self._clock = clock
        check = directory.refuse_if_moved
        self.log = CommitLogWriter(directory.commit_log, options.commit_log_bytes, check=check)
        self.queues = QueueFiles(
            directory.consume_queue, options.queue_file_bytes, options.files_open_max, check
        )
        self._topics = TopicsFile(directory.topics)
        directory.refuse_other_queues(lambda topic: self._topics.has({topic}))
        was_closed, checkpoint = directory.was_closed, directory.checkpoint()
        self._ends_file = DurableEndsFile(directory.durable_ends, clock.now_ms())
        durable = self._ends_file.read()
        self.deleted = DeletedQueues(directory.deleted_queues, durable, clock.now_ms())
        """Deleted queues, which may be created again."""
        left = finish_deletion(self.queues, self.deleted)
        found = Directory(
            was_closed,
            checkpoint,
            durable,
            self.deleted,
            directory.truncated,
            has_lost_ends=self._ends_file.is_damaged,
        )
        begin, enter = partial(directory.begin, clock), self._ends_file.write_both
        self.recovered: LogEnd = recover(
            self.log, self.queues, found, begin=begin, enter=enter, rescan=bool(left)
        )
        """Result of the recovery."""
        self.end = self.recovered.position
        """Position after the last record."""
        self.next_offsets = dict(self.recovered.next_offsets)
        """Offset of each queue's next message."""
        self._begins: dict[QueueId, int] = {}
        """First offsets of queues without a message. None of these is in `next_offsets`."""
        self._left: set[QueueId] = set()
        """Deleted queues that may still have files."""
        self._untidy: frozenset[QueueId] = frozenset()
        """Queues with units of failed appends, for want of descriptors to zero them."""
        self._begin_deleted()
        stamp = self.recovered.store_timestamp or checkpoint.log_timestamp
        self._store_timestamp = stamp
        self._state = threading.Lock()
        """Held while `end` and `next_offsets` change together."""
        self._checkpoint = self._checkpoint_of(self.end, stamp)
        self._ends = self._ends_at(self.end, self.next_offsets, self.log.min_position)
        """Content of `durableEnds`."""
        self._flushed = self.end
        self._flushing = threading.Lock()
        self._checkpointing = threading.Lock()
        self.broken = ""
        """Reason for which all appends fail; "" while they do not."""
        alive = {queue.topic for queue in self.next_offsets}
        gone = {queue.topic for queue in left if not self.deleted[queue].keeps_topic}
        self._topics.forget(gone - alive, clock.now_ms())
        self._topics.enter(self.next_offsets, options.topic_queues, clock.now_ms())
        self._ends_file.write_both(self._ends)
        directory.write_checkpoint(self._checkpoint)
        self._warn_of_untiered()

    def _warn_of_untiered(self) -> None:
        """Warn of topics that are never tiered, from an older version or a broker."""
        own = self.options.own_topics
        found = {queue.topic for queue in self.next_offsets if untiered_reason(queue.topic, own)}
        if found:
            names = ", ".join(map(repr, sorted(found)))
            LOGGER.warning(
                "the store %s has topics that are never tiered, whose messages exist nowhere else"
                " and expire with the hot log: %s; read what is needed, then delete them with"
                " `tieredstore delete-topic`",
                self.directory.root,
                names,
            )

    def __repr__(self) -> str:
        return f"<Appender {self.directory.root} at {self.end}>"

    @property
    def flushed(self) -> int:
        """Position up to which the CommitLog is durable."""
        return self._flushed

    def next_offset(self, queue: QueueId) -> int:
        """Return the offset of a queue's next message."""
        known = self.next_offsets.get(queue)
        return self._begins.get(queue, 0) if known is None else known

    def append(self, messages: Sequence[Prepared]) -> AppendPlan:
        """Plan and carry out an append. Return the plan."""
        plan = self.plan(messages)
        self.carry_out(plan)
        return plan

    def plan(self, messages: Sequence[Prepared]) -> AppendPlan:
        """Plan the positions of messages. Changes nothing."""
        starts = self._starts_of(messages) if self._begins else {}
        plan = plan_append(
            self.end,
            self.next_offsets | starts if starts else self.next_offsets,
            messages,
            file_bytes=self.options.commit_log_bytes,
            record_crc=self.options.record_crc,
        )
        plan.starts = starts
        return plan

    def plan_alike(self, messages: Sequence[NewMessage], now_ms: int) -> AppendPlan | None:
        """Plan new messages by columns, faster. None if `plan` must do it: see `plan_alike`."""
        plan = plan_alike(
            self.end, self.next_offsets, messages, now_ms=now_ms, options=self.options
        )
        if plan is None or (self._begins and not self._begins.keys().isdisjoint(plan.next_offsets)):
            return None
        return plan

    def is_quick(self, plan: AppendPlan) -> bool:
        """Whether the plan only writes to open files in the page cache: no new files, no syncs."""
        if len(plan.files) != 1 or plan.starts or not self.log.is_open_at(plan.files[0].position):
            return False
        known, queues = self.next_offsets, self.queues
        for queue, (first, raw) in plan.files[0].units.items():  # a generator takes twice as long
            if queue not in known or not queues.is_open_at(queue, first, len(raw)):
                return False
        return True

    def carry_out(self, plan: AppendPlan) -> None:
        """Write records and units into the page cache and make them visible to readers.

        One write for each CommitLog file and one for each queue. The plan must be of the present
        state.

        Raises:
            Unavailable: no space, or the device failed; nothing was appended.
        """
        self._refuse_if_broken()
        if not plan.appended:
            return
        self._tidy_or_fail()
        written: list[QueueId] = []
        try:
            self._write(plan, written)
        except (FileGone, SyncFailed) as error:
            raise self._break(error) from error
        except OSError as error:
            self._take_back(written)
            raise self._verdict(error) from error
        for queue in plan.starts:
            del self._begins[queue]
        with self._state:
            self.next_offsets |= plan.next_offsets
            self._store_timestamp = plan.appended[-1].store_timestamp
            self.end = plan.end

    def _write(self, plan: AppendPlan, written: list[QueueId]) -> None:
        """Write the content of a plan. Enter in `written` the queues whose units were written."""
        new = [queue for queue in plan.next_offsets if queue not in self.next_offsets]
        if new:
            refuse_if_gone(self.directory.refuse_if_moved, self.directory.root)
            self._drop(self._left.intersection(new))
            self._topics.enter(new, self.options.topic_queues, self._clock.now_ms())
        for queue, offset in plan.starts.items():
            self.queues.begin(queue, offset)
        for file in plan.files:
            if not self.log.has_file_of(file.position):
                self._sync_before(file.position)
            self.log.write(file.position, file.parts)
            for queue, (first, units) in file.units.items():
                written.append(queue)
                self.queues.write(queue, first, units)

    def append_one(self, message: NewMessage, now_ms: int) -> tuple[QueueId, Appended] | None:
        """Append a message if that is quick and `plan` is not needed. None if nothing was done.

        Raises:
            Unavailable: no space, or the device failed; it was not appended.
        """
        if self.broken or self._untidy:
            return None
        plan = plan_one(self.end, self.next_offsets, message, now_ms, self.options)
        if plan is None:  # such as of a queue without a message
            return None
        queue, record, unit, appended = plan
        offset, position, size, _ = appended
        log, queues = self.log, self.queues
        if not log.is_open_at(position) or not queues.is_open_at(queue, offset, UNIT_BYTES):
            return None
        try:
            log.write_one(position, record)
            queues.write_one(queue, offset, unit)
        except OSError as error:
            self._take_back([queue])
            raise self._verdict(error) from error
        with self._state:
            self.next_offsets[queue] = offset + 1
            self._store_timestamp = now_ms
            self.end = position + size
        return queue, appended

    def _begin_deleted(self) -> None:
        """Begin each deleted queue above its old end, unless it already has a message there.

        Recovery finds a lower end only after a loss of the log, whole or in part. New records then
        lie below the positions of the deletions, and count as messages. A file of an older version
        gets its checksum and its copy here.

        Raises:
            OSError: the file of the deleted queues cannot be written.
        """
        lowered = {
            queue: one._replace(position=min(one.position, self.end))
            for queue, one in self.deleted.items()
        }
        if lowered != dict(self.deleted) or not self.deleted.is_whole:
            self.deleted.replace(lowered)
        for queue, one in self.deleted.items():
            if self.next_offsets.get(queue, 0) < one.next_offset:
                self._begin(queue, one.next_offset)

    def _begin(self, queue: QueueId, offset: int) -> None:
        """Set the offset of a queue's first message. Its old files are removed before that.

        The first write adds the fillers of one file, as in Java.
        """
        self.next_offsets.pop(queue, None)
        self._begins[queue] = offset
        if queue in self.queues.bases:
            self._left.add(queue)

    def continue_queues(
        self, offsets: Mapping[QueueId, int], compared: Mapping[QueueId, int] | None = None
    ) -> Deletion:
        """Continue queues that end below `offsets` there.

        On the appending thread. Durable on return. This log's messages of such a queue are deleted
        as by `delete_topics`, for the tier, which ends at the offset, has them. Topics stay in
        `config/topics.json`.

        Args:
            offsets: ends of the queues in the tier.
            compared: the next offsets at which hot log and tier were compared. A queue whose next
                offset has changed since is left as it is. None: no check.

        Raises:
            Unavailable, Denied: the store cannot be written; nothing was changed.
        """
        self._refuse_if_broken()
        behind = {
            queue: offset
            for queue, offset in offsets.items()
            if self.next_offset(queue) < offset
            and (compared is None or compared.get(queue, 0) == self.next_offset(queue))
        }
        return self._delete(behind) if behind else Deletion(self._flushed)

    def set_retention(self, topic: str, hours: int | None) -> None:
        """Write a topic's retention to `config/topics.json`.

        On the appending thread. Durable on return.

        Raises:
            NotFound: the topic does not exist.
            Unavailable: the directory was moved.
            OSError: the file cannot be written.
        """
        self.directory.refuse_if_moved()
        self._topics.set_retention(topic, hours, self._clock.now_ms())

    def delete_topics(self, topics: Collection[str]) -> Deletion:
        """Delete all queues of topics. On the appending thread.

        The deletion takes effect with the durable write of `config/deletedQueues.json`. Then the
        topics are removed from `config/topics.json`, and the ConsumeQueue files are deleted. The
        records stay in the CommitLog until its files expire. A new queue of such a name continues
        above the old end.

        Raises:
            Unavailable, Denied: the store cannot be written; nothing was deleted.
        """
        self._refuse_if_broken()
        known = self.next_offsets | self._begins
        ends = {queue: end for queue, end in known.items() if queue.topic in topics}
        left = {queue for queue in self._left if queue.topic in topics}
        if not (ends or left or self._topics.has(topics)):
            return Deletion(self._flushed)
        return self._delete(ends, topics)

    def _delete(self, ends: Mapping[QueueId, int], topics: Collection[str] = ()) -> Deletion:
        """Delete queues, which continue at `ends`, and forget topics."""
        self.flush_queues()  # else a power failure could move the log's end below the position
        gone = {
            queue: DeletedQueue(end, self.end, keeps_topic=queue.topic not in topics)
            for queue, end in ends.items()
        }
        try:
            kept = self.deleted.still_needed(self.next_offsets, self.log.min_position)
            self.deleted.replace(kept | gone)
        except OSError as error:
            raise self._verdict(error) from error
        number = self.deleted.number
        with self._checkpointing, suppress(OSError):  # else the next write records it
            self._ends = replace(self._ends, has_deletions=True, deletions=number)
            self._ends_file.write_both(self._ends)  # after the file: a start needs that
        for queue, end in ends.items():
            self._begin(queue, end)
        left = {queue for queue in self._left if queue in ends or queue.topic in topics}
        try:
            self._topics.forget(topics, self._clock.now_ms())
            self._drop(left)
        except OSError as error:
            return Deletion(self._flushed, frozenset(ends), self._verdict(error))
        return Deletion(self._flushed, frozenset(ends))

    def _drop(self, queues: Collection[QueueId]) -> None:
        """Delete the files of deleted queues, and update the number of queues in the checkpoint."""
        if not queues:
            return
        self.queues.drop(queues)
        self._left.difference_update(queues)
        with self._checkpointing:
            self._checkpoint = replace(self._checkpoint, queues=len(self.queues.bases))
            with suppress(OSError):  # a wrong number only makes the next start slower
                self.directory.write_checkpoint(self._checkpoint)

    def flush(self) -> int:
        """Make the CommitLog durable up to its end at the moment of the call. Return that end.

        Raises:
            Unavailable: the device failed; all later appends fail.
        """
        with self._flushing:
            self._refuse_if_broken()
            end = self.end
            if end > self._flushed:
                try:
                    self.log.sync(end)
                except OSError as error:
                    raise self._break(error) from error
                self._flushed = end
            return end

    def flush_queues(self) -> None:
        """Make ConsumeQueues durable, then the CommitLog. Record that in the checkpoint.

        Raises:
            Unavailable: the device failed, and all later appends fail. Or file descriptors are
                short, and a later call succeeds.
        """
        with self._checkpointing:
            with self._state:
                end, stamp, offsets = self.end, self._store_timestamp, dict(self.next_offsets)
            self._sync_queues()
            self.flush()
            if end == self._checkpoint.durable_end:
                return
            self._checkpoint = self._checkpoint_of(end, stamp)
            with suppress(OSError):  # old ones only make the next start slower
                if self._ends.is_due(end):
                    ends = self._ends_at(end, offsets, self._ends.min_position)
                    self._ends_file.write(ends)
                    self._ends = ends
                self.directory.write_checkpoint(self._checkpoint)

    def delete_oldest(self, bases: Sequence[int]) -> None:
        """Delete the oldest CommitLog files `bases`. `durableEnds` records it before.

        Raises:
            OSError: one cannot be deleted; a later call deletes the rest.
        """
        if not bases:
            return
        with self._checkpointing:
            ends = replace(self._ends, min_position=bases[-1] + self.log.file_bytes)
            self._ends_file.write_both(ends)
            self._ends = ends
        for base in bases:
            assert base == self.log.min_position, "the oldest goes first"
            self.log.delete_oldest()

    def _ends_at(
        self, position: int, next_offsets: Mapping[QueueId, int], min_position: int
    ) -> DurableEnds:
        filled, has_deletions = dict(self.queues.filled), bool(self.deleted)
        ends, deletions = dict(next_offsets), self.deleted.number
        return DurableEnds(position, ends, min_position, filled, has_deletions, deletions)

    def _checkpoint_of(self, end: int, stamp: int) -> Checkpoint:
        queues = len(self.queues.bases)
        return Checkpoint(stamp, stamp, durable_end=end, queues=queues, has_ends=True)

    def _sync_queues(self) -> None:
        try:
            refuse_if_gone(self.directory.refuse_if_moved, self.directory.root)
            self.queues.sync()
        except NotSynced as error:
            raise self._verdict(error) from error
        except OSError as error:
            raise self._break(error) from error

    def close(self) -> None:
        """Make all durable, mark the directory as closed, and release it. Idempotent.

        Raises:
            Unavailable: not all is durable; the next start recovers as after a crash.
        """
        try:
            if not self.broken and self.directory.is_held:
                self._tidy_or_fail()
                self.flush_queues()
                ends = self._ends_at(self.end, self.next_offsets, self._ends.min_position)
                try:
                    self._ends_file.write_both(ends)
                    self.directory.write_checkpoint(self._checkpoint)
                    self.directory.end()
                except OSError as error:
                    raise self._verdict(error) from error
        finally:
            self.log.close()
            self.queues.close()
            self.directory.close()

    def _sync_before(self, position: int) -> None:
        """Make all records before a new file durable, and their units: A2."""
        with self._checkpointing:
            self._sync_queues()
            try:
                self.log.sync(position)
            except OSError as error:
                raise self._break(error) from error

    def _starts_of(self, messages: Sequence[Prepared]) -> dict[QueueId, int]:
        """Return the first offsets of the empty queues of these messages that begin above 0."""
        return {
            message.queue: self._begins[message.queue]
            for message in messages
            if message.has_unit and message.queue in self._begins
        }

    def _take_back(self, written: Collection[QueueId]) -> None:
        """Zero what a failed append wrote, now or before the next append or the end."""
        self._untidy = self._untidy.union(written)
        try:
            with passing_open_errors():
                self._tidy()
        except OSError as error:
            self._break(error)

    def _tidy(self) -> None:
        """Zero units and records of failed appends. Fillers before a first message may stay.

        Raises:
            OSError: some are left.
        """
        self.log.undo(self.end)  # first: a start would take sound records for messages
        for queue in sorted(self._untidy):
            self.queues.undo(queue, self.next_offset(queue))
        self._untidy = frozenset()

    def _tidy_or_fail(self) -> None:
        """Zero what failed appends left for want of descriptors.

        Raises:
            Unavailable: it is still left.
        """
        if self._untidy:
            try:
                self._tidy()
            except OSError as error:
                raise self._verdict(error) from error

    def _refuse_if_broken(self) -> None:
        if self.broken:
            raise Unavailable(self.broken, str(self.directory.root))

    def _break(self, error: OSError) -> Unavailable:
        self.broken = (
            f"a write may be lost ({error.strerror}); nothing is appended until the store is"
            " opened again"
        )
        return Unavailable(self.broken, str(self.directory.root))

    def _verdict(self, error: OSError) -> Exception:
        path = str(error.filename or self.directory.root)
        return as_verdict(error, path, self.end) or error
