"""Background tasks, owned by a `with` block, and the failure that ended them."""

import asyncio
import gc
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import cast

from provider.errors import Fenced, StoreError

Worker = Callable[[], Awaitable[None]]
"""A coroutine function that runs until it is cancelled, or returns earlier."""


def keep_opened() -> None:
    """Exclude the open objects of a process from garbage collection, and later ones that survive.

    The records of a tier live as long as the process, and replaced ones are freed by reference
    counts. A full collection beside 100,000 queues would block the event loop for 60 ms and more.
    So each full collection sees what came since the last one. Cyclic garbage among excluded objects
    is collected once the memory of the process has doubled.
    """
    gc.freeze()
    if _EXCLUSION.collected not in gc.callbacks:
        gc.callbacks.append(_EXCLUSION.collected)
    _EXCLUSION.blocks_max = 2 * sys.getallocatedblocks()


class _Exclusion:
    """Excludes the survivors of each full collection from the later ones."""

    def __init__(self) -> None:
        self.blocks_max = 0
        """Memory blocks above which the next full collection sees all objects."""
        self._sees_all = False

    def collected(self, phase: str, info: Mapping[str, int]) -> None:
        """Handle the end of a collection: a callback of `gc`. O(pools of memory)."""
        if phase != "stop" or info["generation"] != _FULL:
            return
        gc.freeze()
        blocks = sys.getallocatedblocks()
        if self._sees_all:
            self.blocks_max = 2 * blocks
        self._sees_all = blocks > self.blocks_max
        if self._sees_all:
            gc.unfreeze()


_FULL = 2
"""Generation of a full collection."""
_EXCLUSION = _Exclusion()


class _Failures:
    """Failures of workers. The first one cancels the caller, whose block they run beside.

    A failing `asyncio.TaskGroup` hides a cancellation of its caller, so none of its tasks fails.
    """

    def __init__(self, caller: asyncio.Task[object]) -> None:
        self.of_workers: list[BaseException] = []
        self.of_block: Exception | None = None
        self.is_leaving = False
        """Whether the block has ended."""
        self._caller = caller
        self._cancellations = caller.cancelling()
        self._has_cancelled = False

    async def run(self, worker: Worker) -> None:
        """Run one worker and record its failure."""
        try:
            await worker()
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - `finish` raises it
            self.of_workers.append(error)
            if not (self.is_leaving or self._has_cancelled):
                self._has_cancelled = True
                self._caller.cancel()

    def finish(self, cancelled: asyncio.CancelledError | None) -> None:
        """Raise what ended the block: a cancellation from outside, a failure, or nothing."""
        if self._has_cancelled:
            self._caller.uncancel()
        is_asked = self._caller.cancelling() > self._cancellations or not self.of_workers
        if cancelled is not None and is_asked:
            raise cancelled
        if self.of_workers:
            raise cause(BaseExceptionGroup("workers", self.of_workers))
        if self.of_block is not None:
            raise self.of_block


@asynccontextmanager
async def running(workers: Iterable[Worker]) -> AsyncGenerator[None]:
    """Run `workers` while the block runs; leaving it cancels them and waits for their end.

    A worker that fails cancels the block, and its failure is raised (`cause`). A failure of the
    block itself is raised bare. A cancellation of the caller counts more than a worker's failure,
    even if both occur in the same turn of the loop.
    """
    caller = asyncio.current_task()
    assert caller is not None, "a block of a task"
    failures = _Failures(caller)
    cancelled: asyncio.CancelledError | None = None
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(failures.run(worker)) for worker in workers]
            try:
                # Each worker begins before the block does, so that a block may end what they run.
                await asyncio.sleep(0)  # noqa: TID251 - one turn of the loop, no time
                yield
            except Exception as error:  # noqa: BLE001 - raised again below, outside the group
                failures.of_block = error
            finally:
                failures.is_leaving = True
                for task in tasks:
                    task.cancel()
    except asyncio.CancelledError as error:
        cancelled = error
    failures.finish(cancelled)


def cause(error: BaseException) -> BaseException:
    """The one failure that matters of a group of them: `Fenced`, then another verdict."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    group = cast("BaseExceptionGroup[BaseException]", error)
    inner = [cause(one) for one in group.exceptions]
    for wanted in (Fenced, StoreError):
        for one in inner:
            if isinstance(one, wanted):
                return one
    return inner[0]
