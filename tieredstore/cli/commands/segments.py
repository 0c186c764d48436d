"""`tieredstore segments`: the segment files of queues."""

from pathlib import Path

import click

from container.metadata.records import CopyState
from container.queue.segments import TieredSegment
from provider.errors import NotFound
from provider.stores.two_stores import FIRST_STORE, SECOND_STORE
from tieredstore.cli.invocation import Invocation
from tieredstore.cli.output import Row, write_json, write_table
from tieredstore.cli.reading import with_tier
from tieredstore.reader.readable_tier import ReadableTier
from tieredstore.texts import count_text, size_text


def run(
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
        write_json(map(_row, found))
        return
    if not found:
        click.echo("there is no segment yet" if states is None else f"no segment is {state}")
        return
    columns = ("topic", "queue", "type", "base", "offsets", "size", "state")
    numbers = frozenset({"queue", "base", "offsets", "size"})
    write_table(columns, map(_cells, found), numbers=numbers)


def _row(segment: TieredSegment) -> Row:
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


def _cells(segment: TieredSegment) -> list[str]:
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
        _state(segment),
    ]


def _state(segment: TieredSegment) -> str:
    """For people: growing, sealed, offloaded, or the state of an unfinished copy or deletion."""
    if segment.state is not CopyState.COPY_FINISHED:
        return segment.state.name
    if segment.is_offloaded:
        return "offloaded"
    return "sealed" if segment.is_sealed else "growing"
