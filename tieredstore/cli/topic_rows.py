"""Topics as rows of a table: at the end of `tier`, and while it follows."""

from tieredstore.cli.output import count_text, size_text
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
