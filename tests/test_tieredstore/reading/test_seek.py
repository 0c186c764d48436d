"""Where a time lies in a queue, against a search message by message."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from container.metadata.records import Gap
from provider.ranges import QueueOffset
from tieredstore.reading.seek import first_offset_at


@st.composite
def queues(draw: st.DrawFn) -> tuple[int, list[int | None]]:
    """First offset, and the time of each message; None for one that lies in a gap."""
    steps = draw(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=40))
    times: list[int | None] = []
    now = 100
    for step, is_lost in steps:
        now += step
        times.append(None if is_lost else now)
    return draw(st.integers(0, 50)), times


def gaps_of(first: int, times: Sequence[int | None]) -> list[Gap]:
    found: list[Gap] = []
    for offset, time in enumerate(times, first):
        if time is not None:
            continue
        start = found.pop().start if found and found[-1].end == offset else QueueOffset(offset)
        found.append(Gap(start, QueueOffset(offset + 1), "lost", 0))
    return found


@given(queues(), st.integers(95, 230))
async def test_nothing_that_is_wanted_lies_before_and_nothing_unwanted_behind(
    queue: tuple[int, list[int | None]], moment: int
) -> None:
    first, times = queue
    asked = 0

    async def timestamp_of(offset: int) -> int | None:
        nonlocal asked
        asked += 1
        found = times[offset - first]
        assert found is not None, "a gap has no times"
        return found

    end = first + len(times)
    found = await first_offset_at(timestamp_of, first, end, gaps_of(first, times), moment)
    assert first <= found <= end
    assert all(time is None or time < moment for time in times[: found - first])
    assert all(time is None or time >= moment for time in times[found - first :])
    assert asked <= 2 * len(times).bit_length() + 1
