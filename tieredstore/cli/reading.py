"""What all reading commands share: topic and queue as arguments, and the open tier."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import click

from container.names.path_component import check_path_component
from container.names.rocketmq import INT32_MAX
from tieredstore.cli.failures import served_in_part
from tieredstore.cli.invocation import GIVEN_PATH, Invocation, WholeNumber
from tieredstore.cli.printable import printable
from tieredstore.opening import existing_tier
from tieredstore.readable_tier import ReadableTier

ResultT = TypeVar("ResultT")

PARTIAL = "tieredstore.partial"
"""Key of `click.Context.meta`: not everything that was published could be served."""

java_metadata_option = click.option(
    "--java-metadata",
    type=GIVEN_PATH,
    metavar="FILE",
    help="Read a tier that RocketMQ's tiered store wrote, with its tieredStoreMetadata.json.",
)


class TopicType(click.ParamType[str]):
    """A topic: one safe path component."""

    name = "topic"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """Refuse a text that cannot be a topic, before it becomes part of a path."""
        text = str(value)
        reason = check_path_component(text)
        if reason is not None:
            self.fail(f"this is no topic: {reason}", param, ctx)
        return text


TOPIC = TopicType()
QUEUE = WholeNumber(0, INT32_MAX)


def with_tier(
    invocation: Invocation,
    java_metadata: Path | None,
    work: Callable[[ReadableTier], Awaitable[ResultT]],
    *,
    damaged: bool = True,
) -> ResultT:
    """Open the configured tier for reading, do `work`, close it; as `ReadableTier`.

    `damaged`: of a damaged journal, serve the part that is whole, say so on standard error, and
    have the command end with `FINDINGS` (`PARTIAL`).
    """
    context = click.get_current_context()
    config = existing_tier(invocation.load_config())

    async def run() -> ResultT:
        opened = ReadableTier(lambda: config, java_metadata=java_metadata, damaged=damaged)
        async with opened as tier:
            if tier.damage is not None:
                click.echo(f"tieredstore: {printable(served_in_part(tier.damage))}", err=True)
                context.meta[PARTIAL] = True
            return await work(tier)

    return asyncio.run(run())
