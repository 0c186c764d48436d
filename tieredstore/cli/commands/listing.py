"""Listings of a tier: `topics`, `brokers`, `segments`, and `offset-by-time`."""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Self

import click

from container.metadata.records import CopyState
from container.queue.positions import Boundary, TimeRules
from container.queue.segments import TieredSegment
from provider.errors import NotFound, StoreError
from provider.stores.two_stores import FIRST_STORE, SECOND_STORE
from tieredstore.cli.invocation import Invocation
from tieredstore.cli.output import Row, write_json, write_table
from tieredstore.cli.reading import with_tier, with_tiers
from tieredstore.cli.streams import FINDINGS
from tieredstore.config.effective import Config
from tieredstore.metrics.summary import QueueSummary, QueueTotals, losses_text
from tieredstore.reader.readable_tier import ReadableTier
from tieredstore.session.places import brokers_in, directory_of
from tieredstore.session.reader import no_tier
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


def topics(
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


LOGGER = logging.getLogger("tieredstore.cli.brokers")


@dataclass(frozen=True, slots=True)
class _FoundBroker:
    """A broker of the tier."""

    config: Config
    queues: tuple[QueueSummary, ...] = ()
    trouble: str = ""
    """Why its queues cannot be listed."""

    @property
    def newest_ms(self) -> int | None:
        """The largest store timestamp, Unix ms."""
        return max((queue.last_timestamp or 0 for queue in self.queues), default=None)


def brokers(invocation: Invocation, *, as_json: bool) -> int:
    """List the brokers of a tier: cluster, queues, messages, size, newest message."""
    config = invocation.load_config()
    names = brokers_in(config)
    if not names:
        raise NotFound(no_tier(config.tier_root), str(config.tier_root))
    found = [asyncio.run(_look_into(config.of_broker(*name))) for name in names]
    if as_json:
        write_json(map(_broker_row, found))
    else:
        columns = ("cluster", "broker", "queues", "messages", "size", "newest message (UTC)")
        numbers = frozenset({"queues", "messages", "size"})
        write_table(columns, map(_broker_cells, found), numbers=numbers)
    for one in found:
        if one.trouble:
            LOGGER.error("%s of cluster %s: %s", one.config.broker, one.config.cluster, one.trouble)
    return FINDINGS if any(one.trouble for one in found) else 0


async def _look_into(config: Config) -> _FoundBroker:
    try:
        async with ReadableTier(lambda: config, damaged=True) as tier:
            trouble = "" if tier.damage is None else f"the journal is damaged: {tier.damage}"
            return _FoundBroker(config, tuple(tier.queues()), trouble)
    except StoreError as error:
        return _FoundBroker(config, trouble=str(error))


def _broker_row(found: _FoundBroker) -> Row:
    return {
        "cluster": found.config.cluster,
        "broker": found.config.broker,
        "directory": str(directory_of(found.config)),
        "queues": len(found.queues),
        "messages": sum(queue.messages for queue in found.queues),
        "commit_log_bytes": sum(queue.commit_log_bytes for queue in found.queues),
        "last_timestamp": found.newest_ms,
        "trouble": found.trouble or None,
    }


def _broker_cells(found: _FoundBroker) -> list[str]:
    return [
        found.config.cluster,
        found.config.broker,
        count_text(len(found.queues)),
        count_text(sum(queue.messages for queue in found.queues)),
        size_text(sum(queue.commit_log_bytes for queue in found.queues)),
        time_text(found.newest_ms),
    ]


def segments(
    invocation: Invocation,
    *,
    topic: str | None,
    queue: int | None,
    state: str | None,
    offset: int | None,
    java_metadata: Path | None,
    as_json: bool,
) -> None:
    """List the segment files of all queues, of the queues of TOPIC, or of one QUEUE."""
    if offset is not None and queue is None:
        raise click.UsageError("--offset counts in one queue: name TOPIC and QUEUE")
    states = None if state is None else {CopyState[state.upper()]}

    async def segments(tier: ReadableTier) -> list[TieredSegment]:
        if offset is not None:
            holder = await tier.segment_at(str(topic), int(queue or 0), offset)
            if holder is None:
                raise NotFound(f"the tier has no message at offset {offset}", f"{topic}/{queue}")
            return [holder] if states is None or holder.state in states else []
        found: list[TieredSegment] = []
        wanted = tier.queues(topic) if queue is None else [tier.queue(str(topic), queue)]
        for summary in wanted:
            listed = await tier.segments(summary.topic, summary.queue_id, states)
            found += [one for one in listed if states or one.size_bytes is not None]
        return found

    found = with_tier(invocation, java_metadata, segments, topic=topic, queue=queue)
    if as_json:
        write_json(map(_segment_row, found))
        return
    if not found:
        click.echo("there is no segment yet" if states is None else f"no segment is {state}")
        return
    columns = ("topic", "queue", "type", "base", "offsets", "size", "state")
    numbers = frozenset({"queue", "base", "offsets", "size"})
    write_table(columns, map(_segment_cells, found), numbers=numbers)


def _segment_row(segment: TieredSegment) -> Row:
    return {
        "topic": segment.queue.topic,
        "queue_id": segment.queue.queue_id,
        "type": segment.type.name,
        "base_offset": segment.base,
        "size": segment.size_bytes,
        "state": segment.state.name,
        "sealed": segment.is_sealed,
        "first_offset": segment.first_offset,
        "end_offset": segment.end_offset,
        "epochs": [list(one) for one in segment.epochs],
        "begin_timestamp": segment.begin_timestamp,
        "end_timestamp": segment.end_timestamp,
        "path": segment.path,
        "store": SECOND_STORE if segment.is_offloaded else FIRST_STORE,
    }


def _segment_cells(segment: TieredSegment) -> list[str]:
    first, end = segment.first_offset, segment.end_offset
    offsets = ""  # also where a gap has them all
    if first is not None and end is not None and first < end:
        offsets = f"{count_text(first)} to {count_text(end - 1)}"
    return [
        segment.queue.topic,
        str(segment.queue.queue_id),
        segment.type.name,
        count_text(segment.base),
        offsets,
        "" if segment.size_bytes is None else size_text(segment.size_bytes),
        _segment_state(segment),
    ]


def _segment_state(segment: TieredSegment) -> str:
    """For people: growing, sealed, offloaded, or the state of an unfinished copy or deletion."""
    if segment.state is not CopyState.COPY_FINISHED:
        return segment.state.name
    if segment.is_offloaded:
        return "offloaded"
    return "sealed" if segment.is_sealed else "growing"


def offset_by_time(
    invocation: Invocation,
    *,
    topic: str,
    queue: int,
    moment: int,
    boundary: str,
    rules: str,
    java_metadata: Path | None,
    as_json: bool,
) -> None:
    """Print the offset of QUEUE of TOPIC at the time MOMENT of the broker."""

    async def search(tier: ReadableTier) -> int:
        return await tier.offset_by_time(topic, queue, moment, Boundary(boundary), TimeRules(rules))

    offset = with_tier(invocation, java_metadata, search, topic=topic, queue=queue)
    if not as_json:
        click.echo(offset)
        return
    row = {"topic": topic, "queue_id": queue, "timestamp": moment}
    write_json([{**row, "boundary": boundary.upper(), "offset": offset}])
