"""The rule for topics: RocketMQ's names that are never tiered, and a blacklist.

All that writes, opens, tiers or deletes asks this module. Topics that are never tiered are refused
where messages are put: no other copy of them would ever exist. Stores that have such topics from an
older version or from a broker open, with a warning, and such topics can be deleted.
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
"""RocketMQ's own topics, as its class `TopicValidator` lists them."""


QUEUE_ID_MAX = 65_535
"""Largest queue id that messages are put to; RocketMQ's tools stop far below."""
REPLY_SUFFIX = "_REPLY_TOPIC"
"""Behind the cluster's name: a topic that each broker makes for itself."""


def own_topics(cluster: str, broker: str) -> frozenset[str]:
    """The topics that a broker makes for itself, named like its cluster and itself. Pure."""
    return frozenset({cluster, f"{cluster}{REPLY_SUFFIX}", broker})


def is_system_topic(topic: str) -> bool:
    """Whether a topic is RocketMQ's own, or a light-weight queue. O(1)."""
    return topic in SYSTEM_TOPICS or topic.startswith((SYSTEM_PREFIX, LMQ_PREFIX))


def untiered_reason(topic: str, own: Collection[str] = ()) -> str:
    """Why a topic is never tiered; "" if it is tiered. Pure, O(1).

    Blank names, system topics (by list and by prefix), light-weight queues and the broker's own
    topics are not. Retry and dead-letter topics are.
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
    """The rule for one broker, and a blacklist.

    The dispatcher applies it to what any hot log reports. A hot log may know it too, to spend
    nothing on topics that are never tiered.
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
