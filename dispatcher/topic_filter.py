"""Which topics are never tiered: RocketMQ's rule, and a list that can grow while running."""

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


def is_system_topic(topic: str) -> bool:
    """Whether a topic is RocketMQ's own, or a light-weight queue, which no call deletes. O(1)."""
    return topic in SYSTEM_TOPICS or topic.startswith((SYSTEM_PREFIX, LMQ_PREFIX))


def is_excluded(topic: str, *, cluster: str, broker: str) -> bool:
    """Whether a topic of this broker is never tiered. O(1).

    Excluded are blank names, system topics (by list and by prefix), light-weight queues, and the
    topics named like the cluster and the broker. Retry and dead-letter topics are tiered.
    """
    return not topic.strip() or is_system_topic(topic) or topic in (cluster, broker)


class TopicFilter:
    """The rule for one broker, and a blacklist.

    The dispatcher applies it to what any hot log reports. A hot log may know it too, to spend
    nothing on topics that are never tiered.
    """

    def __init__(self, cluster: str, broker: str, blacklist: frozenset[str] = frozenset()) -> None:
        self._cluster = cluster
        self._broker = broker
        self._blacklist = blacklist

    def __repr__(self) -> str:
        return f"<TopicFilter of {self._broker}: {len(self._blacklist)} blacklisted>"

    def excludes(self, topic: str) -> bool:
        """Whether `topic` is not tiered. O(1)."""
        excluded = is_excluded(topic, cluster=self._cluster, broker=self._broker)
        return excluded or topic in self._blacklist
