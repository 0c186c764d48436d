"""`tieredstore offset-by-time`: the queue offset at a time."""

from pathlib import Path

import click

from container.queue.positions import Boundary, TimeRules
from tieredstore.cli.invocation import Invocation
from tieredstore.cli.output import write_json
from tieredstore.cli.reading import with_tier
from tieredstore.reader.readable_tier import ReadableTier


def run(
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
