"""`tieredstore topics`: the queues of a tier."""

from collections.abc import Sequence
from pathlib import Path

import click

from tieredstore.cli.invocation import Invocation, json_option, pass_invocation
from tieredstore.cli.output import (
    Row,
    count_text,
    size_text,
    time_text,
    write_json,
    write_table,
)
from tieredstore.cli.reading import java_metadata_option, with_tier
from tieredstore.metrics.summary import QueueSummary, losses_text
from tieredstore.reader.readable_tier import ReadableTier


@click.command("topics")
@java_metadata_option
@json_option
@pass_invocation
def command(invocation: Invocation, java_metadata: Path | None, *, as_json: bool) -> None:
    """List the queues of a tier: first and next offset, lost messages, size, newest message."""

    async def queues(tier: ReadableTier) -> list[QueueSummary]:
        return tier.queues()

    found = with_tier(invocation, java_metadata, queues)
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
    click.echo(total_text(found))
    if lost := losses_text(found):
        click.echo(f"{lost}; --json has their offsets")


def total_text(queues: Sequence[QueueSummary]) -> str:
    """All queues together: `22 queues, 3,396 messages, 3.9 MiB`."""
    messages = sum(queue.messages for queue in queues)
    size = size_text(sum(queue.commit_log_bytes for queue in queues))
    return f"{_counted(len(queues), 'queue')}, {_counted(messages, 'message')}, {size}"


def _counted(count: int, noun: str) -> str:
    return f"{count_text(count)} {noun}{'' if count == 1 else 's'}"


def _row(queue: QueueSummary) -> Row:
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
