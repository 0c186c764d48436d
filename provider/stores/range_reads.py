"""Reads of a remote store: coalesced ranges, parallel requests, hedged requests.

A request to an object store costs money and some 10 to 50 ms before its first byte, and has the
bandwidth of one connection. Therefore ranges of an object at most `gap_bytes_max` apart are
coalesced into one request. A range longer than `request_bytes_max` is split into concurrent
requests. If a response is far later than others, a second request for the same bytes may overtake
it. The wrapped store bounds the number of concurrent requests.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from provider.clock import Clock, run_concurrently
from provider.object_store import Buffer, ForwardingStore, ObjectStore
from provider.options import RangeOptions
from provider.ranges import ByteRange, ReadTogether, pieces_of, together


class RangeReads(ForwardingStore):
    """Wrapper that changes `read` and `read_many` of ranges. Other calls pass through.

    Memory: the bytes read, the gaps between, and a second copy while pieces of one range are
    joined.
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
        """Wrap `inner`.

        `ranges_of` is the store that ranges are read from; None: `inner`. `turn` waits until a
        number of bytes may be transferred. Each request calls it before its timeout starts.
        """
        super().__init__(inner)
        self._ranges_of = inner if ranges_of is None else ranges_of
        self._turn = turn
        self._clock = clock
        self._options = options
        self.requests = 0
        """Number of requests, without second requests."""
        self.hedges = 0
        """Number of second requests."""
        self.hedges_won = 0
        """Number of second requests that responded first."""

    def __repr__(self) -> str:
        return f"<RangeReads {self.requests} requests, {self.hedges} hedges: {self.inner!r}>"

    async def read(self, name: str, wanted: ByteRange | None = None) -> Buffer:
        """Read a range, or all; `ObjectStore.read`. One request for each piece of the range."""
        if wanted is None:
            return await super().read(name)
        return (await self.read_many([(name, wanted)]))[0]

    async def read_many(self, wanted: Sequence[tuple[str, ByteRange]]) -> list[Buffer]:
        """Read several ranges concurrently; `ObjectStore.read_many`.

        Costs at most one request for each range and each `request_bytes_max` bytes of it, and fewer
        if ranges are coalesced.
        """
        options = self._options
        plan = together(
            wanted, gap_bytes_max=options.gap_bytes_max, bytes_max=options.request_bytes_max
        )
        found: list[Buffer] = [b""] * len(wanted)
        answers = await run_concurrently([self._whole(one) for one in plan])
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
        answers = await run_concurrently(read)
        return answers[0] if len(answers) == 1 else b"".join(answers)

    async def _request(self, name: str, wanted: ByteRange) -> Buffer:
        """Read one range, hedged if the response is late and `hedge_share_max` allows it."""
        self.requests += 1
        if self._turn is not None:
            await self._turn(wanted.length)
        if not self._options.hedge_after_s:
            return await self._ranges_of.read(name, wanted)
        return await self._hedged(name, wanted)

    async def _hedged(self, name: str, wanted: ByteRange) -> Buffer:
        """Read one range by one or two requests. Return the first response."""
        failed: Exception | None = None
        async with asyncio.TaskGroup() as group:
            late = group.create_task(self._clock.sleep(self._options.hedge_after_s))
            first = group.create_task(self._outcome(name, wanted))
            running: set[asyncio.Task[Any]] = {first, late}
            while running:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done - {late}:
                    if not isinstance(found := task.result(), Exception):
                        self.hedges_won += task is not first
                        _cancel(running)
                        return found
                    failed = failed or found
                if first in done or running == {late}:
                    _cancel({late})
                    running -= {late}
                elif late in done and self._may_hedge():
                    self.hedges += 1
                    running.add(group.create_task(self._outcome(name, wanted, is_second=True)))
        assert failed is not None, "each request ends with an answer or an error"
        raise failed

    async def _outcome(
        self, name: str, wanted: ByteRange, *, is_second: bool = False
    ) -> Buffer | Exception:
        """Return the response or the error: an error must not cancel the other request.

        A second request waits for its turn, too.
        """
        try:
            if is_second and self._turn is not None:
                await self._turn(wanted.length)
            return await self._ranges_of.read(name, wanted)
        except Exception as error:  # noqa: BLE001 - a failing group loses its own cancellation
            return error

    def _may_hedge(self) -> bool:
        return self.hedges < 1 + int(self._options.hedge_share_max * self.requests)


def _cancel(tasks: set[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
