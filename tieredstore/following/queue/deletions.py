"""Queues that the broker deleted: noticed, told, and read to their end where pins keep them.

The rule: with pins, what waits of a deleted queue is tiered all the same; without, nothing of it is
read any more. A queue that is made again under its name shows what lies above the old one's end.

A directory that is away is a deletion only while the directory of all ConsumeQueues is the one that
it was: a volume that is not mounted deletes nothing.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from container.names.queue_id import QueueId
from container.record.unit import Units
from dispatcher.hot_log import DeletedQueue, HotQueue, HotQueueState
from provider.errors import Corrupt, Denied, NotFound, OutOfRange, StoreError, Unavailable
from provider.ranges import QueueOffset
from tieredstore.following.log.followed_log import FollowedLog
from tieredstore.following.queue.deletion_sentences import deletion_sentence
from tieredstore.following.queue.files import ConsumeQueueFiles
from tieredstore.following.queue.kept_remains import KeptRemains
from tieredstore.following.queue.needed_log import QueueNeed
from tieredstore.following.queue.remains import Remainder, Remains
from tieredstore.following.queue.succession import first_unit, is_made_again, names_message
from tieredstore.following.queue.tail import ConsumeQueueTail


class Deletions:
    """What is known of deleted queues. Guarded by its caller.

    X1  A queue of which something remains to be read is not looked at under its name.
    X2  A queue that was made again shows no offset below the end of the deleted one.
    """

    def __init__(self, log: FollowedLog, consume_queue: Path) -> None:
        self._log = log
        self._directory = consume_queue
        self._place: tuple[int, int] | None = None
        self._deleted: dict[QueueId, DeletedQueue] = {}
        self._end_positions: dict[QueueId, int] = {}
        """Where the last message of each deleted queue ends in the CommitLog; 0: not known."""
        self._remains = Remains(log.files)
        self._kept = KeptRemains(log.notes, consume_queue)
        self._has_begun = False
        self._findings: list[str] = []
        self._ended: dict[QueueId, int] = {}
        """Where the remainders ended whose last message was tiered since the last scan."""
        self._hidden: dict[QueueId, tuple[int, int, int]] = {}
        """First offset, its position and the end, as last seen, of a queue made again while
        messages of the earlier one wait."""
        self._untold: set[QueueId] = set()
        self._successors: dict[QueueId, DeletedQueue] = {}
        """What was found to be made again since it was asked for."""

    def __repr__(self) -> str:
        return f"<Deletions: {len(self._deleted)} queues, {self._remains}>"

    def check(self, tails: Mapping[QueueId, ConsumeQueueTail]) -> None:
        """Assert X1, and that it is known of all where they ended. O(deleted queues)."""
        assert not any(queue in tails for queue in self._remains), f"X1: {self}"
        known = self._deleted.keys() | set(self._remains)
        assert known == self._end_positions.keys(), f"{self}"

    @property
    def is_any(self) -> bool:
        """Whether a queue was deleted, and is not back."""
        return len(self._end_positions) > 0

    @property
    def unsettled(self) -> set[QueueId]:
        """Queues of which something new is to be told: deleted ones, and those that remain."""
        return self._untold | set(self._remains)

    def tell_again(self, queues: Iterable[QueueId]) -> None:
        """What is known of those that were deleted is to be told once more."""
        self._untold |= self._deleted.keys() & set(queues)

    def told(self) -> None:
        """Everything of before was told. Keeps what remains for a later start."""
        if self._untold:
            failure = self._kept.write({queue: self._remains[queue] for queue in self._remains})
            self._findings += [failure] if failure else []
        self._untold = set()

    def take_up(self) -> None:
        """Go on with what an earlier process left. The first call does; the log was looked at."""
        if self._has_begun:
            return
        self._has_begun = True
        table = self._log.files.table
        for queue, rest in self._kept.read().items():
            if rest.end_position > table.end:
                continue  # another log's
            self._untold.add(queue)
            self._end_positions[queue] = rest.end_position
            if rest.end_position > table.min_position:
                self._remains.add(queue, rest)
            else:
                self._deleted[queue] = DeletedQueue(QueueOffset(rest.start), QueueOffset(rest.end))
        waiting = {
            queue: self._remains[queue].end - self._remains[queue].start for queue in self._remains
        }
        if waiting:
            self._findings.append(deletion_sentence(waiting, has_pins=True))

    def take_findings(self) -> list[str]:
        """Sentences for people since the last call."""
        taken = [*self._findings, *self._remains.findings]
        self._findings, self._remains.findings = [], []
        return taken

    def take_successors(self) -> dict[QueueId, DeletedQueue]:
        """The queues that were made again since the last call."""
        taken, self._successors = self._successors, {}
        return taken

    def has(self, queue: QueueId) -> bool:
        """Whether the queue, or an earlier one of its name, was deleted."""
        return queue in self._end_positions

    def end_of(self, queue: QueueId) -> int:
        """Where the deleted queue of this name ended; 0 if there was none."""
        deleted = self._deleted.get(queue)
        return 0 if deleted is None else deleted.end

    def remains_of(self, queue: QueueId) -> bool:
        """Whether messages of the queue are still to be tiered from pinned files."""
        return queue in self._remains

    def units(self, queue: QueueId, start: QueueOffset, end: int) -> Units:
        """Units of a deleted queue; see `Remains.units`.

        Raises:
            OutOfRange: it has none any more.
            Unavailable, Denied: they cannot be read now.
        """
        if queue not in self._remains:
            raise OutOfRange("its topic was deleted", str(queue), start)
        return self._remains.units(queue, start, min(end, self._remains[queue].end))

    def look_anew(self, queue: QueueId, released: int) -> None:
        """Find anew what can be read of what waits of a deleted queue; of others, nothing is done.

        Raises:
            Unavailable, Denied: it cannot be read now.
        """
        if queue in self._remains:
            self._remains.look_anew(queue, released)

    def needs(self) -> Iterator[QueueNeed]:
        """What is still needed of the CommitLog, also by what may lie behind a deleted queue."""
        for end_position in self._ended.values():
            yield QueueNeed(
                is_known=True,
                has_end=True,
                end_position=end_position,
                next_position=end_position,
            )
        for queue in self._remains:
            rest = self._remains[queue]
            yield QueueNeed(
                is_known=True,
                has_end=True,
                end_position=rest.end_position,
                next_position=rest.position,
            )

    def scanned(self) -> None:
        """All queues that are there were begun: they say themselves what they need."""
        self._ended = {}

    def look_at_hidden(self, queue: QueueId, files: ConsumeQueueFiles) -> None:
        """Note how far a queue goes that waits for the end of an earlier one of its name.

        If it is another one than at the last look, what is lost with that is a finding: two queues
        wait in no order that could be kept. A few `pread`s; what cannot be read now is not noted.
        """
        try:
            first = first_unit(files)
            end = files.written_end(first[0]) if first else 0
        except (NotFound, Corrupt, Unavailable, Denied):
            return
        if first is None:
            return
        offset, position = first[0], first[1].position
        before = self._hidden.get(queue)
        if before is not None and offset <= before[0] and position > before[1]:
            self._lose_hidden(queue)  # an expired file raises both
        self._hidden[queue] = offset, position, end

    @property
    def hidden(self) -> Iterable[QueueId]:
        """The queues of `look_at_hidden`."""
        return self._hidden

    def find_hidden_gone(self, found: Iterable[QueueId]) -> None:
        """Say what is lost of such queues that are not there any more, after `gone`.

        One `stat`, and one for each queue that was not found.
        """
        away = self._hidden.keys() - set(found)
        if not away or _place_of(self._directory) != self._place:
            return
        for queue in sorted(away):
            if not self._stands(queue):
                self._lose_hidden(queue)

    def _lose_hidden(self, queue: QueueId) -> None:
        _, _, end = self._hidden.pop(queue)
        if queue in self._remains and end > self._remains[queue].end:
            lost = end - self._remains[queue].end
            self._findings.append(
                f"{queue} was deleted again on the broker while messages of an earlier deletion "
                f"wait to be tiered: {lost:,} messages of the later queue, or more, are lost."
            )

    def gone(
        self, tails: Mapping[QueueId, ConsumeQueueTail], found: Iterable[QueueId]
    ) -> list[QueueId]:
        """The queues that were deleted, given all that a look at the directories found.

        One `stat`, and one for each queue that was not found.
        """
        place = _place_of(self._directory)
        if place is None:
            return []
        away = tails.keys() - set(found)
        if place != self._place:
            if len(away) < len(tails) or not tails:
                self._place = place
            return []
        return sorted(queue for queue in away if not self._stands(queue))

    def _stands(self, queue: QueueId) -> bool:
        """Whether the queue's directory may be there: only a name that is gone says that it is not.

        A link to nowhere stands, be it the queue's or its topic's, and what may not be looked at.
        """
        topic = self._directory / queue.topic
        try:
            os.lstat(topic / str(queue.queue_id))
        except FileNotFoundError:
            return topic.is_symlink() and not os.path.exists(topic)  # noqa: PTH110 - False for errors
        except OSError:
            return True
        return True

    def add(self, queue: QueueId, tail: ConsumeQueueTail, shown: HotQueue, released: int) -> int:
        """A queue was deleted; returns how many of its messages wait.

        Args:
            queue: its name.
            tail: what was known of its files.
            shown: what the last poll told of it.
            released: below this offset all is tiered.
        """
        self._untold.add(queue)
        known = self._end_positions.get(queue, 0)  # of an earlier one; the log only grows
        self._end_positions[queue] = max(known, tail.end_position)
        low, high = shown.min_offset, shown.max_offset
        wanted = max(released, low)
        if wanted < high and self._log.has_pins and tail.end_position:
            place = tail.needed_position
            rest = Remainder(wanted, high, position=place, end_position=tail.end_position)
            self._remains.add(queue, rest)
        else:
            self._deleted[queue] = DeletedQueue(low, high)
        return max(0, high - wanted)

    def succeeds(self, queue: QueueId, files: ConsumeQueueFiles) -> bool:
        """Whether these files of a queue that was deleted can be followed now.

        If the queue was away, and not deleted, it is as before, also where its first unit is
        damaged. Files without a message may be those of either.

        Raises:
            Corrupt: it cannot be told whose they are, for the first of them were cut off.
            NotFound, Unavailable, Denied: they cannot be read now.
        """
        first = first_unit(files)
        if first is None and files.run.foreign and not files.run.bases:
            path = files.run.path_of(files.run.foreign[0])
            raise Corrupt("the file was truncated: it has no length of whole units", str(path))
        if first is None:
            return False
        log, end, end_position = self._log.files, self.end_of(queue), self._end_positions[queue]
        if end_position:
            is_other = is_made_again(files, log, queue, end, end_position)
        else:  # it had no message: what lies below its end is another one's
            is_other = first[0] < end and names_message(log, queue, *first)
        if not is_other:
            del self._deleted[queue], self._end_positions[queue]
        else:
            made_again = replace(self._deleted[queue], is_made_again=True)
            self._deleted[queue] = self._successors[queue] = made_again
        self._untold.add(queue)
        return True

    def shown(self, seen: HotQueue) -> HotQueue:
        """What is told of a queue whose files are there."""
        deleted = self._deleted.get(seen.id)
        if deleted is None:
            return seen
        return replace(
            seen,
            min_offset=max(seen.min_offset, deleted.end),
            max_offset=max(seen.max_offset, deleted.end),
            deleted=deleted,
        )

    def unreadable(self, queue: QueueId, error: StoreError) -> HotQueue:
        """What is told of a queue that is there, and of which nothing could be read yet."""
        end = QueueOffset(self.end_of(queue))
        deleted = self._deleted.get(queue)
        return HotQueue(queue, end, end, HotQueueState.UNREADABLE, str(error), deleted)

    def look(self, queue: QueueId, released: int) -> dict[QueueId, HotQueue]:
        """What is told of a queue that was deleted; nothing if it had only been away."""
        if queue in self._remains:
            rest = self._remains[queue]
            rest.release(released)
            low, high = QueueOffset(rest.start), QueueOffset(rest.end)
            if released < high:  # also where nothing can be read any more: that is asked again
                return {queue: HotQueue(queue, low, high, deleted=self._deleted.get(queue))}
            self._ended[queue] = rest.end_position
            self._remains.drop(queue)
            self._hidden.pop(queue, None)
            self._deleted[queue] = DeletedQueue(low, high)
            self._untold.add(queue)
        if queue not in self._deleted:
            return {}
        deleted = self._deleted[queue]
        return {queue: HotQueue(queue, deleted.end, deleted.end, deleted=deleted)}


def _place_of(directory: Path) -> tuple[int, int] | None:
    """Device and inode; None where it cannot be looked at."""
    try:
        status = os.stat(directory)  # noqa: PTH116 - often called
    except OSError:
        return None
    return status.st_dev, status.st_ino
