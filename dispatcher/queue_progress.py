"""Progress of one queue into the tier: its offsets, its references, its retries and its state."""

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
    """References kept over all queues."""

    kept: int = 0


@dataclass(frozen=True, slots=True)
class ClaimedRange:
    """The references of one commit: the messages `[start, start + len(references))`."""

    queue: QueueId
    start: QueueOffset
    references: Units
    bytes: int
    """Bytes of records and units that it reserves of the bytes in flight."""

    @property
    def end(self) -> QueueOffset:
        """The offset after its last message."""
        return QueueOffset(self.start + len(self.references))


NO_UNITS: Units = np.zeros(0, UNIT_DTYPE)
"""Shared by all queues that wait for nothing."""
NO_UNITS.flags.writeable = False


class References:
    """Units of consecutive messages, and the bytes that these will take in the tier."""

    __slots__ = ("_count", "bytes", "units")

    def __init__(self, count: ReferenceCount) -> None:
        self.units: Units = NO_UNITS
        self.bytes = 0
        """What all of them will take in the tier: records and units."""
        self._count = count

    def __repr__(self) -> str:
        return f"<References: {len(self)} messages, {self.bytes} bytes>"

    def __len__(self) -> int:
        return len(self.units)

    def check(self) -> None:
        """Assert that the bytes are those of the units. O(n)."""
        assert self.bytes == int(self.sizes().sum()), f"I3: {self}"

    def sizes(self) -> Bytes:
        """What each message will take in the tier, in bytes. O(n)."""
        return written_bytes(self.units)

    def first_bytes(self, number: int) -> int:
        """What the first ones will take in the tier, in bytes. O(number)."""
        if number == 1:  # asked of every waiting queue for every round
            return max(int(self.units["size"][0]), 1) + UNIT_BYTES
        return int(written_bytes(self.units[:number]).sum())

    def append(self, units: Units) -> None:
        """Add what follows. O(n)."""
        self._keep(np.concatenate([self.units, units]), int(written_bytes(units).sum()))

    def put_back(self, units: Units) -> int:
        """Add what comes before; returns the bytes of it. O(n)."""
        more = int(written_bytes(units).sum())
        self._keep(np.concatenate([units, self.units]), more)
        return more

    def take(self, number: int, number_bytes: int) -> Units:
        """Remove and return the first ones, which take `number_bytes` in the tier. O(1)."""
        taken = self.units[:number]
        self._keep(self.units[number:], -number_bytes)
        return taken

    def clear(self) -> None:
        """Keep none."""
        self._keep(NO_UNITS, -self.bytes)

    def _keep(self, units: Units, more_bytes: int) -> None:
        self._count.kept += len(units) - len(self.units)
        self.units = units if len(units) else NO_UNITS  # else a view of those that were taken
        self.bytes += more_bytes


ARRIVALS_MAX = 64
"""Moments of arrival remembered for each queue."""

Arrivals = tuple[tuple[QueueOffset, float], ...]
"""Up to which offset a queue reached, and when that was seen, for the newest few times."""
NO_ARRIVALS: Arrivals = ()


def noted(arrivals: Arrivals, end: QueueOffset, now_s: float, *, durable: QueueOffset) -> Arrivals:
    """The queue ends at `end` now; nothing is noted unless that is new and not durable."""
    if end <= (arrivals[-1][0] if arrivals else durable):
        return arrivals
    if len(arrivals) == ARRIVALS_MAX:  # the newest counts as old as the one before it
        return (*arrivals[:-1], (end, arrivals[-1][1]))
    return (*arrivals, (end, now_s))


def first_seen_s(arrivals: Arrivals, offset: QueueOffset, now_s: float) -> float:
    """When the message at `offset` was first seen; now if it was not. O(1) for the oldest."""
    return next((seen_s for end, seen_s in arrivals if end > offset), now_s)


def from_offset(arrivals: Arrivals, offset: QueueOffset) -> Arrivals:
    """Without those of messages below `offset`, which need not be remembered any more."""
    known = next((n for n, (end, _) in enumerate(arrivals) if end > offset), None)
    return NO_ARRIVALS if known is None else arrivals[known:]


RESTS_AFTER = 3
"""Failures in a row after which a queue at rest counts as halted: nothing waits for it any more."""


@dataclass(frozen=True, slots=True)
class Setback:
    """What keeps a queue from being tiered as usual. Queues that are well share one."""

    reason: str = ""
    """Why the queue is stopped, refused, damaged or failing; empty otherwise."""
    failures: int = 0
    """Tries that failed in a row."""
    retry_at_s: float = 0.0
    """When it may be tried again; means nothing without failures."""
    rests: bool = False
    """It is halted by something that may pass: opened again once its pause has ended."""
    damage: str = ""
    """What was wrong with the messages at the commit offset, for the gap that passes them."""
    damage_told: bool = False
    """The hot log itself reported the damage; it will also report the end of it."""
    heals_at: QueueOffset | None = None
    """A halted queue is opened again once the hot log reaches this offset."""
    round_queues_max: int = ROUND_QUEUES_ANY
    """Queues in the round of its next commit, this one included."""
    retry_messages: int = 0
    """Length of the range whose commit failed; it is committed again as it was."""


NO_SETBACK = Setback()


def pause(failures_before: int, now_s: float, options: DispatchOptions) -> dict[str, Any]:
    """What one more failure in a row changes: a pause that is longer after each."""
    failures = failures_before + 1
    pause_s = backoff_s(failures, s_min=options.backoff_s_min, s_max=options.backoff_s_max)
    return {"failures": failures, "retry_at_s": now_s + pause_s}


def must_reopen(
    state: QueueState,
    hot: HotQueue,
    *,
    commit_offset: QueueOffset,
    heals_at: QueueOffset | None,
    damage_told: bool,
    deleted: DeletedQueue | None,
) -> bool:
    """Whether the queue must be opened again. Asked while no commit is under way.

    Args:
        state: the queue's, found with what the hot log had before.
        hot: what it has now.
        commit_offset: where the tier ends.
        heals_at: a halted queue is opened again once the hot log reaches this offset.
        damage_told: the hot log reported the damage, and will report the end of it.
        deleted: what `hot.deleted` was when the queue was opened.
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
        mended = damage_told and hot.state is HotQueueState.READY
        return lost or caught_up or mended
    return state is QueueState.REFUSED


@dataclass(frozen=True, slots=True)
class Common:
    """What all queues of a dispatcher share."""

    options: DispatchOptions
    count: ReferenceCount
    nothing: References
    """Those of every queue that waits for nothing; stays empty."""
    notify: Callable[[Any], None]
    """Is told of every change of a `QueueProgress`."""


REFERENCES_MIN = 256
"""References that every queue may keep, however many the others keep."""


class QueueProgress:
    """One queue's way into the tier. Every change of it is told to `Common.notify`.

    Nearly all of perhaps 100,000 rest. So what only few have at a time is a value that the others
    share: setbacks, arrivals, references.

    I1  commit_offset <= dispatch_offset <= referenced_offset
    I2  A claim exists only while IN_FLIGHT, and is `[commit_offset, dispatch_offset)`; otherwise
        the two offsets are equal.
    I3  `references` are those of `[dispatch_offset, referenced_offset)`, and none are kept of a
        queue that is neither READY nor IN_FLIGHT.
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
        """It existed when the dispatcher started, so `backfill` applies."""
        self.opened_offset: QueueOffset | None = None
        """Where this process began on it; None until it did."""
        self.commit_offset = QueueOffset(0)
        self.dispatch_offset = QueueOffset(0)
        self.references = common.nothing
        self.opening = self.refilling = False
        """A worker is opening it; a worker is fetching references for it."""
        self.described: QueueStatistics | None = None
        """As `QueueDescriptions` said last."""
        self.claimed: ClaimedRange | None = None
        """The commit under way."""
        self._deleted = hot.deleted
        """The deleted queue of this name that the tier knows of: as of when this was opened."""
        self.common_end: QueueOffset | None = None
        """Below it the tier and the hot log agree; known of a queue that contradicts the tier."""
        self._born: tuple[QueueOffset, float] | None = None
        """An offset that waits or waited, and when its message was stored: monotonic clock."""
        self._waits_s: float | None = None
        """When the first message was stored that may not be tiered yet; None: not known."""
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
        """The offset after the last message that is referenced."""
        return QueueOffset(self.dispatch_offset + len(self.references.units))

    @property
    def behind(self) -> int:
        """Messages of the hot log that are not durable in the tier; 0 while that is not known.

        Those count that the hot log does not let be tiered yet.
        """
        return self.backlog + self.hot.waiting

    @property
    def backlog(self) -> int:
        """Messages below the hot log's end that are not durable in the tier; as `behind`."""
        if self.opened_offset is None and (
            not self.is_halted or self.hot.state is HotQueueState.UNREADABLE
        ):
            return 0  # the tier was not asked yet
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
        """Whether the broker deleted the queue, and nothing of it is left to be tiered."""
        hot = self.hot
        deleted = hot.deleted
        return deleted is not None and not deleted.is_made_again and not self.backlog

    @property
    def is_halted(self) -> bool:
        """Nothing is committed until something outside changes."""
        return self.state in HALTED

    @property
    def is_active(self) -> bool:
        """It is being tiered."""
        return self.state is QueueState.READY or self.state is QueueState.IN_FLIGHT

    @property
    def must_open(self) -> bool:
        """The queue has to be settled with the tier, by a worker that is still to be found."""
        return (self.state is QueueState.UNSETTLED or self.setback.rests) and not self.opening

    def since_s(self, now_s: float) -> float:
        """When the first message that is not claimed was first seen."""
        return first_seen_s(self._arrivals, self.dispatch_offset, now_s)

    def oldest_s(self, now_s: float) -> float:
        """When the first message that is not durable was stored; first seen while that is unknown.

        On the monotonic clock, so that it may be negative.
        """
        oldest_s = first_seen_s(self._arrivals, self.first_untiered, now_s)
        if self._born is not None:
            oldest_s = min(oldest_s, self._born[1])
        if self._waits_s is not None:
            oldest_s = min(oldest_s, self._waits_s)
        return oldest_s

    @property
    def is_undated(self) -> bool:
        """Whether a message waits of which it is not known when it was stored."""
        if not (self.is_active or self.state is QueueState.STOPPED) or not self.backlog:
            return False
        return self._born is None or self._born[0] != self.first_untiered

    def date(self, offset: QueueOffset, stored_s: float) -> None:
        """Note when the message at `offset` was stored, on the monotonic clock."""
        if offset == self.first_untiered and self.backlog:
            self._born = (offset, stored_s)
            self._changed()

    # The hot log was polled.

    def observe(self, hot: HotQueue, now_s: float, epoch_s: float = 0.0) -> None:
        """Take in what a poll saw; see `QueueTable.observe`."""
        self._waits_s = hot.waiting_ms / 1000 - epoch_s if hot.waiting_ms else None
        self._arrivals = noted(self._arrivals, hot.max_offset, now_s, durable=self.commit_offset)
        if hot.deleted != self.hot.deleted:
            self._retry_by(now_s)  # what failed was of what is gone
        self.hot = hot
        if hot.state is HotQueueState.DAMAGED:
            self._set_back(damage=hot.detail, damage_told=True)
        self._changed()

    # Opening.

    def mark_opening(self, *, opening: bool) -> None:
        """A worker begins to settle the queue with the tier, or ends it."""
        assert self.must_open or not opening, f"one worker opens a queue: {self}"
        self.opening = opening
        if opening:
            self._deleted = self.hot.deleted
        self._changed()

    def open(self, offset: QueueOffset) -> None:
        """The tier ends at `offset` and agrees with the hot log: tier what follows."""
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
        """What the tier has up to `tier_next` and the hot log do not fit together: halt.

        The queue is opened again once the hot log reaches `heals_at`, unless that is None. Both
        agree below `common_end`, where that is known.
        """
        self.commit_offset, self.common_end = tier_next, common_end
        self._halt(state, reason)
        self._set_back(heals_at=heals_at)
        self._changed()

    def cut_off(self) -> None:
        """All workers were cancelled, and may have left an unknown outcome."""
        self.opening = self.refilling = False
        if self.state is QueueState.IN_FLIGHT:
            self._unsettle()
        self._changed()

    def unsettle(self) -> None:
        """Ask the tier before anything else; drops what is claimed and referenced."""
        self._unsettle()
        self._changed()

    # References.

    def references_wanted(self, reserved: int = 0) -> int:
        """How many more references are worth fetching now, `reserved` being fetched for others."""
        kept = len(self.references.units)
        missing = self.hot.max_offset - self.dispatch_offset - kept
        if missing <= 0 or not self.is_active:
            return 0
        wanted = min(missing, self._common.options.commit_messages_max - kept)
        room = self._common.options.references_max - self._common.count.kept - reserved
        return max(0, min(wanted, max(room, REFERENCES_MIN - kept)))

    def add_references(self, start: QueueOffset, units: Units) -> None:
        """Keep references that were fetched from `start`; drops them if the queue moved since."""
        if start != self.referenced_offset or self.references_wanted() == 0:
            return
        self._own_references().append(units)
        self._changed()

    # Commits.

    def waiting(self, now_s: float, *, at_once: bool = False) -> Waiting:
        """What planning a round needs to know; only with references and no claim."""
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
                age_s_max=0.0 if at_once else options.batch_age_s_max,
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

    def claim(self, bytes_max: int) -> ClaimedRange:
        """Begin a commit: as much as `bytes_max` allows, or the failed range once more."""
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
        """The commit under way ends at `next_offset`: what was claimed beyond it waits again."""
        if next_offset != self.dispatch_offset:
            self._give_back(next_offset)
            self._changed()

    def landed(self, now_s: float) -> None:
        """The commit under way is durable."""
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
        """Do what an error means for this queue, or for the commit of it that is under way.

        RETRY makes the same range due again after a pause, in a round of `round_queues_max`
        queues at most, this one included. `halted` is the state that HALT brings it to,
        `tier_next` is where the tier is known to end.
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
        """The failures were not this queue's: its pause ends."""
        self._retry_by(now_s, round_queues_max=ROUND_QUEUES_ANY)
        self._changed()

    def _changed(self) -> None:
        """Ends every change: draw its consequences, notify."""
        self._reconsider()
        self._common.notify(self)

    def _reconsider(self) -> None:
        """Follow what the hot log has now; not while a commit is under way."""
        if self.state is QueueState.IN_FLIGHT:
            return
        if self.hot.state is HotQueueState.REFUSED:
            self._halt(QueueState.REFUSED, self.hot.detail)
        elif self.hot.state is HotQueueState.UNREADABLE:
            self._halt(QueueState.STOPPED, self.hot.detail)
            self._set_back(heals_at=QueueOffset(0))  # opened again as soon as it can be read
        elif must_reopen(
            self.state,
            self.hot,
            commit_offset=self.commit_offset,
            heals_at=self.setback.heals_at,
            damage_told=self.setback.damage_told,
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
            told = self.hot.state is HotQueueState.DAMAGED
            self._set_back(reason=reason, damage=reason, damage_told=told)
        else:
            self._set_back(reason=reason)

    def _rest(self, now_s: float, reason: str) -> None:
        """Open again after a pause; its commits are alone in their rounds until one lands."""
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
        """To be added to."""
        if self.references is self._common.nothing:
            self.references = References(self._common.count)
        return self.references

    def _set_back(self, **changes: Any) -> None:  # noqa: ANN401 - fields of a `Setback`
        changed = replace(self.setback, **changes)
        self.setback = NO_SETBACK if changed == NO_SETBACK else changed

    def _retry_by(self, now_s: float, **changes: Any) -> None:  # noqa: ANN401 - as `_set_back`
        """A pause, if there is one, ends now at the latest."""
        if self.setback is not NO_SETBACK:
            self._set_back(retry_at_s=min(self.setback.retry_at_s, now_s), **changes)

    def _pause(self, now_s: float, **changes: Any) -> None:  # noqa: ANN401 - as `_set_back`
        """Leave the queue alone for a while, longer after each failure in a row."""
        self._set_back(**pause(self.setback.failures, now_s, self._common.options), **changes)
