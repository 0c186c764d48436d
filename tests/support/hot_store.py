"""Our own store directories for tests: written without an event loop, and looked into."""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from unittest.mock import patch

from container.names.queue_id import QueueId
from container.names.rocketmq import INT32_MAX
from container.record.message import StoredMessage
from container.record.unit import UNIT_BYTES, ConsumeQueueUnit
from provider.errors import StoreError
from provider.testing.manual_clock import ManualClock
from tieredstore.hot import batch_plan, encoding
from tieredstore.hot.appender import Appender
from tieredstore.hot.encoding import Appended, NewMessage, prepare
from tieredstore.hot.log.directory import StoreDirectory
from tieredstore.hot.options import HotWriteOptions
from tieredstore.hot.reading import first_with_record, read_messages
from tieredstore.store.local import LocalMessageStore

SMALL = HotWriteOptions(commit_log_bytes=4096, consume_queue_bytes=200, files_open_max=3)
"""Files that a few messages fill."""


def as_new(
    message: StoredMessage, *, queue_id: int | None = None, properties: bytes | None = None
) -> NewMessage:
    """What was to be appended for this message to be stored; with another queue or properties."""
    fields = message.fields()
    return NewMessage(
        fields.topic,
        fields.queue_id if queue_id is None else queue_id,
        fields.body,
        fields.properties if properties is None else properties,
        flag=fields.flag,
        sys_flag=fields.sys_flag,
        born_timestamp=fields.born_timestamp,
        born_host=fields.born_host,
        store_host=fields.store_host,
        reconsume_times=fields.reconsume_times,
        prepared_transaction_offset=fields.prepared_transaction_offset,
    )


@contextmanager
def all_topics_taken() -> Iterator[None]:
    """Messages of any topic and queue id are taken, as an older version and a broker do."""
    with patch.multiple(encoding, untiered_reason=lambda *_: "", QUEUE_ID_MAX=INT32_MAX):
        try:
            yield
        finally:
            for kept in (encoding.queue_of, batch_plan._common):
                kept.cache_clear()


@asynccontextmanager
async def of_older_version(
    root: Path, options: HotWriteOptions = SMALL
) -> AsyncIterator[LocalMessageStore]:
    """A store of an older version, which takes topics that are never tiered."""
    with all_topics_taken():
        async with LocalMessageStore(root, options=options) as store:
            yield store


@contextmanager
def appender_at(
    root: Path, options: HotWriteOptions = SMALL, clock: ManualClock | None = None
) -> Iterator[Appender]:
    """An appender that is dropped as a crash of the process would drop it, unless it is closed."""
    directory = StoreDirectory(root)
    try:
        appender = Appender(directory, options, clock or ManualClock())
    except BaseException:
        directory.close()
        raise
    try:
        yield appender
    finally:
        appender.log.close()
        appender.queues.close()
        directory.close()


def put(appender: Appender, messages: Sequence[NewMessage], now_ms: int = 1) -> list[Appended]:
    """Append messages as one group."""
    prepared = [prepare(message, now_ms, appender.options) for message in messages]
    return appender.append(prepared).appended


def contents(appender: Appender) -> dict[QueueId, list[StoredMessage]]:
    """Every message that can be read, each verified by its record; a queue may begin above 0."""
    found: dict[QueueId, list[StoredMessage]] = {}
    for queue, end in appender.next_offsets.items():
        messages = found[queue] = []
        at = first_with_record(appender, queue)
        while at < end:
            messages += read_messages(appender, queue, at, end - at, 1 << 30)
            at = messages[-1].queue_offset + 1
    return found


def readable(appender: Appender) -> tuple[dict[QueueId, list[bytes]], list[StoreError]]:
    """Bodies of all messages that can be read one by one, and the errors of the others."""
    found: dict[QueueId, list[bytes]] = {}
    errors: list[StoreError] = []
    for queue, end in sorted(appender.next_offsets.items()):
        found[queue] = []
        for offset in range(first_with_record(appender, queue), end):
            try:
                (message,) = read_messages(appender, queue, offset, 1, 1)
                found[queue].append(message.body)
            except StoreError as error:
                errors.append(error)
    return found, errors


def units_after(appender: Appender, queue: QueueId, offset: int) -> list[ConsumeQueueUnit]:
    """What stands in a queue's files from `offset` on that is not zeros."""
    directory = appender.queues.path(queue, 0).parent
    raw = b"".join(path.read_bytes() for path in sorted(directory.iterdir()))
    first = appender.queues.first_offset(queue)
    units = [ConsumeQueueUnit(*u) for u in ConsumeQueueUnit.LAYOUT.iter_unpack(raw)]
    assert len(raw) % UNIT_BYTES == 0
    return [u for u in units[offset - first :] if u != ConsumeQueueUnit(0, 0, 0)]


def new_message(
    number: int, *, topic: str = "Orders", queue_id: int = 0, body_bytes: int = 20
) -> NewMessage:
    """A message that differs from those with other numbers."""
    body = f"{number}:".encode().ljust(body_bytes, b".")
    return NewMessage(topic, queue_id, body, {"TAGS": f"Tag{number % 3}", "KEYS": f"key-{number}"})
