"""Which files go: by age and disk use, in order, and never before the tier has them."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.names.queue_id import QueueId
from provider.errors import OutOfRange
from provider.testing.manual_clock import ManualClock
from tests.support.hot_store import SMALL, new_message
from tieredstore.hot.hot_log import open_hot_log
from tieredstore.hot.options import RetentionOptions, UntieredPolicy
from tieredstore.hot.retention import LogFile, Trim, plan_trim, share_in_use

HOUR_S = 3600.0
FILES = [LogFile(base, written_s=base / 100 * HOUR_S) for base in range(0, 600, 100)]
"""One an hour; the last one is written to."""
OPTIONS = RetentionOptions(reserved_s=2 * HOUR_S)
AT_FOUR = replace(OPTIONS, delete_hours=frozenset({4, 16}))
DROP = replace(OPTIONS, untiered=UntieredPolicy.DROP)

CASES: dict[str, tuple[dict[str, Any], Trim]] = {
    "nothing is old": ({"now_s": HOUR_S}, Trim()),
    "two are old": ({"now_s": 3 * HOUR_S}, Trim((0, 100))),
    "old and not tiered": ({"now_s": 3 * HOUR_S, "tiered_position": 199}, Trim((0,), 1)),
    "nothing tiered": ({"now_s": 99 * HOUR_S, "tiered_position": 0}, Trim((), 5)),
    "all old": ({"now_s": 99 * HOUR_S}, Trim((0, 100, 200, 300, 400))),
    "old, in its hour": ({"now_s": 3 * HOUR_S, "hour": 16, "options": AT_FOUR}, Trim((0, 100))),
    "old, in another hour": ({"now_s": 3 * HOUR_S, "hour": 5, "options": AT_FOUR}, Trim()),
    "full, in another hour": (
        {"disk_used": 0.75, "hour": 5, "options": replace(AT_FOUR, files_max=1)},
        Trim((0,)),
    ),
    "full": ({"disk_used": 0.75}, Trim((0, 100, 200, 300, 400))),
    "full, some tiered": ({"disk_used": 0.99, "tiered_position": 250}, Trim((0, 100), 3)),
    "full, drop": (
        {"disk_used": 0.99, "tiered_position": 100, "options": DROP},
        Trim((0, 100), 3, 1),
    ),
    "not full enough to drop": (
        {"disk_used": 0.89, "tiered_position": 0, "options": DROP},
        Trim((), 5),
    ),
    "only copies, three quarters full": ({"disk_used": 0.76, "only_position": 150}, Trim((0,))),
    "only copies, not forcibly full": (
        {"disk_used": 0.849, "only_position": 0, "now_s": 3 * HOUR_S},
        Trim((0, 100)),
    ),
    "only copies, forcibly full": (
        {"disk_used": 0.85, "only_position": 150, "now_s": 3 * HOUR_S},
        Trim((0, 100, 200, 300, 400), 0, 3),
    ),
    "only copies, never forcibly": (
        {
            "disk_used": 0.99,
            "only_position": 0,
            "options": replace(OPTIONS, clean_forcibly=False),
        },
        Trim(),
    ),
    "few at once": ({"disk_used": 0.8, "options": replace(OPTIONS, files_max=2)}, Trim((0, 100))),
}


def planned(files: list[LogFile] | None = None, **changes: Any) -> Trim:
    given_all = {
        "file_bytes": 100,
        "tiered_position": 10_000,
        "now_s": 0.0,
        "disk_used": 0.1,
        "options": OPTIONS,
    }
    return plan_trim(FILES if files is None else files, **{**given_all, **changes})


@pytest.mark.parametrize(("changes", "expected"), CASES.values(), ids=CASES)
def test_which_files_go(changes: dict[str, Any], expected: Trim) -> None:
    assert planned(**changes) == expected


@given(
    st.lists(st.floats(0, 100 * HOUR_S), max_size=8),
    st.integers(0, 900),
    st.floats(0, 200 * HOUR_S),
    st.floats(0, 1),
)
def test_files_go_in_order_and_only_what_is_tiered(
    written: list[float], tiered: int, now_s: float, disk_used: float
) -> None:
    files = [LogFile(100 * n, written_s) for n, written_s in enumerate(written)]
    found = planned(files, tiered_position=tiered, now_s=now_s, disk_used=disk_used)
    assert found.files == tuple(file.base for file in files[: len(found.files)])
    assert not files or len(found.files) < len(files)
    assert all(base + 100 <= tiered for base in found.files)


def test_options_that_cannot_be_are_refused() -> None:
    for changes in ({"disk_clean_ratio": 0.95}, {"files_max": 0}, {"disk_force_ratio": 1.1}):
        with pytest.raises(ValueError, match=r"disk_|files_max"):
            replace(OPTIONS, **changes)
    with pytest.raises(ValueError, match=r"\[24\] are not within 0 to 23"):
        replace(OPTIONS, delete_hours=frozenset({24}))
    with pytest.raises(ValueError, match="interval_s is 0"):
        replace(OPTIONS, interval_s=0)


async def test_files_that_the_tier_has_go_and_the_rest_stays_readable(tmp_path: Path) -> None:
    first, second = QueueId("Orders", 0), QueueId("Orders", 1)
    clock = ManualClock()
    options = RetentionOptions(reserved_s=HOUR_S, disk_clean_ratio=1, disk_force_ratio=1)
    async with open_hot_log(tmp_path, options=SMALL, clock=clock) as log:
        for number in range(120):
            await log.append(new_message(number, queue_id=number % 2))
        written = clock.now_ms() / 1000
        for path in (tmp_path / "commitlog").iterdir():
            os.utime(path, (written, written))
        assert (await log.trim(lambda _queue: None, options)) == Trim(), "nothing is old"
        await clock.advance(HOUR_S)
        assert await log.trim({first: 60, second: 0}.get, options) == Trim((), 4)
        found = await log.trim({first: 60, second: 35}.get, options)
        assert found == Trim((0, 4096), 2)
        low, end = await log.bounds(second)
        assert 0 < low <= 35
        assert end == 60
        assert (await log.get(second, low))[0].queue_offset == low
        with pytest.raises(OutOfRange, match="the message was deleted"):
            await log.get(second, low - 1)
        assert len(list((tmp_path / "commitlog").iterdir())) == 3
        first_unit = min(int(p.name) for p in (tmp_path / "consumequeue/Orders/1").iterdir()) // 20
        assert low - 10 < first_unit <= low
        await log.append(new_message(999))
    for abort in (False, True):
        if abort:
            (tmp_path / "abort").touch()
        async with open_hot_log(tmp_path, options=SMALL, clock=clock) as log:
            ends = [(await log.bounds(queue)).max_offset for queue in (first, second)]
            assert ends == [61, 60], "the offsets go on"
            assert (await log.bounds(second)).min_offset == low


@pytest.mark.parametrize("offset", [0, 10, 11, 35, 57])
@pytest.mark.parametrize("bit", [38, 13])  # of the position: beyond the log, and within it
async def test_a_unit_that_rotted_lets_no_untiered_message_go(
    bit: int, offset: int, tmp_path: Path
) -> None:
    """The first untiered unit points beyond its record."""
    idle, busy = QueueId("Orders", 0), QueueId("Orders", 1)
    clock = ManualClock()
    options = RetentionOptions(reserved_s=HOUR_S, disk_clean_ratio=1, disk_force_ratio=1)
    async with open_hot_log(tmp_path, options=SMALL, clock=clock) as log:
        for number in range(60):
            await log.append(new_message(number))
        for number in range(60):
            await log.append(new_message(number, queue_id=1))
        written = clock.now_ms() / 1000
        for path in (tmp_path / "commitlog").iterdir():
            os.utime(path, (written, written))
        await clock.advance(HOUR_S)
        position = log._appender.queues.unit(idle, offset).position
        path = log._appender.queues.path(idle, offset // 10 * 200)
        raw = bytearray(path.read_bytes())
        raw[offset % 10 * 20 + 7 - bit // 8] ^= 1 << bit % 8
        path.write_bytes(raw)
        assert log._appender.queues.unit(idle, offset).position > position
        trimmed = await log.trim({idle: offset, busy: 60}.get, options)
        assert max(trimmed.files, default=-4096) + 4096 <= position


@pytest.mark.parametrize(
    ("free", "available", "share"),
    [(1000, 1000, 0), (400, 400, 0.6), (400, 100, 600 / 700), (270, 0, 1)],
)
def test_blocks_that_are_reserved_for_root_are_no_use(
    free: int, available: int, share: float
) -> None:
    usage = os.statvfs_result([4096, 4096, 1000, free, available, 9, 9, 9, 0, 255])
    assert share_in_use(usage) == pytest.approx(share)


def test_a_file_system_without_blocks_is_not_full() -> None:
    assert share_in_use(os.statvfs_result([4096, 4096, 0, 0, 0, 9, 9, 9, 0, 255])) == 0


@pytest.mark.parametrize(("used", "goes"), [(0.74, False), (0.76, False), (0.86, True)])
@pytest.mark.parametrize("is_old", [False, True])
async def test_a_log_without_a_tier_loses_young_messages_on_a_disk_that_is_full_alone(
    used: float, tmp_path: Path, *, goes: bool, is_old: bool
) -> None:
    clock = ManualClock()
    blocks = [4096, 4096, 1000, int(1000 - 1000 * used), int(1000 - 1000 * used), 9, 9, 9, 0, 255]
    options = RetentionOptions(reserved_s=HOUR_S)
    async with open_hot_log(tmp_path, options=SMALL, clock=clock) as log:
        for number in range(60):
            await log.append(new_message(number))
        written = clock.now_ms() / 1000 - (2 * HOUR_S if is_old else 0)
        for path in (tmp_path / "commitlog").iterdir():
            os.utime(path, (written, written))
        with patch("tieredstore.hot.retention.os.statvfs", lambda _: os.statvfs_result(blocks)):
            found = await log.trim(lambda _queue: None, options)
    assert bool(found.files) == (goes or is_old)
    assert bool(found.dropped) == (goes and not is_old)


async def test_an_untiered_topic_holds_what_is_young_and_a_tiered_one_does_not(
    tmp_path: Path,
) -> None:
    full = [4096, 4096, 1000, 200, 200, 9, 9, 9, 0, 255]
    tiered, untiered = QueueId("Orders", 0), QueueId("Orders", 1)
    async with open_hot_log(tmp_path, options=SMALL, clock=ManualClock()) as log:
        for number in range(120):
            await log.append(new_message(number, queue_id=int(number >= 60)))
        written = log._clock.now_ms() / 1000
        for path in (tmp_path / "commitlog").iterdir():
            os.utime(path, (written, written))
        with patch("tieredstore.hot.retention.os.statvfs", lambda _: os.statvfs_result(full)):
            found = await log.trim({tiered: 60}.get, RetentionOptions(reserved_s=HOUR_S))
        assert found.files
        assert (await log.bounds(untiered)).min_offset == 0
        assert (await log.get(untiered, 0))[0].queue_offset == 0
