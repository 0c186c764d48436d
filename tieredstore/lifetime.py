"""Background tasks, owned by a `with` block, and the failure that ended them."""

import asyncio
import gc
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import cast

from provider.errors import Fenced, StoreError

Worker = Callable[[], Awaitable[None]]
"""A coroutine function that runs until it is cancelled, or returns earlier."""


def keep_opened() -> None:
    """Exclude the open objects of a process from garbage collection.

    The records of a tier live as long as the process, and replaced ones are freed by reference
    counts. A full collection beside 100,000 queues would block the event loop for 60 ms.
    """
    gc.freeze()


async def _call(worker: Worker) -> None:
    await worker()


@asynccontextmanager
async def running(workers: Iterable[Worker]) -> AsyncGenerator[None]:
    """Run `workers` while the block runs; leaving it cancels them and waits for their end.

    A worker that fails cancels the block and raises its failure in an ExceptionGroup. A failure of
    the block itself is raised bare.
    """
    block_failed: Exception | None = None
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_call(worker)) for worker in workers]
        try:
            # Each worker begins before the block does, so that a block may end what they run.
            await asyncio.sleep(0)  # noqa: TID251 - one turn of the loop, no time
            yield
        except Exception as error:  # noqa: BLE001 - raised again below, outside the group
            block_failed = error
        finally:
            for task in tasks:
                task.cancel()
    if block_failed is not None:
        raise block_failed


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
