"""`tieredstore offset-by-time`: the queue offset at a time."""

from pathlib import Path

import click

from container.queue.time_index import Boundary, TimeRules
from tieredstore.cli.invocation import Invocation, json_option, pass_invocation
from tieredstore.cli.output import write_json
from tieredstore.cli.reading import MOMENT, QUEUE, TOPIC, java_metadata_option, with_tier
from tieredstore.reader.cursor import is_span
from tieredstore.reader.readable_tier import ReadableTier


class MomentCommand(click.Command):
    """A command whose last argument is a moment, which may begin with a dash."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Move a span with a dash after all options, so that it is not parsed as one."""
        spans = [word for word in args if word.startswith("-") and is_span(word)]
        if spans and "--" not in args:
            args = [*(word for word in args if word not in spans), "--", *spans]
        return super().parse_args(ctx, args)


@click.command("offset-by-time", cls=MomentCommand)
@click.argument("topic", type=TOPIC)
@click.argument("queue", type=QUEUE)
@click.argument("moment", type=MOMENT)
@click.option(
    "--boundary",
    type=click.Choice([one.value for one in Boundary]),
    default=Boundary.LOWER.value,
    help="lower (default): the first message stored at MOMENT or later, or the queue's end."
    " upper: the last one stored at MOMENT or earlier, or the queue's first offset.",
)
@click.option(
    "--rules",
    type=click.Choice([one.value for one in TimeRules]),
    default=TimeRules.LOCAL.value,
    help="What upper means where no message was stored at exactly MOMENT. local (default): as"
    " above, like RocketMQ's local store; tiered: the message after it, like its tiered store.",
)
@java_metadata_option
@json_option
@pass_invocation
def command(
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
    """Print the offset of QUEUE of TOPIC at the time MOMENT of the broker.

    MOMENT is 2026-11-21T12:00:00Z, 2h (s, m, h, d or w before now) or Unix milliseconds, in UTC
    without a time zone. `read TOPIC QUEUE --offset N` reads from there.
    """

    async def search(tier: ReadableTier) -> int:
        return await tier.offset_by_time(topic, queue, moment, Boundary(boundary), TimeRules(rules))

    offset = with_tier(invocation, java_metadata, search, topic=topic, queue=queue)
    if not as_json:
        click.echo(offset)
        return
    row = {"topic": topic, "queue_id": queue, "timestamp": moment}
    write_json([{**row, "boundary": boundary.upper(), "offset": offset}])
