"""Concurrent calls that fail with their first error, and that never lose a cancellation."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


async def run_concurrently(calls: Sequence[Coroutine[Any, Any, ResultT]]) -> list[ResultT]:
    """Run calls concurrently and return their results in order.

    The first error cancels the others and is raised. A cancellation of the caller counts more than
    any error, even if both occur in the same turn of the loop.
    """
    if len(calls) == 1:
        return [await calls[0]]
    tasks: list[asyncio.Task[ResultT]] = []
    errors: list[Exception] = []

    async def run(call: Coroutine[Any, Any, ResultT]) -> ResultT:
        try:
            return await call
        except Exception as error:  # noqa: BLE001 - a failing group loses its own cancellation
            errors.append(error)
            for task in tasks:
                task.cancel()
            raise asyncio.CancelledError from None

    try:
        async with asyncio.TaskGroup() as group:
            tasks.extend(group.create_task(run(call)) for call in calls)
    finally:
        for call in calls:
            call.close()  # those that were cancelled before they began
    if errors:
        raise errors[0]
    return [task.result() for task in tasks]
