"""`tieredstore console`: web pages of a tier, until a signal ends it."""

import asyncio
import logging
import os
from collections.abc import Sequence
from dataclasses import replace

import click

from provider.clock import SystemClock
from tieredstore.cli.invocation import TIER_KEY, GivenPath, Invocation, pass_invocation
from tieredstore.cli.signals import EndingSignals
from tieredstore.config.effective import Config
from tieredstore.console.options import COMMAND_PORT, ConsoleOptions, console_server
from tieredstore.session.reader import existing_tier, existing_tiers

LOGGER = logging.getLogger("tieredstore.cli")


@click.command("console")
@click.argument("place", type=GivenPath(), required=False)
@pass_invocation
def command(invocation: Invocation, place: str | os.PathLike[str] | None) -> int:
    """Serve web pages of the tier in PLACE until a signal: brokers, topics, queues, messages.

    PLACE is a directory or a URL; without it, that of --tier or of the configuration. All brokers
    of the tier are shown, or the one that the configuration names. The tier is only read, and may
    be written meanwhile.

    The pages are at http://127.0.0.1:8077/ (tieredStoreConsoleHost, tieredStoreConsolePort). Every
    user of this host can read all messages there, unless tieredStoreConsoleTokenPath names a file
    with a token, which any other address needs.
    """
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
