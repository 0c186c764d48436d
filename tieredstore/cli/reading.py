"""The tier of reading commands, opened, or those of several brokers."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import click

from container.names.queue_id import QueueId
from container.names.rocketmq import INDEX_QUEUE
from provider.errors import NotFound, StoreError
from provider.options import DiskCacheOptions
from tieredstore.cli.failures import damage_texts, explain, served_in_part
from tieredstore.cli.invocation import Invocation
from tieredstore.config.effective import Config
from tieredstore.reader.readable_tier import ReadableTier
from tieredstore.reader.readable_tiers import ReadableTiers
from tieredstore.session.reader import existing_tier, existing_tiers
from tieredstore.texts import printable

LOGGER = logging.getLogger("tieredstore.cli.reading")


ResultT = TypeVar("ResultT")

PARTIAL = "tieredstore.partial"
"""Key of `click.Context.meta`: not everything that was published could be served."""


def with_tier(
    invocation: Invocation,
    java_metadata: Path | None,
    work: Callable[[ReadableTier], Awaitable[ResultT]],
    *,
    damaged: bool = True,
    topic: str | None = None,
    queue: int | None = None,
    from_disk: bool = True,
    config: Config | None = None,
) -> ResultT:
    """Open the configured tier for reading, do `work`, close it; as `ReadableTier`.

    `damaged`: serve the whole part of a damaged journal, report it on standard error, and
    end the command with `FINDINGS` (`PARTIAL`). In a tier of RocketMQ's store only damage of
    `topic` and `queue` is reported. Without `from_disk` the cache on disk is not used, so the bytes
    in the storage are verified. `config` is that of the broker; by default the only one.
    """
    config = config or existing_tier(invocation.load_config())
    context = click.get_current_context()
    if not from_disk:
        config = replace(config, disk_cache=DiskCacheOptions())

    async def run() -> ResultT:
        opened = ReadableTier(lambda: config, java_metadata=java_metadata, damaged=damaged)
        async with opened as tier:
            _tell_of_damage(tier)
            for sentence in damage_texts(_damage(tier, topic, queue)):
                click.echo(f"tieredstore: {printable(sentence)}", err=True)
                context.meta[PARTIAL] = True
            return await work(tier)

    return asyncio.run(run())


def with_tiers(
    invocation: Invocation,
    java_metadata: Path | None,
    brokers: Sequence[str],
    work: Callable[[ReadableTier], Awaitable[ResultT]],
    *,
    topic: str | None = None,
    from_disk: bool = True,
) -> list[tuple[Config, ResultT]]:
    """As `with_tier` for each broker that fits one of the patterns, one after another.

    Without a pattern it is the only broker of the tier. Of several brokers, one that fails is
    reported on standard error, and the command ends with `FINDINGS`; if all fail, the first error
    is raised.
    """
    given = invocation.load_config()
    configs = existing_tiers(given, brokers) if brokers else [existing_tier(given)]

    def read(config: Config) -> ResultT:
        return with_tier(
            invocation, java_metadata, work, topic=topic, from_disk=from_disk, config=config
        )

    return each_broker(configs, read, is_of_topics=topic is not None)


def with_merged(
    invocation: Invocation,
    brokers: Sequence[str],
    work: Callable[[ReadableTiers], Awaitable[ResultT]],
) -> ResultT:
    """Open the brokers that fit one of the patterns for reading together, do `work`, close them.

    A broker that fails, now or later, is reported as by `with_tiers`.
    """
    given = invocation.load_config()

    async def run() -> ResultT:
        opened = ReadableTiers(lambda: given, brokers, damaged=True, on_broker_failure=_report)
        async with opened as tiers:
            for tier in tiers.tiers:
                _tell_of_damage(tier)
            return await work(tiers)

    return asyncio.run(run())


def _tell_of_damage(tier: ReadableTier) -> None:
    if tier.damage is not None:
        click.echo(f"tieredstore: {printable(served_in_part(tier.damage))}", err=True)
        click.get_current_context().meta[PARTIAL] = True


def _report(cluster: str, broker: str, error: Exception) -> None:
    LOGGER.error("%s of cluster %s: %s", broker, cluster, explain(error)[1])
    click.get_current_context().meta[PARTIAL] = True


def each_broker(
    configs: Sequence[Config], work: Callable[[Config], ResultT], *, is_of_topics: bool = False
) -> list[tuple[Config, ResultT]]:
    """Do `work` for one broker after another; those that fail are reported as by `with_tiers`.

    `is_of_topics`: topics were named, and not every broker has each of them.
    """
    done: list[tuple[Config, ResultT]] = []
    failed: list[tuple[Config, Exception]] = []
    for config in configs:
        try:
            one = work(config)
        except (StoreError, OSError) as error:
            failed.append((config, error))
        else:
            done.append((config, one))
    if not done:
        raise failed[0][1]
    for config, error in failed:
        if is_of_topics and isinstance(error, NotFound):
            continue
        _report(config.cluster, config.broker, error)
    return done


def _damage(tier: ReadableTier, topic: str | None, queue: int | None) -> dict[QueueId, StoreError]:
    """Why some of the queues that are wanted are not served whole.

    Raises:
        StoreError: one queue is wanted, and nothing of it can be served.
    """
    found: dict[QueueId, StoreError] = {}
    for one, error in tier.queue_damage.items():
        if topic in {None, one.topic} and queue in {None, one.queue_id} and one != INDEX_QUEUE:
            if queue is not None and tier.reader.queue(one) is None:
                raise error
            found[one] = error
    return found
