"""A store whose tier another process owns: as with one process, whatever ends or fails."""

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
from prometheus_client import CollectorRegistry, Counter

from container.errors import Owned
from container.names.queue_id import QueueId
from container.tier_view import TierReader
from fetcher.result import FetchStatus
from provider.clock import SystemClock
from provider.errors import Closed, Fenced, Unavailable
from provider.posix.store import PosixStore
from tests.support.hot_store import SMALL as SMALL_FILES
from tests.support.patience import Patience, until
from tests.support.tiered_world import GREEDY
from tests.support.tiering_in_loop import TieringInLoop
from tests.support.tiering_parent import side_of
from tieredstore.config.effective import Config
from tieredstore.config.sources import ConfigError
from tieredstore.hot.encoding import NewMessage
from tieredstore.hot.options import RetentionOptions
from tieredstore.store.child import process
from tieredstore.store.child.owner import TieringOwner
from tieredstore.store.child.process import summed
from tieredstore.store.cold_side import Contradiction, open_configured_tier
from tieredstore.store.configured import open_store
from tieredstore.store.tiered import TieredMessageStore

SETTINGS = {
    "brokerClusterName": "C",
    "brokerName": "b",
    "tieredStoreGroupCommitTimeout": 0,
    "tieredStoreOwnerCheckInterval": 50,
    "tieredStoreShutdownTimeout": 20_000,
}
SMALL = replace(SMALL_FILES, flush_interval_s=0.01)
KEPT = RetentionOptions()
ORDERS = QueueId("Orders", 0)


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> TieringInLoop:
    monkeypatch.setattr(process, "ENDS_S_MIN", 0.001)
    monkeypatch.setattr(process, "REFRESH_S", 0.001)
    monkeypatch.setattr("tieredstore.store.child.owner.REPORT_S_MIN", 0.02)
    monkeypatch.setattr("tieredstore.store.child.owner.RELEASE_S", 0.001)
    monkeypatch.setattr("tieredstore.store.child.owner.ORPHAN_S_MAX", 0.0)
    found = TieringInLoop()
    monkeypatch.setattr(process, "start_process", found.start)
    return found


def opened(root: Path, retention: RetentionOptions = KEPT, **more: object) -> TieredMessageStore:
    """The store below `root`, not open yet."""
    given: dict[str, object] = {**SETTINGS, **more}
    found = open_store(
        root / "store",
        root / "tier",
        settings=given,
        hot=SMALL,
        retention=retention,
        process="own",
    )
    assert isinstance(found, TieredMessageStore)
    return found


async def put(store: TieredMessageStore, numbers: range, topic: str = "Orders") -> None:
    await store.put_messages(
        [NewMessage(topic, 0, b"%d" % at * 200, {"KEYS": f"key-{at}"}) for at in numbers]
    )


async def tiered(store: TieredMessageStore, end: int, topic: str = "Orders") -> None:
    """Wait until a queue is tiered up to `end`, and the store's process knows."""

    def is_tiered() -> bool:
        side = store._reads.cold  # pyright: ignore[reportPrivateUsage] - as above
        return side is not None and side.holds_back(QueueId(topic, 0)) == end

    await until(is_tiered, Patience(f"{topic} is not tiered up to {end}"))


async def bodies(store: TieredMessageStore, end: int) -> list[bytes]:
    found: list[bytes] = []
    async for message in store.messages("g", "Orders", 0, 0):
        found.append(message.body)
        if len(found) == end:
            break
    return found


def expected(end: int) -> list[bytes]:
    return [b"%d" % at * 200 for at in range(end)]


async def end_in_tier(root: Path) -> int:
    """The end of the queue in the tier itself."""
    store = PosixStore(next((root / "tier").glob("*/*")))
    try:
        queue = (await TierReader.open(store)).queue(ORDERS)
    finally:
        await store.close()
    return 0 if queue is None else queue.next_offset


async def test_messages_are_tiered_expire_and_are_read_as_one_queue(
    tmp_path: Path, tasks: TieringInLoop
) -> None:
    async with opened(tmp_path, GREEDY) as store:
        await put(store, range(200))
        assert (await store.get_message("g", "Orders", 0, 199)).status is FetchStatus.FOUND
        await tiered(store, 200)
        assert await store.commit_offset("Orders", 0) == 200
        assert (await store._local.trim()).files  # pyright: ignore[reportPrivateUsage] - now
        first = await store._local.min_offset("Orders", 0)  # pyright: ignore[reportPrivateUsage]
        assert 0 < first < 200
        assert await bodies(store, 200) == expected(200)
        for number in (0, 199):  # keys are in no file yet: the owner has them in memory
            result = await store.query_message("Orders", f"key-{number}")
            assert [message.queue_offset for message in result.messages] == [number]
            assert result.is_complete
        await store.set_level("DISABLE")
        await until(lambda: side_of(store).is_paused, Patience("it is not paused"))
        await put(store, range(200, 210))
        await store.log.flush()
        await store.set_level("FORCE")
        await tiered(store, 210)
        figures = store.statistics()
        await until(
            lambda: store.statistics()["tier_messages"] == 210, Patience(f"reports: {figures}")
        )
        assert store.statistics()["messages_from_tier"] > 0
    assert len(tasks.started) == 1


async def test_nothing_is_deleted_from_the_hot_log_before_this_process_sees_it_in_the_tier(
    tmp_path: Path, tasks: TieringInLoop
) -> None:
    del tasks
    async with opened(tmp_path, GREEDY) as store:
        unseen = Unavailable("the storage is away", "journal")
        with patch.object(TierReader, "refresh", side_effect=unseen):
            await put(store, range(60))
            await until(
                lambda: side_of(store).statistics().messages == 60, Patience("it is not tiered")
            )
            assert side_of(store).holds_back(ORDERS) == 0
            assert (await store._local.trim()).files == ()  # pyright: ignore[reportPrivateUsage]
        await tiered(store, 60)
        assert (await store._local.trim()).files  # pyright: ignore[reportPrivateUsage]
        assert await bodies(store, 60) == expected(60)


async def test_a_process_that_ends_is_replaced_and_appends_go_on_meanwhile(
    tmp_path: Path, tasks: TieringInLoop, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path, GREEDY) as store:
        await put(store, range(50))
        await tiered(store, 50)
        side = side_of(store)
        for kills in range(1, 4):
            tasks.started[-1].kill()
            await until(lambda: not side.pid, Patience("it does not end"))
            await put(store, range(50 * kills, 50 * kills + 50))
            statistics = store.dispatch_statistics()
            assert statistics is not None
            assert statistics.outage
            assert "started again" in statistics.last_error
            await tiered(store, 50 * kills + 50)
            assert side.restarts == kills
        statistics = store.dispatch_statistics()
        assert statistics is not None
        assert not statistics.outage
        assert await bodies(store, 200) == expected(200)
    assert sum("messages stay in the hot log" in record.message for record in caplog.records) == 3
    assert await end_in_tier(tmp_path) == 200


async def test_calls_that_need_the_owner_fail_while_none_runs_and_may_be_repeated(
    tmp_path: Path, tasks: TieringInLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "BACKOFF_S_MIN", 0.2)
    async with opened(tmp_path) as store:
        await put(store, range(20))
        await tiered(store, 20)
        tasks.started[-1].kill()
        await until(lambda: not side_of(store).pid, Patience("it does not end"))
        with pytest.raises(Unavailable, match="started again"):
            await store.delete_topics(["Orders"])
        assert store.topics() == {"Orders": 1}
        found = await store.query_message("Orders", "key-3")  # by this process
        assert [message.queue_offset for message in found.messages] == [3]
        await until(lambda: bool(side_of(store).pid), Patience("it is not started again"))
        await store.delete_topics(["Orders"])
        assert store.topics() == {}


async def test_a_topic_is_deleted_from_both_sides_and_begins_above_its_old_end(
    tmp_path: Path, tasks: TieringInLoop
) -> None:
    del tasks
    async with opened(tmp_path, tieredStoreDeleteFileInterval=1_000) as store:
        await put(store, range(30))
        await put(store, range(5), "Kept")
        await tiered(store, 30)
        await store.delete_topics(["Orders"])
        assert store.topics() == {"Kept": 1}
        assert side_of(store).tier.queue(ORDERS) is None
        await put(store, range(1))
        assert await store.min_offset("Orders", 0) == 30
        with pytest.raises(ValueError, match="system topic"):
            await store.delete_topics(["TBW102"])


async def test_values_of_topics_and_transfer_limits_reach_the_owner(
    tmp_path: Path, tasks: TieringInLoop
) -> None:
    del tasks
    async with opened(tmp_path, tieredStoreDeleteFileEnable=True) as store:
        await put(store, range(3))
        await tiered(store, 3)
        await store.set_retention("Orders", 48)
        assert side_of(store).tier.state.topics["Orders"].retention_hours == 48
        store.limits.upload_bytes_per_s = 12_345
        side = side_of(store)
        await until(
            lambda: side._limits[0] == 12_345,  # pyright: ignore[reportPrivateUsage] - they are sent
            Patience("limits are not sent"),
        )


async def test_what_waits_is_tiered_when_the_store_is_closed(
    tmp_path: Path, tasks: TieringInLoop
) -> None:
    store = opened(tmp_path, tieredStoreGroupCommitTimeout=100_000)
    async with store:
        await put(store, range(100))
    assert await end_in_tier(tmp_path) == 100
    with pytest.raises(Closed):
        await put(store, range(1))
    assert len(tasks.started) == 1


async def test_a_store_closes_without_a_process_and_the_next_start_tiers_the_rest(
    tmp_path: Path,
    tasks: TieringInLoop,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(process, "BACKOFF_S_MIN", 3600.0)
    monkeypatch.setattr(process, "BACKOFF_S_MAX", 3600.0)
    async with opened(tmp_path) as store:
        await put(store, range(10))
        await tiered(store, 10)
        tasks.started[-1].kill()
        await until(lambda: not side_of(store).pid, Patience("it does not end"))
        await put(store, range(10, 20))
    assert "the next start tiers what waits" in caplog.text
    async with opened(tmp_path) as store:
        await tiered(store, 20)
        assert await bodies(store, 20) == expected(20)


async def test_a_process_that_ends_while_it_closes_is_not_replaced(
    tmp_path: Path,
    tasks: TieringInLoop,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def close(_: TieringOwner) -> None:
        tasks.started[-1].kill()
        await asyncio.Event().wait()

    monkeypatch.setattr(TieringOwner, "_close", close)
    async with opened(tmp_path) as store:
        await put(store, range(10))
    assert len(tasks.started) == 1
    assert "ended while it closed" in caplog.text


async def test_a_process_that_does_not_close_in_time_is_killed(
    tmp_path: Path,
    tasks: TieringInLoop,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def close(_: TieringOwner) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(TieringOwner, "_close", close)
    monkeypatch.setattr(process, "CLOSE_MARGIN_S", 0.0)
    async with opened(tmp_path, tieredStoreShutdownTimeout=1) as store:
        await put(store, range(10))
    assert tasks.started[0].task is not None
    assert tasks.started[0].task.done()
    assert "is killed: the next start tiers what waits" in caplog.text


async def test_a_living_owner_is_refused_and_one_that_takes_over_ends_the_block(
    tmp_path: Path, tasks: TieringInLoop
) -> None:
    async with opened(tmp_path) as store:
        await put(store, range(3))
        await tiered(store, 3)
    config = Config.named(tmp_path / "tier", "C", "b", None, SETTINGS)
    clock = SystemClock()
    root = tmp_path / "store"
    async with open_configured_tier(config, root, clock=clock) as tier:
        with pytest.raises(Owned, match="owns the tier and lives"):
            async with opened(tmp_path):
                pytest.fail("it was opened")
        await tier.journal.close()
    assert len(tasks.started) == 2

    async def take() -> None:
        async with opened(tmp_path) as store:
            await put(store, range(3, 6))
            await tiered(store, 6)
            async with open_configured_tier(config, root, clock=clock, take_over=True) as tier:
                await asyncio.wait_for(asyncio.Event().wait(), 20)
                await tier.journal.close()

    with pytest.raises(Fenced):
        await take()
    assert len(tasks.started) == 3  # an owner that was replaced is not started again


async def test_a_start_that_fails_for_now_is_tried_again(
    tmp_path: Path, tasks: TieringInLoop
) -> None:
    async with opened(tmp_path) as store:
        await put(store, range(3))
    tasks.fails.append(Unavailable("no memory", "python"))
    async with opened(tmp_path) as store:
        assert store.awaited is not None
        await put(store, range(3, 6))
        await tiered(store, 6)
        assert store.awaited is None
        tasks.fails += [Unavailable("no memory", "python")] * 2
        tasks.started[-1].kill()
        side = side_of(store)
        await until(lambda: side.restarts == 3, Patience("it is not started again"))
        await put(store, range(6, 9))
        await tiered(store, 9)


async def test_a_contradiction_ends_the_opening_with_its_sentence(
    tmp_path: Path, tasks: TieringInLoop
) -> None:
    async with opened(tmp_path) as store:
        await put(store, range(5))
    (tmp_path / "store").rename(tmp_path / "first")
    other = tmp_path / "other"
    settings = {**SETTINGS, "tieredStorageLevel": "DISABLE"}
    async with open_store(other / "store", other / "tier", settings=settings, hot=SMALL) as store:
        await store.put_messages([NewMessage("Orders", 0, b"another %d" % at) for at in range(5)])
    (other / "store").rename(tmp_path / "store")
    with pytest.raises((Contradiction, ConfigError)) as raised:
        async with opened(tmp_path, tieredStoreNameCheckEnable=False):
            pytest.fail("it was opened")
    assert raised.value
    assert len(tasks.started) == 2


async def test_a_hot_log_that_was_lost_continues_at_its_tiers_end(
    tmp_path: Path, tasks: TieringInLoop
) -> None:
    del tasks
    async with opened(tmp_path) as store:
        await put(store, range(40))
    (tmp_path / "store").rename(tmp_path / "lost")
    async with opened(tmp_path) as store:
        await put(store, range(40, 50))
        assert await bodies(store, 50) == expected(50)
        await tiered(store, 50)


async def test_the_page_has_the_metrics_of_both_processes(
    tmp_path: Path, tasks: TieringInLoop
) -> None:
    del tasks
    async with opened(tmp_path) as store:
        await put(store, range(3))
        await tiered(store, 3)
        page = await asyncio.to_thread(lambda: list(store.registry.collect()))
        values = {sample.name: sample.value for family in page for sample in family.samples}
        prefix = "tieredstore_tiering_process"
        assert (values[f"{prefix}_up"], values[f"{prefix}_restarts_total"]) == (1, 0)
        assert values[f"{prefix}_report_age_seconds"] < 60
        assert {f"{prefix}_cpu_seconds_total", f"{prefix}_resident_memory_bytes"} <= set(values)
        assert "tieredstore_provider_requests_total" in values  # of the owner and of the reader
        moment = side_of(store).watch(SystemClock()).moment()
        assert moment.is_owner
        assert moment.queues[ORDERS].next_offset == 3
    assert not [one for one in store.registry.collect() if "tiering_process" in one.name]


def test_metrics_of_two_processes_are_added_by_their_labels() -> None:
    pages = CollectorRegistry(), CollectorRegistry()
    for page, calls in zip(pages, (3, 4), strict=True):
        counter = Counter("calls", "Calls.", ["verb"], registry=page)
        counter.labels("read").inc(calls)
        if page is pages[1]:
            counter.labels("write").inc(1)
    families = list(summed(family for page in pages for family in page.collect()))
    values = {
        sample.labels["verb"]: sample.value
        for family in families
        for sample in family.samples
        if sample.name == "calls_total"
    }
    assert [family.name for family in families] == ["calls"]
    assert values == {"read": 7, "write": 1}


def test_a_record_of_the_other_process_goes_to_the_handlers_of_its_logger(
    caplog: pytest.LogCaptureFixture,
) -> None:
    record = logging.LogRecord("tieredstore.owner", logging.WARNING, "", 1, "said", None, None)
    process._log(record)  # pyright: ignore[reportPrivateUsage] - a note calls it
    assert [one.message for one in caplog.records] == ["said"]
    with caplog.at_level(logging.ERROR, "tieredstore.owner"):
        process._log(record)  # pyright: ignore[reportPrivateUsage] - as above
    assert len(caplog.records) == 1
