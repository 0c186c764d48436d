"""`tieredstore segments`: the segment files of queues."""

from pathlib import Path

import click

from container.metadata.records import CopyState, Segment
from container.names.queue_id import FLAT_FILES, QueueId
from container.names.rocketmq import segment_name
from tieredstore.cli.invocation import Invocation, json_option, pass_invocation
from tieredstore.cli.output import Row, count_text, size_text, write_json, write_table
from tieredstore.cli.reading import QUEUE, TOPIC, java_metadata_option, with_tier
from tieredstore.readable_tier import ReadableTier


@click.command("segments")
@click.argument("topic", type=TOPIC, required=False)
@click.argument("queue", type=QUEUE, required=False)
@java_metadata_option
@json_option
@pass_invocation
def command(
    invocation: Invocation,
    topic: str | None,
    queue: int | None,
    java_metadata: Path | None,
    *,
    as_json: bool,
) -> None:
    """List the segment files of all queues, of the queues of TOPIC, or of one QUEUE."""

    async def segments(tier: ReadableTier) -> list[tuple[QueueId, Segment]]:
        found: list[tuple[QueueId, Segment]] = []
        wanted = tier.queues(topic) if queue is None else [tier.queue(str(topic), queue)]
        for summary in wanted:
            one = QueueId(summary.topic, summary.queue_id)
            container = tier.reader.container(one)
            for kind in FLAT_FILES:
                parts = await container.segments(kind) if container is not None else []
                found += [(one, segment) for segment in parts]
        return found

    found = with_tier(invocation, java_metadata, segments, topic=topic, queue=queue)
    if as_json:
        write_json(_row(one, segment) for one, segment in found)
        return
    if not found:
        click.echo("there is no segment yet")
        return
    columns = ("topic", "queue", "type", "base", "size", "state")
    cells = (_cells(one, segment) for one, segment in found)
    write_table(columns, cells, numbers=frozenset({"queue", "base", "size"}))


def _row(queue: QueueId, segment: Segment) -> Row:
    return {
        "topic": queue.topic,
        "queue_id": queue.queue_id,
        "type": segment.type.name,
        "base_offset": segment.base,
        "size": segment.size,
        "state": segment.state.name,
        "sealed": segment.sealed_ms is not None,
        "begin_timestamp": segment.begin_timestamp,
        "end_timestamp": segment.end_timestamp,
        "path": segment_name(queue, segment.type, segment.base),
    }


def _cells(queue: QueueId, segment: Segment) -> list[str]:
    return [
        queue.topic,
        str(queue.queue_id),
        segment.type.name,
        count_text(segment.base),
        size_text(segment.size),
        _state(segment),
    ]


def _state(segment: Segment) -> str:
    """For people: growing or sealed, or the state of an unfinished copy or deletion."""
    if segment.state is not CopyState.COPY_FINISHED:
        return segment.state.name
    return "growing" if segment.sealed_ms is None else "sealed"
