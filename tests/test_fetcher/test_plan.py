"""Plans of reads: every wanted message once, in few ranges, within the limits."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fetcher.plan import places_in_reads, plan_reads, units_taken
from provider.ranges import ByteRange


def _columns(spans: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    """Starts and sizes from (unwanted bytes before, size)."""
    starts, sizes, at = [], [], 0
    for gap, size in spans:
        starts.append(at + gap)
        sizes.append(size)
        at += gap + size
    return np.array(starts, np.int64), np.array(sizes, np.int64)


_spans = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 40)), max_size=30)


@given(_spans, st.integers(0, 40), st.integers(1, 100))
def test_ranges_equal_those_of_the_plain_rule(
    spans: list[tuple[int, int]], gap_max: int, read_max: int
) -> None:
    starts, sizes = _columns(spans)
    expected: list[ByteRange] = []
    for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
        last = expected[-1] if expected else None
        if last and start - last.end <= gap_max and start + size - last.start <= read_max:
            expected[-1] = ByteRange(last.start, start + size)
        else:
            expected.append(ByteRange(start, start + size))
    assert plan_reads(starts, sizes, gap_bytes_max=gap_max, read_bytes_max=read_max) == expected


@given(_spans, st.integers(0, 40), st.integers(1, 100))
def test_joined_ranges_hold_each_message_where_it_is_said_to_be(
    spans: list[tuple[int, int]], gap_max: int, read_max: int
) -> None:
    starts, sizes = _columns(spans)
    log = np.random.default_rng(1).integers(0, 255, sum(map(sum, spans)), np.uint8).tobytes()
    ranges = plan_reads(starts, sizes, gap_bytes_max=gap_max, read_bytes_max=read_max)
    joined = b"".join(log[part.start : part.end] for part in ranges)
    for place, start, size in zip(places_in_reads(starts, ranges), starts, sizes, strict=True):
        assert joined[place : place + size] == log[start : start + size]


@given(
    st.lists(st.tuples(st.integers(1, 40), st.booleans()), min_size=1, max_size=30),
    st.integers(1, 10),
    st.integers(0, 200),
)
def test_a_run_covers_units_until_the_next_wanted_one_would_exceed_a_limit(
    messages: list[tuple[int, bool]], messages_max: int, bytes_max: int
) -> None:
    sizes = np.array([size for size, _ in messages], np.int64)
    wanted = np.array([flag for _, flag in messages])
    count, total, expected = 0, 0, len(messages)
    for index, (size, flag) in enumerate(messages):
        if flag and count and (count == messages_max or total + size > bytes_max):
            expected = index
            break
        count += flag
        total += size * flag
    assert units_taken(sizes, wanted, messages_max=messages_max, bytes_max=bytes_max) == expected


def test_without_a_filter_every_unit_is_wanted() -> None:
    sizes = np.array([10, 10, 10], np.int64)
    assert units_taken(sizes, None, messages_max=2, bytes_max=100) == 2
    assert units_taken(sizes, None, messages_max=9, bytes_max=29) == 2
    assert units_taken(sizes, None, messages_max=9, bytes_max=1) == 1
