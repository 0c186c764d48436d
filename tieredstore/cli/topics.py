"""`tieredstore topics`: the queues of a tier."""

from pathlib import Path

import click

from container.metadata.records import Queue
from tieredstore.cli.invocation import Invocation, json_option, pass_invocation
from tieredstore.cli.output import (
    Row,
    count_text,
    size_text,
    time_text,
    write_json,
    write_table,
)
from tieredstore.cli.reading import ReadableTier, java_metadata_option, with_reader
from tieredstore.summary import log_bytes_of, lost_of, time_range_of


@click.command("topics")
@java_metadata_option
@json_option
@pass_invocation
def command(invocation: Invocation, java_metadata: Path | None, *, as_json: bool) -> None:
    """List the queues of a tier: offsets, times, bytes, gaps."""

    async def queues(tier: ReadableTier) -> list[Queue]:
        return [tier.reader.state.queues[queue] for queue in tier.find(None, None)]

    found = with_reader(invocation, java_metadata, queues)
    if as_json:
        write_json(map(_row, found))
        return
    if not found:
        click.echo("the tier holds no queue yet")
        return
    columns = ("topic", "queue", "first", "next", "lost", "size", "newest message (UTC)")
    write_table(
        columns, map(_cells, found), numbers=frozenset({"queue", "first", "next", "lost", "size"})
    )


def _row(queue: Queue) -> Row:
    first, last = time_range_of(queue)
    return {
        "topic": queue.id.topic,
        "queue_id": queue.id.queue_id,
        "min_offset": queue.min_offset,
        "commit_offset": queue.next_offset,
        "first_timestamp": first,
        "last_timestamp": last,
        "commit_log_bytes": log_bytes_of(queue),
        "gaps": [{"start": gap.start, "end": gap.end, "reason": gap.reason} for gap in queue.gaps],
    }


def _cells(queue: Queue) -> list[str]:
    return [
        queue.id.topic,
        str(queue.id.queue_id),
        count_text(queue.min_offset),
        count_text(queue.next_offset),
        count_text(lost_of(queue)) if queue.gaps else "",
        size_text(log_bytes_of(queue)),
        time_text(time_range_of(queue)[1]),
    ]
