"""Which topics are never tiered."""

import pytest

from container.names.queue_id import QueueId
from dispatcher.topic_filter import SYSTEM_TOPICS, TopicFilter, is_excluded
from tests.support.dispatch_world import World

EXCLUDED = ["", " ", "\t", "rmq_sys_INDEX", "rmq_sys_REVIVE_LOG_c", "%LMQ%q", "cluster", "broker"]
TIERED = ["Orders", "%RETRY%group", "%DLQ%group", "cluster2", "my_rmq_sys_x", "TBW1020", "RMQ_SYS"]


@pytest.mark.parametrize("topic", [*EXCLUDED, *sorted(SYSTEM_TOPICS)])
def test_what_rocketmq_keeps_for_itself_is_excluded(topic: str) -> None:
    assert is_excluded(topic, cluster="cluster", broker="broker")


@pytest.mark.parametrize("topic", TIERED)
def test_other_topics_are_tiered(topic: str) -> None:
    assert not is_excluded(topic, cluster="cluster", broker="broker")


def test_the_system_topics_are_the_ten_of_rocketmq() -> None:
    assert len(SYSTEM_TOPICS) == 10


def test_a_topic_can_be_excluded_while_running() -> None:
    topics = TopicFilter("cluster", "broker", frozenset({"Old"}))
    assert topics.excludes("Old")
    assert topics.excludes("broker")
    assert not topics.excludes("New")
    topics.exclude("New")
    assert topics.excludes("New")
    assert repr(topics) == "<TopicFilter of broker: 2 blacklisted>"


async def test_what_a_hot_log_reports_of_excluded_topics_is_not_tiered() -> None:
    world = World(topics=TopicFilter("cluster", "broker"))
    names = ["Orders", "rmq_sys_TRACE", "%LMQ%a", "broker", "cluster", "%RETRY%group"]
    queues = {name: QueueId(name, 0) for name in names}
    for queue in queues.values():
        world.hot.append(queue, b"x")
    report = await world.finish(world.dispatcher.drain())
    tiered = {queues["Orders"], queues["%RETRY%group"]}
    assert world.tier.queues.keys() == tiered
    assert {queue.queue for queue in report.queues} == tiered
    assert (report.behind, world.hot.released.keys()) == (0, tiered)


async def test_a_topic_that_is_excluded_while_running_is_tiered_no_further() -> None:
    topics = TopicFilter("cluster", "broker")
    world = World(topics=topics)
    queue = QueueId("Orders", 0)
    world.hot.append(queue, b"x")
    async with world.running():
        await world.wait_for(lambda: world.is_tiered(queue), seconds=1.0)
        topics.exclude("Orders")
        world.hot.append(queue, b"y")
        await world.pass_time(2.0)
    assert list(world.tier.bodies(queue)) == [0]
