"""One daemon thread for the blocking calls of a disk cache, and for how long they are waited for.

A thread of an executor would keep the process from ending while a call hangs in the disk.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from provider.clock import Clock

ResultT = TypeVar("ResultT")
_Job = tuple[Callable[[], Any], "asyncio.Future[Any]"]


class DiskThread:
    """Runs calls of one loop in their order; begins with the first one.

    One task watches the oldest call for all, and ends once it finds none: a task or a timer for
    each call would cost more than the call.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._is_begun = False
        self._waiting: deque[tuple[float, asyncio.Future[Any]]] = deque()
        """Calls that have not ended, the oldest first, and until when they are waited for."""
        self._late: asyncio.Future[Any] | None = None
        """The newest call that took too long and has not ended."""
        self._watch: asyncio.Task[None] | None = None

    async def call(self, work: Callable[[], ResultT], seconds: float) -> ResultT | None:
        """The result; None if it takes longer, or an earlier call has taken too long and goes on.

        A late call goes on in the thread, as does that of a caller that is cancelled.
        """
        if self._late is not None:
            return None
        future: asyncio.Future[ResultT | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((self._clock.monotonic_s() + seconds, future))
        self._jobs.put((work, future))
        if self._watch is None or self._watch.done():
            watch = self._watch_oldest()
            self._watch = asyncio.create_task(watch)  # noqa: TID251 - `end` cancels it
        if not self._is_begun:
            self._is_begun = True
            arguments = (self._jobs, self._ended)
            Thread(target=_run, args=arguments, daemon=True, name="tieredstore-disk-cache").start()
        return await future

    def end(self) -> None:
        """End the thread after the queued calls; returns at once."""
        self._jobs.put(None)
        if self._watch is not None and not self._waiting:
            self._watch.cancel()

    async def _watch_oldest(self) -> None:
        while waiting := [one for one in self._waiting if not one[1].done()]:
            until_s, oldest = waiting[0]
            left_s = until_s - self._clock.monotonic_s()
            if left_s > 0:
                await self._clock.sleep(left_s)
            else:
                self._late = oldest
                _settle(oldest, None, None)

    def _ended(
        self, future: "asyncio.Future[Any]", result: object, error: BaseException | None
    ) -> None:
        """Note the end of a call, on its loop. Calls of a loop that was closed end with it."""
        while self._waiting and self._waiting.popleft()[1] is not future:
            pass
        if future is self._late:
            self._late = None
        _settle(future, result, error)


def _settle(future: "asyncio.Future[Any]", result: object, error: BaseException | None) -> None:
    if future.done():  # given up, or cancelled
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def _run(
    jobs: "SimpleQueue[_Job | None]",
    ended: Callable[["asyncio.Future[Any]", object, BaseException | None], None],
) -> None:
    while job := jobs.get():
        work, future = job
        result: object = None
        failed: BaseException | None = None
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - raised by the caller that waits
            failed = error
        with suppress(RuntimeError):  # the loop is closed
            future.get_loop().call_soon_threadsafe(ended, future, result, failed)
        del job, work, future, result, failed  # an idle thread keeps nothing alive
