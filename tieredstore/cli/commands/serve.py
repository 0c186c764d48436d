"""`tieredstore serve`: the history of a tier for RocketMQ clients, until a signal ends it."""

import asyncio
import logging
import os

import click
from prometheus_client import CollectorRegistry

from provider.clock import SystemClock
from tieredstore.cli.invocation import TIER_KEY, GivenPath, Invocation, pass_invocation
from tieredstore.cli.signals import EndingSignals
from tieredstore.config.effective import Config
from tieredstore.lifetime import keep_opened
from tieredstore.metrics.page import LoopCalls, labelled_metrics, served_pages
from tieredstore.metrics.reads import ReadMeter
from tieredstore.reader.readable_tier import ReadableTier
from tieredstore.serve.metrics import ServeMetrics, ServeMoment
from tieredstore.serve.options import ServeOptions
from tieredstore.serve.server import serving
from tieredstore.session.reader import existing_tier

LOGGER = logging.getLogger("tieredstore.cli")


@click.command("serve")
@click.argument("place", type=GivenPath(), required=False)
@pass_invocation
def command(invocation: Invocation, place: str | os.PathLike[str] | None) -> int:
    """Serve the messages of the tier in PLACE to RocketMQ clients, until a signal.

    PLACE is a directory or a URL; without it, that of --tier or of the configuration. Unmodified
    consumers that have this address as their name server read the whole history of a broker, also
    while that is down or gone. The tier is only read, and may be written meanwhile by `tier
    --follow`: what is published can be consumed within a second (tieredStoreServeRefreshInterval;
    ten seconds where the tier is in an object store).

    The offsets of consumer groups are kept in tieredStoreServeStatePath, in RocketMQ's own
    consumerOffset.json. A group without one begins at the first message. Producers are refused.

    \b
    Exit status, besides those of `tieredstore --help`:
      0  a signal ended it
      3  the tier could not be read at the start, or offsets not be saved at the end
    """  # noqa: D301 - \b is click's mark of lines that stay
    if place is not None:
        invocation.defines = (*invocation.defines, f"{TIER_KEY}={os.fspath(place)}")
    config = existing_tier(invocation.load_config())
    asyncio.run(_serve(config, ServeOptions.of(config)))
    return 0


async def _serve(config: Config, options: ServeOptions) -> None:
    stop, clock, counted = asyncio.Event(), SystemClock(), CollectorRegistry()
    EndingSignals(stop.set)
    async with (
        ReadableTier(lambda: config) as tier,
        serving(options, tier, ReadMeter(counted, clock), clock) as server,
    ):
        loop = LoopCalls(asyncio.get_running_loop())
        metrics = ServeMetrics(lambda: loop.call(lambda: ServeMoment.of(server)))
        registry = labelled_metrics(config, metrics, counted)
        async with served_pages(config, server.unready_reason, registry):
            keep_opened()
            await stop.wait()
    LOGGER.info("the server is stopped")
