"""What reads of a tier are counted in."""

from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from provider.clock import SystemClock
from tests.support.hot_store import new_message
from tests.support.tiered_world import OUTAGE, TieredWorld
from tieredstore.metrics import reads
from tieredstore.metrics.families import LabelledMetrics, TieringMetrics
from tieredstore.metrics.reads import Caller, ReadMeter

NAME = "rocketmq_tiered_store_"


def page_of(registry: CollectorRegistry) -> dict[str, float]:
    """The samples of a page."""
    lines = generate_latest(registry).decode().splitlines()
    rows = [line.rpartition(" ") for line in lines if not line.startswith("#")]
    return {name: float(value) for name, _, value in rows}


async def test_reads_are_counted_where_the_tier_serves_them(tmp_path: Path) -> None:
    clock = SystemClock()
    world = TieredWorld(tmp_path / "store", clock)
    async with world.store("FORCE") as store:
        await store.put_messages([new_message(number) for number in range(40)])
        await world.commit(store)
        for offset in (0, 32):
            await store.get_message("g", "Orders", 0, offset, messages_max=32)
        await store.message_store_time("Orders", 0, 3)
        await store.offset_by_time("Orders", 0, 0)
        await store.query_message("Orders", "key-1")
        page = page_of(store.registry)
        assert page[f'{NAME}messages_out_total{{group="g",topic="Orders"}}'] == 40
        for operation, group, calls in (
            ("get_message", "g", 2),
            ("get_time_by_offset", "", 1),
            ("query_message", "", 1),
        ):
            labels = f'{{group="{group}",operation="{operation}",topic="Orders"}}'
            assert page[f"{NAME}api_latency_count{labels}"] == calls, operation
        assert not [name for name in page if "fallback_total{" in name]
        world.tier_store.faults = OUTAGE
        assert (await store.get_message("g", "Orders", 0, 5)).messages
        page = page_of(store.registry)
        labels = '{group="g",operation="get_message",topic="Orders"}'
        assert page[f"{NAME}get_message_fallback_total{labels}"] == 1
        world.tier_store.faults = ()


async def test_the_cache_is_told_as_it_is(tmp_path: Path) -> None:
    world = TieredWorld(tmp_path / "store", SystemClock())
    async with world.store("FORCE") as store:
        await store.put_messages([new_message(number) for number in range(40)])
        await world.commit(store)
        await store.get_message("g", "Orders", 0, 0)
        assert store.cold is not None
        watch = store.cold.watch(world.clock)
        registry = CollectorRegistry()
        registry.register(LabelledMetrics([TieringMetrics(watch.moment, "1")], {}))
        page = page_of(registry)
        found = {
            name.partition("{")[0].removeprefix(f"{NAME}read_ahead_cache_"): value
            for name, value in page.items()
            if "read_ahead_cache" in name
        }
        statistics = store.cold.fetcher.statistics()
        assert found == {
            "count": statistics.runs_held,
            "bytes": statistics.bytes_held,
            "access_total": statistics.hits + statistics.misses,
            "hit_total": statistics.hits,
        }
        assert statistics.misses > 0


def test_topics_and_groups_are_bounded() -> None:
    registry = CollectorRegistry()
    meter = ReadMeter(registry, SystemClock())
    for number in range(reads.CALLERS_MAX + 500):
        meter.gave(Caller("get_message", "T", f"group-{number}"), 2)
    page = page_of(registry)
    rows = [name for name in page if name.startswith(f"{NAME}messages_out_total{{")]
    assert len(rows) == reads.CALLERS_MAX + 1
    assert page[f'{NAME}messages_out_total{{group="",topic=""}}'] == 1_000
