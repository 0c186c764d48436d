"""Server inside the process that writes the tier. Its failures never stop tiering."""

import asyncio
import logging
from collections.abc import Iterable, Iterator
from typing import Protocol

from prometheus_client import Metric
from prometheus_client.registry import Collector

from provider.clock import Clock
from provider.errors import StoreError
from tieredstore.config.effective import Config
from tieredstore.config.sources import ConfigError
from tieredstore.metrics.page import LoopCalls
from tieredstore.metrics.reads import ReadMeter
from tieredstore.reader.readable_tier import ReadableTier
from tieredstore.serve.metrics import ServeMetrics, ServeMoment
from tieredstore.serve.options import PORT, ServeOptions
from tieredstore.serve.server import Server, serving

LOGGER = logging.getLogger("tieredstore.serve")
RETRY_S = 5.0
"""Seconds between two attempts to serve."""


class Beside(Protocol):
    """Part of a process beside tiering."""

    def unready_reason(self) -> str:
        """Return why it does not do what it should, in one line; "" while it does."""
        ...


def unready_reason(parts: Iterable[Beside | None]) -> str:
    """Return why one of the parts is not ready; "" if all are."""
    reasons = (one.unready_reason() for one in parts if one is not None)
    return next(filter(None, reasons), "")


class ServerBeside(Collector):
    """Server of a tier that this process owns, from its own reader of that tier.

    `run` is a worker of the owner. The metrics are those of the present server, if there is one.
    """

    def __init__(self, config: Config, options: ServeOptions, clock: Clock) -> None:
        self._config = config
        self._options = options
        self._clock = clock
        self._server: Server | None = None
        self._loop: LoopCalls | None = None
        self._failure = "it starts"

    @classmethod
    def of(cls, config: Config, clock: Clock) -> "ServerBeside | None":
        """Build the server of a configuration; None if it names no port.

        Raises:
            ConfigError: as `ServeOptions.of`.
        """
        if not config.settings[PORT].value:
            return None
        return cls(config, ServeOptions.of(config), clock)

    def unready_reason(self) -> str:
        """Return why clients are not served as they should be, in one line; "" while they are."""
        if self._server is None:
            return f"RocketMQ clients are not served: {self._failure}"
        return self._server.unready_reason()

    def collect(self) -> Iterator[Metric]:
        """All families of one scrape."""
        server, loop = self._server, self._loop
        if server is not None and loop is not None:
            yield from ServeMetrics(lambda: loop.call(lambda: ServeMoment.of(server))).collect()

    async def run(self, meter: ReadMeter) -> None:
        """Serve until it is cancelled. A failure is logged, and serving is tried again."""
        self._loop = LoopCalls(asyncio.get_running_loop())
        while True:
            try:
                await self._serve(meter)
            except (ConfigError, StoreError) as error:
                self._failed(str(error))
            except Exception as error:
                LOGGER.exception("a bug of tieredstore's ended the server of RocketMQ clients")
                self._failed(f"a bug of tieredstore's: {type(error).__name__}")
            await self._clock.sleep(RETRY_S)

    async def _serve(self, meter: ReadMeter) -> None:
        async with (
            ReadableTier(lambda: self._config) as tier,
            serving(self._options, tier, meter, self._clock) as server,
        ):
            self._server = server
            try:
                await asyncio.Event().wait()
            finally:
                self._server = None

    def _failed(self, reason: str) -> None:
        if reason != self._failure:
            LOGGER.error(
                "RocketMQ clients are not served, which is tried again every %g s; tiering "
                "continues: %s",
                RETRY_S, reason,
            )  # fmt: skip
        self._failure = reason
