"""What the metrics of a follower say, and in which words."""

from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest

import tieredstore
from container.names.queue_id import QueueId
from dispatcher.ports import QueueState
from dispatcher.statistics import QueueStatistics
from provider.ranges import QueueOffset
from tests.support.fake_broker import FIRST_STORE_TIMESTAMP, FakeBroker
from tests.support.http import families_of, value_of
from tieredstore.config.effective import Config
from tieredstore.metrics.families import (
    QUEUES_NAMED_MAX,
    LabelledMetrics,
    Moment,
    Opening,
    TieringMetrics,
)
from tieredstore.metrics.page import medium_of, unready_reason

LABELS = {"cluster": "C", "node_id": "b"}


@pytest.fixture
async def moment(tmp_path: Path) -> Moment:
    """After three messages of one topic and one of another."""
    broker = FakeBroker(tmp_path / "store")
    broker.put_many("A", 0, [b"body"] * 2)
    broker.put("A", 1, b"body")
    broker.put("B", 0, b"body")
    async with tieredstore.follow(broker.directory, tmp_path / "tier", broker="b") as follower:
        await follower.drain()
        return follower.moment()


def page_of(moment: Moment) -> str:
    registry = CollectorRegistry()
    registry.register(LabelledMetrics([TieringMetrics(lambda: moment, "1.2.3")], LABELS))
    return generate_latest(registry).decode()


def sample(page: str, name: str, **labels: str) -> float:
    """The value of one sample, whatever labels it has besides."""
    lines = [line for line in page.splitlines() if line.startswith(f"{name}{{")]
    found = [line for line in lines if all(f'{key}="{labels[key]}"' in line for key in labels)]
    assert len(found) == 1, (name, labels, lines)
    return float(found[0].rsplit(" ", 1)[1])


def test_rocketmqs_metrics_bear_its_names_units_and_labels(moment: Moment) -> None:
    page = page_of(moment)
    rocketmq = {
        "cluster": "C",
        "node_id": "b",
        "node_type": "broker",
        "storage_type": "tiered",
        "storage_medium": "posix",
    }
    name = "rocketmq_tiered_store_messages_dispatch_total"
    assert sample(page, name, topic="A", file_type="commit_log", **rocketmq) == 3
    assert sample(page, name, topic="B", file_type="commit_log", **rocketmq) == 1
    for name in ("dispatch_behind", "dispatch_latency"):
        by_queue = {"queue_id": "1", "file_type": "consume_queue", **rocketmq}
        found = sample(page, f"rocketmq_tiered_store_{name}", topic="A", **by_queue)
        assert found == 0
    size = "rocketmq_storage_size"
    assert sample(page, size, topic="A", file_type="consume_queue", **rocketmq) == 60
    logs = [queue for name, queue in moment.queues.items() if name.topic == "A"]
    log_bytes = sum(segment.size for queue in logs for segment in queue.commit_log)
    assert sample(page, size, topic="A", file_type="commit_log", **rocketmq) == log_bytes
    kept = sample(page, "rocketmq_storage_message_reserve_time", topic="B", queue_id="0")
    assert 0 <= moment.now_ms - FIRST_STORE_TIMESTAMP - kept < 60_000


def test_the_medium_is_that_of_the_tier(moment: Moment) -> None:
    for place, medium in (("/mnt/tier", "posix"), ("s3://bucket/tier", "blob")):
        config = Config.load(settings={"tieredStoreFilePath": place}, environment={})
        assert medium_of(config) == medium
        registry = CollectorRegistry()
        tiering = TieringMetrics(lambda: moment, "1.2.3")
        registry.register(LabelledMetrics([tiering], LABELS, medium=medium))
        page = generate_latest(registry).decode()
        found = sample(page, "rocketmq_storage_message_reserve_time", topic="B", queue_id="0")
        assert (
            sample(page, "rocketmq_storage_message_reserve_time", topic="B", storage_medium=medium)
            == found
        )


def test_a_standby_tells_its_version_alone() -> None:
    def sample() -> Moment:
        raise Opening("the tier is being opened", "")

    registry = CollectorRegistry()
    registry.register(TieringMetrics(sample, "1.2.3"))
    assert families_of(generate_latest(registry).decode()) == {"tieredstore_build_info"}


def test_a_page_says_who_it_is_of_and_when_something_landed(moment: Moment) -> None:
    page = page_of(moment)
    assert sample(page, "tieredstore_build_info", version="1.2.3", **LABELS) == 1
    assert sample(page, "tieredstore_owner", **LABELS) == 1
    assert sample(page, "tieredstore_epoch", **LABELS) == 1
    assert sample(page, "tieredstore_garbage_objects") == 0
    assert 0 <= sample(page, "tieredstore_last_commit_age_seconds") < 60
    assert sample(page, "tieredstore_next_commit_seconds") == 0
    assert value_of(page_of(replace(moment, is_owner=False)), "tieredstore_owner") == 0


def troubled(number: int, state: QueueState) -> QueueStatistics:
    offset = QueueOffset(0)
    return QueueStatistics(QueueId("T", number), state, "why", offset, offset, 1, 2.0, 0)


def test_queues_in_trouble_are_named_up_to_a_bound_and_all_are_counted(moment: Moment) -> None:
    stopped = [troubled(number, QueueState.STOPPED) for number in range(QUEUES_NAMED_MAX + 50)]
    failing = replace(troubled(900, QueueState.READY), failures=3)
    queues = (failing, *moment.dispatch.queues, *stopped)
    page = page_of(replace(moment, dispatch=replace(moment.dispatch, queues=queues)))
    named = [line for line in page.splitlines() if line.startswith("tieredstore_queue_state{")]
    assert len(named) == QUEUES_NAMED_MAX
    assert sample(page, "tieredstore_queue_state", queue_id="900", state="failing") == 1
    assert sample(page, "tieredstore_queue_state", queue_id="7", state="stopped") == 1
    assert sample(page, "tieredstore_queues", state="stopped") == len(stopped)
    assert sample(page, "tieredstore_queues", state="ready") == 4
    assert sample(page, "tieredstore_queues", state="damaged") == 0


def test_no_sample_tells_when_a_counter_was_made() -> None:
    inner, outer = CollectorRegistry(), CollectorRegistry()
    Counter("things", "Things.", ["kind"], registry=inner).labels("a").inc()
    outer.register(LabelledMetrics([inner], LABELS))
    page = generate_latest(outer).decode()
    assert families_of(page) == {"things_total"}
    assert value_of(page, 'things_total{cluster="C",kind="a",node_id="b"}') == 1


def test_a_follower_is_ready_unless_something_keeps_messages_from_the_tier(moment: Moment) -> None:
    assert unready_reason(moment) == ""
    dispatch = moment.dispatch
    outage = replace(dispatch, outage=True, last_error="no space")
    blind = replace(dispatch, hot_error="gone (x)")
    stopped = replace(dispatch, queues=(troubled(0, QueueState.STOPPED),))
    assert unready_reason(replace(moment, dispatch=outage)) == "nothing reaches the tier: no space"
    assert "cannot be read: gone" in unready_reason(replace(moment, dispatch=blind))
    assert unready_reason(replace(moment, dispatch=stopped)) == ""
    starting = replace(dispatch, started=False)
    assert unready_reason(replace(moment, dispatch=starting)).startswith("it starts")
    assert "no longer ours" in unready_reason(replace(moment, is_owner=False))
    step = replace(
        moment.upkeep.steps["snapshot"], last_error=tieredstore.Unavailable("full", "@snapshot")
    )
    failing = replace(moment.upkeep, steps={**moment.upkeep.steps, "snapshot": step})
    assert unready_reason(replace(moment, upkeep=failing)).startswith("upkeep fails: snapshot")


@pytest.mark.parametrize(("error", "value"), [("", 0), ("not allowed (x)", 1)])
def test_a_gauge_tells_that_the_hot_log_fails(moment: Moment, error: str, value: int) -> None:
    known = replace(moment.dispatch, hot_error=error)
    page = page_of(replace(moment, dispatch=known))
    assert sample(page, "tieredstore_hot_log_failing") == value
