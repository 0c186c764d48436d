"""Who appends: the caller, where nothing can hold it up, else a thread.

The thread takes what waits as one group, so that calls share writes and syncs.
"""

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain

from provider.clock import Clock
from tieredstore.hot.append_plan import Appended, AppendPlan
from tieredstore.hot.appender import Appender
from tieredstore.hot.encoding import NewMessage, Prepared, kept_together, prepare


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
        self._inbox: queue.SimpleQueue[AppendRequest | Errand | None] = queue.SimpleQueue()
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
            except queue.Empty:
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
