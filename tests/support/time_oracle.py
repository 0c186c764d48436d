"""Where a moment lies in a queue, message by message: what a search by time is compared with."""

from collections.abc import Mapping

from container.queue.positions import Boundary, TimeRules


def offset_by_scan(
    times: Mapping[int, int],
    moment_ms: int,
    boundary: Boundary,
    rules: TimeRules,
    *,
    first: int,
    end: int,
) -> int:
    """The offset that a moment stands for in the queue `[first, end)`.

    `times`: the store timestamp of each message by its offset, in ascending order of both.
    """
    later = [offset for offset, time in times.items() if time >= moment_ms]
    lower = later[0] if later else end
    earlier = [offset for offset, time in times.items() if time <= moment_ms]
    if boundary is Boundary.LOWER:
        return lower
    if rules is TimeRules.TIERED and moment_ms not in times.values():
        return lower if times else first
    return earlier[-1] if earlier else first
