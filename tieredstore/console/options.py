"""Options of the console, from the configuration, and the import of what serves it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

from provider.clock import Clock
from provider.names import is_loopback
from tieredstore.config.effective import Config
from tieredstore.config.sources import ConfigError

if TYPE_CHECKING:
    from types import ModuleType

    from tieredstore.console.server import ConsoleBeside

PORT, HOST, TOKEN_PATH = (
    "tieredStoreConsolePort",
    "tieredStoreConsoleHost",
    "tieredStoreConsoleTokenPath",
)
COMMAND_PORT = 8077
"""Port of the command where none is configured."""
EXTRA = "the console needs Starlette, uvicorn and Jinja2: pip install 'tieredstore[console]'"
OF_EXTRA = frozenset({"jinja2", "starlette", "uvicorn"})
TOKEN_LENGTH_MIN = 16
TOKEN_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class ConsoleOptions:
    """Options of the console."""

    host: str
    port: int
    token: str = field(default="", repr=False)
    """Secret that every request has; "": none is needed, which loopback alone allows."""

    @classmethod
    def of(cls, config: Config) -> Self:
        """Build the options of a configuration. Blocks for the file of the token.

        Raises:
            ConfigError: every client of the network could read all messages, or the token is too
                short or cannot be read.
        """
        host = str(config.settings[HOST].value)
        path = str(config.settings[TOKEN_PATH].value)
        token = _token_in(Path(path)) if path else ""
        if not (token or is_loopback(host)):
            raise ConfigError(
                f"{HOST} ({host}) is no loopback address, and every client that reaches it could "
                f"read all messages: set {TOKEN_PATH} to a file with a token"
            )
        return cls(host, int(config.settings[PORT].value), token)


def console_server() -> "ModuleType":
    """Import the server.

    Raises:
        ConfigError: the extra `console` is not installed.
    """
    try:
        from tieredstore.console import server  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in OF_EXTRA:
            raise
        raise ConfigError(EXTRA) from error
    return server


def console_beside(configs: Sequence[Config], clock: Clock) -> "ConsoleBeside | None":
    """Build the console of a process that runs; None if the first configuration names no port.

    Raises:
        ConfigError: as `ConsoleOptions.of` and `console_server`.
    """
    if not configs[0].settings[PORT].value:
        return None
    options = ConsoleOptions.of(configs[0])
    return console_server().ConsoleBeside(configs, options, clock)


def _token_in(path: Path) -> str:
    try:
        with path.open("rb") as file:
            token = file.read(TOKEN_BYTES_MAX).decode("ascii").strip()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"{path} ({TOKEN_PATH}) cannot be read: {reason}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} ({TOKEN_PATH}) is no ASCII text") from error
    if len(token) < TOKEN_LENGTH_MIN or not token.isprintable() or " " in token:
        raise ConfigError(
            f"{path} ({TOKEN_PATH}) has no token of {TOKEN_LENGTH_MIN} characters or more, without "
            f"spaces: write one, such as by `openssl rand -hex 32`"
        )
    return token
