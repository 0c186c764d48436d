"""Iteration over a queue of any message store."""

from collections.abc import AsyncGenerator

from container.record.message import StoredMessage
from fetcher.result import FetchStatus
from provider.errors import Unavailable
from tieredstore.store.protocol import GetMessageResult, MessageStore

MESSAGES_AT_ONCE = 256
"""Messages of one read. A store may return fewer."""
WAIT_S = 3600.0
"""Longest single wait for a message, in seconds. After it the store is read again."""

_PASSED_OVER = (FetchStatus.OFFSET_FOUND_NULL, FetchStatus.MESSAGE_WAS_REMOVING)


async def messages_of(
    store: MessageStore, group: str, topic: str, queue_id: int, start: int
) -> AsyncGenerator[StoredMessage, None]:
    """Yield every message of a queue from `start` on, then new ones as they arrive. Endless.

    Yields each message once and in order, whichever side serves it. Deleted or lost messages are
    skipped. A start above the end waits until the queue has reached it. Reads by
    `store.get_message`.

    Raises:
        StoreError: as `MessageStore.get_message`; no message is skipped then.
    """
    offset = start
    while True:
        result = await store.get_message(
            group, topic, queue_id, offset, messages_max=MESSAGES_AT_ONCE
        )
        for message in result.messages:
            yield message
        await refuse_missing(store, topic, queue_id, offset, result)
        if result.status is FetchStatus.OFFSET_OVERFLOW_BADLY:
            following = offset
        else:
            following = max(offset, result.next_offset)
        if following == offset:
            await store.wait_for_message(topic, queue_id, offset, WAIT_S)
        offset = following


async def refuse_missing(
    store: MessageStore, topic: str, queue_id: int, offset: int, result: GetMessageResult
) -> None:
    """Check that a read that skipped messages did not miss some of the hot log.

    Raises:
        Unavailable: the message at `offset` should be in the hot log, but a file is missing.
    """
    if result.status in _PASSED_OVER and await store.is_in_store(topic, queue_id, offset):
        raise Unavailable("a file of the hot log is missing", f"{topic}/{queue_id}", offset)
