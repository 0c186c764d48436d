"""Where in a queue a time lies."""

from collections.abc import Awaitable, Callable, Sequence

from container.metadata.records import Gap
from fetcher.plan import gap_at

TimestampOf = Callable[[int], Awaitable[int | None]]
"""The store timestamp of the message at an offset, Unix ms; None if there is none now."""


async def first_offset_at(
    timestamp_of: TimestampOf, start: int, end: int, gaps: Sequence[Gap], moment_ms: int
) -> int:
    """The first offset of `[start, end)` whose message was stored at a time or later, or `end`.

    By bisection, as in RocketMQ: it takes the store timestamps of a queue to ascend. Where a
    broker's clock was set back, the result is one of the places at which the time is passed. In a
    gap no time is known, so the result may be its first offset. Asks for some log2(end - start)
    timestamps, one after another.
    """
    low, high = start, end
    while low < high:
        middle = (low + high) // 2
        gap = gap_at(gaps, middle)
        asked = middle if gap is None else gap.end
        if gap is not None and asked >= high:
            high = max(low, gap.start)
            continue
        timestamp = await timestamp_of(asked)
        if timestamp is None or timestamp < moment_ms:
            low = asked + 1
        else:
            high = middle if gap is None else max(low, gap.start)
    return low
