"""`tieredstore query`: messages of a topic by key."""

import logging
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import click

from container.lookup.query import QueryResult
from container.names.queue_id import QueueId
from container.names.rocketmq import INT64_MAX
from container.record.message import StoredMessage
from provider.errors import Corrupt, StoreError
from tieredstore.cli.invocation import Invocation
from tieredstore.cli.message_printer import MessagePrinter
from tieredstore.cli.output import is_terminal
from tieredstore.cli.reading import (
    with_tiers,
)
from tieredstore.cli.streams import FINDINGS
from tieredstore.message import Message, Origin
from tieredstore.reader.readable_tier import ReadableTier

LOGGER = logging.getLogger("tieredstore.cli.query")


class _Found(NamedTuple):
    """Result of the search in one broker's messages."""

    origin: Origin
    result: QueryResult
    max_offset: int


def run(
    invocation: Invocation,
    *,
    brokers: tuple[str, ...],
    topic: str,
    key: str,
    messages_max: int,
    since: int | None,
    until: int | None,
    oldest_first: bool,
    scan: bool,
    digest: bool,
    java_metadata: Path | None,
    as_json: bool,
) -> int:
    """Find the messages of TOPIC that have KEY."""
    if since is not None and until is not None and until <= since:
        raise click.UsageError("--until is not later than --since")
    if not key.strip():
        raise click.UsageError("an empty text is no key")

    async def work(tier: ReadableTier) -> _Found:
        result = await tier.query_message(
            topic,
            key,
            messages_max=messages_max,
            since=since,
            until=until,
            newest_first=not oldest_first,
            scan_bytes_max=INT64_MAX if scan else None,
        )
        last = max(queue.max_offset for queue in tier.queues(topic))
        return _Found(Origin(tier.cluster, tier.broker), result, last)

    found = [one for _, one in with_tiers(invocation, java_metadata, brokers, work, topic=topic)]
    messages = [(one.origin, message) for one in found for message in one.result.messages]
    messages.sort(key=lambda pair: pair[1].store_timestamp, reverse=not oldest_first)
    printer = MessagePrinter(
        as_json=as_json,
        is_terminal=is_terminal(),
        digest=digest,
        with_queue=True,
        max_offset=max(one.max_offset for one in found),
        brokers=[one.origin for one in found] if brokers else (),
    )
    damage = [error for one in found for error in one.result.damage]
    for origin, group in groupby(messages[:messages_max], key=itemgetter(0)):
        decoded = list(_decoded((stored for _, stored in group), damage))
        printer.print(decoded, origin if brokers else None)
    for error in damage:
        LOGGER.warning("a message may be missing: %s", error)
    unsearched = sum(one.result.unsearched for one in found)
    if unsearched:
        LOGGER.warning(
            "%d messages of %s are in no index yet and were not searched; --scan reads them",
            unsearched, topic,
        )  # fmt: skip
    if not messages:
        LOGGER.warning("no message of %s has the key %s", topic, key)
    elif len(messages) > messages_max or (
        len(messages) == messages_max and not all(one.result.is_complete for one in found)
    ):
        LOGGER.info("there may be more; --max is the number of messages to print")
    return FINDINGS if damage or unsearched or not messages else 0


def _decoded(found: Iterable[StoredMessage], damage: list[StoreError]) -> Iterator[Message]:
    """The messages, bodies decompressed; those whose bodies are damaged are noted instead."""
    for stored in found:
        queue = QueueId(stored.topic, stored.queue_id)
        try:
            yield Message.of(stored, path=str(queue))
        except Corrupt as error:
            damage.append(error)
