"""Bodies of answers that RocketMQ's JSON library alone writes: maps with objects as keys. Pure."""

from collections.abc import Iterable

import orjson

from container.names.queue_id import QueueId


def by_queue(broker: str, rows: Iterable[tuple[QueueId, object]]) -> bytes:
    """Return a map by queue, as RocketMQ's JSON library writes and reads it."""
    pairs = (
        orjson.dumps({"brokerName": broker, "queueId": queue.queue_id, "topic": queue.topic})
        + b":"
        + orjson.dumps(row)
        for queue, row in rows
    )
    return b"{%b}" % b",".join(pairs)
