"""`tieredstore read`: messages of a topic or a queue, by offset, time and tag."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import click

from container.metadata.records import Gap
from container.names.queue_id import QueueId
from fetcher.result import FetchStatus
from fetcher.tag_filter import parse_subscription
from provider.errors import Corrupt
from tieredstore.cli.invocation import Invocation
from tieredstore.cli.message_printer import MessagePrinter
from tieredstore.cli.output import is_terminal, write_json
from tieredstore.cli.reading import with_merged, with_tier, with_tiers
from tieredstore.cli.streams import FINDINGS
from tieredstore.config.sources import ConfigError
from tieredstore.message import Origin
from tieredstore.metrics.summary import QueueSummary
from tieredstore.reader.cursor import GROUP, Wanted, messages_of
from tieredstore.reader.readable_tier import ReadableTier
from tieredstore.reader.readable_tiers import ReadableTiers
from tieredstore.texts import time_text

ONCE_MESSAGES = 32
QUEUES_LISTED_MAX = 8
DAMAGED_NAMED_MAX = 100
BY_TIME = "time"
LOGGER = logging.getLogger("tieredstore.cli.read")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOrder:
    """Options of the command, by their names: the selection, and the form of the output."""

    topic: str
    queue: int | None
    offset: int | None
    messages_max: int | None
    since: int | None
    until: int | None
    tags: str | None
    order: str
    skip_damaged: bool
    digest: bool
    as_json: bool


def run(
    invocation: Invocation,
    *,
    brokers: tuple[str, ...],
    java_metadata: Path | None,
    once: bool,
    **given: Any,  # noqa: ANN401 - the fields of `ReadOrder`
) -> int:
    """Read the messages of TOPIC, or of its queue number QUEUE, with their bodies decompressed."""
    order = ReadOrder(**given)
    _refuse_contradictions(order, brokers, once=once)
    if once or not brokers:

        async def work(tier: ReadableTier) -> int:
            if once:
                return await _read_once(tier, order)
            return (await _read_all(tier, order))[0]

        return with_tier(invocation, java_metadata, work, topic=order.topic, queue=order.queue)
    if order.order == BY_TIME and java_metadata is None:
        return with_merged(invocation, brokers, lambda tiers: _read_merged(tiers, order))
    left = order.messages_max

    async def read(tier: ReadableTier) -> int:
        nonlocal left
        if left == 0:
            return 0
        origin = Origin(tier.cluster, tier.broker)
        status, count = await _read_all(tier, replace(order, messages_max=left), origin)
        left = None if left is None else left - count
        return status

    done = with_tiers(invocation, java_metadata, brokers, read, topic=order.topic)
    return max(status for _, status in done)


def _refuse_contradictions(order: ReadOrder, brokers: Sequence[str], *, once: bool) -> None:
    """Refuse options that contradict one another.

    Raises:
        UsageError, ConfigError: they do.
    """
    if order.queue is None and (once or order.offset is not None):
        option = "--once" if once else "--offset"
        raise click.UsageError(
            f"{option} is about one queue: name it, as in `read {order.topic} 0 {option}`"
        )
    if order.since is not None and order.until is not None and order.until <= order.since:
        raise click.UsageError("--until is not later than --since")
    if brokers and once:
        raise click.UsageError("--once is about one broker: name it with -D brokerName")
    try:
        parse_subscription(order.tags)
    except ValueError as error:
        raise ConfigError(f"--tags: {error}") from error


async def _read_once(tier: ReadableTier, order: ReadOrder) -> int:
    assert order.queue is not None, "the command asked for it"
    queue_id = QueueId(order.topic, order.queue)
    queue = tier.reader.queue(queue_id)
    first = queue.min_offset if queue is not None else 0
    result = await tier.get_message(
        GROUP,
        *queue_id,
        first if order.offset is None else order.offset,
        messages_max=order.messages_max or ONCE_MESSAGES,
        subscription=order.tags,
        exact_tags=True,
    )
    printer = _printer(order, result.max_offset)
    printer.print(messages_of(result.messages, queue_id, None))
    row = {
        "status": result.status.name,
        "next_offset": result.next_offset,
        "min_offset": result.min_offset,
        "max_offset": result.max_offset,
    }
    if order.as_json:
        write_json([row])
    else:
        click.echo(", ".join(f"{name} {value}" for name, value in row.items()))
    return FINDINGS if result.status is FetchStatus.NO_MATCHED_LOGIC_QUEUE else 0


async def _read_all(
    tier: ReadableTier, order: ReadOrder, origin: Origin | None = None
) -> tuple[int, int]:
    """Print the messages. Return the exit status and their number."""
    if order.queue is None:
        queues = tier.queues(order.topic)
    else:
        queues = [tier.queue(order.topic, order.queue)]
    notes = _Notes()
    wanted = _wanted(order, notes)
    origins = (origin,) if origin else ()
    printer = _printer(order, max(queue.max_offset for queue in queues), origins)
    chunks = tier.chunks(order.topic, order.queue, wanted, by_time=order.order == BY_TIME)
    count = 0
    try:
        async for chunk in chunks:
            messages = list(chunk)
            count += len(messages)
            printer.print(messages, origin)
    except Corrupt as error:
        error.reason = f"{error.reason}; --skip-damaged continues after it"
        raise
    if count != order.messages_max:
        LOGGER.info(_end(order, queues))
    return notes.close(), count


async def _read_merged(tiers: ReadableTiers, order: ReadOrder) -> int:
    """Print the messages of all brokers by store time. Return the exit status."""
    queues, notes = tiers.queues(order.topic), _Notes()
    origins = sorted({origin for origin, _ in queues})
    printer = _printer(order, max(queue.max_offset for _, queue in queues), origins)
    chunks = tiers.chunks(order.topic, order.queue, _wanted(order, notes), by_time=True)
    async for chunk in chunks:
        for origin, pairs in groupby(chunk, itemgetter(0)):
            printer.print([message for _, message in pairs], origin)
    return notes.close()


def _wanted(order: ReadOrder, notes: "_Notes") -> Wanted:
    if order.since is not None or order.until is not None:
        LOGGER.info("reading what was stored %s", _span(order))
    return Wanted(
        offset=order.offset,
        messages_max=order.messages_max,
        tags=order.tags,
        since_ms=order.since,
        until_ms=order.until,
        on_damage=notes.damage if order.skip_damaged else None,
        on_gap=notes.gap,
    )


class _Notes:
    """Reports on standard error the messages and bytes that a read skips."""

    def __init__(self) -> None:
        self._damaged = 0

    def damage(self, queue: QueueId, offset: int, error: Corrupt) -> None:
        """A damaged message; the first ones are named."""
        self._damaged += 1
        if self._damaged <= DAMAGED_NAMED_MAX:
            LOGGER.warning("%s: offset %d is damaged and passed over: %s", queue, offset, error)

    def gap(self, queue: QueueId, gap: Gap) -> None:
        """Messages that were lost."""
        LOGGER.warning(
            "%s: offsets %d to %d were lost before they could be tiered: %s",
            queue, gap.start, gap.end - 1, gap.reason,
        )  # fmt: skip

    def close(self) -> int:
        """Say how many were damaged; the exit status."""
        if not self._damaged:
            return 0
        plural = "s were" if self._damaged > 1 else " was"
        LOGGER.warning("%d damaged message%s passed over", self._damaged, plural)
        return FINDINGS


def _printer(order: ReadOrder, max_offset: int, brokers: Sequence[Origin] = ()) -> MessagePrinter:
    return MessagePrinter(
        as_json=order.as_json,
        is_terminal=is_terminal(),
        digest=order.digest,
        with_queue=order.queue is None,
        max_offset=max_offset,
        brokers=brokers,
    )


def _span(order: ReadOrder) -> str:
    """The times of an order in words, with their time zone."""
    bounds = (("from", order.since), ("before", order.until))
    return " and ".join(f"{word} {time_text(at)} UTC" for word, at in bounds if at is not None)


def _end(order: ReadOrder, queues: Sequence[QueueSummary]) -> str:
    """Describe the end of a read in words."""
    if order.until is not None:
        return f"end of what was stored before {time_text(order.until)} UTC"
    places = [f"queue {one.queue_id} at offset {one.max_offset}" for one in queues]
    more = len(places) - QUEUES_LISTED_MAX
    listed = ", ".join(places[:QUEUES_LISTED_MAX])
    return f"end of {order.topic}: {listed}{f' and {more} more queues' if more > 0 else ''}"
