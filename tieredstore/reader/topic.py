"""Topic as one sequence: queue after queue, or merged by store time."""

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heapreplace

from container.names.queue_id import QueueId
from tieredstore.message import Message
from tieredstore.reader.cursor import QueueCursor, Wanted, messages_of

MERGE_BYTES_MAX = 32 << 20
"""Bytes of records that a merge holds, over all queues."""
MERGE_STEP_BYTES_MIN = 16 << 10
"""Bytes that one step of a queue reads in a merge, however many queues there are."""
CHUNK_MESSAGES_MAX = 1024
"""Messages that a merge gives at once."""

CursorOf = Callable[[QueueId, Wanted, int | None], QueueCursor]
"""Opens a cursor for a queue, a selection, and the bytes of a step at most (None: default)."""


async def queue_by_queue(
    cursor_of: CursorOf, queues: Sequence[QueueId], wanted: Wanted
) -> AsyncIterator[Iterable[Message]]:
    """All of one queue, then of the next; each item are the messages of one fetch, made lazily."""
    left = wanted.messages_max
    for queue in queues:
        if left is not None and left <= 0:
            return
        async for result in cursor_of(queue, replace(wanted, messages_max=left), None):
            if left is not None:
                left -= len(result.messages)
            if len(result.messages):
                yield messages_of(result.messages, queue, wanted.on_damage)


async def by_store_time(
    cursor_of: CursorOf, queues: Sequence[QueueId], wanted: Wanted
) -> AsyncIterator[Iterable[Message]]:
    """All queues merged by store time, some messages at a time.

    The order within a queue stays, so times are not in order after a broker's clock was set back.
    Of messages with the same time those of the lower queue come first. Holds
    `MERGE_BYTES_MAX`, or `MERGE_STEP_BYTES_MIN` or a message for each queue if that is more.
    """
    share = max(MERGE_STEP_BYTES_MIN, MERGE_BYTES_MAX // max(1, len(queues)))
    sources = [_Source(cursor_of(queue, wanted, share), wanted) for queue in queues]
    heads = [
        (source.messages[0].store_timestamp, number)
        for number, source in enumerate(sources)
        if await source.fill()
    ]
    heapify(heads)
    left = wanted.messages_max
    chunk: list[Message] = []
    while heads and (left is None or left > 0):
        _, number = heads[0]
        source = sources[number]
        chunk.append(source.messages.popleft())
        if left is not None:
            left -= 1
        if len(chunk) == CHUNK_MESSAGES_MAX:
            yield chunk
            chunk = []
        if await source.fill():
            heapreplace(heads, (source.messages[0].store_timestamp, number))
        else:
            heappop(heads)
    if chunk:
        yield chunk


async def one_by_one(chunks: AsyncIterator[Iterable[Message]]) -> AsyncIterator[Message]:
    """The messages of all chunks."""
    async for chunk in chunks:
        for message in chunk:
            yield message


class _Source:
    """A queue of a merge. Its messages are copies, so they keep no run of the cache alive."""

    def __init__(self, cursor: QueueCursor, wanted: Wanted) -> None:
        self.messages: deque[Message] = deque()
        self._cursor = cursor
        self._wanted = wanted

    async def fill(self) -> bool:
        """Read on if there is no message at hand; False at the end."""
        while not self.messages:
            result = await anext(self._cursor, None)
            if result is None:
                return False
            self.messages.extend(
                messages_of(result.messages, self._cursor.queue, self._wanted.on_damage)
            )
        return True
