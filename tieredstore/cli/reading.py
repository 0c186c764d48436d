"""What all reading commands share: which tier, which queue."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import click

from container.names.path_component import check_path_component
from container.names.queue_id import QueueId
from container.names.rocketmq import INT32_MAX
from container.tier_reader import TierReader
from provider.errors import NotFound
from tieredstore.cli.invocation import GIVEN_PATH, Invocation, WholeNumber
from tieredstore.config.sources import ConfigError
from tieredstore.opening import existing_directory, open_reader

ResultT = TypeVar("ResultT")

java_metadata_option = click.option(
    "--java-metadata",
    type=GIVEN_PATH,
    metavar="FILE",
    help="Read a tier that RocketMQ's own store wrote, by its tieredStoreMetadata.json.",
)


class TopicType(click.ParamType[str]):
    """A topic: one safe path component."""

    name = "topic"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """Refuse what cannot be a topic, without showing it as a path."""
        text = str(value)
        reason = check_path_component(text)
        if reason is not None:
            self.fail(f"this is no topic: {reason}", param, ctx)
        return text


TOPIC = TopicType()
QUEUE = WholeNumber(0, INT32_MAX)


@dataclass(frozen=True, slots=True)
class ReadableTier:
    """An open tier, and its configured directory."""

    reader: TierReader
    directory: Path
    is_java: bool

    def find(self, topic: str | None, queue_id: int | None) -> list[QueueId]:
        """The queues meant: one, those of a topic, or all, in order.

        Raises:
            NotFound: a topic or queue was named that is not there.
        """
        found = [
            queue
            for queue in sorted(self.reader.state.queues)
            if topic in (None, queue.topic) and queue_id in (None, queue.queue_id)
        ]
        if topic is not None and not found:
            name = topic if queue_id is None else f"{topic}/{queue_id}"
            raise NotFound(f"the tier has nothing of {name}", str(self.directory))
        return found


def read_bytes(path: Path) -> bytes:
    """A small file that was named on the command line.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {(error.strerror or '').lower()}") from error


def with_reader(
    invocation: Invocation,
    java_metadata: Path | None,
    work: Callable[[ReadableTier], Awaitable[ResultT]],
    *,
    damaged: bool = False,
) -> ResultT:
    """Open the tier for reading, do `work`, close it; `damaged`: also what can only be checked."""
    config = invocation.load_config()
    directory = existing_directory(config)
    raw = None if java_metadata is None else read_bytes(java_metadata)

    async def run() -> ResultT:
        opened = open_reader(config, directory, raw, java_path=str(java_metadata), damaged=damaged)
        async with opened as reader:
            return await work(ReadableTier(reader, directory, raw is not None))

    return asyncio.run(run())
