"""HTTP server of the console: by itself, or inside the process that writes the tier."""

import asyncio
import logging
import os
import socket
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager

import uvicorn

from provider.clock import Clock
from provider.errors import StoreError
from tieredstore.config.effective import Config
from tieredstore.config.sources import ConfigError
from tieredstore.console.history import LagHistory, sample_lags
from tieredstore.console.options import HOST, PORT, ConsoleOptions
from tieredstore.console.pages import guarded_pages
from tieredstore.console.tiers import shown_tiers

LOGGER = logging.getLogger("tieredstore.console")
CONNECTIONS_MAX = 64
REQUEST_BYTES_MAX = 32 << 10
"""Bytes of the first line and the headers of a request."""
IDLE_S, CLOSE_S = 15, 2
RETRY_S = 5.0
"""Seconds between two attempts to serve beside the owner of a tier."""


class _Server(uvicorn.Server):
    """Server whose process handles signals itself."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Handle no signal."""
        yield


@asynccontextmanager
async def serving(
    configs: Sequence[Config], options: ConsoleOptions, clock: Clock
) -> AsyncGenerator[str]:
    """Serve the pages of these brokers while the block runs, which gets their address.

    Raises:
        ConfigError: the address cannot be listened at.
    """
    with await asyncio.to_thread(_listening, options.host, options.port) as listener:
        async with shown_tiers(configs, clock) as tiers:
            history = LagHistory()
            settings = uvicorn.Config(
                await guarded_pages(tiers, history, options, clock),
                http="h11",
                ws="none",
                lifespan="off",
                loop="none",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                limit_concurrency=CONNECTIONS_MAX,
                timeout_keep_alive=IDLE_S,
                timeout_graceful_shutdown=CLOSE_S,
                h11_max_incomplete_event_size=REQUEST_BYTES_MAX,
            )
            server = _Server(settings)
            host, port = listener.getsockname()[:2]
            async with asyncio.TaskGroup() as group:
                group.create_task(server.serve(sockets=[listener]))
                sampler = group.create_task(sample_lags(tiers, history, clock))
                try:
                    yield f"http://{f'[{host}]' if ':' in host else host}:{port}/"
                finally:
                    sampler.cancel()
                    server.should_exit = True


def _listening(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        number = error.errno or 0  # below 0: of a name that is not known
        reason = (os.strerror(number) if number > 0 else error.strerror or str(error)).lower()
        raise ConfigError(
            f"the console cannot be served at {host} port {port} ({HOST}, {PORT}): {reason}"
        ) from error


class ConsoleBeside:
    """Console inside a process that tiers or serves, from its own readers.

    `run` is a worker of that process. A failure never stops the others.
    """

    def __init__(self, configs: Sequence[Config], options: ConsoleOptions, clock: Clock) -> None:
        self._configs = configs
        self._options = options
        self._clock = clock
        self._failure = "it starts"

    def unready_reason(self) -> str:
        """Return why the console is not served, in one line; "" while it is."""
        return f"the console is not served: {self._failure}" if self._failure else ""

    async def run(self) -> None:
        """Serve until it is cancelled. A failure is logged, and serving is tried again."""
        while True:
            try:
                async with serving(self._configs, self._options, self._clock) as address:
                    LOGGER.info("the console is at %s", address)
                    self._failure = ""
                    await asyncio.Event().wait()
            except (ConfigError, StoreError) as error:
                self._failed(str(error))
            except Exception as error:
                LOGGER.exception("a bug of tieredstore's ended the console")
                self._failed(f"a bug of tieredstore's: {type(error).__name__}")
            await self._clock.sleep(RETRY_S)

    def _failed(self, reason: str) -> None:
        if reason != self._failure:
            LOGGER.error(
                "the console is not served, which is tried again every %g s; all else "
                "continues: %s",
                RETRY_S, reason,
            )  # fmt: skip
        self._failure = reason
