"""The cache of runs: bounded by real bytes, oldest use first, found by any offset inside."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from container.names.queue_id import QueueId
from fetcher.run_cache import RUN_BYTES, CachedRun, CacheKey, RunCache, compact
from fetcher.tag_filter import parse_subscription
from fetcher.window import GroupPosition, WindowLimits
from provider.posix.files import BufferPool, rounded
from provider.ranges import QueueOffset

KEY = CacheKey(QueueId("T", 0), None)
LIMITS = WindowLimits(messages_min=32, messages_max=64, step_messages=32)


def run(
    first: int, end: int, *, message_bytes: int = 100, ahead: bool = False, key: CacheKey = KEY
) -> CachedRun:
    count = end - first
    return CachedRun(
        key,
        QueueOffset(first),
        QueueOffset(end),
        bytes(count * message_bytes),
        offsets=np.arange(first, end),
        starts=np.arange(count, dtype=np.int64) * message_bytes,
        sizes=np.full(count, message_bytes, np.int64),
        tag_hashes=np.zeros(count, np.int32),
        ahead_of=GroupPosition(LIMITS, 0.0) if ahead else None,
    )


def cache(runs: float = 100) -> RunCache:
    return RunCache(bytes_max=int(run(0, 10).nbytes * runs), age_s_max=15.0)


def test_a_run_is_found_by_every_offset_in_it_and_no_other() -> None:
    held = cache()
    one, other = run(10, 20), run(30, 40)
    held.add(other, 0.0)
    held.add(one, 0.0)
    assert [held.find(KEY, offset, 0.0) for offset in (9, 10, 19, 20, 29, 30, 39, 40)] == [
        None, one, one, None, None, other, other, None,
    ]  # fmt: skip
    assert held.find(CacheKey(KEY.queue, parse_subscription("A")), 10, 0.0) is None
    assert (held.next_first(KEY, 5), held.next_first(KEY, 10)) == (10, 30)
    assert held.next_first(KEY, 30) is None


def test_the_run_longest_out_of_use_goes_first() -> None:
    held = cache(2.5)
    for first in (0, 10):
        held.add(run(first, first + 10), 0.0)
    held.find(KEY, 0, 1.0)
    held.add(run(20, 30), 2.0)
    assert [held.find(KEY, first, 3.0) is None for first in (0, 10, 20)] == [False, True, False]


def test_a_run_goes_when_nobody_looked_at_it_for_long() -> None:
    held = cache()
    held.add(run(0, 10), 0.0)
    held.add(run(10, 20), 0.0)
    assert held.find(KEY, 0, 14.0) is not None
    held.expire(16.0)
    assert (len(held), held.find(KEY, 10, 16.0)) == (1, None)
    assert held.find(KEY, 0, 40.0) is None, "not even before it was swept"


def test_a_run_read_ahead_that_nobody_looked_at_is_reported_as_wasted() -> None:
    held = cache(1.5)
    ahead = run(0, 10, ahead=True)
    held.add(ahead, 0.0)
    assert held.unread_bytes == ahead.nbytes
    assert held.add(run(10, 20), 0.0) == [ahead]
    assert (held.unread_bytes, held.prefetches_wasted) == (0, 1)


def test_a_run_read_ahead_counts_as_used_once() -> None:
    held = cache()
    held.add(run(0, 10, ahead=True), 0.0)
    for offset in range(10):
        held.find(KEY, offset, 0.0)
    assert (held.unread_bytes, held.prefetches_used) == (0, 1)


def test_a_run_larger_than_the_cache_is_not_kept() -> None:
    held = cache(1)
    held.add(run(0, 10), 0.0)
    assert held.add(run(10, 200), 0.0) == []
    assert repr(held) == "<RunCache: 1 runs, 2424 of 2424 bytes>"


def test_forgetting_a_queue_leaves_the_others() -> None:
    held = cache()
    held.add(run(0, 10), 0.0)
    held.add(run(0, 10, key=CacheKey(QueueId("T", 1), None)), 0.0)
    held.forget(KEY.queue)
    assert (len(held), held.end_seen(KEY.queue)) == (1, 0)


def test_a_small_view_of_something_large_is_copied() -> None:
    large = memoryview(bytes(1000))
    assert memoryview(compact(large[:100])).obj is not large.obj
    assert memoryview(compact(large[:900])).obj is large.obj


def test_memory_that_a_store_uses_again_is_counted_whole_and_not_copied() -> None:
    for length in (70_000, 1 << 20, (1 << 20) + 1):
        data = BufferPool(0, oversize_max=1).take(length).data
        assert memoryview(compact(data)).obj is data.obj
        none, no_codes = np.zeros(0, np.int64), np.zeros(0, np.int32)
        made = CachedRun(
            KEY, QueueOffset(0), QueueOffset(0), data,
            offsets=none, starts=none, sizes=none, tag_hashes=no_codes,
        )  # fmt: skip
        assert made.nbytes == rounded(length) + RUN_BYTES


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20), st.booleans(), st.floats(0, 9))))
def test_the_cache_keeps_its_invariants(steps: list[tuple[int, int, bool, float]]) -> None:
    held, now_s = cache(5), 0.0
    for first, count, ahead, pause_s in steps:
        now_s += pause_s
        found = held.find(KEY, first, now_s)
        assert found is None or found.first <= first < found.end
        held.check()
        held.add(run(first, first + count, ahead=ahead), now_s)
        held.check()
        held.expire(now_s - 5)
        held.check()
    held.clear()
    assert (len(held), held.bytes_held, held.unread_bytes) == (0, 0, 0)
