"""`tieredstore set-retention`: how long the tier keeps a topic of a store of our own."""

import asyncio

import click

from provider.clock import SystemClock
from tieredstore.cli.invocation import Invocation
from tieredstore.config.effective import Config
from tieredstore.config.sources import ConfigError
from tieredstore.store.configured import plan_store
from tieredstore.store.plugins import opened


def run(invocation: Invocation, *, topic: str, hours: int | None, is_default: bool) -> None:
    """Have the tier keep TOPIC for HOURS, or for its default time again."""
    if (hours is None) != is_default:
        raise ConfigError("give HOURS, or --default in place of them")
    asyncio.run(_set(invocation.load_config(), topic, hours))
    kept = "its default time" if hours is None else f"{hours} hours"
    click.echo(f"{topic} is kept for {kept}")


async def _set(config: Config, topic: str, hours: int | None) -> None:
    context, layers = await asyncio.to_thread(
        lambda: plan_store(config, clock=SystemClock(), tiers=False, continues=False)
    )
    async with opened(context, layers):
        await context.local.set_retention(topic, hours)
