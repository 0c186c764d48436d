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
    """The messages of one call."""

    messages: Sequence[NewMessage]
    bytes: int
    acknowledged: "asyncio.Future[list[Appended]]"
    together: bool = False
    """Whether all go to one CommitLog file."""
    appended: list[Appended] = field(default_factory=list[Appended])

    def acknowledge(self) -> None:
        """Tell the caller where they are; on the loop."""
        if not self.acknowledged.done():
            self.acknowledged.set_result(self.appended)

    def fail(self, error: Exception) -> None:
        """Tell the caller what went wrong; on the loop."""
        if not self.acknowledged.done():
            self.acknowledged.set_exception(error)


@dataclass(slots=True)
class AppendGroup:
    """What became of the requests that were taken together."""

    bytes: int
    """Of all requests."""
    requests: list[AppendRequest]
    """Those that were appended, in order."""
    failed: list[tuple[AppendRequest, Exception]]
    plan: AppendPlan | None = None
    """What was done; None if nothing was."""


@dataclass(frozen=True, slots=True)
class Errand:
    """Something else that changes the files, between two groups."""

    work: Callable[[], None]
    """Done by the thread; never raises."""
    done: Callable[[], None]
    """Called on the loop afterwards, before it is told of a later group."""


ALIKE_MESSAGES_MIN = 4
"""Fewer are planned one by one, which takes less time than columns of them do."""


class AppendThread:
    """Runs from the start until `end`. Requests are appended in the order of the calls."""

    def __init__(
        self,
        appender: Appender,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        written: Callable[[AppendGroup], None],
    ) -> None:
        """`written` is called on `loop` for each group, in order."""
        self._appender = appender
        self._clock = clock
        self._loop = loop
        self._on_written = written
        self._inbox: SimpleQueue[AppendRequest | Errand | None] = SimpleQueue()
        self._errand: Errand | None = None
        """To be done behind the group that was taken."""
        self._ended = False
        self._untold = 0
        """Requests that the thread was handed and has not told about; on the loop."""
        self._thread = threading.Thread(target=self._run, name="hot-log-append", daemon=True)
        self._thread.start()

    @property
    def is_idle(self) -> bool:
        """Whether everything that it was handed is done and told; on the loop."""
        return not self._untold

    def put(self, request: AppendRequest) -> None:
        """Have the messages appended; returns at once."""
        self._untold += 1
        self._inbox.put(request)

    def send(self, errand: Errand) -> None:
        """Have it done behind what was put; returns at once. Until it is told, nothing is idle."""
        self._untold += 1
        self._inbox.put(errand)

    def append_here(self, request: AppendRequest) -> bool:
        """Append at once, by the calling thread, the loop's; `is_idle` was true.

        False, and nothing is done, where that means more than writing into the page cache.
        """
        group = self._append([request], quickly=True)
        if group is None:
            return False
        self._tell(group)
        return True

    def end(self) -> None:
        """Append what was put, and wait for the thread's end. Blocks."""
        self._inbox.put(None)
        self._thread.join()

    def _run(self) -> None:
        while not self._ended:
            taken = self._take()
            if taken:
                group = self._append(taken)
                assert group is not None, "only the loop is in a hurry"
                with suppress(RuntimeError):  # the loop was closed: nobody waits any more
                    self._loop.call_soon_threadsafe(self._tell_of, group, len(taken))
            if (errand := self._errand) is not None:
                self._errand = None
                errand.work()
                with suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(self._tell_of_errand, errand)

    def _take(self) -> list[AppendRequest]:
        """What waits, up to `group_bytes_max` or an errand; waits for the first, or for the end."""
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
        """Encode and write; never raises, for a thread that ends would leave callers waiting.

        None if it was to be quick, and is not; then nothing is done.
        """
        group = AppendGroup(sum(request.bytes for request in taken), [], [])
        try:
            plan = self._planned(taken, group)
            if quickly and group.requests and not self._appender.is_quick(plan):
                return None
            self._appender.carry_out(plan)
        except Exception as error:  # noqa: BLE001 - told to the callers
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
        """Where the messages go; enters in `group` whose are refused and whose are not."""
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
            except Exception as error:  # noqa: BLE001 - told to the caller
                group.failed.append((request, error))
                continue
            prepared += records
            group.requests.append(request)
        return self._appender.plan(prepared)

    def _tell_of(self, group: AppendGroup, requests: int) -> None:
        self._untold -= requests
        self._tell(group)

    def _tell_of_errand(self, errand: Errand) -> None:
        self._untold -= 1
        errand.done()

    def _tell(self, group: AppendGroup) -> None:
        for request, error in group.failed:
            request.fail(error)
        self._on_written(group)


@dataclass(slots=True)
class _Unflushed:
    """What is written and not known to be durable; of its messages nothing is kept."""

    end: int
    """Position after it."""
    next_offsets: dict[QueueId, int]
    """Of the queues that it lets grow."""
    requests: list[AppendRequest] = field(default_factory=list[AppendRequest])
    """Those that wait for it to be durable."""


class QueueEnds:
    """The ends of the queues of one log; neither of the two goes back while a queue is there."""

    def __init__(self, next_offsets: Mapping[QueueId, int], *, is_sync: bool) -> None:
        self.visible: dict[QueueId, int] = dict(next_offsets)
        """The offset after the last message of each queue that can be read: acknowledged ones."""
        self.durable: dict[QueueId, int] = dict(next_offsets)
        """The same of those that are on the disk for certain."""
        self.revision = 0
        """Raised whenever `visible` changes."""
        self.unflushed: deque[_Unflushed] = deque()
        self.news = asyncio.Event()
        """Set when messages became durable; whoever waits for it clears it."""
        self.on_visible: Callable[[Mapping[QueueId, int]], None] = lambda _: None
        """Told the new ends of queues that can be read further than before."""
        self._is_sync = is_sync
        self._grows = False
        """Whether the newest entry of `unflushed` takes in what is written next."""

    def __repr__(self) -> str:
        return f"<QueueEnds: {len(self.visible)} queues, {len(self.unflushed)} groups to sync>"

    def written(self, plan: AppendPlan, requests: list[AppendRequest]) -> None:
        """A group was written; without sync flush that is what its callers wait for."""
        if self._is_sync:
            self.unflushed.append(_Unflushed(plan.end, plan.next_offsets, requests))
            return
        self._show(plan.next_offsets)
        for request in requests:
            request.acknowledge()
        self._wait_for_sync(plan.end, plan.next_offsets)

    def written_one(self, queue: QueueId, next_offset: int, end: int) -> None:
        """One message was written up to `end`; nobody waits for its sync, for that is not sync."""
        assert not self._is_sync, "who waits is in the group that `written` is told of"
        self.visible[queue] = next_offset
        self.revision += 1
        self.on_visible({queue: next_offset})
        self._wait_for_sync(end, {queue: next_offset})

    def _wait_for_sync(self, end: int, next_offsets: Mapping[QueueId, int]) -> None:
        """Note what was written and nobody waits for, as written up to `end`."""
        if self._grows:  # one entry for all until the next sync: there may be 100,000 till then
            newest = self.unflushed[-1]
            newest.end = end
            newest.next_offsets |= next_offsets
        else:
            self.unflushed.append(_Unflushed(end, dict(next_offsets)))
            self._grows = True

    def flushing(self) -> None:
        """A sync begins: what is written from now on may not be in it."""
        self._grows = False

    def flushed(self, position: int) -> None:
        """The CommitLog is durable up to `position`."""
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
        """These queues were deleted, and all that was written of them before is durable."""
        self.revision += 1
        for queue in queues:
            self.visible.pop(queue, None)
            self.durable.pop(queue, None)

    def fail(self, error: StoreError) -> None:
        """What is not durable never will be, as far as we know."""
        while self.unflushed:
            for request in self.unflushed.popleft().requests:
                request.fail(error)
        self._grows = False

    def _show(self, next_offsets: Mapping[QueueId, int]) -> None:
        """Let messages below these be read; of each group once, in order."""
        self.visible |= next_offsets
        self.revision += 1
        self.on_visible(next_offsets)


ResultT = TypeVar("ResultT")

HERE_BYTES_MAX = 64 << 10
"""The loop itself appends calls up to so many bytes, where that is quick: some 0.1 ms. A hop to a
thread and back costs as much as a dozen small messages."""
HERE_MESSAGES_MAX = 64
"""After so many that it appended itself, the loop lets other tasks run."""
SLOW_S = 0.1
"""A call that took the loop so long ran into the kernel's write-back, or another process."""
PAUSES = 10
"""For so many times as long, the thread appends then: waiting for a disk takes at most one part in
eleven of the loop's time."""


class AppendCalls:
    """Takes the messages of calls, in their order, and tells `ends` what was written."""

    def __init__(
        self, appender: Appender, ends: QueueEnds, clock: Clock, written: Callable[[], None]
    ) -> None:
        """`written` is called on the loop, after `ends` was told."""
        self._appender = appender
        self._options = appender.options
        self._ends = ends
        self._waits_for_syncs = self._options.flush == "SYNC_FLUSH"
        self._clock = clock
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
        """Append one message now, as `append_many` would, if nothing has to be waited for.

        None, and nothing is done, where something has, or might. No future, no task.

        Raises:
            Unavailable: no space left, or the device failed; see `HotLog.append_many`.
        """
        if self._waits_for_syncs or self._closed or not self._thread.is_idle:
            return None
        if self._here_messages + 1 >= HERE_MESSAGES_MAX or _bytes_of((message,)) > HERE_BYTES_MAX:
            return None  # where it is time for other tasks, `append_many` lets them run
        started_s = self._clock.monotonic_s()
        if started_s < self._here_again_s:
            return None
        plan = self._appender.append_one(message, self._clock.now_ms())
        if plan is None:
            return None
        self._here_messages += 1
        appended = plan.appended
        position, size = appended.position, appended.size
        self._ends.written_one(plan.queue, appended.queue_offset + 1, position + size)
        self._on_written()
        self._look_at_time(started_s)
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
        """Do something else behind all that was handed in, in the thread that appends.

        `done` is called with what it returned, on the loop, before later appends are told of.
        Cancelling does not take it back.

        Raises: as `work`; then `done` is not called.
        """
        outcome: list[ResultT] = []
        errors: list[Exception] = []
        told: asyncio.Future[None] = self._loop.create_future()

        def carry_out() -> None:
            try:
                outcome.append(work())
            except Exception as error:  # noqa: BLE001 - told to the caller
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
        """Take no more; who waits for room is told."""
        self._closed = True
        self._has_room.set()

    def end(self) -> None:
        """Append what was taken. Blocks; after `close`."""
        self._thread.end()

    def _appended_here(self, request: AppendRequest) -> bool:
        """Append at once if nothing waits before it and nothing holds the loop up."""
        if request.bytes > HERE_BYTES_MAX or not self._thread.is_idle:
            return False
        started_s = self._clock.monotonic_s()
        if started_s < self._here_again_s or not self._thread.append_here(request):
            return False
        self._here_messages += len(request.messages)
        self._look_at_time(started_s)
        return True

    def _look_at_time(self, started_s: float) -> None:
        """Leave appending to the thread for a while if a call took the loop too long."""
        ended_s = self._clock.monotonic_s()
        took_s = ended_s - started_s
        if took_s > SLOW_S:
            self._here_again_s = ended_s + PAUSES * took_s

    def _written(self, group: AppendGroup) -> None:
        """A group was written, or failed; on the loop."""
        self._waiting_bytes -= group.bytes
        if self._waiting_bytes < self._options.waiting_bytes_max:
            self._has_room.set()
        if group.plan is not None:
            self._ends.written(group.plan, group.requests)
            self._on_written()


def _bytes_of(messages: Sequence[NewMessage]) -> int:
    """What messages count for while they wait."""
    try:
        if len(messages) == 1:
            return len(messages[0].body) + OVERHEAD
        bodies = sum([len(message.body) for message in messages])
    except (TypeError, AttributeError):
        bodies = 0  # one has no bytes as its body, for which `prepare` refuses all
    return bodies + OVERHEAD * len(messages)


OVERHEAD = 256
"""Bytes that a message is counted with beside its body."""
