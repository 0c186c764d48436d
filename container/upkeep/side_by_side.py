"""Work on many things, some at a time."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from provider.errors import Closed, Fenced, StoreError

ItemT = TypeVar("ItemT")


async def side_by_side(
    items: Iterable[ItemT], work: Callable[[ItemT], Awaitable[None]], *, at_once: int
) -> None:
    """Do `work` on each item, in order, `at_once` side by side.

    After a failure no other item is begun, what is under way goes on to its end, and then the
    failure is raised: `Fenced` and `Closed` rather than another one.

    Raises:
        StoreError: what `work` raised.
    """
    left, failed = iter(items), list[StoreError]()

    async def take() -> None:
        for item in left:
            try:
                await work(item)
            except StoreError as error:
                failed.append(error)
            if failed:
                return

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(take())
    if failed:
        over = (error for error in failed if isinstance(error, Fenced | Closed))
        raise next(over, failed[0])
