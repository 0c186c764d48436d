"""`tieredstore topics`: the queues of a tier."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Self

import click

from tieredstore.cli.invocation import Invocation
from tieredstore.cli.output import Row, write_json, write_table
from tieredstore.cli.reading import with_tiers
from tieredstore.metrics.summary import QueueSummary, QueueTotals, losses_text
from tieredstore.reader.readable_tier import ReadableTier
from tieredstore.texts import count_text, size_text, time_text

QUEUE, TOPIC, BROKER = "queue", "topic", "broker"
NUMBERS = frozenset(
    {QUEUE, "first", "next", "lost", "size", "brokers", "topics", "queues", "messages"}
)


@dataclass(frozen=True, slots=True)
class BrokerQueue:
    """A queue of a broker."""

    cluster: str
    broker: str
    queue: QueueSummary


def run(
    invocation: Invocation,
    *,
    by: str,
    brokers: tuple[str, ...],
    java_metadata: Path | None,
    as_json: bool,
) -> None:
    """List the queues of a tier: first and next offset, lost messages, size, newest message."""

    async def queues(tier: ReadableTier) -> list[QueueSummary]:
        return tier.queues()

    found = [
        BrokerQueue(config.cluster, config.broker, queue)
        for config, of_broker in with_tiers(invocation, java_metadata, brokers, queues)
        for queue in of_broker
    ]
    if as_json:
        write_json(_rows(found, by, with_broker=bool(brokers)))
        return
    if not found:
        click.echo("the tier holds no queue yet")
        return
    write_table(*_table(found, by, with_broker=bool(brokers)), numbers=NUMBERS)
    listed = [one.queue for one in found]
    click.echo(total_text(listed))
    if lost := losses_text(listed):
        click.echo(f"{lost}; --json has their offsets")


def total_text(queues: Sequence[QueueSummary]) -> str:
    """All queues together: `22 queues, 3,396 messages, 3.9 MiB`."""
    totals = QueueTotals.of(queues)
    size = size_text(totals.bytes)
    return f"{_counted(totals.queues, 'queue')}, {_counted(totals.messages, 'message')}, {size}"


def _counted(count: int, noun: str) -> str:
    return f"{count_text(count)} {noun}{'' if count == 1 else 's'}"


def _rows(found: Sequence[BrokerQueue], by: str, *, with_broker: bool) -> Iterable[Row]:
    """The rows of --json."""
    if by != QUEUE:
        return (one.row() for one in _sums(found, by))
    return ((_origin(one) if with_broker else {}) | _row(one.queue) for one in found)


def _origin(one: BrokerQueue) -> dict[str, object]:
    return {"cluster": one.cluster, "broker": one.broker}


def _row(queue: QueueSummary) -> dict[str, object]:
    return {
        "topic": queue.topic,
        "queue_id": queue.queue_id,
        "min_offset": queue.min_offset,
        "commit_offset": queue.max_offset,
        "first_timestamp": queue.first_timestamp,
        "last_timestamp": queue.last_timestamp,
        "commit_log_bytes": queue.commit_log_bytes,
        "gaps": [{"start": gap.start, "end": gap.end, "reason": gap.reason} for gap in queue.gaps],
    }


@dataclass(frozen=True, slots=True)
class _Sum:
    """Queues of one topic or broker together."""

    names: dict[str, object]
    totals: QueueTotals

    @classmethod
    def of(cls, group: Sequence[BrokerQueue], by: str) -> Self:
        queues = [one.queue for one in group]
        totals = QueueTotals.of(queues)
        if by == TOPIC:
            brokers = {(one.cluster, one.broker) for one in group}
            return cls({TOPIC: queues[0].topic, "brokers": len(brokers)}, totals)
        return cls(_origin(group[0]) | {"topics": len({one.topic for one in queues})}, totals)

    def row(self) -> Row:
        totals = self.totals
        return {
            **self.names,
            "queues": totals.queues,
            "messages": totals.messages,
            "lost": totals.lost,
            "first_timestamp": totals.first_timestamp,
            "last_timestamp": totals.last_timestamp,
            "commit_log_bytes": totals.bytes,
        }

    def cells(self, *, with_lost: bool) -> list[str]:
        totals = self.totals
        return [
            *map(str, self.names.values()),
            count_text(totals.queues),
            count_text(totals.messages),
            *([count_text(totals.lost)] if with_lost else ()),
            size_text(totals.bytes),
            time_text(totals.last_timestamp),
        ]


def _sums(found: Iterable[BrokerQueue], by: str) -> list[_Sum]:
    """The queues by topic, or by broker, in order of names."""

    def key(one: BrokerQueue) -> tuple[str, ...]:
        return (one.queue.topic,) if by == TOPIC else (one.cluster, one.broker)

    return [_Sum.of(list(group), by) for _, group in groupby(sorted(found, key=key), key=key)]


def _table(
    found: Sequence[BrokerQueue], by: str, *, with_broker: bool
) -> tuple[Sequence[str], list[list[str]]]:
    """Titles and cells of the table."""
    if by == QUEUE:
        titles = [TOPIC, QUEUE, "first", "next", "lost", "size", "newest message (UTC)"]
        cells = [_cells(one.queue) for one in found]
        if with_broker:
            titles = ["cluster", BROKER, *titles]
            origins = [[one.cluster, one.broker] for one in found]
            cells = [[*origin, *row] for origin, row in zip(origins, cells, strict=True)]
        return titles, cells
    sums = _sums(found, by)
    with_lost = any(one.totals.lost for one in sums)  # without it, 80 columns are enough
    lost = ["lost"] if with_lost else []
    titles = [*sums[0].names, "queues", "messages", *lost, "size", "newest message (UTC)"]
    return titles, [one.cells(with_lost=with_lost) for one in sums]


def _cells(queue: QueueSummary) -> list[str]:
    return [
        queue.topic,
        str(queue.queue_id),
        count_text(queue.min_offset),
        count_text(queue.max_offset),
        count_text(queue.lost) if queue.gaps else "",
        size_text(queue.commit_log_bytes),
        time_text(queue.last_timestamp),
    ]
