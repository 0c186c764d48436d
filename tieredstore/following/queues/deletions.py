"""Deleted queues of a broker: detection, reports, incarnations, messages kept by pins."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from container.names.queue_id import QueueId
from container.record.unit import Units, consecutive
from dispatcher.ports import DeletedQueue, HotQueue, HotQueueState
from provider.errors import Corrupt, Denied, NotFound, OutOfRange, StoreError, Unavailable
from provider.ranges import QueueOffset
from tieredstore.following.log.commit_log import CommitLogFiles
from tieredstore.following.log.followed_log import FollowedLog
from tieredstore.following.log.record_units import units_in
from tieredstore.following.queues.files import ConsumeQueueFiles
from tieredstore.following.queues.pinned_units import QueueNeed
from tieredstore.following.queues.remains import (
    Ended,
    Hidden,
    Kept,
    KeptRemains,
    Remainder,
    Remains,
)
from tieredstore.following.queues.succession import (
    QueueNames,
    first_unit,
    is_made_again,
    names_message,
)
from tieredstore.following.queues.tail import ConsumeQueueTail

NAMED_MAX = 3
"""Maximum of topics that one sentence names."""


def deletion_sentence(waiting: Mapping[QueueId, int], *, has_pins: bool) -> str:
    """Describe deleted queues for an operator, given the waiting messages of each.

    Pure; at least one queue.
    """
    named = _named(list(dict.fromkeys(queue.topic for queue in waiting)))
    left = sum(waiting.values())
    if not left:
        return f"{named} deleted on the broker; all that was seen of that is tiered."
    if has_pins:
        became = "is tiered all the same, from pinned files"
    else:
        became = "becomes a gap, for nothing is pinned"
    noun = "message" if left == 1 else "messages"
    return f"{named} deleted on the broker; what waits of that, {left:,} {noun}, {became}."


def beyond_sentences(ends: Mapping[QueueId, int]) -> list[str]:
    """Describe queues that were deleted while their end was unknown; one sentence or none. Pure.

    `ends`: the offset from which each was damaged or unreadable.
    """
    if not ends:
        return []
    queue, end = next(iter(ends.items()))
    others = f", as {len(ends) - 1:,} other queues were," if len(ends) > 1 else ""
    sentence = (
        f"{queue} was damaged or unreadable from offset {end} on{others} when it was deleted: how "
        "many messages lay there is not known, and none of them is tiered."
    )
    return [sentence]


def again_deleted_sentence(queue: QueueId, waiting: int) -> str:
    """Describe a recreated queue that was deleted again before its messages were tiered. Pure."""
    return (
        f"{queue} was deleted again on the broker while messages of an earlier deletion waited; "
        f"{waiting:,} messages of later queues are tiered in their turn, from pinned files."
    )


def again_sentences(again: Mapping[QueueId, DeletedQueue]) -> list[str]:
    """Describe recreated queues for an operator; one sentence or none. Pure."""
    hidden = {queue: deleted.end for queue, deleted in again.items() if deleted.end}
    if not hidden:
        return []
    queue, end = next(iter(hidden.items()))
    named = _named(list(dict.fromkeys(queue.topic for queue in hidden)))
    sentence = (
        f"{named} made again on the broker after a deletion, and counts offsets from 0 again: "
        f"messages below the old end are not tiered, which is {end} in {queue}."
    )
    return [sentence]


def _named(topics: Sequence[str]) -> str:
    """Return the topics and their verb."""
    if len(topics) == 1:
        return f"{topics[0]} was"
    if len(topics) <= NAMED_MAX:
        return f"{' and '.join(topics)} were"
    return f"{len(topics):,} topics, such as {topics[0]}, were"


@dataclass(frozen=True, slots=True)
class Life:
    """Messages `[start, end)` of one incarnation of a queue. Some in between may be missing."""

    start: int
    end: int
    position: int
    """CommitLog position of the first message."""
    end_position: int
    """CommitLog position after the last message."""
    goes_on: bool
    """Whether they continue the incarnation that was known to end before them."""


def lives_behind(
    log: CommitLogFiles,
    queue: QueueId,
    place: int,
    bound: int,
    *,
    end: int,
    findings: list[str],
) -> list[Life]:
    """Return a queue's incarnations with records in `[place, bound)` of the log, oldest first.

    Falling offsets begin another incarnation, for the offsets of one ascend in the log. Messages
    after a hole at the end of the known incarnation belong to none: it was damaged there.

    Args:
        log: the CommitLog.
        queue: the name.
        place: position after the last message of the known incarnation.
        bound: position at which the scan ends.
        end: the offset after that last message.
        findings: receives sentences for operators.

    Raises:
        Unavailable, Denied: a CommitLog file cannot be read.
    """
    found: list[Life] = []
    for run in _runs(log, queue, place, bound, findings):
        last = found[-1] if found else None
        reached = end if last is None else last.end
        if run.start < reached:
            found.append(run)
        elif last is not None:
            found[-1] = replace(last, end=run.end, end_position=run.end_position)
        elif run.start == end:
            found.append(replace(run, goes_on=True))
    return found


def _runs(
    log: CommitLogFiles, queue: QueueId, place: int, bound: int, findings: list[str]
) -> Iterator[Life]:
    """Yield runs of consecutive offsets, in the order of the log."""
    base = log.table.base_of(max(place, log.table.min_position))
    while base < min(bound, log.table.end):
        try:
            rows = units_in(log, base, frozenset({queue}), findings).get(queue)
        except OutOfRange:
            rows = None  # it was deleted
        if rows is not None:
            yield from _runs_of(*rows, place, bound)
        base += log.table.file_bytes


def _runs_of(offsets: NDArray[np.int64], units: Units, place: int, bound: int) -> Iterator[Life]:
    own = (units["position"] >= place) & (units["position"] < bound)
    offsets, units = offsets[own], units[own]
    for begin, stop in consecutive(offsets):
        last = units[stop - 1]
        yield Life(
            int(offsets[begin]),
            int(offsets[stop - 1]) + 1,
            int(units["position"][begin]),
            int(last["position"]) + int(last["size"]),
            goes_on=False,
        )


class Deletions:
    """State of deleted queues. Guarded by its caller.

    X1  A queue with messages left to read is not polled under its name.
    X2  A recreated queue shows no offset below the end of the deleted one.
    """

    def __init__(self, log: FollowedLog, consume_queue: Path) -> None:
        self._log = log
        self._names = QueueNames(consume_queue)
        self._deleted: dict[QueueId, DeletedQueue] = {}
        self._end_positions: dict[QueueId, int] = {}
        """Position after the last message of each deleted queue in the CommitLog; 0: unknown."""
        self.begin_positions: dict[QueueId, int] = {}
        """Position of the first message of each followed recreated queue.

        Earlier records of its name are of an earlier incarnation, known or not.
        """
        self._below: dict[QueueId, int] = {}
        """Number of messages of deleted queues below the end of an earlier incarnation."""
        self._hidden_most: dict[QueueId, int] = {}
        """Highest value of `HotQueue.hidden` of each queue."""
        self._remains = Remains(log.files)
        self._kept = KeptRemains(log.notes, consume_queue)
        self._has_begun = False
        self._findings: list[str] = []
        self._ended: dict[QueueId, int] = {}
        """Ends of the remainders whose last message was tiered since the last scan."""
        self._hidden: dict[QueueId, Hidden] = {}
        """Queues that were recreated while messages of an earlier incarnation waited, as last seen.

        Each is removed when it is followed.
        """
        self._untold: set[QueueId] = set()
        self._successors: dict[QueueId, DeletedQueue] = {}
        """Recreated queues found since the last `take_successors`."""

    def __repr__(self) -> str:
        return f"<Deletions: {len(self._deleted)} queues, {self._remains}>"

    def check(self, tails: Mapping[QueueId, ConsumeQueueTail]) -> None:
        """Assert X1, and that the end of each deleted queue is recorded. O(deleted queues)."""
        assert not any(queue in tails for queue in self._remains), f"X1: {self}"
        known = self._deleted.keys() | set(self._remains)
        assert known == self._end_positions.keys(), f"{self}"
        assert self._hidden.keys() <= known - tails.keys(), f"{self}"
        self._remains.check()

    @property
    def is_any(self) -> bool:
        """Whether any queue was deleted, and is not back."""
        return len(self._end_positions) > 0

    @property
    def unsettled(self) -> set[QueueId]:
        """Queues to report: newly deleted ones, and those with messages left."""
        return self._untold | set(self._remains)

    def report_again(self, queues: Iterable[QueueId]) -> None:
        """Report the deleted ones of these queues again."""
        self._untold |= self._deleted.keys() & set(queues)

    def reported(self) -> None:
        """Mark all changes as reported. Persist the remainders for a later start."""
        if self._untold:
            failure = self._kept.write(self._to_keep())
            self._findings += [failure] if failure else []
        self._untold = set()

    def _to_keep(self) -> Kept:
        """Return the state with which a later start continues."""
        remains = {queue: list(self._remains.all_of(queue)) for queue in self._remains}
        ended = {
            queue: Ended(deleted.start, deleted.end, self._end_positions[queue])
            for queue, deleted in self._deleted.items()
            if queue in self._remains or queue in self._hidden
        }
        return Kept(remains, ended, dict(self._hidden))

    def take_up(self) -> None:
        """Load the state of an earlier process. Called first, after the log was polled."""
        if self._has_begun:
            return
        self._has_begun = True
        table, kept = self._log.files.table, self._kept.read()
        for queue, ended in kept.ended.items():
            if ended.end_position <= table.end:  # else it is another log's
                self._end(queue, ended.start, ended.end, ended.end_position)
        for queue, rests in kept.remains.items():
            for rest in rests:
                if rest.end_position > table.end:
                    break
                if rest.end_position > table.min_position:
                    self._end_positions[queue] = rest.end_position
                    self._remains.add(queue, rest)
                else:
                    self._end(queue, rest.start, rest.end, rest.end_position)
        self._untold |= self._end_positions.keys()
        self._hidden = {
            queue: hidden for queue, hidden in kept.hidden.items() if queue in self._end_positions
        }
        for queue in self._deleted.keys() & set(self._remains):
            self._deleted[queue] = replace(self._deleted[queue], is_made_again=True)
        waiting = {
            queue: sum(rest.end - rest.start for rest in self._remains.all_of(queue))
            for queue in self._remains
        }
        if waiting:
            self._findings.append(deletion_sentence(waiting, has_pins=True))

    def _end(self, queue: QueueId, start: int, end: int, end_position: int) -> None:
        """Record that no message of a deleted queue waits any more."""
        self._deleted[queue] = DeletedQueue(QueueOffset(start), QueueOffset(end))
        self._end_positions[queue] = max(end_position, self._end_positions.get(queue, 0))

    def take_findings(self) -> list[str]:
        """Return the sentences for operators since the last call."""
        taken = [*self._findings, *self._remains.findings]
        self._findings, self._remains.findings = [], []
        return taken

    def take_successors(self) -> dict[QueueId, DeletedQueue]:
        """Return the recreated queues since the last call."""
        taken, self._successors = self._successors, {}
        return taken

    def has(self, queue: QueueId) -> bool:
        """Whether the queue, or an earlier one of its name, was deleted."""
        return queue in self._end_positions

    def end_of(self, queue: QueueId) -> int:
        """Return the end offset of the deleted queue of this name; 0 if there was none."""
        deleted = self._deleted.get(queue)
        return 0 if deleted is None else deleted.end

    def remains_of(self, queue: QueueId) -> bool:
        """Whether messages of the queue are still to be tiered from pinned files."""
        return queue in self._remains

    def units(self, queue: QueueId, start: QueueOffset, end: int) -> Units:
        """Return units of a deleted queue; see `Remains.units`.

        Raises:
            OutOfRange: it has none any more.
            Unavailable, Denied: they cannot be read now.
        """
        if queue not in self._remains:
            raise OutOfRange("its topic was deleted", str(queue), start)
        return self._remains.units(queue, start, min(end, self._remains[queue].end))

    def poll_again(self, queue: QueueId, released: int) -> None:
        """Find again the readable backlog of a deleted queue. Does nothing for others.

        Raises:
            Unavailable, Denied: it cannot be read now.
        """
        if queue in self._remains:
            self._remains.poll_again(queue, released)

    def needs(self) -> Iterator[QueueNeed]:
        """Yield the needs of deleted queues, and of later incarnations that may follow them."""
        for end_position in self._ended.values():
            yield QueueNeed(
                is_known=True,
                has_end=True,
                end_position=end_position,
                next_position=end_position,
            )
        for queue in self._hidden:
            place = self._end_positions[queue]
            yield QueueNeed(is_known=True, has_end=True, end_position=place, next_position=place)
        for queue in self._remains:
            rest = self._remains[queue]  # later incarnations follow it in the log
            yield QueueNeed(
                is_known=True,
                has_end=True,
                end_position=rest.end_position,
                next_position=rest.position,
            )

    def scanned(self) -> None:
        """Forget ended remainders: all present queues are followed and report their own needs."""
        self._ended = {}

    def poll_hidden(self, queue: QueueId, files: ConsumeQueueFiles) -> None:
        """Record where a queue begins that waits for the end of an earlier incarnation.

        If it has changed since the last poll, messages of the previous one wait, too. Costs a few
        `pread`s, and then a scan of the CommitLog after the earlier one.

        Raises:
            Unavailable, Denied: it cannot be read now, and is still to be done.
        """
        try:
            first = first_unit(files)
        except (NotFound, Corrupt):
            return  # its follower reports it
        if first is None or not names_message(self._log.files, queue, *first):
            return
        now = Hidden(first[0], first[1].position)
        before = self._hidden.get(queue)
        if before is not None and now.offset <= before.offset and now.position > before.position:
            self._bury(queue, now.position)  # an expired file raises both
        if now != before:
            self._hidden[queue] = now
            self._untold.add(queue)

    def is_hidden(self, queue: QueueId) -> bool:
        """Whether a queue of this name waited when it was last polled, and is not followed yet."""
        return queue in self._hidden

    @property
    def hidden(self) -> Iterable[QueueId]:
        """Queues of `poll_hidden`."""
        return self._hidden

    def find_hidden_gone(self, found: Iterable[QueueId]) -> None:
        """Take over the messages of waiting queues that were deleted. Call it after `gone`.

        Costs one `stat`, and one for each missing queue. A later call takes over those that cannot
        be read now.
        """
        for queue in self._names.vanished(self._hidden.keys() - set(found)):
            with suppress(Unavailable, Denied):
                self._bury(queue, self._log.files.table.end)

    def _bury(self, queue: QueueId, bound: int) -> None:
        """Append the messages of a deleted waiting queue to the backlog of the earlier one.

        Those below the earlier one's end stay untiered, as of any recreated queue.
        """
        rests = self._remains.all_of(queue)
        end = rests[-1].end if rests else self._deleted[queue].end
        place = self._end_positions[queue]
        lives = lives_behind(self._log.files, queue, place, bound, end=end, findings=self._findings)
        waiting = 0
        is_other = True
        for life in lives:
            if life.end <= end:
                continue  # its offsets are taken; it may even exist, and continue
            is_other &= not life.goes_on
            self._end_positions[queue] = life.end_position
            waiting += max(0, life.end - max(life.start, end))
            if life.goes_on and rests:
                self._remains.extend(queue, life.end, life.end_position)
            else:
                start, place = max(life.start, end), life.position
                rest = Remainder(start, life.end, position=place, end_position=life.end_position)
                self._remains.add(queue, rest)
            end = life.end
        if waiting and not rests:
            self._deleted[queue] = replace(self._deleted[queue], is_made_again=is_other)
        self._hidden.pop(queue, None)
        self._untold.add(queue)
        self._findings += [again_deleted_sentence(queue, waiting)] if waiting else []

    def gone(
        self, tails: Mapping[QueueId, ConsumeQueueTail], found: Iterable[QueueId]
    ) -> list[QueueId]:
        """Return the followed queues that were deleted; see `QueueNames.gone`."""
        return self._names.gone(tails.keys(), set(found))

    def add(self, queue: QueueId, tail: ConsumeQueueTail, shown: HotQueue, released: int) -> int:
        """Record a deleted queue. Return the number of its waiting messages.

        Args:
            queue: its name.
            tail: the state of its files.
            shown: its state as of the last poll.
            released: all messages below this offset are tiered.
        """
        self._untold.add(queue)
        known = self._end_positions.get(queue, 0)  # of an earlier one; the log only grows
        self._end_positions[queue] = max(known, tail.end_position)
        if shown.hidden:
            self._below[queue] = shown.hidden
        low, high = shown.min_offset, shown.max_offset
        wanted = max(released, low)
        if wanted < high and self._log.has_pins and tail.end_position:
            place = max(tail.needed_position, self.begin_positions.get(queue, 0))
            rest = Remainder(wanted, high, position=place, end_position=tail.end_position)
            self._remains.add(queue, rest)
        else:
            self._deleted[queue] = DeletedQueue(low, high)
        return max(0, high - wanted)

    def succeeds(self, queue: QueueId, files: ConsumeQueueFiles) -> bool:
        """Whether these files of a deleted queue can be followed now.

        If the queue was away but not deleted, its state is restored, even with a damaged first
        unit. Files without a message may be of either incarnation.

        Raises:
            Corrupt: their incarnation is unknown, for the first of them were truncated.
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
            is_other = is_made_again(files, log, queue, end, end_position, first=first)
        else:  # it had no message: messages below its end are another one's
            is_other = first[0] < end and names_message(log, queue, *first)
        self._hidden.pop(queue, None)
        if not is_other:
            del self._deleted[queue], self._end_positions[queue]
        else:
            made_again = replace(self._deleted[queue], is_made_again=True)
            self._deleted[queue] = self._successors[queue] = made_again
            self.begin_positions[queue] = first[1].position
        self._untold.add(queue)
        return True

    def shown(self, seen: HotQueue) -> HotQueue:
        """Return the published state of a queue whose files exist."""
        deleted = self._deleted.get(seen.id)
        if deleted is None:
            return seen
        hidden = self._below.get(seen.id, 0)
        if deleted.is_made_again:
            hidden += max(0, min(seen.max_offset, deleted.end) - seen.min_offset)
            # its oldest ones may expire, and stay lost
            hidden = self._hidden_most[seen.id] = max(hidden, self._hidden_most.get(seen.id, 0))
        return replace(
            seen,
            min_offset=max(seen.min_offset, deleted.end),
            max_offset=max(seen.max_offset, deleted.end),
            deleted=deleted,
            hidden=hidden,
        )

    def unreadable(self, queue: QueueId, error: StoreError) -> HotQueue:
        """Return the published state of an existing queue of which nothing could be read yet."""
        end = QueueOffset(self.end_of(queue))
        deleted = self._deleted.get(queue)
        return HotQueue(queue, end, end, HotQueueState.UNREADABLE, str(error), deleted)

    def poll(self, queue: QueueId, released: int) -> dict[QueueId, HotQueue]:
        """Return the published state of a deleted queue; empty if it had only been away."""
        if queue in self._remains:
            rest = self._remains[queue]
            rest.release(released)
            low, high = QueueOffset(rest.start), QueueOffset(rest.end)
            if released < high:  # also if nothing is readable any more: the dispatcher asks again
                return {queue: HotQueue(queue, low, high, deleted=self._deleted.get(queue))}
            self._remains.drop(queue)
            self._deleted[queue] = DeletedQueue(low, high)
            self._untold.add(queue)
            if queue in self._remains:  # the next incarnation
                made_again = replace(self._deleted[queue], is_made_again=True)
                self._deleted[queue] = self._successors[queue] = made_again
                return self.poll(queue, released)
            self._ended[queue] = self._end_positions[queue]
        if queue not in self._deleted:
            return {}
        deleted = self._deleted[queue]
        hidden = self._below.get(queue, 0)
        return {queue: HotQueue(queue, deleted.end, deleted.end, deleted=deleted, hidden=hidden)}
