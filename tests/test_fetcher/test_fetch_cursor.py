"""A cursor over random runs takes what a plain loop takes; its invariants hold throughout."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from container.metadata.records import Gap
from container.names.queue_id import QueueId
from container.record.properties import tag_hash
from fetcher.fetcher import FetchCursor
from fetcher.run_cache import CachedRun, CacheKey
from fetcher.tag_filter import parse_subscription
from provider.ranges import QueueOffset

TAGS = ("A", "B", "C")
END = 60


def run_of(first: int, end: int, sizes: list[int], tags: str | None) -> CachedRun:
    """A run of one queue whose message n has `sizes[n]` bytes and tag `TAGS[n % 3]`."""
    wanted = parse_subscription(tags)
    offsets = [n for n in range(first, end) if wanted is None or TAGS[n % 3] in wanted.tags]
    lengths = np.array([sizes[n] for n in offsets], np.int64)
    return CachedRun(
        CacheKey(QueueId("T", 0), wanted),
        QueueOffset(first),
        QueueOffset(end),
        bytes(int(lengths.sum())),
        offsets=np.array(offsets, np.int64),
        starts=np.cumsum(lengths) - lengths,
        sizes=lengths,
        tag_hashes=np.array([tag_hash(TAGS[n % 3]) for n in offsets], np.int32),
    )


@given(
    offset=st.integers(0, END - 1),
    messages_max=st.integers(1, 12),
    bytes_max=st.one_of(st.none(), st.integers(1, 400)),
    examined_max=st.integers(1, 30),
    tags=st.sampled_from([None, "A", "A || C", "nothing"]),
    sizes=st.lists(st.integers(1, 90), min_size=END, max_size=END),
    lost=st.integers(0, END),
    data=st.data(),
)
def test_a_cursor_takes_what_a_plain_loop_takes(
    *,
    offset: int,
    messages_max: int,
    bytes_max: int | None,
    examined_max: int,
    tags: str | None,
    sizes: list[int],
    lost: int,
    data: st.DataObject,
) -> None:
    gap = Gap(QueueOffset(lost), QueueOffset(min(lost + 7, END)), "lost", 0)
    wanted = parse_subscription(tags)
    cursor = FetchCursor(
        offset,
        END,
        messages_max=messages_max,
        bytes_max=bytes_max,
        looked_max=examined_max,
        subscription=wanted,
        exact_tags=False,
    )
    cursor.check()
    examined: list[int] = []
    while not cursor.is_done:
        at = cursor.at
        if gap.start <= at < gap.end:
            cursor.skip(gap)
        else:
            stop = gap.start if at < gap.start else END
            end = data.draw(st.integers(at + 1, stop))
            first = data.draw(st.integers(max(0, gap.end if at >= gap.end else 0), at))
            run = run_of(first, end, sizes, data.draw(st.sampled_from([None, tags])))
            run.check()
            cursor.take(run)
            examined += range(at, cursor.at)
        cursor.check()
    expected = [n for n in examined if wanted is None or TAGS[n % 3] in wanted.tags]
    assert cursor.messages.offsets.tolist() == expected
    assert len(examined) <= examined_max
    assert len(expected) <= messages_max
    total = sum(sizes[n] for n in expected)
    full = len(expected) == messages_max or (bytes_max is not None and total >= bytes_max)
    assert full or len(examined) == examined_max or cursor.at == END
