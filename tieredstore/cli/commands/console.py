"""`tieredstore console`: web pages of a tier, until a signal ends it."""

import asyncio
import logging
import os
from collections.abc import Sequence
from dataclasses import replace

from provider.clock import SystemClock
from tieredstore.cli.invocation import TIER_KEY, Invocation
from tieredstore.cli.signals import EndingSignals
from tieredstore.config.effective import Config
from tieredstore.console.options import COMMAND_PORT, ConsoleOptions, console_server
from tieredstore.session.reader import existing_tier, existing_tiers

LOGGER = logging.getLogger("tieredstore.cli")


def run(invocation: Invocation, place: str | os.PathLike[str] | None) -> int:
    """Serve web pages of the tier in PLACE until a signal: brokers, topics, queues, messages."""
    if place is not None:
        invocation.defines = (*invocation.defines, f"{TIER_KEY}={os.fspath(place)}")
    given = invocation.load_config()
    names = given.gives("brokerName")
    configs = [existing_tier(given)] if names else existing_tiers(given, ["*"])
    options = ConsoleOptions.of(given)
    asyncio.run(_serve(configs, replace(options, port=options.port or COMMAND_PORT)))
    return 0


async def _serve(configs: Sequence[Config], options: ConsoleOptions) -> None:
    serving = console_server().serving
    stop = asyncio.Event()
    EndingSignals(stop.set)
    async with serving(configs, options, SystemClock()) as address:
        LOGGER.info("the console is at %s", address)
        await stop.wait()
    LOGGER.info("the console is stopped")
