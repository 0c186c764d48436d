"""Copies of segments that go on side by side, and are taken one after the other in their order.

A copy waits for two stores in turn, so that several are worth more than one. What is published, and
in which order, does not depend on how many there are.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

from container.upkeep.offload_plan import Held, runs_of
from container.upkeep.options import UpkeepOptions
from provider.errors import StoreError

CopyT = TypeVar("CopyT")


class CopiesAhead(Generic[CopyT]):
    """What becomes of each segment, in the order in which they were given.

    A1  Copies under way hold `offload_bytes_in_flight_max` at most, or there is one.
    A2  At most `offload_copies_max` copies were begun and not taken.
    """

    def __init__(
        self,
        wanted: Sequence[Held],
        copy: Callable[[Held], Coroutine[Any, Any, CopyT]],
        options: UpkeepOptions,
        group: asyncio.TaskGroup,
    ) -> None:
        self._left = deque(wanted)
        self._copy = copy
        self._options = options
        self._group = group
        self._begun: deque[tuple[Held, asyncio.Task[CopyT | StoreError]]] = deque()
        self._bytes = 0
        self._fill()

    def __repr__(self) -> str:
        return f"<CopiesAhead: {len(self._begun)} begun of {self._bytes} bytes>"

    async def take(self, one: Held) -> CopyT:
        """The copy of a segment, which is the next one.

        Raises:
            StoreError: why there is none.
        """
        held, task = self._begun[0]
        assert held is one, "copies are taken in order"
        found = await task
        self._begun.popleft()
        self._fill()
        if isinstance(found, StoreError):
            raise found
        return found

    def stop(self) -> None:
        """Begin no other copy, and end those under way."""
        self._left.clear()
        for _, task in self._begun:
            task.cancel()

    def left(self) -> list[CopyT]:
        """Copies that were made and not taken, once all have ended."""
        done = (task.result() for _, task in self._begun if not task.cancelled())
        return [one for one in done if not isinstance(one, StoreError)]

    def _fill(self) -> None:
        """Begin what there is room for."""
        options = self._options
        while self._left and len(self._begun) < options.offload_copies_max:
            size = copy_bytes(self._left[0], options)
            if self._bytes and self._bytes + size > options.offload_bytes_in_flight_max:
                return
            one = self._left.popleft()
            self._bytes += size
            self._begun.append((one, self._group.create_task(self._outcome(one, size))))

    async def _outcome(self, one: Held, size: int) -> CopyT | StoreError:
        """The copy, or why there is none: an error must not end the others."""
        try:
            return await self._copy(one)
        except StoreError as error:
            return error
        finally:
            self._bytes -= size
            self._fill()


def copy_bytes(one: Held, options: UpkeepOptions) -> int:
    """What a copy of a segment holds at once: its longest object, twice."""
    runs = runs_of(one.segment.extents, options.repack_bytes_max)
    lengths = (sum(extent.length for extent in run) for run in runs)
    return 2 * min(max(lengths), max(options.repack_bytes_max, options.offload_extent_bytes_max))


@asynccontextmanager
async def copies_ahead(
    wanted: Sequence[Held],
    copy: Callable[[Held], Coroutine[Any, Any, CopyT]],
    options: UpkeepOptions,
    forsake: Callable[[CopyT], None],
) -> AsyncGenerator[CopiesAhead[CopyT]]:
    """Begin to copy. The end of the block ends what is under way, and forsakes what is not taken.

    An error of the block is raised as it is.
    """
    failed: Exception | None = None
    copies: CopiesAhead[CopyT] | None = None
    try:
        async with asyncio.TaskGroup() as group:
            copies = CopiesAhead(wanted, copy, options, group)
            try:
                yield copies
            except Exception as error:  # noqa: BLE001 - the group would wrap it
                failed = error
            finally:
                copies.stop()
    finally:
        for one in copies.left() if copies is not None else ():
            forsake(one)
    if failed is not None:
        raise failed
