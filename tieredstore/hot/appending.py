"""Append calls: admission, watermarks, and the choice of event loop or thread."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from queue import Empty, SimpleQueue
from typing import TypeVar

from container.names.queue_id import QueueId
from provider.clock import Clock
from provider.errors import Closed, StoreError
from tieredstore.hot.appender import Appender
from tieredstore.hot.encoding import (
    Appended,
    AppendPlan,
    NewMessage,
    Prepared,
    kept_together,
    prepare,
)


@dataclass(slots=True)
class AppendRequest:
    """Messages of one append call."""

    messages: Sequence[NewMessage]
    bytes: int
    acknowledged: "asyncio.Future[list[Appended]]"
    together: bool = False
    """Whether all go to one CommitLog file."""
    appended: list[Appended] = field(default_factory=list[Appended])

    def acknowledge(self) -> None:
        """Return the positions to the caller. On the event loop."""
        if not self.acknowledged.done():
            self.acknowledged.set_result(self.appended)

    def fail(self, error: Exception) -> None:
        """Raise an error in the caller. On the event loop."""
        if not self.acknowledged.done():
            self.acknowledged.set_exception(error)


@dataclass(slots=True)
class AppendGroup:
    """Result of the requests that were taken from the queue together."""

    bytes: int
    """Bytes of all requests."""
    requests: list[AppendRequest]
    """Appended requests, in order."""
    failed: list[tuple[AppendRequest, Exception]]
    plan: AppendPlan | None = None
    """Executed plan; None if nothing was appended."""


@dataclass(frozen=True, slots=True)
class Errand:
    """Other change of the files, executed between two groups."""

    work: Callable[[], None]
    """Function for the thread. It never raises."""
    done: Callable[[], None]
    """Callback on the event loop after `work`, before the result of any later group."""


ALIKE_MESSAGES_MIN = 4
"""Smallest batch that is planned by columns. Below it, planning one by one is faster."""


class AppendThread:
    """Thread that appends until `end`. Requests are appended in the order of the calls."""

    def __init__(
        self,
        appender: Appender,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        written: Callable[[AppendGroup], None],
    ) -> None:
        """Start the thread. `written` is called on `loop` for each group, in order."""
        self._appender = appender
        self._clock = clock
        self._loop = loop
        self._on_written = written
        self._inbox: SimpleQueue[AppendRequest | Errand | None] = SimpleQueue()
        self._errand: Errand | None = None
        """Errand to execute after the group that was taken."""
        self._ended = False
        self.unreported = 0
        """Requests and errands without a reported result. On the event loop only."""
        self._thread = threading.Thread(target=self._run, name="hot-log-append", daemon=True)
        self._thread.start()

    def put(self, request: AppendRequest) -> None:
        """Enqueue an append and return at once."""
        self.unreported += 1
        self._inbox.put(request)

    def send(self, errand: Errand) -> None:
        """Enqueue an errand after the requests so far.

        Returns at once. It counts as unreported until it is done.
        """
        self.unreported += 1
        self._inbox.put(errand)

    def append_here(self, request: AppendRequest) -> bool:
        """Append at once on the calling event loop. `unreported` must be 0.

        Returns False, and does nothing, if that takes more than writes into the page cache.
        """
        group = self._append([request], quickly=True)
        if group is None:
            return False
        self._tell(group)
        return True

    def end(self) -> None:
        """Append the queued requests, and wait for the thread's end. Blocks."""
        self._inbox.put(None)
        self._thread.join()

    def _run(self) -> None:
        while not self._ended:
            taken = self._take()
            if taken:
                group = self._append(taken)
                assert group is not None, "only the loop is in a hurry"
                with suppress(RuntimeError):  # the loop was closed: no caller waits any more
                    self._loop.call_soon_threadsafe(self._tell_of, group, len(taken))
            if (errand := self._errand) is not None:
                self._errand = None
                errand.work()
                with suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(self._tell_of_errand, errand)

    def _take(self) -> list[AppendRequest]:
        """Take queued requests up to `group_bytes_max` or an errand.

        Wait for the first, or for the end.
        """
        taken: list[AppendRequest] = []
        size = 0
        request = self._inbox.get()
        while isinstance(request, AppendRequest):
            taken.append(request)
            size += request.bytes
            if size >= self._appender.options.group_bytes_max:
                return taken
            try:
                request = self._inbox.get_nowait()
            except Empty:
                return taken
        self._errand, self._ended = request, request is None
        return taken

    def _append(self, taken: list[AppendRequest], *, quickly: bool = False) -> AppendGroup | None:
        """Encode and write. Never raises, for an ended thread would leave callers waiting.

        Returns None, and does nothing, if `quickly` is set and the append is not quick.
        """
        group = AppendGroup(sum(request.bytes for request in taken), [], [])
        try:
            plan = self._planned(taken, group)
            if quickly and group.requests and not self._appender.is_quick(plan):
                return None
            self._appender.carry_out(plan)
        except Exception as error:  # noqa: BLE001 - raised in the callers
            told = {id(request) for request, _ in group.failed}
            group.failed += [(request, error) for request in taken if id(request) not in told]
            group.requests = []
            return group
        if not group.requests:
            return group
        group.plan = plan
        at = 0
        for request in group.requests:
            request.appended = plan.appended[at : at + len(request.messages)]
            at += len(request.messages)
        return group

    def _planned(self, taken: list[AppendRequest], group: AppendGroup) -> AppendPlan:
        """Plan the positions of the messages. Enter accepted and refused requests in `group`."""
        now_ms = self._clock.now_ms()
        messages = taken[0].messages
        if len(taken) > 1:
            messages = list(chain.from_iterable(request.messages for request in taken))
        if len(messages) >= ALIKE_MESSAGES_MIN:
            plan = self._appender.plan_alike(messages, now_ms)
            if plan is not None:
                group.requests = taken
                return plan
        prepared: list[Prepared] = []
        options = self._appender.options
        for request in taken:
            try:
                records = [prepare(message, now_ms, options) for message in request.messages]
                if request.together:
                    records = kept_together(records, options)
            except Exception as error:  # noqa: BLE001 - raised in the caller
                group.failed.append((request, error))
                continue
            prepared += records
            group.requests.append(request)
        return self._appender.plan(prepared)

    def _tell_of(self, group: AppendGroup, requests: int) -> None:
        self.unreported -= requests
        self._tell(group)

    def _tell_of_errand(self, errand: Errand) -> None:
        self.unreported -= 1
        errand.done()

    def _tell(self, group: AppendGroup) -> None:
        for request, error in group.failed:
            request.fail(error)
        self._on_written(group)


@dataclass(slots=True)
class _Unflushed:
    """Written group that is not known to be durable. Its messages are not kept."""

    end: int
    """CommitLog position after the group."""
    next_offsets: dict[QueueId, int]
    """Next offsets of the queues that the group extends."""
    requests: list[AppendRequest] = field(default_factory=list[AppendRequest])
    """Requests that wait for the group to be durable."""


class QueueEnds:
    """Watermarks of the queues of one log. Both only rise while a queue exists."""

    def __init__(self, next_offsets: Mapping[QueueId, int], *, is_sync: bool) -> None:
        self.visible: dict[QueueId, int] = dict(next_offsets)
        """High watermark of each queue: the offset after its last acknowledged, readable
        message."""
        self.durable: dict[QueueId, int] = dict(next_offsets)
        """Durable watermark of each queue: the offset after its last message that is synced to
        disk."""
        self.revision = 0
        """Counter of changes of `visible`."""
        self.unflushed: deque[_Unflushed] = deque()
        self.news = asyncio.Event()
        """Set when messages became durable. Its waiter clears it."""
        self.on_visible: Callable[[Mapping[QueueId, int]], None] = lambda _: None
        """Callback with the new ends of queues whose high watermark rose."""
        self._is_sync = is_sync
        self._grows = False
        """Whether the newest entry of `unflushed` absorbs the next writes."""

    def __repr__(self) -> str:
        return f"<QueueEnds: {len(self.visible)} queues, {len(self.unflushed)} groups to sync>"

    def written(self, plan: AppendPlan, requests: list[AppendRequest]) -> None:
        """Record a written group. Acknowledge it now, or after its sync with SYNC_FLUSH."""
        if self._is_sync:
            self.unflushed.append(_Unflushed(plan.end, plan.next_offsets, requests))
            return
        self._show(plan.next_offsets)
        for request in requests:
            request.acknowledge()
        self._wait_for_sync(plan.end, plan.next_offsets)

    def written_one(self, queue: QueueId, next_offset: int, end: int) -> None:
        """Record one message written up to `end`.

        ASYNC_FLUSH only: no caller waits for its sync.
        """
        assert not self._is_sync, "a waiting caller is in the group of `written`"
        self.visible[queue] = next_offset
        self.revision += 1
        next_offsets = {queue: next_offset}
        self.on_visible(next_offsets)
        if self._grows:  # as `_wait_for_sync`, which takes 3 % of a call
            newest = self.unflushed[-1]
            newest.end = end
            newest.next_offsets[queue] = next_offset
        else:
            self._wait_for_sync(end, next_offsets)

    def _wait_for_sync(self, end: int, next_offsets: Mapping[QueueId, int]) -> None:
        """Record writes up to `end` for which no caller waits."""
        if self._grows:  # one entry for all until the next sync: there may be 100,000 till then
            newest = self.unflushed[-1]
            newest.end = end
            newest.next_offsets |= next_offsets
        else:
            self.unflushed.append(_Unflushed(end, dict(next_offsets)))
            self._grows = True

    def flushing(self) -> None:
        """Record the start of a sync, which may miss all later writes."""
        self._grows = False

    def flushed(self, position: int) -> None:
        """Record that the CommitLog is durable up to `position`."""
        while self.unflushed and self.unflushed[0].end <= position:
            entry = self.unflushed.popleft()
            self._grows = self._grows and bool(self.unflushed)
            self.durable |= entry.next_offsets
            if self._is_sync:  # else readers see newer ones already
                self._show(entry.next_offsets)
            for request in entry.requests:
                request.acknowledge()
            self.news.set()

    def forget(self, queues: Collection[QueueId]) -> None:
        """Forget deleted queues. All their earlier writes are durable."""
        self.revision += 1
        for queue in queues:
            self.visible.pop(queue, None)
            self.durable.pop(queue, None)

    def fail(self, error: StoreError) -> None:
        """Fail all requests that wait for durability, after a failed sync."""
        while self.unflushed:
            for request in self.unflushed.popleft().requests:
                request.fail(error)
        self._grows = False

    def _show(self, next_offsets: Mapping[QueueId, int]) -> None:
        """Raise the high watermarks to these offsets. Called once for each group, in order."""
        self.visible |= next_offsets
        self.revision += 1
        self.on_visible(next_offsets)


ResultT = TypeVar("ResultT")

HERE_BYTES_MAX = 64 << 10
"""Largest call that the event loop itself appends, in bytes, if that is quick: some 0.1 ms.

A hop to a thread and back costs as much as a dozen small messages.
"""
HERE_MESSAGES_MAX = 256
"""Messages that the event loop appends before it runs other tasks: some 2 ms, and 0.1 ms for the
turn of the loop. Each `WEIGHT_BYTES` count as one more."""
WEIGHT_BYTES = 8 << 10
SLOW_S = 0.1
"""Duration in seconds after which a call is slow: write-back of the kernel or another process held
it up."""
PAUSES = 10
"""Multiple of a slow call's duration for which the thread appends afterwards. Waits for a disk thus
take at most one part in eleven of the event loop's time."""


class AppendCalls:
    """Append calls in their order, on the event loop or on the thread.

    Reports the results to `ends`.
    """

    def __init__(
        self, appender: Appender, ends: QueueEnds, clock: Clock, written: Callable[[], None]
    ) -> None:
        """Start the thread. `written` is called on the event loop after each update of `ends`."""
        self._appender = appender
        self._options = appender.options
        self._ends = ends
        self._waits_for_syncs = self._options.flush == "SYNC_FLUSH"
        self._clock = clock
        self._now_s = clock.monotonic_s
        self._on_written = written
        self._loop = asyncio.get_running_loop()
        self._thread = AppendThread(appender, clock, self._loop, self._written)
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._waiting_bytes = 0
        self._here_messages = 0
        self._here_again_s = 0.0
        self._closed = False

    def __repr__(self) -> str:
        return f"<AppendCalls: {self._waiting_bytes} bytes wait>"

    def append_at_once(self, message: NewMessage) -> Appended | None:
        """Append one message now, as `append_many`, if that needs no wait.

        Creates no future and no task. Returns None, and does nothing, if it needs a wait, or might.

        Raises:
            Unavailable: no space left, or the device failed; see `HotLog.append_many`.
        """
        if (
            self._waits_for_syncs
            or self._closed
            or self._thread.unreported
            or self._here_messages + 1 >= HERE_MESSAGES_MAX  # `append_many` runs other tasks
        ):
            return None
        try:
            if len(message.body) + OVERHEAD > HERE_BYTES_MAX:
                return None
        except (AttributeError, TypeError):
            return None  # `append_many` reports the reason
        started_s = self._now_s()
        if started_s < self._here_again_s:
            return None
        done = self._appender.append_one(message, self._clock.now_ms())
        if done is None:
            return None
        queue, appended = done
        offset, position, size, _ = appended
        self._here_messages += 1 + size // WEIGHT_BYTES
        self._ends.written_one(queue, offset + 1, position + size)
        self._on_written()
        if self._now_s() - started_s > SLOW_S:
            self._leave_to_thread(started_s)
        return appended

    async def append_many(
        self, messages: Sequence[NewMessage], *, together: bool
    ) -> list[Appended]:
        """See `HotLog.append_many`."""
        size = _bytes_of(messages)
        while not self._has_room.is_set():
            await self._has_room.wait()
        if self._closed:
            raise Closed("the hot log was closed", str(self._appender.directory.root))
        if not messages:
            return []
        self._waiting_bytes += size
        if self._waiting_bytes >= self._options.waiting_bytes_max:
            self._has_room.clear()
        request = AppendRequest(messages, size, self._loop.create_future(), together)
        if not self._appended_here(request):
            self._thread.put(request)
        elif self._here_messages >= HERE_MESSAGES_MAX:
            self._here_messages = 0
            await self._clock.sleep(0)
        return await request.acknowledged

    async def do(self, work: Callable[[], ResultT], done: Callable[[ResultT], None]) -> ResultT:
        """Run `work` on the appending thread, after all earlier calls.

        `done` is called with its result on the event loop, before the results of later appends.
        Cancelling does not undo it.

        Raises: as `work`; then `done` is not called.
        """
        outcome: list[ResultT] = []
        errors: list[Exception] = []
        told: asyncio.Future[None] = self._loop.create_future()

        def carry_out() -> None:
            try:
                outcome.append(work())
            except Exception as error:  # noqa: BLE001 - raised in the caller
                errors.append(error)

        def tell() -> None:
            if outcome:
                done(outcome[0])
            if not told.done():
                told.set_result(None)

        self._thread.send(Errand(carry_out, tell))
        await told
        if errors:
            raise errors[0]
        return outcome[0]

    def close(self) -> None:
        """Reject further calls. Calls that wait for room raise Closed."""
        self._closed = True
        self._has_room.set()

    def end(self) -> None:
        """Append all accepted messages. Blocks. Call `close` first."""
        self._thread.end()

    def _appended_here(self, request: AppendRequest) -> bool:
        """Append on the event loop if no request is queued and the loop was not slow lately."""
        if request.bytes > HERE_BYTES_MAX or self._thread.unreported:
            return False
        started_s = self._now_s()
        if started_s < self._here_again_s or not self._thread.append_here(request):
            return False
        self._here_messages += len(request.messages) + request.bytes // WEIGHT_BYTES
        if self._now_s() - started_s > SLOW_S:
            self._leave_to_thread(started_s)
        return True

    def _leave_to_thread(self, started_s: float) -> None:
        """Leave appending to the thread for a while after a slow call."""
        ended_s = self._now_s()
        self._here_again_s = ended_s + PAUSES * (ended_s - started_s)

    def _written(self, group: AppendGroup) -> None:
        """Handle a written or failed group. On the event loop."""
        self._waiting_bytes -= group.bytes
        if self._waiting_bytes < self._options.waiting_bytes_max:
            self._has_room.set()
        if group.plan is not None:
            self._ends.written(group.plan, group.requests)
            self._on_written()


def _bytes_of(messages: Sequence[NewMessage]) -> int:
    """Return the bytes of the messages for the limit of waiting bytes."""
    try:
        if len(messages) == 1:
            return len(messages[0].body) + OVERHEAD
        bodies = sum([len(message.body) for message in messages])
    except (TypeError, AttributeError):
        bodies = 0  # a body has another type, for which `prepare` refuses all
    return bodies + OVERHEAD * len(messages)


OVERHEAD = 256
"""Bytes that each message counts in addition to its body."""
