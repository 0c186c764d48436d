"""Which topics are never tiered."""

import pytest

from container.names.queue_id import QueueId
from dispatcher.topic_filter import SYSTEM_TOPICS, TopicFilter, is_excluded
from tests.support.dispatch_world import World

EXCLUDED = ["", " ", "\t", "rmq_sys_INDEX", "rmq_sys_REVIVE_LOG_c", "%LMQ%q", "cluster", "broker"]
EXCLUDED.append("cluster_REPLY_TOPIC")
TIERED = ["Orders", "%RETRY%group", "%DLQ%group", "cluster2", "my_rmq_sys_x", "TBW1020", "RMQ_SYS"]


@pytest.mark.parametrize("topic", [*EXCLUDED, *sorted(SYSTEM_TOPICS)])
def test_what_rocketmq_keeps_for_itself_is_excluded(topic: str) -> None:
    assert is_excluded(topic, cluster="cluster", broker="broker")


@pytest.mark.parametrize("topic", TIERED)
def test_other_topics_are_tiered(topic: str) -> None:
    assert not is_excluded(topic, cluster="cluster", broker="broker")


def test_the_system_topics_are_the_ten_of_rocketmq() -> None:
    assert len(SYSTEM_TOPICS) == 10


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
