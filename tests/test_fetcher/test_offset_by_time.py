"""The offset that a moment stands for, against a look at every message."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.names.queue_id import QueueId
from container.queue.positions import Boundary, TimeRules
from fetcher.fetcher import TieredMessageFetcher
from fetcher.options import FetcherOptions
from fetcher.time_search import SPAN_BYTES_MAX, WINDOW_BYTES
from provider.errors import Corrupt, OutOfRange, Unavailable
from provider.ranges import QueueOffset
from tests.support.messages import make_record
from tests.support.read_tier import QUEUE, MemoryQueue, MemoryTier
from tests.support.time_oracle import offset_by_scan

LOWER, UPPER = Boundary.LOWER, Boundary.UPPER
BODIES_BYTES = (20, WINDOW_BYTES // 5)
"""Many in the window that is read first, or few."""


def append_at(queue: MemoryQueue, time: int, *, body_bytes: int = 20) -> None:
    """Commit one message that was stored at a time."""
    record = make_record(
        *queue.id,
        queue.next_offset,
        bytes(body_bytes),
        store_timestamp=time,
        physical_offset=len(queue.commit_log),
    )
    queue.append([record], [""])


def queue_of(times: list[int | None], *, body_bytes: int = 20, first: int = 0) -> MemoryQueue:
    """A queue with messages of these times; None: one was lost there."""
    queue = MemoryQueue(first=first)
    for time in times:
        if time is None:
            queue.lose(1)
        else:
            append_at(queue, time, body_bytes=body_bytes)
    return queue


async def search(
    queue: MemoryQueue,
    moment_ms: int,
    boundary: Boundary,
    rules: TimeRules = TimeRules.LOCAL,
    options: FetcherOptions | None = None,
) -> int:
    async with TieredMessageFetcher(MemoryTier(queue), options=options) as fetcher:
        found = await fetcher.offset_by_time(QUEUE, moment_ms, boundary, rules)
    assert found is not None
    return found


@st.composite
def queues(draw: st.DrawFn, step_ms_min: int) -> MemoryQueue:
    """Messages with equal times and gaps, in extents of some length, the oldest ones trimmed."""
    steps = st.tuples(st.integers(step_ms_min, 3), st.integers(0, 9))
    now, times = 100, list[int | None]()
    for step, luck in draw(st.lists(steps, max_size=30)):
        now += step
        times.append(now if luck else None)
    queue = queue_of(
        times, body_bytes=draw(st.sampled_from(BODIES_BYTES)), first=draw(st.sampled_from([0, 7]))
    )
    lengths = [1, 4, 100] if queue.gaps else [1, 4, 100, None]  # Java's store has no gaps
    queue.extent_messages = draw(st.sampled_from(lengths))
    queue.min_offset = QueueOffset(draw(st.integers(queue.base, queue.next_offset)))
    return queue


def readable(queue: MemoryQueue) -> dict[int, int]:
    return {o: time for o, time in queue.timestamps.items() if o >= queue.min_offset}


@given(queues(0), st.integers(95, 200), st.sampled_from(Boundary), st.sampled_from(TimeRules))
async def test_of_ascending_times_the_result_is_that_of_a_scan(
    queue: MemoryQueue, moment: int, boundary: Boundary, rules: TimeRules
) -> None:
    times = readable(queue)
    first = queue.min_offset
    if rules is TimeRules.TIERED and boundary is UPPER and not times:
        first = queue.next_offset
    wanted = offset_by_scan(times, moment, boundary, rules, first=first, end=queue.next_offset)
    assert await search(queue, moment, boundary, rules) == wanted


@given(queues(-6), st.integers(40, 160), st.sampled_from(Boundary))
async def test_where_the_clock_was_set_back_it_is_a_place_that_the_moment_passes(
    queue: MemoryQueue, moment: int, boundary: Boundary
) -> None:
    times = readable(queue)
    meant = {o for o, t in times.items() if (t >= moment if boundary is LOWER else t <= moment)}
    found = await search(queue, moment, boundary)
    if not meant:
        assert found == (queue.next_offset if boundary is LOWER else queue.min_offset)
        return
    assert found in meant
    around = list(times) if boundary is LOWER else list(times)[::-1]
    assert found == around[0] or around[around.index(found) - 1] not in meant
    if queue.extent_messages is not None:  # and no earlier extent has one
        extents = queue._extents(queue.extent_messages)
        starts = [extent.first_offset for extent in extents]
        first = min(meant) if boundary is LOWER else max(meant)
        assert [s for s in starts if s <= found][-1] == [s for s in starts if s <= first][-1]


@pytest.mark.parametrize(
    ("moment", "lower", "upper", "tiered_upper"),
    [(35, 10, 10, 10), (45, 11, 10, 11), (50, 11, 13, 13), (60, 14, 15, 15), (75, 17, 16, 17)],
)
async def test_the_table_of_the_reference(
    moment: int, lower: int, upper: int, tiered_upper: int
) -> None:
    """`rocketmq.md` 2.11; its local store differs in UPPER (2.2)."""
    queue = queue_of([40, 50, 50, 50, 60, 60, 70], first=10)
    assert await search(queue, moment, LOWER) == lower
    assert await search(queue, moment, UPPER) == upper
    assert await search(queue, moment, UPPER, TimeRules.TIERED) == tiered_upper


async def test_of_a_queue_that_is_not_there_nothing_is_said() -> None:
    async with TieredMessageFetcher(MemoryTier()) as fetcher:
        assert await fetcher.offset_by_time(QueueId("T", 9), 5) is None
        assert await fetcher.earliest_message_time(QueueId("T", 9)) is None


async def test_the_earliest_message_is_the_first_that_can_be_read() -> None:
    queue = queue_of([None, None, 70, 60])
    async with TieredMessageFetcher(MemoryTier(queue)) as fetcher:
        assert await fetcher.earliest_message_time(QUEUE) == 70
        queue.min_offset = QueueOffset(3)
        assert await fetcher.earliest_message_time(QUEUE) == 60
        queue.min_offset = QueueOffset(4)
        assert await fetcher.earliest_message_time(QUEUE) is None


def evenly(count: int, *, body_bytes: int) -> MemoryQueue:
    """A message a second, in extents of up to 1,000 messages."""
    queue = queue_of([1_000 * n for n in range(count)], body_bytes=body_bytes)
    queue.extent_messages = 1_000
    return queue


@pytest.mark.parametrize("boundary", Boundary)
async def test_a_search_costs_one_read_of_units_and_one_of_64_kib_of_records(
    boundary: Boundary,
) -> None:
    queue = evenly(5_000, body_bytes=900)
    for moment in (3_141_592, 2_000_000, 17, 999_999):
        queue.requests.clear()
        queue.log_reads.clear()
        await search(queue, moment, boundary)
        assert queue.requests["units"] <= 1
        assert queue.requests["log"] <= 1
        assert sum(part.length for part in queue.log_reads) <= WINDOW_BYTES + 2_000


async def test_what_the_metadata_tell_costs_nothing() -> None:
    queue = evenly(5_000, body_bytes=20)
    assert await search(queue, -1, LOWER) == 0
    assert await search(queue, 999_500, LOWER) == 1_000, "between two extents"
    assert await search(queue, 999_500, UPPER) == 999
    assert await search(queue, 10**9, LOWER) == 5_000
    assert await search(queue, 10**9, UPPER) == 4_999
    assert not queue.requests


@pytest.mark.parametrize("boundary", Boundary)
async def test_times_that_are_not_even_cost_a_few_windows_more_and_not_the_extent(
    boundary: Boundary,
) -> None:
    times: list[int | None] = [*range(900), *range(10**6, 10**6 + 100)]
    queue = queue_of(times, body_bytes=900)
    queue.extent_messages = 1_000
    assert await search(queue, 450, boundary) == 450
    assert queue.requests == {"units": 1, "log": 5}
    assert sum(part.length for part in queue.log_reads) < len(queue.commit_log) / 2


@pytest.mark.parametrize("boundary", Boundary)
@pytest.mark.parametrize("alike", [1, 10, 100, 700])
async def test_times_that_many_messages_share_cost_no_more(boundary: Boundary, alike: int) -> None:
    queue = queue_of([1_000 * (number // alike) for number in range(4_000)], body_bytes=900)
    queue.extent_messages = 4_000
    times = readable(queue)
    for moment in (0, 1_000, 1_499_000, 3_000_500, 10**7):
        queue.log_reads.clear()
        wanted = offset_by_scan(times, moment, boundary, TimeRules.LOCAL, first=0, end=4_000)
        assert await search(queue, moment, boundary) == wanted
        assert len(queue.log_reads) <= 7
        assert sum(part.length for part in queue.log_reads) < 12 * WINDOW_BYTES


@pytest.mark.parametrize("boundary", Boundary)
@pytest.mark.parametrize("alike", [1, 10, 700])
async def test_where_requests_are_dear_two_reads_of_records_are_enough(
    boundary: Boundary, alike: int
) -> None:
    """Times that are not even, and that many messages share; an extent of 4 MiB."""
    dear = FetcherOptions(gap_bytes_max=256 << 10)
    queue = queue_of([(number // alike) ** 2 for number in range(4_000)], body_bytes=900)
    queue.extent_messages = 4_000
    times = readable(queue)
    for moment in (0, 1, 3_000, (1_000 // alike) ** 2, (3_900 // alike) ** 2):
        queue.requests.clear()
        wanted = offset_by_scan(times, moment, boundary, TimeRules.LOCAL, first=0, end=4_000)
        assert await search(queue, moment, boundary, options=dear) == wanted
        assert queue.requests["units"] <= 1
        assert queue.requests["log"] <= 2


async def test_damage_where_a_window_looks_leaves_the_search_to_a_look_at_every_head() -> None:
    queue = evenly(1_000, body_bytes=900)
    size = len(queue.commit_log) // 1_000
    for number in (250, 530, 531, 999):
        queue.commit_log[number * size + 4] ^= 1
    for moment in (247_000, 256_000, 500_000, 528_000, 533_000):
        for boundary in Boundary:
            assert await search(queue, moment, boundary) == moment // 1_000


async def test_the_heads_of_large_messages_are_read_alone() -> None:
    queue = evenly(200, body_bytes=20_000)
    assert await search(queue, 77_000, LOWER) == 77
    assert queue.requests == {"units": 1, "log": 1}
    assert sum(part.length for part in queue.log_reads) < 1_000


@pytest.mark.parametrize("boundary", Boundary)
async def test_a_tier_without_extents_is_bisected_down_to_what_one_search_may_hold(
    boundary: Boundary,
) -> None:
    body_bytes = SPAN_BYTES_MAX // 50
    queue = queue_of([1_000 * n for n in range(200)], body_bytes=body_bytes)
    queue.extent_messages = None
    assert await search(queue, 77_000, boundary) == 77
    assert queue.requests["log"] <= 6


async def test_damage_is_met_only_next_to_the_place() -> None:
    queue = evenly(100, body_bytes=20)
    size = len(queue.commit_log) // 100
    queue.commit_log[40 * size + 4] ^= 1  # the magic of one record
    assert await search(queue, 30_000, LOWER) == 30
    assert await search(queue, 30_000, UPPER) == 30
    for moment, boundary in ((40_500, LOWER), (39_500, UPPER)):
        with pytest.raises(Corrupt):
            await search(queue, moment, boundary)


async def test_a_damaged_unit_hides_only_what_bisection_asks_there() -> None:
    queue = evenly(100, body_bytes=20)
    queue.consume_queue[20 * 3 + 8] ^= 0x80  # a negative size
    assert await search(queue, 70_000, LOWER) == 70
    with pytest.raises(Corrupt):
        await search(queue, 3_000, LOWER)


async def test_newer_metadata_are_looked_at_once_and_errors_are_never_an_answer() -> None:
    queue, newer = evenly(10, body_bytes=20), evenly(20, body_bytes=20)
    tier = MemoryTier(queue)
    tier.newer = [newer]
    queue.faults = [OutOfRange("gone", "T/0")]
    async with TieredMessageFetcher(tier) as fetcher:
        assert await fetcher.offset_by_time(QUEUE, 5_000) == 5
        assert tier.refreshes == 1
        newer.faults = [Unavailable("down", "T/0")]
        with pytest.raises(Unavailable):
            await fetcher.offset_by_time(QUEUE, 6_000)


def test_the_scan_says_what_the_rules_say() -> None:
    times = {10: 40, 11: 50, 12: 50}
    scans = [
        offset_by_scan(times, 50, boundary, rules, first=10, end=13)
        for boundary in Boundary
        for rules in TimeRules
    ]
    assert scans == [11, 11, 12, 12]
