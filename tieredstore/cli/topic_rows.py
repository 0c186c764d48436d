"""Topics as rows of a table: at the end of `tier` and `run`, and while they run."""

from tieredstore.cli.output import Row, count_text, size_text
from tieredstore.summary import TopicSummary

COLUMNS = ("topic", "queues", "messages", "new", "size", "behind", "lost")
NUMBERS = frozenset(COLUMNS[1:])


def cells_of(topic: TopicSummary) -> tuple[str, ...]:
    """One row; zeros of what should be zero are left out."""
    return (
        topic.topic,
        str(topic.queues),
        count_text(topic.messages),
        count_text(topic.messages_new),
        size_text(topic.bytes),
        count_text(topic.behind) if topic.behind else "",
        count_text(topic.lost) if topic.lost else "",
    )


def row_of(topic: TopicSummary) -> Row:
    """The same with all that `--json` prints."""
    return {
        "topic": topic.topic,
        "queues": topic.queues,
        "messages": topic.messages,
        "messages_new": topic.messages_new,
        "commit_log_bytes": topic.bytes,
        "commit_log_bytes_new": topic.bytes_new,
        "behind": topic.behind,
        "lost": topic.lost,
        "over": [
            {"queue_id": queue, "state": state, "reason": reason}
            for queue, state, reason in topic.over
        ],
    }
