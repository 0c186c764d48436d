"""Servers until a signal ends them: `serve` for RocketMQ clients, `console` for a browser."""

import asyncio
import logging
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial

from prometheus_client import CollectorRegistry

from provider.clock import SystemClock
from tieredstore.cli.invocation import TIER_KEY, Invocation
from tieredstore.cli.signals import EndingSignals, answer_watchdog
from tieredstore.config.effective import Config
from tieredstore.config.sources import ConfigError
from tieredstore.console.options import COMMAND_PORT, ConsoleOptions, console_beside, console_server
from tieredstore.lifetime import keep_opened, running
from tieredstore.metrics.page import LoopCalls, labelled_metrics, merged, served_pages
from tieredstore.metrics.reads import ReadMeter
from tieredstore.reader.readable_tier import ReadableTier
from tieredstore.serve.beside import unready_reason
from tieredstore.serve.metrics import ServeMetrics, ServeMoment
from tieredstore.serve.naming import Naming
from tieredstore.serve.options import FRONT, SLAVE, ServeOptions
from tieredstore.serve.server import Server, serving
from tieredstore.session.reader import existing_tier, existing_tiers

LOGGER = logging.getLogger("tieredstore.cli")


def run(
    invocation: Invocation,
    place: str | os.PathLike[str] | None,
    brokers: tuple[str, ...],
    in_front_of: str | None,
    slave_id: int | None,
) -> int:
    """Serve the messages of the tier in PLACE to RocketMQ clients, until a signal."""
    for key, value in ((FRONT, in_front_of), (SLAVE, slave_id)):
        if value is not None:
            invocation.defines = (*invocation.defines, f"{key}={value}")
    if place is not None:
        invocation.defines = (*invocation.defines, f"{TIER_KEY}={os.fspath(place)}")
    given = invocation.load_config()
    configs = existing_tiers(given, brokers) if brokers else [existing_tier(given)]
    if len({one.cluster for one in configs}) > 1:
        raise ConfigError("the brokers are of several clusters: name one by brokerClusterName")
    asyncio.run(_serve(configs, ServeOptions.of_brokers(configs)))
    return 0


async def _serve(configs: Sequence[Config], options: Sequence[ServeOptions]) -> None:
    stop, clock = asyncio.Event(), SystemClock()
    EndingSignals(stop.set)
    answer_watchdog()
    together: list[Naming] = []
    pages, servers = list[CollectorRegistry](), list[Server]()
    loop = LoopCalls(asyncio.get_running_loop())
    async with AsyncExitStack() as stack:
        for config, option in zip(configs, options, strict=True):
            counted = CollectorRegistry()
            meter = ReadMeter(counted, clock)
            tier = await stack.enter_async_context(ReadableTier(partial(_same, config)))
            server = await stack.enter_async_context(serving(option, tier, meter, clock, together))
            sample = partial(loop.call, partial(ServeMoment.of, server))
            pages.append(labelled_metrics(config, ServeMetrics(sample), counted))
            servers.append(server)
        console = console_beside(configs, clock)
        unready = partial(unready_reason, [*servers, console])
        beside = [] if console is None else [console.run]
        async with served_pages(configs[0], unready, merged(pages)), running(beside):
            keep_opened()
            await stop.wait()
    LOGGER.info("the server is stopped")


def _same(config: Config) -> Config:
    return config


def run_console(invocation: Invocation, place: str | os.PathLike[str] | None) -> int:
    """Serve web pages of the tier in PLACE until a signal: brokers, topics, queues, messages."""
    if place is not None:
        invocation.defines = (*invocation.defines, f"{TIER_KEY}={os.fspath(place)}")
    given = invocation.load_config()
    names = given.gives("brokerName")
    configs = [existing_tier(given)] if names else existing_tiers(given, ["*"])
    options = ConsoleOptions.of(given)
    asyncio.run(_serve_console(configs, replace(options, port=options.port or COMMAND_PORT)))
    return 0


async def _serve_console(configs: Sequence[Config], options: ConsoleOptions) -> None:
    serving = console_server().serving
    stop = asyncio.Event()
    EndingSignals(stop.set)
    async with serving(configs, options, SystemClock()) as address:
        LOGGER.info("the console is at %s", address)
        await stop.wait()
    LOGGER.info("the console is stopped")
