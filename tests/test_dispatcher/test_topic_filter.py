"""Which topics are never tiered."""

import pytest

from dispatcher.topic_filter import SYSTEM_TOPICS, TopicFilter, is_excluded

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
