"""The rule for topics: RocketMQ's names that are never tiered, and a blacklist.

All code that writes, opens, tiers or deletes topics uses this module. A put to a topic that is
never tiered is refused, because no other copy of the message would ever exist. Stores that have
such topics from an older version or from a broker open with a warning, and such topics can be
deleted.
"""

from collections.abc import Collection

SYSTEM_PREFIX = "rmq_sys_"
LMQ_PREFIX = "%LMQ%"
SYSTEM_TOPICS = frozenset(
    {
        "TBW102",
        "SCHEDULE_TOPIC_" + 4 * "X",
        "BenchmarkTest",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRACE_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "CHECKPOINT_TOPIC",
    }
)
"""RocketMQ's own topics, from its class `TopicValidator`."""


QUEUE_ID_MAX = 65_535
"""Largest queue id that accepts messages. RocketMQ's tools stop far below."""
REPLY_SUFFIX = "_REPLY_TOPIC"
"""Suffix of the cluster's name in a topic that each broker creates for itself."""


def own_topics(cluster: str, broker: str) -> frozenset[str]:
    """Return the topics that a broker creates for itself, named after it and its cluster. Pure."""
    return frozenset({cluster, f"{cluster}{REPLY_SUFFIX}", broker})


def is_system_topic(topic: str) -> bool:
    """Whether a topic is RocketMQ's own, or a light-weight queue. O(1)."""
    return topic in SYSTEM_TOPICS or topic.startswith((SYSTEM_PREFIX, LMQ_PREFIX))


def untiered_reason(topic: str, own: Collection[str] = ()) -> str:
    """Return the reason why a topic is never tiered; "" if it is tiered. Pure, O(1).

    Blank names, system topics (by list and by prefix), light-weight queues and the broker's own
    topics are never tiered. Retry and dead-letter topics are tiered.
    """
    if not topic.strip():
        return "its name is blank"
    if topic.startswith(LMQ_PREFIX):
        return "it is a light queue of RocketMQ's"
    if is_system_topic(topic):
        return "it is a system topic of RocketMQ's"
    if topic in own:
        return "it is a system topic, named after the cluster or the broker"
    return ""


def is_excluded(topic: str, *, cluster: str, broker: str) -> bool:
    """Whether a topic of this broker is never tiered; see `untiered_reason`. O(1)."""
    return bool(untiered_reason(topic, own_topics(cluster, broker)))


class TopicFilter:
    """Rule of one broker, with a blacklist.

    The dispatcher applies it to the queues that a hot log reports. A hot log may apply it, too, to
    save the work for topics that are never tiered.
    """

    def __init__(self, cluster: str, broker: str, blacklist: frozenset[str] = frozenset()) -> None:
        self._broker = broker
        self._own = own_topics(cluster, broker)
        self._blacklist = blacklist

    def __repr__(self) -> str:
        return f"<TopicFilter of {self._broker}: {len(self._blacklist)} blacklisted>"

    def excludes(self, topic: str) -> bool:
        """Whether `topic` is not tiered. O(1)."""
        return bool(untiered_reason(topic, self._own)) or topic in self._blacklist
