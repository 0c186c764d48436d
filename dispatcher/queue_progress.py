"""Progress of one queue into the tier: offsets, references, retries and state. No I/O."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from container.names.queue_id import QueueId
from container.record.unit import UNIT_BYTES, UNIT_DTYPE, Units
from dispatcher.error_policy import Reaction
from dispatcher.options import DispatchOptions
from dispatcher.ports import HALTED, DeletedQueue, HotQueue, HotQueueState, QueueState
from dispatcher.round_plan import (
    ROUND_QUEUES_ANY,
    Bytes,
    Waiting,
    due_at_s,
    messages_within,
    written_bytes,
)
from dispatcher.statistics import QueueStatistics
from provider.clock import backoff_s
from provider.ranges import QueueOffset


@dataclass(slots=True)
class ReferenceCount:
    """Number of references kept over all queues."""

    kept: int = 0


@dataclass(frozen=True, slots=True)
class ClaimedRange:
    """References of one commit: the messages `[start, start + len(references))`."""

    queue: QueueId
    start: QueueOffset
    references: Units
    bytes: int
    """Bytes of records and units, reserved from the bytes in flight."""

    @property
    def end(self) -> QueueOffset:
        """Offset after the last message."""
        return QueueOffset(self.start + len(self.references))


NO_UNITS: Units = np.zeros(0, UNIT_DTYPE)
"""Empty array, shared by all queues without references."""
NO_UNITS.flags.writeable = False


class References:
    """Units of consecutive messages, and the bytes that the messages take in the tier."""

    __slots__ = ("_count", "bytes", "units")

    def __init__(self, count: ReferenceCount) -> None:
        self.units: Units = NO_UNITS
        self.bytes = 0
        """Bytes of all records and units in the tier."""
        self._count = count

    def __repr__(self) -> str:
        return f"<References: {len(self)} messages, {self.bytes} bytes>"

    def __len__(self) -> int:
        return len(self.units)

    def check(self) -> None:
        """Assert that `bytes` is the sum over the units. O(n)."""
        assert self.bytes == int(self.sizes().sum()), f"I3: {self}"

    def sizes(self) -> Bytes:
        """Return the bytes of each message in the tier, record and unit. O(n)."""
        return written_bytes(self.units)

    def first_bytes(self, number: int) -> int:
        """Return the bytes of the first `number` messages in the tier. O(number)."""
        if number == 1:  # fast path: called for every waiting queue in every round
            return max(int(self.units["size"][0]), 1) + UNIT_BYTES
        return int(written_bytes(self.units[:number]).sum())

    def append(self, units: Units) -> None:
        """Add the following units. O(n)."""
        self._keep(np.concatenate([self.units, units]), int(written_bytes(units).sum()))

    def put_back(self, units: Units) -> int:
        """Add the preceding units, and return their bytes in the tier. O(n)."""
        more = int(written_bytes(units).sum())
        self._keep(np.concatenate([units, self.units]), more)
        return more

    def take(self, number: int, number_bytes: int) -> Units:
        """Remove and return the first `number` units, which take `number_bytes` bytes. O(1)."""
        taken = self.units[:number]
        self._keep(self.units[number:], -number_bytes)
        return taken

    def clear(self) -> None:
        """Remove all units."""
        self._keep(NO_UNITS, -self.bytes)

    def _keep(self, units: Units, more_bytes: int) -> None:
        self._count.kept += len(units) - len(self.units)
        self.units = units if len(units) else NO_UNITS  # an empty view would keep the old array
        self.bytes += more_bytes


ARRIVALS_MAX = 64
"""Most times of arrival kept for each queue."""

Arrivals = tuple[tuple[QueueOffset, float], ...]
"""End offsets of a queue and the monotonic times in seconds at which they were seen, ascending."""
NO_ARRIVALS: Arrivals = ()


def noted(arrivals: Arrivals, end: QueueOffset, now_s: float, *, durable: QueueOffset) -> Arrivals:
    """Record that the queue ends at `end` now, unless that is known or durable. Pure."""
    if end <= (arrivals[-1][0] if arrivals else durable):
        return arrivals
    if len(arrivals) == ARRIVALS_MAX:  # the new end gets the time of the one before it
        return (*arrivals[:-1], (end, arrivals[-1][1]))
    return (*arrivals, (end, now_s))


def first_seen_s(arrivals: Arrivals, offset: QueueOffset, now_s: float) -> float:
    """Return the time at which the message at `offset` was first seen; `now_s` if it was not.

    O(1) for the oldest message. Pure.
    """
    return next((seen_s for end, seen_s in arrivals if end > offset), now_s)


def from_offset(arrivals: Arrivals, offset: QueueOffset) -> Arrivals:
    """Drop the arrivals of messages below `offset`. Pure."""
    known = next((n for n, (end, _) in enumerate(arrivals) if end > offset), None)
    return NO_ARRIVALS if known is None else arrivals[known:]


RESTS_AFTER = 3
"""Failures in a row after which a resting queue counts as halted, so that `drain` skips it."""


@dataclass(frozen=True, slots=True)
class Setback:
    """Failure state of a queue. All healthy queues share one instance."""

    reason: str = ""
    """Reason why the queue is stopped, refused, damaged or failing; empty otherwise."""
    failures: int = 0
    """Consecutive failed attempts."""
    retry_at_s: float = 0.0
    """Monotonic time of the next attempt, in seconds. Meaningless without failures."""
    rests: bool = False
    """Whether the queue is halted by a condition that may pass. It is opened again after its
    pause."""
    damage: str = ""
    """Damage of the messages at the commit offset; reason of a gap that skips them."""
    damage_reported: bool = False
    """Whether the hot log itself reported the damage. It also reports the end of it."""
    heals_at: QueueOffset | None = None
    """End of the hot log from which on a halted queue is opened again."""
    round_queues_max: int = ROUND_QUEUES_ANY
    """Most queues in the round of the next commit, this one included."""
    retry_messages: int = 0
    """Length of the range whose commit failed. The same range is committed again."""


NO_SETBACK = Setback()


def pause(failures_before: int, now_s: float, options: DispatchOptions) -> dict[str, Any]:
    """Return the fields of a `Setback` after one more failure: exponential backoff. Pure."""
    failures = failures_before + 1
    pause_s = backoff_s(failures, s_min=options.backoff_s_min, s_max=options.backoff_s_max)
    return {"failures": failures, "retry_at_s": now_s + pause_s}


def must_reopen(
    state: QueueState,
    hot: HotQueue,
    *,
    commit_offset: QueueOffset,
    heals_at: QueueOffset | None,
    damage_reported: bool,
    deleted: DeletedQueue | None,
) -> bool:
    """Whether the queue must be opened again. Valid only while no commit is under way. Pure.

    Args:
        state: state of the queue, from earlier bounds of the hot log.
        hot: present bounds and state in the hot log.
        commit_offset: end of the tier.
        heals_at: end of the hot log from which on a halted queue is opened again.
        damage_reported: whether the hot log reported the damage, and will report the end of it.
        deleted: value of `hot.deleted` when the queue was opened.
    """
    if state is QueueState.UNSETTLED:
        return False
    if hot.deleted != deleted:
        return True
    lost = hot.min_offset > commit_offset
    caught_up = heals_at is not None and hot.max_offset >= heals_at
    if state is QueueState.READY:
        return lost
    if state is QueueState.STOPPED:
        return caught_up
    if state is QueueState.DAMAGED:
        mended = damage_reported and hot.state is HotQueueState.READY
        return lost or caught_up or mended
    return state is QueueState.REFUSED


@dataclass(frozen=True, slots=True)
class Common:
    """Objects that all queues of a dispatcher share."""

    options: DispatchOptions
    count: ReferenceCount
    nothing: References
    """Empty references of every queue without a backlog. Never filled."""
    notify: Callable[[Any], None]
    """Callback with the `QueueProgress`, after every change of it."""


REFERENCES_MIN = 256
"""References that every queue may keep, even if the others use up `references_max`."""


class QueueProgress:
    """State machine of one queue on its way into the tier. Every change calls `Common.notify`.

    Nearly all of perhaps 100,000 queues are idle. Therefore idle queues share the default values
    of the fields that few queues need at a time: setback, arrivals and references.

    I1  commit_offset <= dispatch_offset <= referenced_offset
    I2  A claim exists only while IN_FLIGHT, and is `[commit_offset, dispatch_offset)`. Otherwise
        the two offsets are equal.
    I3  `references` cover `[dispatch_offset, referenced_offset)`. A queue that is neither READY
        nor IN_FLIGHT keeps none.
    I4  A READY queue whose commit failed has the references of the whole failed range.
    """

    __slots__ = (
        "_arrivals",
        "_born",
        "_common",
        "_deleted",
        "_served_s",
        "_waits_s",
        "claimed",
        "commit_offset",
        "common_end",
        "described",
        "dispatch_offset",
        "hot",
        "id",
        "is_old",
        "opened_offset",
        "opening",
        "references",
        "refilling",
        "setback",
        "state",
    )

    def __init__(self, hot: HotQueue, common: Common, *, is_old: bool) -> None:
        self.id = hot.id
        self.hot = hot
        self.state = QueueState.UNSETTLED
        self.setback: Setback = NO_SETBACK
        self.is_old = is_old
        """Whether the queue existed when the dispatcher started, so that `backfill` applies."""
        self.opened_offset: QueueOffset | None = None
        """First commit offset of this process; None before the queue is opened."""
        self.commit_offset = QueueOffset(0)
        self.dispatch_offset = QueueOffset(0)
        self.references = common.nothing
        self.opening = self.refilling = False
        """Whether a worker is opening the queue, and whether one is fetching its references."""
        self.described: QueueStatistics | None = None
        """Last description by `QueueDescriptions`, which alone writes it."""
        self.claimed: ClaimedRange | None = None
        """Claim of the commit under way."""
        self._deleted = hot.deleted
        """Deleted incarnation at the last opening: the one that the tier knows of."""
        self.common_end: QueueOffset | None = None
        """Offset below which tier and hot log agree. Set only while they contradict each other."""
        self._born: tuple[QueueOffset, float] | None = None
        """An untiered offset, and the store time of its message on the monotonic clock."""
        self._waits_s: float | None = None
        """Store time of the first message that may not be tiered yet, on the monotonic clock; None
        if unknown."""
        self._served_s = 0.0
        self._arrivals: Arrivals = NO_ARRIVALS
        self._common = common

    def __repr__(self) -> str:
        why = f" ({self.setback.reason})" if self.setback.reason else ""
        return (
            f"<QueueProgress {self.id}: {self.state.value}{why}, committed {self.commit_offset}, "
            f"dispatched {self.dispatch_offset}, hot {self.hot.min_offset}..{self.hot.max_offset}>"
        )

    @property
    def referenced_offset(self) -> QueueOffset:
        """Offset after the last referenced message."""
        return QueueOffset(self.dispatch_offset + len(self.references.units))

    @property
    def behind(self) -> int:
        """Messages of the hot log that are not durable in the tier; 0 while that is unknown.

        Includes the messages that may not be tiered yet.
        """
        return self.backlog + self.hot.waiting

    @property
    def backlog(self) -> int:
        """Messages below `hot.max_offset` that are not durable in the tier; 0 while unknown."""
        if self.opened_offset is None and (
            not self.is_halted or self.hot.state is HotQueueState.UNREADABLE
        ):
            return 0  # the published end is not known yet
        return max(0, self.hot.max_offset - self.first_untiered)

    @property
    def first_untiered(self) -> QueueOffset:
        """Offset of the first message of the hot log that is not durable in the tier."""
        if self.common_end is not None and self.is_halted:
            return max(self.common_end, self.hot.min_offset)
        if self.opened_offset is None:
            return max(self.commit_offset, self.hot.min_offset)
        return self.commit_offset

    @property
    def is_gone(self) -> bool:
        """Whether the broker deleted the queue, and it has no backlog."""
        hot = self.hot
        deleted = hot.deleted
        return deleted is not None and not deleted.is_made_again and not self.backlog

    @property
    def is_halted(self) -> bool:
        """Whether commits are stopped until the tier or the hot log changes."""
        return self.state in HALTED

    @property
    def is_active(self) -> bool:
        """Whether the queue is being tiered."""
        return self.state is QueueState.READY or self.state is QueueState.IN_FLIGHT

    @property
    def must_open(self) -> bool:
        """Whether the queue must be opened and no worker is opening it."""
        is_closed = self.state is QueueState.UNSETTLED or self.setback.rests
        is_known = self.hot.state is not HotQueueState.UNCONFIRMED
        return is_closed and is_known and not self.opening

    def since_s(self, now_s: float) -> float:
        """Return the monotonic time at which the first unclaimed message was first seen."""
        return first_seen_s(self._arrivals, self.dispatch_offset, now_s)

    def oldest_s(self, now_s: float) -> float:
        """Return the store time of the first message that is not durable in the tier.

        While that is unknown, returns the time at which the message was first seen. The time is on
        the monotonic clock, so it may be negative.
        """
        oldest_s = first_seen_s(self._arrivals, self.first_untiered, now_s)
        if self._born is not None:
            oldest_s = min(oldest_s, self._born[1])
        if self._waits_s is not None:
            oldest_s = min(oldest_s, self._waits_s)
        return oldest_s

    @property
    def is_undated(self) -> bool:
        """Whether the store time of the first untiered message is unknown."""
        if not (self.is_active or self.state is QueueState.STOPPED) or not self.backlog:
            return False
        return self._born is None or self._born[0] != self.first_untiered

    def date(self, offset: QueueOffset, stored_s: float) -> None:
        """Record the store time of the message at `offset`, on the monotonic clock."""
        if offset == self.first_untiered and self.backlog:
            self._born = (offset, stored_s)
            self._changed()

    # Polls of the hot log.

    def observe(self, hot: HotQueue, now_s: float, epoch_s: float = 0.0) -> None:
        """Apply the result of a poll; see `QueueTable.observe`."""
        self._waits_s = hot.waiting_ms / 1000 - epoch_s if hot.waiting_ms else None
        self._arrivals = noted(self._arrivals, hot.max_offset, now_s, durable=self.commit_offset)
        if hot.deleted != self.hot.deleted:
            self._retry_by(now_s)  # the failures concerned the deleted queue
        self.hot = hot
        if hot.state is HotQueueState.DAMAGED:
            self._set_back(damage=hot.detail, damage_reported=True)
        self._changed()

    # Opening.

    def mark_opening(self, *, opening: bool) -> None:
        """Record that a worker begins or ends to open the queue."""
        assert self.must_open or not opening, f"one worker opens a queue: {self}"
        self.opening = opening
        if opening:
            self._deleted = self.hot.deleted
        self._changed()

    def open(self, offset: QueueOffset) -> None:
        """Set the queue READY: the tier ends at `offset` and agrees with the hot log."""
        self._unsettle()
        self.common_end = self._born = None
        self.state = QueueState.READY
        self.commit_offset = self.dispatch_offset = offset
        if self.opened_offset is None:
            self.opened_offset = offset
        if self.setback.failures and self.hot.max_offset == offset:
            self._set_back(failures=0, retry_at_s=0.0)
        self._arrivals = from_offset(self._arrivals, self.commit_offset)
        self._changed()

    def contradict(
        self,
        state: QueueState,
        reason: str,
        *,
        tier_next: QueueOffset,
        heals_at: QueueOffset | None,
        common_end: QueueOffset | None = None,
    ) -> None:
        """Halt the queue: the tier, which ends at `tier_next`, contradicts the hot log.

        The queue is opened again once the hot log reaches `heals_at`, unless that is None. Tier
        and hot log agree below `common_end`, if that is not None.
        """
        self.commit_offset, self.common_end = tier_next, common_end
        self._halt(state, reason)
        self._set_back(heals_at=heals_at)
        self._changed()

    def cut_off(self) -> None:
        """Reset the queue after all workers were cancelled: the outcome of a commit is unknown."""
        self.opening = self.refilling = False
        if self.state is QueueState.IN_FLIGHT:
            self._unsettle()
        self._changed()

    def unsettle(self) -> None:
        """Set the queue UNSETTLED; drops the claim and the references."""
        self._unsettle()
        self._changed()

    # References.

    def references_wanted(self, reserved: int = 0) -> int:
        """Return how many more references to fetch now. `reserved` ones are fetched for others."""
        kept = len(self.references.units)
        missing = self.hot.max_offset - self.dispatch_offset - kept
        if missing <= 0 or not self.is_active:
            return 0
        wanted = min(missing, self._common.options.commit_messages_max - kept)
        room = self._common.options.references_max - self._common.count.kept - reserved
        return max(0, min(wanted, max(room, REFERENCES_MIN - kept)))

    def add_references(self, start: QueueOffset, units: Units) -> None:
        """Keep references fetched from `start`. Drops them if `referenced_offset` changed since."""
        if start != self.referenced_offset or self.references_wanted() == 0:
            return
        self._own_references().append(units)
        self._changed()

    # Commits.

    def waiting(
        self, now_s: float, *, at_once: bool = False, round_s: float = -math.inf
    ) -> Waiting:
        """Return the input of `plan_round` for this queue: it has references and no claim.

        `round_s` is the time at which the last round began.
        """
        since_s = self.since_s(now_s)
        options, setback = self._common.options, self.setback
        retry = setback.retry_messages
        first_bytes = self.references.first_bytes(max(1, retry))
        if setback.failures:
            due_s = ready_s = setback.retry_at_s
        else:
            ready_s = max(since_s, self._served_s)
            due_s = due_at_s(
                messages=self.hot.max_offset - self.dispatch_offset,
                bytes_known=self.references.bytes,
                since_s=since_s,
                messages_max=options.batch_messages_max,
                bytes_max=options.batch_bytes_max,
                age_s_max=0.0 if at_once else self._age_s_max(since_s, round_s),
            )
        return Waiting(
            queue=self.id,
            bytes=first_bytes if retry else self.references.bytes,
            first_bytes=first_bytes,
            since_s=since_s,
            due_at_s=due_s,
            ready_s=ready_s,
            round_queues_max=setback.round_queues_max,
            failed=setback.failures > 0,
        )

    def _age_s_max(self, since_s: float, round_s: float) -> float:
        """Return how long messages that wait since `since_s` may wait for others."""
        age_s = self._common.options.batch_age_s_max
        if not self._common.options.first_at_once:
            return age_s
        return min(age_s, max(0.0, round_s + age_s - since_s))

    def claim(self, bytes_max: int) -> ClaimedRange:
        """Begin a commit of at most `bytes_max` bytes, or of the whole failed range again."""
        assert self.state is QueueState.READY, f"one commit at a time: {self}"
        sizes = self.references.sizes()
        messages_max = self._common.options.commit_messages_max
        count = self.setback.retry_messages or messages_within(
            sizes, messages_max=messages_max, bytes_max=bytes_max
        )
        count_bytes = int(sizes[:count].sum())
        references = self.references.take(count, count_bytes)
        claimed = ClaimedRange(self.id, self.dispatch_offset, references, count_bytes)
        self.dispatch_offset = QueueOffset(self.dispatch_offset + count)
        self.state, self.claimed = QueueState.IN_FLIGHT, claimed
        self._changed()
        return claimed

    def give_back(self, next_offset: QueueOffset) -> None:
        """Shorten the claim to end at `next_offset`; messages beyond it join the backlog again."""
        if next_offset != self.dispatch_offset:
            self._give_back(next_offset)
            self._changed()

    def landed(self, now_s: float) -> None:
        """Record that the commit under way is durable."""
        self.claimed = None
        self._served_s = now_s
        self.commit_offset = self.dispatch_offset
        self.state, self.setback = QueueState.READY, NO_SETBACK
        self._arrivals = from_offset(self._arrivals, self.commit_offset)
        if not self.backlog:
            self._born = None
        if not len(self.references):
            self.references = self._common.nothing
        self._changed()

    def react(
        self,
        reaction: Reaction,
        reason: str,
        now_s: float,
        *,
        halted: QueueState = QueueState.DAMAGED,
        tier_next: QueueOffset | None = None,
        round_queues_max: int = ROUND_QUEUES_ANY,
    ) -> None:
        """Apply the reaction to an error of this queue or of its commit under way.

        RETRY makes the same range due again after a pause, in a round of at most
        `round_queues_max` queues, this one included. HALT sets the state `halted`. `tier_next` is
        the end of the tier, if known.
        """
        if tier_next is not None:
            self.commit_offset = tier_next
        match reaction:
            case Reaction.RETRY if self.claimed is not None:
                self._fail(now_s, reason)
                self._set_back(round_queues_max=round_queues_max)
            case Reaction.RETRY:
                self._pause(now_s, reason=reason)
            case Reaction.REOPEN:
                self._unsettle()
                self._pause(now_s)
            case Reaction.REST:
                self._rest(now_s, reason)
            case Reaction.HALT:
                self._halt(halted, reason)
            case Reaction.END:
                raise AssertionError("the end of all dispatching is no state of a queue")
        self._changed()

    def retry_now(self, now_s: float) -> None:
        """End the pause at once: the failures had another cause than this queue."""
        self._retry_by(now_s, round_queues_max=ROUND_QUEUES_ANY)
        self._changed()

    def _changed(self) -> None:
        """Finish a change: reopen or halt the queue if needed, then notify."""
        self._reconsider()
        self._common.notify(self)

    def _reconsider(self) -> None:
        """Apply the present state of the hot log, unless a commit is under way."""
        if self.state is QueueState.IN_FLIGHT:
            return
        if self.hot.state is HotQueueState.REFUSED:
            self._halt(QueueState.REFUSED, self.hot.detail)
        elif self.hot.state is HotQueueState.UNREADABLE:
            self._halt(QueueState.STOPPED, self.hot.detail)
            self._set_back(heals_at=QueueOffset(0))  # reopened as soon as it can be read
        elif must_reopen(
            self.state,
            self.hot,
            commit_offset=self.commit_offset,
            heals_at=self.setback.heals_at,
            damage_reported=self.setback.damage_reported,
            deleted=self._deleted,
        ):
            self._unsettle()

    def _unsettle(self) -> None:
        self.state = QueueState.UNSETTLED
        self.references.clear()
        self.references = self._common.nothing
        self.dispatch_offset = self.commit_offset
        self.claimed = None
        if self.setback is not NO_SETBACK:
            self._set_back(reason="", retry_messages=0, heals_at=None, rests=False)

    def _halt(self, state: QueueState, reason: str) -> None:
        self._unsettle()
        self.state = state
        if state is QueueState.DAMAGED:
            is_reported = self.hot.state is HotQueueState.DAMAGED
            self._set_back(reason=reason, damage=reason, damage_reported=is_reported)
        else:
            self._set_back(reason=reason)

    def _rest(self, now_s: float, reason: str) -> None:
        """Reopen after a pause. Each commit has a round of its own until one lands."""
        self._unsettle()
        self._pause(now_s, reason=reason, round_queues_max=1)
        if self.setback.failures >= RESTS_AFTER:
            self.state = QueueState.STOPPED
            self._set_back(rests=True)

    def _give_back(self, next_offset: QueueOffset) -> None:
        claimed = self.claimed
        assert claimed is not None, f"nothing is in flight: {self}"
        assert claimed.start <= next_offset < claimed.end, f"{next_offset} is not claimed: {self}"
        kept = next_offset - claimed.start
        rest_bytes = self._own_references().put_back(claimed.references[kept:])
        self.dispatch_offset = next_offset
        self.claimed = replace(
            claimed, references=claimed.references[:kept], bytes=claimed.bytes - rest_bytes
        )

    def _fail(self, now_s: float, reason: str) -> None:
        claimed = self.claimed
        assert claimed is not None, f"nothing is in flight: {self}"
        self._give_back(claimed.start)
        self.claimed = None
        self.state = QueueState.READY
        self._pause(now_s, reason=reason, retry_messages=len(claimed.references))

    def _own_references(self) -> References:
        """Return references that may be filled; replaces the shared empty ones."""
        if self.references is self._common.nothing:
            self.references = References(self._common.count)
        return self.references

    def _set_back(self, **changes: Any) -> None:  # noqa: ANN401 - fields of a `Setback`
        changed = replace(self.setback, **changes)
        self.setback = NO_SETBACK if changed == NO_SETBACK else changed

    def _retry_by(self, now_s: float, **changes: Any) -> None:  # noqa: ANN401 - as `_set_back`
        """End a pause now at the latest. Without a setback, changes nothing."""
        if self.setback is not NO_SETBACK:
            self._set_back(retry_at_s=min(self.setback.retry_at_s, now_s), **changes)

    def _pause(self, now_s: float, **changes: Any) -> None:  # noqa: ANN401 - as `_set_back`
        """Count a failure and pause the queue, with exponential backoff."""
        self._set_back(**pause(self.setback.failures, now_s, self._common.options), **changes)
