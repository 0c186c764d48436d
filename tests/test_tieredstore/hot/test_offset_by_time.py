"""Times in the hot log: which offset a moment stands for, against a look at every message."""

from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from container.names.queue_id import QueueId
from container.queue.positions import Boundary, TimeRules
from provider.errors import Corrupt
from provider.testing.manual_clock import ManualClock
from tests.support.hot_store import SMALL, appender_at, new_message, put
from tests.support.time_oracle import offset_by_scan
from tieredstore.hot import reading
from tieredstore.hot.hot_log import open_hot_log
from tieredstore.hot.options import RetentionOptions
from tieredstore.hot.reading import first_with_record, search_time, store_time

QUEUE = QueueId("Orders", 0)


@pytest.fixture(autouse=True, params=[0, 3, reading.UNITS_AT_ONCE])
def units_at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Units one by one, together near the end, and together at once."""
    monkeypatch.setattr(reading, "UNITS_AT_ONCE", request.param)


@settings(max_examples=25)
@given(
    st.lists(st.integers(0, 2), min_size=1, max_size=20),
    st.integers(98, 160),
    st.sampled_from(Boundary),
    st.sampled_from(TimeRules),
)
def test_the_result_is_that_of_a_scan(
    steps: list[int], moment: int, boundary: Boundary, rules: TimeRules
) -> None:
    times = dict(enumerate(accumulate(steps, initial=100)))
    with TemporaryDirectory() as root, appender_at(Path(root)) as appender:
        for number, time in times.items():
            put(appender, [new_message(number), new_message(number, queue_id=1)], now_ms=time)
        end = len(times)
        wanted = offset_by_scan(times, moment, boundary, rules, first=0, end=end)
        assert search_time(appender, QUEUE, end, moment, boundary, rules) == wanted
        assert {n: store_time(appender, QUEUE, n) for n in times} == times
        assert store_time(appender, QUEUE, end) is None


def test_where_the_clock_was_set_back_it_is_a_place_that_the_moment_passes(tmp_path: Path) -> None:
    times = [100, 150, 90, 95, 120, 110, 160]
    with appender_at(tmp_path) as appender:
        for number, time in enumerate(times):
            put(appender, [new_message(number)], now_ms=time)
        for moment in range(85, 165):
            found = search_time(appender, QUEUE, 7, moment, Boundary.LOWER, TimeRules.LOCAL)
            assert found == 7 or times[found] >= moment
            assert found == 0 or times[found - 1] < moment
            found = search_time(appender, QUEUE, 7, moment, Boundary.UPPER, TimeRules.LOCAL)
            assert found == 0 or times[found] <= moment
            assert found in {0, 6} or times[found + 1] > moment


async def test_only_what_was_acknowledged_and_not_deleted_counts(tmp_path: Path) -> None:
    clock = ManualClock()
    async with open_hot_log(tmp_path, options=SMALL, clock=clock) as log:
        assert await log.offset_by_time(QUEUE, 5) == 0
        assert await log.earliest_message_time(QUEUE) is None
        for number in range(60):
            await log.append(new_message(number, body_bytes=300))
            await clock.advance(1)
        first_ms = await log.earliest_message_time(QUEUE)
        assert first_ms is not None
        assert await log.offset_by_time(QUEUE, first_ms + 10_000) == 10
        assert await log.offset_by_time(QUEUE, first_ms + 10_500, Boundary.UPPER) == 10
        assert await log.offset_by_time(QUEUE, first_ms + 10**9) == 60
        assert await log.message_store_time(QUEUE, 60) is None
        assert await log.message_store_time(QUEUE, -1) is None

        options = RetentionOptions(disk_clean_ratio=1e-9, disk_forcible_ratio=1e-9, files_max=3)
        assert len((await log.trim(lambda _: None, options)).files) == 3
        first = (await log.bounds(QUEUE)).min_offset
        assert 0 < first < 60
        assert await log.earliest_message_time(QUEUE) == first_ms + 1_000 * first
        assert await log.message_store_time(QUEUE, 0) is None
        for boundary in Boundary:
            assert await log.offset_by_time(QUEUE, first_ms, boundary) == first


def test_a_record_of_another_message_is_never_an_answer(tmp_path: Path) -> None:
    with appender_at(tmp_path) as appender:
        put(appender, [new_message(number) for number in range(4)])
        assert first_with_record(appender, QUEUE) == 0
        unit = appender.queues.unit(QUEUE, 1)
        appender.queues.write(QUEUE, 2, unit.encode())
        with pytest.raises(Corrupt, match="offset 2"):
            store_time(appender, QUEUE, 2)
