"""`tieredstore metadata`: to and from the metadata file of RocketMQ's own tiered store."""

import asyncio
import os
from pathlib import Path

import click

from container.java.migration import import_of, java_metadata_of, read_java_queues
from container.tier_reader import TierReader
from provider.clock import SystemClock
from provider.errors import NotFound
from provider.posix import PosixStore
from tieredstore.cli.invocation import GIVEN_PATH, Invocation, json_option, pass_invocation
from tieredstore.cli.output import count_text, size_text, write_json
from tieredstore.cli.progress import bytes_bar
from tieredstore.cli.reading import with_tier
from tieredstore.config.effective import Config
from tieredstore.config.sources import ConfigError
from tieredstore.opening import directory_of, existing_tier, open_reader, read_bytes
from tieredstore.owning import open_owner
from tieredstore.readable_tier import ReadableTier
from tieredstore.summary import log_bytes_of, messages_of

NAME_PART = 50
"""Characters of a file's name that the temporary file beside it repeats."""


@click.group("metadata")
def command() -> None:
    """Exchange metadata with RocketMQ's own tiered store."""


@command.command("export", short_help="Write a metadata file for RocketMQ's tiered store.")
@click.argument("file", type=GIVEN_PATH)
@click.option("--overwrite", is_flag=True, help="Replace FILE if it exists.")
@json_option
@pass_invocation
def export(invocation: Invocation, file: Path, *, overwrite: bool, as_json: bool) -> None:
    """Write FILE, a tieredStoreMetadata.json with which RocketMQ's tiered store opens this tier.

    Stop the broker, put FILE into its store/config/, and start it again.
    """
    if file.exists() and not overwrite:
        raise ConfigError(f"{file} is there already: name another file, or say --overwrite")

    async def convert(tier: ReadableTier) -> tuple[bytes, int]:
        raw = await java_metadata_of(tier.reader, clock=SystemClock())
        return raw, len(tier.reader.state.queues)

    raw, queues = with_tier(invocation, None, convert, damaged=False)
    _write(file, raw)
    if as_json:
        write_json([{"path": str(file), "queues": queues, "bytes": len(raw)}])
    else:
        click.echo(f"{queues} queues written to {file}")


@command.command("import", short_help="Take over a tier that RocketMQ's tiered store wrote.")
@click.argument("file", type=GIVEN_PATH)
@json_option
@pass_invocation
def import_(invocation: Invocation, file: Path, *, as_json: bool) -> None:
    """Take over a tier that RocketMQ's tiered store wrote, with its metadata FILE.

    Reads every message twice to verify it and to compute checksums; no segment file changes.
    RocketMQ's store must not write to the tier afterwards.
    """
    config = invocation.load_config()
    rows = asyncio.run(_import(existing_tier(config), read_bytes(file), str(file)))
    if as_json:
        write_json(rows)
        return
    messages = sum(int(str(row["messages"])) for row in rows)
    size = sum(int(str(row["commit_log_bytes"])) for row in rows)
    click.echo(f"{len(rows)} queues, {count_text(messages)} messages, {size_text(size)} are ours")


async def _import(config: Config, raw: bytes, path: str) -> list[dict[str, object]]:
    await _refuse_ours(config)
    clock = SystemClock()
    async with open_reader(config, raw, java_path=path) as reader:
        total = sum(map(log_bytes_of, reader.state.queues.values()))
        with bytes_bar("importing", total) as progress:
            queues = await read_java_queues(
                reader, extent_bytes_max=config.tier.extent_bytes_max, progress=progress
            )
        operations = import_of(reader, queues)
        async with open_owner(config, clock=clock, imported=operations) as tier:
            await tier.close()  # the entry that takes the tier has published the import
    return [
        {
            "topic": queue.id.topic,
            "queue_id": queue.id.queue_id,
            "messages": messages_of(queue),
            "commit_log_bytes": log_bytes_of(queue),
        }
        for queue in queues
    ]


async def _refuse_ours(config: Config) -> None:
    """Refuse a tier that has a journal of ours, before everything is read in vain."""
    directory = directory_of(config)
    store = PosixStore(directory, options=config.posix)
    try:
        if (await TierReader.open(store)).state.queues:
            raise ConfigError(f"the tier in {directory} is ours already: nothing is to be imported")
    except NotFound:
        return
    finally:
        await store.close()


def _write(file: Path, raw: bytes) -> None:
    """Write the file atomically, through a temporary file beside it.

    Raises:
        ConfigError: the file cannot be written.
    """
    beside = file.with_name(f".{file.name[:NAME_PART]}.{os.getpid()}.new")
    try:
        try:
            with beside.open("wb") as made:
                made.write(raw)
                made.flush()
                os.fsync(made.fileno())
            beside.replace(file)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {(error.strerror or '').lower()}") from error
