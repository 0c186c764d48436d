"""Metadata that are made of a damaged log: a gap for what is lost, and nothing else is wrong."""

import asyncio
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from container.check.tier import check_tier
from container.names.queue_id import QueueId, SegmentType
from container.names.rocketmq import index_name, segment_name
from container.names.tier_objects import (
    BOUNDARY_PREFIX,
    FOLLOWED_PREFIX,
    JOURNAL_PREFIX,
    MANIFEST_PREFIX,
    SNAPSHOT_PREFIX,
    IndexBase,
)
from container.options import UpkeepOptions
from container.queue.positions import Boundary, TimeRules, log_position, object_ends
from container.record.header import layout_of
from container.record.verification import walk_records
from container.tier_view import TierReader
from provider.posix.store import PosixStore
from tests.support.cli import invoke
from tests.support.golden import GoldenTree, expected
from tests.support.random_tier import RandomMessages, owned
from tests.support.time_oracle import offset_by_scan
from tests.test_tieredstore.offline.test_rebuild import (
    broker_of,
    config_of,
    options_of,
)
from tieredstore import open as open_tier
from tieredstore.config import effective
from tieredstore.offline import dataset
from tieredstore.offline.jobs.audit import audit
from tieredstore.offline.jobs.engine import OneProcess
from tieredstore.offline.jobs.rebuild_files import restore
from tieredstore.offline.jobs.rebuild_metadata import remake
from tieredstore.offline.jobs.report import RebuildReport

QUEUE = QueueId("G_Big", 0)
"""Its log has three files, of 32, 2 and 2 records."""


@pytest.fixture
def tier(sound: tuple[GoldenTree, Path], tmp_path: Path) -> Path:
    """A copy of the log of one queue alone."""
    tree, root = sound
    log = f"{QUEUE.topic}/{QUEUE.queue_id}/COMMIT_LOG"
    made = tmp_path / "tier"
    shutil.copytree(broker_of(tree, root) / log, broker_of(tree, made) / log)
    return made


def logs_of(broker: Path) -> list[Path]:
    return sorted(broker.glob(f"{QUEUE.topic}/{QUEUE.queue_id}/COMMIT_LOG/*"), key=base_of)


def base_of(path: Path) -> int:
    return int(path.name[8:])


def flip(logs: list[Path]) -> None:
    """Damage the second record of the first file."""
    raw = bytearray(logs[0].read_bytes())
    raw[int.from_bytes(raw[:4], "big") + 6] ^= 8
    logs[0].write_bytes(raw)


def flip_in_body(log: Path, number: int) -> None:
    """Damage the body of a record alone; negative numbers count from the end."""
    raw = bytearray(log.read_bytes())
    starts = walk_records(raw).starts.tolist()
    raw[starts[number] + layout_of(0).body + 1] ^= 1
    log.write_bytes(raw)


def flip_bodies(logs: list[Path]) -> None:
    for number in (5, 6, 20):
        flip_in_body(logs[0], number)


def flip_the_bodies_of_a_joint(logs: list[Path]) -> None:
    flip_in_body(logs[0], -1)
    flip_in_body(logs[1], 0)


def flip_the_first_and_the_last_body(logs: list[Path]) -> None:
    flip_in_body(logs[0], 0)
    flip_in_body(logs[-1], -1)


def flip_all_bodies_of_a_file(logs: list[Path]) -> None:
    for number in range(len(walk_records(logs[2].read_bytes()).starts)):
        flip_in_body(logs[2], number)


def begin_with_zeros(logs: list[Path]) -> None:
    logs[0].write_bytes(bytes(100) + logs[0].read_bytes()[100:])


def cut(logs: list[Path]) -> None:
    logs[1].write_bytes(logs[1].read_bytes()[:50_000])


def empty(logs: list[Path]) -> None:
    logs[1].write_bytes(b"")


def remove(logs: list[Path]) -> None:
    logs[1].unlink()


def replace_by_another(logs: list[Path]) -> None:
    logs[1].write_bytes(logs[2].read_bytes())


def end_with_another(logs: list[Path]) -> None:
    logs[-1].write_bytes(logs[0].read_bytes())


def zero_the_joint(logs: list[Path]) -> None:
    """A hole over the end of one file and the beginning of the next."""
    first, second = logs[0].read_bytes(), logs[1].read_bytes()
    logs[0].write_bytes(first[:-400] + bytes(400))  # a few bytes would be of properties alone
    logs[1].write_bytes(bytes(100) + second[100:])


def zero_the_end(logs: list[Path]) -> None:
    """A hole at the end of the log that begins in the last file but one."""
    half = logs[-2].stat().st_size // 2
    logs[-2].write_bytes(logs[-2].read_bytes()[:half] + bytes(half))
    logs[-1].write_bytes(bytes(logs[-1].stat().st_size))


def zero_a_file(logs: list[Path]) -> None:
    logs[1].write_bytes(bytes(logs[1].stat().st_size))


DAMAGES: list[Callable[[list[Path]], None]] = [
    flip, begin_with_zeros, cut, empty, remove,
    replace_by_another, end_with_another, zero_the_joint, zero_the_end,
    zero_a_file, flip_bodies, flip_the_bodies_of_a_joint,
    flip_the_first_and_the_last_body, flip_all_bodies_of_a_file,
]  # fmt: skip


def rows_of(tree: GoldenTree) -> dict[int, dict[str, Any]]:
    rows = expected(tree.golden, "messages")
    mine = [one for one in rows if (one["topic"], one["queue_id"]) == QUEUE]
    return {one["queue_offset"]: one for one in mine}


def whole(tree: GoldenTree, before: list[bytes], logs: list[Path]) -> set[int]:
    """Offsets of the messages all of whose bytes are still at their places."""
    now = {base_of(path): path.read_bytes() for path in logs if path.exists()}
    log = b"".join(before)
    found: set[int] = set()
    for offset, row in rows_of(tree).items():
        start = row["tier_physical_offset"]
        base = max(base for base in map(base_of, logs) if base <= start)
        record = log[start : start + row["store_size"]]
        if now.get(base, b"")[start - base :][: len(record)] == record:
            found.add(offset)
    return found


WHOLE = 1 << 40
WHOLE_BY_DAY = (flip, zero_the_joint, zero_the_end)
"""Damages that a job in one split meets by day; one in many splits meets them all."""
CASES = [
    *((damage, 5_000) for damage in DAMAGES),
    *(
        pytest.param(
            damage,
            WHOLE,
            marks=[pytest.mark.slow if damage in WHOLE_BY_DAY else pytest.mark.nightly],
        )
        for damage in DAMAGES
    ),
]


async def in_thread(work: Callable[[], RebuildReport]) -> RebuildReport:
    return await asyncio.to_thread(work)


@pytest.mark.parametrize(("damage", "split_bytes"), CASES)
async def test_all_other_messages_are_there_and_nothing_else_is_wrong(
    sound: tuple[GoldenTree, Path],
    tier: Path,
    damage: Callable[[list[Path]], None],
    split_bytes: int,
) -> None:
    tree, _ = sound
    broker = broker_of(tree, tier)
    logs = logs_of(broker)
    before = [path.read_bytes() for path in logs]
    damage(logs)
    kept = whole(tree, before, logs)
    assert 0 < len(kept) < len(rows_of(tree))
    config = config_of(tree, tier)
    report = await in_thread(lambda: remake(config, OneProcess(), split_bytes=split_bytes))
    assert {one.path for one in report.findings} >= {f"{QUEUE}/COMMIT_LOG"}
    assert {one.finding for one in report.findings} <= {"log-gap", "orphan"}
    for one in report.findings:
        if one.finding == "orphan":  # an empty file, or one behind the log's end
            (broker / one.path).unlink()
    listed = await asyncio.to_thread(lambda: invoke(tier, *options_of(tree, tier), "segments"))
    assert "32 to 31" not in listed.output  # of a file of zeros alone
    found = await asyncio.to_thread(audit, config, OneProcess())
    assert list(found.findings) == []
    assert found.counts["messages"] == report.messages
    store = PosixStore(broker)
    reader = await TierReader.open(store, verify=True)
    assert [str(one) async for one in check_tier(reader)] == []
    await store.close()
    assert (await in_thread(lambda: restore(config, OneProcess()))).files == []
    table = await asyncio.to_thread(
        lambda: dataset(str(tier), QUEUE.topic, queues=[QUEUE.queue_id]).read_all()
    )
    assert table.column("queue_offset").to_pylist() == sorted(kept)
    await answers_are_right(tree, tier, kept)


async def answers_are_right(
    tree: GoldenTree, tier: Path, kept: set[int], settings: Mapping[str, object] | None = None
) -> None:
    """Reads, searches by time and by key of the queue, whose messages `kept` are left."""
    rows = rows_of(tree)
    async with open_tier(tier, settings=settings) as opened:
        read = [one async for one in opened.messages(*QUEUE)]
        assert [one.offset for one in read] == sorted(kept)
        times = {offset: rows[offset]["store_timestamp"] for offset in sorted(kept)}
        first, end = min(kept), max(kept) + 1
        for moment in {*times.values(), min(times.values()) - 1, max(times.values()) + 1}:
            for boundary in Boundary:
                at = await opened.offset_by_time(*QUEUE, moment, boundary)
                rules = TimeRules.LOCAL
                wanted = offset_by_scan(times, moment, boundary, rules, first=first, end=end)
                assert at == wanted, (moment, boundary)
        for offset in sorted(kept)[::5]:
            key = rows[offset]["properties"]["UNIQ_KEY"]
            hits = await opened.query_message(QUEUE.topic, key)
            assert [one.queue_offset for one in hits.messages] == [offset]


@pytest.mark.leaves_findings("orphan", why="an index file of RocketMQ's own is left")
async def test_what_was_left_of_the_tier_before_goes_and_is_no_finding(
    sound: tuple[GoldenTree, Path], tier: Path
) -> None:
    tree, _ = sound
    broker = broker_of(tree, tier)
    left = [
        index_name(IndexBase(3, 1).number),
        f"{MANIFEST_PREFIX}{QUEUE.topic}/0/COMMIT_LOG-0-{0:020}-{3:010}-{'0' * 32}",
    ]
    foreign = index_name(12345)
    believed = f"{FOLLOWED_PREFIX}{1:010}-{1:020}-{4096:020}"
    for name in [*left, foreign, believed]:
        (broker / name).parent.mkdir(parents=True, exist_ok=True)
        (broker / name).write_bytes(b"left")
    config = config_of(tree, tier)
    report = await in_thread(lambda: remake(config, OneProcess()))
    assert [(one.finding, one.path) for one in report.findings] == [("orphan", foreign)]
    assert not (broker / believed).exists()
    store = PosixStore(broker)
    reader = await TierReader.open(store)
    assert set(reader.state.tombstones) == set(left)
    await store.close()


@pytest.mark.leaves_findings("orphan", why="a file far behind all others")
async def test_a_file_far_behind_all_others_costs_neither_time_nor_messages(
    sound: tuple[GoldenTree, Path], tier: Path
) -> None:
    tree, _ = sound
    broker = broker_of(tree, tier)
    far = segment_name(QUEUE, SegmentType.COMMIT_LOG, 1 << 60)
    shutil.copy(logs_of(broker)[0], broker / far)
    report = await in_thread(lambda: remake(config_of(tree, tier), OneProcess()))
    assert report.messages == len(rows_of(tree))
    assert [(one.finding, one.position) for one in report.findings] == [
        ("log-gap", 1 << 60), ("orphan", 0),
    ]  # fmt: skip
    assert report.findings[1].path == far


@pytest.mark.slow
def test_where_no_queue_can_be_made_it_is_said_and_there_is_no_journal(
    sound: tuple[GoldenTree, Path], tier: Path
) -> None:
    tree, _ = sound
    broker = broker_of(tree, tier)
    for log in logs_of(broker):
        log.write_bytes(bytes(1_000))
    for words in (("--dry-run",), ()):
        said = invoke(tier, *options_of(tree, tier), "rebuild", "--metadata", *words, status=1)
        assert said.stdout.splitlines()[-1] == (
            "nothing was published: of no queue could the metadata be made"
        )
    assert {path.name for path in broker.iterdir()} == {QUEUE.topic}


async def test_a_hole_that_is_too_long_for_one_request_is_offloaded_in_pieces(
    sound: tuple[GoldenTree, Path],
    tier: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tree, _ = sound
    broker = broker_of(tree, tier)
    logs = logs_of(broker)
    before = [path.read_bytes() for path in logs]
    remove(logs)
    kept = whole(tree, before, logs)
    await in_thread(lambda: remake(config_of(tree, tier), OneProcess()))
    usual = effective.upkeep_options

    def small(*args: Any, **options: Any) -> UpkeepOptions:
        most = 30_000
        given = usual(*args, **options)
        return replace(given, offload_extent_bytes_max=most, repack_bytes_max=most)

    monkeypatch.setattr(effective, "upkeep_options", small)
    second = {"tieredStoreOffloadPath": str(tmp_path / "second")}
    words = (
        tier,
        *options_of(tree, tier),
        *[w for k, v in second.items() for w in ("-D", f"{k}={v}")],
    )
    await asyncio.to_thread(lambda: invoke(*words, "offload", QUEUE.topic))
    store = PosixStore(broker)
    queue = (await TierReader.open(store)).state.queues[QUEUE]
    await store.close()
    (gap,) = queue.gaps
    lost = [
        segment.base + extent.position
        for segment in queue.commit_log
        for extent in segment.extents
        if extent.first_offset == gap.start
    ]
    assert len(lost) > 3
    assert log_position(queue, gap.start) == lost[0]
    ends = object_ends(queue, queue.min_offset, queue.next_offset)
    assert ends == sorted(set(ends))
    assert "nothing is wrong" in (await asyncio.to_thread(lambda: invoke(*words, "check"))).output
    await answers_are_right(tree, tier, kept, second)


@pytest.mark.leaves_findings("orphan", why="a file of zeros behind where the log ended")
async def test_a_file_behind_the_end_of_a_log_is_named_and_hides_nothing_that_is_written_later(
    sound: tuple[GoldenTree, Path], tier: Path
) -> None:
    tree, _ = sound
    broker = broker_of(tree, tier)
    stale = logs_of(broker)[-1]
    stale.write_bytes(bytes(stale.stat().st_size))
    config = config_of(tree, tier)
    report = await in_thread(lambda: remake(config, OneProcess()))
    name = stale.relative_to(broker).as_posix()
    assert ("orphan", name) in {(one.finding, one.path) for one in report.findings}
    async with owned(config) as opened:
        start = opened.state.queues[QUEUE].next_offset
        more = RandomMessages(3).batch(QUEUE, start, 500)
        await opened.commit([opened.plan_commit(QUEUE, more)])
    before = logs_of(broker)[-2]
    assert base_of(before) + before.stat().st_size > base_of(stale)
    for prefix in (JOURNAL_PREFIX, SNAPSHOT_PREFIX, BOUNDARY_PREFIX):
        shutil.rmtree(broker / prefix, ignore_errors=True)
    again = await in_thread(lambda: remake(config, OneProcess()))
    assert again.messages == report.messages + 500
    assert [(one.finding, one.path) for one in again.findings] == [("orphan", name)]
