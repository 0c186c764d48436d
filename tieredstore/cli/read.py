"""`tieredstore read`: messages of a queue by offset."""

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import click

from container.names.queue_id import QueueId
from container.names.rocketmq import INT64_MAX
from fetcher.result import FetchResult, FetchStatus
from fetcher.tag_filter import parse_subscription
from tieredstore.cli.exit_status import FINDINGS
from tieredstore.cli.invocation import Invocation, WholeNumber, json_option, pass_invocation
from tieredstore.cli.message_columns import message_columns
from tieredstore.cli.message_rows import message_cells, message_row
from tieredstore.cli.output import write_json
from tieredstore.cli.reading import QUEUE, TOPIC, java_metadata_option, with_tier
from tieredstore.config.sources import ConfigError
from tieredstore.readable_tier import GROUP, ReadableTier

ONCE_MESSAGES = 32


@dataclass(frozen=True, slots=True)
class ReadOrder:
    """What to read, and how to print it."""

    queue: QueueId
    offset: int | None
    messages_max: int | None
    tags: str | None
    digest: bool
    as_json: bool


@click.command("read")
@click.argument("topic", type=TOPIC)
@click.argument("queue", type=QUEUE)
@click.option(
    "--offset",
    type=WholeNumber(0, INT64_MAX),
    metavar="N",
    help="First queue offset. Default: the oldest message.",
)
@click.option(
    "--max",
    "messages_max",
    type=WholeNumber(1, INT64_MAX),
    metavar="N",
    help="Maximum number of messages. Default: all; with --once, 32.",
)
@click.option(
    "--tags", metavar="EXPR", help='Print only messages with these tags, such as "TagA || TagB".'
)
@click.option(
    "--digest", is_flag=True, help="Print SHA-256 and length of each body instead of the body."
)
@click.option("--once", is_flag=True, help="Make one fetch, then print its status and offsets.")
@java_metadata_option
@json_option
@pass_invocation
def command(
    invocation: Invocation,
    *,
    topic: str,
    queue: int,
    offset: int | None,
    messages_max: int | None,
    tags: str | None,
    java_metadata: Path | None,
    digest: bool,
    once: bool,
    as_json: bool,
) -> int:
    """Read the messages of queue number QUEUE of TOPIC, with their bodies decompressed.

    The table cuts long fields off (…) and shows the size of a body that is no text. --json prints
    whole bodies: as text if they are UTF-8, else in Base64.
    """
    try:
        parse_subscription(tags)
    except ValueError as error:
        raise ConfigError(f"--tags: {error}") from error
    order = ReadOrder(QueueId(topic, queue), offset, messages_max, tags, digest, as_json)

    async def work(tier: ReadableTier) -> int:
        return await (_read_once if once else _read_all)(tier, order)

    return with_tier(invocation, java_metadata, work, topic=topic, queue=queue)


async def _read_once(tier: ReadableTier, order: ReadOrder) -> int:
    queue = tier.reader.queue(order.queue)
    first = queue.min_offset if queue is not None else 0
    result = await tier.get_message(
        GROUP,
        *order.queue,
        first if order.offset is None else order.offset,
        messages_max=order.messages_max or ONCE_MESSAGES,
        subscription=order.tags,
        exact_tags=True,
    )
    _print(result, order, with_head=True)
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


async def _read_all(tier: ReadableTier, order: ReadOrder) -> int:
    with_head = True
    async for result in tier.results(
        *order.queue, order.offset, messages_max=order.messages_max, tags=order.tags
    ):
        _print(result, order, with_head=with_head)
        with_head = False
    return 0


def _print(result: FetchResult, order: ReadOrder, *, with_head: bool) -> None:
    path = str(order.queue)
    if order.as_json:
        write_json(message_row(raw, path, digest=order.digest) for raw in result.messages)
        return
    terminal = shutil.get_terminal_size((80, 24)).columns
    columns = message_columns(terminal, result.max_offset, digest=order.digest)
    if with_head:
        click.echo(columns.head())
    for raw in result.messages:
        click.echo(columns.line(message_cells(raw, path, digest=order.digest)))
    sys.stdout.flush()
