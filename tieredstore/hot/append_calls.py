"""The calls that append: how much of them may wait, and who carries them out."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from provider.clock import Clock
from provider.errors import Closed
from tieredstore.hot.append_plan import Appended
from tieredstore.hot.append_thread import AppendGroup, AppendRequest, AppendThread, Errand
from tieredstore.hot.appender import Appender
from tieredstore.hot.encoding import NewMessage
from tieredstore.hot.ends import QueueEnds

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
