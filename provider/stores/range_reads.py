"""Reads that suit a store far away: near ranges together, long ones in parallel, stragglers twice.

A request to an object store costs some 10 to 50 ms before its first byte, and money, and gives the
bytes of one connection. So ranges of an object that nearly touch are asked for in one request, up
to a gap that is a setting; a range longer than `request_bytes_max` is asked for in pieces side by
side; and where one answer takes far longer than others do, a second request for the same bytes may
overtake it. How many requests are under way at once is the store's below to bound.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from provider.clock import Clock
from provider.errors import StoreError
from provider.object_store import Buffer, ObjectStore
from provider.options import RangeOptions
from provider.ranges import ByteRange, ReadTogether, pieces_of, together
from provider.stores.forwarding import ForwardingStore

ResultT = TypeVar("ResultT")


class RangeReads(ForwardingStore):
    """Wrap a store; all but `read` and `read_many` of ranges passes through.

    Memory: what is read, once more while pieces of one range are joined, and gaps that were read.
    """

    def __init__(
        self,
        inner: ObjectStore,
        *,
        clock: Clock,
        options: RangeOptions,
        ranges_of: ObjectStore | None = None,
        turn: Callable[[int], Awaitable[None]] | None = None,
    ) -> None:
        """`ranges_of`: the store that is asked for ranges, if not `inner`.

        `turn`: waits until so many bytes may move. Each request waits, then its time begins.
        """
        super().__init__(inner)
        self._ranges_of = inner if ranges_of is None else ranges_of
        self._turn = turn
        self._clock = clock
        self._options = options
        self.requests = 0
        """Ranges that were asked for, second requests not counted."""
        self.hedges = 0
        """Second requests."""
        self.hedges_won = 0
        """Those that answered first."""

    def __repr__(self) -> str:
        return f"<RangeReads {self.requests} requests, {self.hedges} hedges: {self.inner!r}>"

    async def read(self, name: str, wanted: ByteRange | None = None) -> Buffer:
        """Read a range, or all; `ObjectStore.read`. One request for each piece of the range."""
        if wanted is None:
            return await super().read(name)
        return (await self.read_many([(name, wanted)]))[0]

    async def read_many(self, wanted: Sequence[tuple[str, ByteRange]]) -> list[Buffer]:
        """Read several ranges side by side; `ObjectStore.read_many`.

        At most one request each and for each `request_bytes_max`; fewer where ranges are near.
        """
        options = self._options
        plan = together(
            wanted, gap_bytes_max=options.gap_bytes_max, bytes_max=options.request_bytes_max
        )
        found: list[Buffer] = [b""] * len(wanted)
        answers = await _side_by_side([self._whole(one) for one in plan])
        for one, answer in zip(plan, answers, strict=True):
            if len(one.members) == 1:
                found[one.members[0]] = answer
                continue
            view = memoryview(answer)
            for number in one.members:
                part = wanted[number][1]
                found[number] = view[part.start - one.whole.start : part.end - one.whole.start]
        return found

    async def _whole(self, one: ReadTogether) -> Buffer:
        pieces = pieces_of(one.whole, self._options.request_bytes_max)
        read = [self._request(one.object_name, piece) for piece in pieces]
        answers = await _side_by_side(read)
        return answers[0] if len(answers) == 1 else b"".join(answers)

    async def _request(self, name: str, wanted: ByteRange) -> Buffer:
        """One range, and once more if the answer is late and the share of such allows it."""
        self.requests += 1
        if self._turn is not None:
            await self._turn(wanted.length)
        if not self._options.hedge_after_s:
            return await self._ranges_of.read(name, wanted)
        try:
            return await self._hedged(name, wanted)
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _hedged(self, name: str, wanted: ByteRange) -> Buffer:
        """One range, by the first of one or two requests that answers."""
        failed: StoreError | None = None
        async with asyncio.TaskGroup() as group:
            late = group.create_task(self._clock.sleep(self._options.hedge_after_s))
            first = group.create_task(self._outcome(name, wanted))
            running: set[asyncio.Task[Any]] = {first, late}
            while running:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done - {late}:
                    if not isinstance(found := task.result(), StoreError):
                        self.hedges_won += task is not first
                        _cancel(running)
                        return found
                    failed = failed or found
                if first in done or running == {late}:
                    _cancel({late})
                    running -= {late}
                elif late in done and self._may_hedge():
                    self.hedges += 1
                    running.add(group.create_task(self._second(name, wanted)))
        assert failed is not None, "each request ends with an answer or an error"
        raise failed

    async def _second(self, name: str, wanted: ByteRange) -> Buffer | StoreError:
        """A second request, which waits its turn, too."""
        if self._turn is not None:
            await self._turn(wanted.length)
        return await self._outcome(name, wanted)

    async def _outcome(self, name: str, wanted: ByteRange) -> Buffer | StoreError:
        """The answer, or why there is none: an error must not end the other request."""
        try:
            return await self._ranges_of.read(name, wanted)
        except StoreError as error:
            return error

    def _may_hedge(self) -> bool:
        return self.hedges < 1 + int(self._options.hedge_share_max * self.requests)


def _cancel(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()


async def _side_by_side(requests: Sequence[Coroutine[Any, Any, ResultT]]) -> list[ResultT]:
    """The results in order; the first error cancels the others and is raised."""
    if len(requests) == 1:
        return [await requests[0]]
    tasks: list[asyncio.Task[ResultT]] = []
    try:
        async with asyncio.TaskGroup() as group:
            tasks += [group.create_task(request) for request in requests]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
