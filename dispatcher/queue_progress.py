"""How far one queue has been tiered: its offsets, its references and its state."""

from collections import deque
from dataclasses import dataclass
from enum import Enum

import numpy as np

from container.names.queue_id import QueueId
from container.record.unit import UNIT_DTYPE, Units
from dispatcher.batching import due_at_s, messages_within, written_bytes
from dispatcher.hot_log import HotQueue, HotQueueState
from dispatcher.options import DispatchOptions
from dispatcher.round_plan import ROUND_QUEUES_ANY, Waiting
from dispatcher.tier_health import backoff_s
from provider.ranges import QueueOffset

MARKS_MAX = 64
"""Moments of arrival remembered for each queue."""
RESTS_AFTER = 3
"""Failures in a row after which what may pass is taken for something that stays for a while."""


class QueueState(Enum):
    """What may happen to a queue next."""

    UNSETTLED = "unsettled"
    """What the tier has of it must be asked first: at the start, and after an unknown outcome."""
    READY = "ready"
    """Its messages are committed as they become due."""
    IN_FLIGHT = "in flight"
    """A commit is under way."""
    STOPPED = "stopped"
    """The tier and the hot log contradict each other, or one of them cannot be used for it now;
    `reason` says more."""
    REFUSED = "refused"
    """The tier does not take this kind of queue."""
    DAMAGED = "damaged"
    """Its next message in the hot log cannot be trusted."""


HALTED = frozenset({QueueState.STOPPED, QueueState.REFUSED, QueueState.DAMAGED})
"""States in which nothing of a queue is committed until something outside changes."""


@dataclass(frozen=True, slots=True)
class ClaimedRange:
    """The references of one commit: the messages `[start, start + len(references))`."""

    queue: QueueId
    start: QueueOffset
    references: Units
    bytes: int
    """What it reserves of the bytes in flight: records and units."""


@dataclass(slots=True)
class ReferenceCount:
    """References kept over all queues."""

    kept: int = 0


class QueueProgress:
    """One queue's way into the tier.

    I1  commit_offset <= dispatch_offset <= referenced_offset
    I2  dispatch_offset > commit_offset only while IN_FLIGHT (or cut off in the middle of that)
    I3  `references` are those of `[dispatch_offset, referenced_offset)`
    """

    def __init__(self, hot: HotQueue, options: DispatchOptions, count: ReferenceCount) -> None:
        self.id = hot.id
        self.hot = hot
        self.state = QueueState.UNSETTLED
        self.reason = ""
        self.is_old = False
        """It existed when the dispatcher started, so `backfill` applies."""
        self.opened_offset: QueueOffset | None = None
        """Where this process began on it; None before it did."""
        self.commit_offset = QueueOffset(0)
        self.dispatch_offset = QueueOffset(0)
        self.references: Units = np.zeros(0, UNIT_DTYPE)
        self.waiting_bytes = 0
        self.busy = False
        """Somebody is opening it."""
        self.refilling = False
        """Somebody is fetching references for it."""
        self.failures = 0
        self.retry_at_s = 0.0
        self.heals_at: QueueOffset | None = None
        """Once the hot log reaches this offset, a stopped or damaged queue is looked at again."""
        self.rests = False
        """It is stopped by something that may pass: opened again once its pause is over."""
        self.damage = ""
        """What was wrong with the messages at the commit offset, for the gap that passes them."""
        self._damage_told = False
        """The hot log has said itself that it is damaged; so it says when it is not any more."""
        self._round_queues_max = ROUND_QUEUES_ANY
        self._retry_messages = 0
        self._claimed: ClaimedRange | None = None
        self._served_s = 0.0
        self._marks: deque[tuple[QueueOffset, float]] = deque()
        self._options = options
        self._count = count

    def __repr__(self) -> str:
        why = f" ({self.reason})" if self.reason else ""
        return (
            f"<QueueProgress {self.id}: {self.state.value}{why}, committed {self.commit_offset}, "
            f"dispatched {self.dispatch_offset}, hot {self.hot.min_offset}..{self.hot.max_offset}>"
        )

    @property
    def referenced_offset(self) -> QueueOffset:
        """Behind the last message that is referenced."""
        return QueueOffset(self.dispatch_offset + len(self.references))

    @property
    def behind(self) -> int:
        """Messages of the hot log that are not durable in the tier; 0 while it is not known."""
        if self.opened_offset is None:
            if not self.is_halted or self.hot.state is HotQueueState.UNREADABLE:
                return 0  # nobody asked the tier yet
            return max(0, self.hot.max_offset - max(self.commit_offset, self.hot.min_offset))
        return max(0, self.hot.max_offset - self.commit_offset)

    @property
    def is_halted(self) -> bool:
        """Nothing will be committed until something outside changes."""
        return self.state in HALTED

    def observe(self, hot: HotQueue, now_s: float) -> None:
        """Take over what a poll saw."""
        known = self._marks[-1][0] if self._marks else self.commit_offset
        if hot.max_offset > known:
            if len(self._marks) == MARKS_MAX:  # the newest is taken for as old as the one before
                known, now_s = self._marks.pop()
            self._marks.append((QueueOffset(hot.max_offset), now_s))
        self.hot = hot
        if hot.state is HotQueueState.DAMAGED:
            self.damage, self._damage_told = hot.detail, True
        self.reconsider()

    def reconsider(self) -> None:
        """Draw the consequences of what the hot log has now; not while a commit is in flight."""
        lost = self.hot.min_offset > self.commit_offset
        caught_up = self.heals_at is not None and self.hot.max_offset >= self.heals_at
        if self.state is QueueState.IN_FLIGHT:
            return
        if self.hot.state is HotQueueState.REFUSED:
            self.stop(QueueState.REFUSED, self.hot.detail)
        elif self.hot.state is HotQueueState.UNREADABLE:
            self.stop(QueueState.STOPPED, self.hot.detail)
            self.heals_at = QueueOffset(0)  # settle it anew as soon as it can be looked at
        elif (
            self.state is QueueState.REFUSED
            or (self.state in {QueueState.READY, QueueState.DAMAGED} and lost)
            or (self.state in {QueueState.STOPPED, QueueState.DAMAGED} and caught_up)
            or (self.state is QueueState.DAMAGED and self._is_mended())
        ):
            self.unsettle()

    def _is_mended(self) -> bool:
        return self._damage_told and self.hot.state is HotQueueState.READY

    def since_s(self, now_s: float) -> float:
        """When the first message that is not claimed was seen first."""
        for behind_offset, seen_s in self._marks:
            if behind_offset > self.dispatch_offset:
                return seen_s
        return now_s

    def oldest_s(self, now_s: float) -> float:
        """When the first message that is not durable was seen first."""
        return self._marks[0][1] if self._marks else now_s

    def open(self, offset: QueueOffset) -> None:
        """The tier ends at `offset` and agrees with the hot log: go on from there."""
        self.unsettle()
        self.state, self.reason = QueueState.READY, ""
        self.commit_offset = self.dispatch_offset = offset
        if self.opened_offset is None:
            self.opened_offset = offset
        if self.hot.max_offset == offset:
            self.failures = 0
        self._forget_marks()

    def stop(self, state: QueueState, reason: str) -> None:
        """Commit nothing more until `unsettle`."""
        self.unsettle()
        self.state, self.reason = state, reason
        if state is QueueState.DAMAGED:
            self.damage, self._damage_told = reason, self.hot.state is HotQueueState.DAMAGED

    def rest(self, now_s: float, reason: str) -> None:
        """Something that may pass keeps it from the tier: opened again, later each time.

        Stopped until then once that is not the first time: nobody waits for it. Its commits are
        alone in their rounds until one lands.
        """
        self.unsettle()
        self.pause(now_s)
        self.reason, self._round_queues_max = reason, 1
        if self.failures >= RESTS_AFTER:
            self.state, self.rests = QueueState.STOPPED, True

    def unsettle(self) -> None:
        """Ask the tier before anything else; drops what is claimed and referenced."""
        self.state, self.reason = QueueState.UNSETTLED, ""
        self._count.kept -= len(self.references)
        self.references = np.zeros(0, UNIT_DTYPE)
        self.waiting_bytes = 0
        self.dispatch_offset = self.commit_offset
        self._claimed = None
        self._retry_messages = 0
        self.heals_at, self.rests = None, False

    def references_wanted(self) -> int:
        """How many more references are worth fetching now."""
        if self.state not in {QueueState.READY, QueueState.IN_FLIGHT}:
            return 0
        missing = self.hot.max_offset - self.referenced_offset
        wanted = min(missing, self._options.commit_messages_max - len(self.references))
        room = self._options.references_max - self._count.kept
        return max(0, min(wanted, max(room, 256 - len(self.references))))

    def add_references(self, start: QueueOffset, units: Units) -> None:
        """Take references that were fetched from `start`; ignored if the queue moved since."""
        if start != self.referenced_offset or self.references_wanted() == 0:
            return
        self.references = np.concatenate([self.references, units])
        self.waiting_bytes += int(written_bytes(units).sum())
        self._count.kept += len(units)

    def waiting(self, now_s: float, *, at_once: bool = False) -> Waiting:
        """What the planner of turns needs to know; only with references and none in flight."""
        since_s = self.since_s(now_s)
        retry = min(self._retry_messages, len(self.references))
        sizes = written_bytes(self.references[: max(1, retry)])
        if self.failures:
            due_s = ready_s = self.retry_at_s
        else:
            ready_s = max(since_s, self._served_s)
            due_s = due_at_s(
                messages=self.hot.max_offset - self.dispatch_offset,
                bytes_known=self.waiting_bytes,
                since_s=since_s,
                messages_max=self._options.batch_messages_max,
                bytes_max=self._options.batch_bytes_max,
                age_s_max=0.0 if at_once else self._options.batch_age_s_max,
            )
        first_bytes = int(sizes.sum())
        return Waiting(
            queue=self.id,
            bytes=first_bytes if retry else self.waiting_bytes,
            first_bytes=first_bytes,
            since_s=since_s,
            due_at_s=due_s,
            ready_s=ready_s,
            round_queues_max=self._round_queues_max,
            failed=self.failures > 0,
        )

    def claim(self, bytes_max: int) -> ClaimedRange:
        """Begin a commit: as much as `bytes_max` allows, or the failed range once more."""
        assert self.state is QueueState.READY, f"one commit at a time: {self}"
        sizes = written_bytes(self.references)
        count = min(self._retry_messages, len(sizes)) or messages_within(
            sizes, messages_max=self._options.commit_messages_max, bytes_max=bytes_max
        )
        claimed = ClaimedRange(
            self.id, self.dispatch_offset, self.references[:count], int(sizes[:count].sum())
        )
        self.references = self.references[count:]
        self.waiting_bytes -= claimed.bytes
        self._count.kept -= count
        self.dispatch_offset = QueueOffset(self.dispatch_offset + count)
        self.state, self._claimed = QueueState.IN_FLIGHT, claimed
        return claimed

    def give_back(self, next_offset: QueueOffset) -> None:
        """The commit under way ends at `next_offset`: what was claimed beyond it waits again."""
        claimed = self._claimed
        assert claimed is not None, f"nothing is in flight: {self}"
        rest = claimed.references[next_offset - claimed.start :]
        if len(rest) == 0:
            return
        self.references = np.concatenate([rest, self.references])
        self._count.kept += len(rest)
        self.waiting_bytes += int(written_bytes(rest).sum())
        self.dispatch_offset = next_offset
        self._claimed = ClaimedRange(
            claimed.queue,
            claimed.start,
            claimed.references[: next_offset - claimed.start],
            claimed.bytes - int(written_bytes(rest).sum()),
        )

    def landed(self, now_s: float) -> None:
        """The commit under way is durable."""
        self._claimed = None
        self._retry_messages = 0
        self._served_s = now_s
        self.commit_offset = self.dispatch_offset
        self.state, self.reason, self.damage = QueueState.READY, "", ""
        self.failures, self._round_queues_max = 0, ROUND_QUEUES_ANY
        self._forget_marks()

    def failed(
        self, now_s: float, reason: str, *, round_queues_max: int = ROUND_QUEUES_ANY
    ) -> None:
        """The commit under way did not land: the same range is due again after a pause.

        It will then share its round with no more than `round_queues_max` queues, itself included.
        """
        claimed = self._claimed
        assert claimed is not None, f"nothing is in flight: {self}"
        self.give_back(claimed.start)
        self._claimed = None
        self._retry_messages = len(claimed.references)
        self._round_queues_max = round_queues_max
        self.state, self.reason = QueueState.READY, reason
        self.pause(now_s)

    def pause(self, now_s: float) -> None:
        """Something failed: leave this queue alone for a while, longer each time."""
        self.failures += 1
        self.retry_at_s = now_s + backoff_s(
            self.failures, s_min=self._options.backoff_s_min, s_max=self._options.backoff_s_max
        )

    def resume(self, now_s: float) -> None:
        """The failure was not this queue's: try again at once."""
        self.retry_at_s = min(self.retry_at_s, now_s)
        self._round_queues_max = ROUND_QUEUES_ANY

    def _forget_marks(self) -> None:
        while self._marks and self._marks[0][0] <= self.commit_offset:
            self._marks.popleft()
