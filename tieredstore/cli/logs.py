"""Standard error of commands: log records, as text or as JSON, and the last sentence."""

import logging
import sys
from collections.abc import Sequence
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime

import click

from tieredstore.cli.streams import JSON, TEXT
from tieredstore.texts import printable

LOGGER_NAME = "tieredstore"
BROKER = ContextVar("BROKER", default="")
"""Broker whose task logs, in a process for several; "" for one."""


class _StandardError(logging.Handler):
    """Prints on standard error; a full or closed one ends nothing."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record."""
        with suppress(OSError):
            # The stream of now: a table or bar on the terminal replaces it, and keeps below.
            click.echo(self.format(record), file=sys.stderr)


class _Text(logging.Formatter):
    """`2026-11-22T11:42:11Z WARNING sentence`; a name from outside cannot break the line."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as a line."""
        broker = BROKER.get()
        text = printable(f"{broker}: {record.getMessage()}" if broker else record.getMessage())
        return f"{_time(record.created)} {record.levelname:<7} {text}"


class _Json(logging.Formatter):
    """JSON lines: an object with time, level, logger, message and the fields of the record."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as a JSON line."""
        broker = BROKER.get()
        fields = ({"broker": broker} if broker else {}) | getattr(record, "fields", {})
        return _json_line(
            record.created, record.levelname, record.name, record.getMessage(), **fields
        )


def set_up(log_format: str, log_level: str) -> None:
    """Print log records from `log_level` on. May be called again."""
    handler = _StandardError()
    handler.setFormatter(_Json() if log_format == JSON else _Text())
    logger = logging.getLogger(LOGGER_NAME)
    logger.handlers = [handler]
    logger.setLevel(log_level.upper())


def say_end(log_format: str, sentence: str, status: int) -> None:
    """Print the sentence that a command ends with."""
    line = f"tieredstore: {printable(sentence)}"
    if log_format == JSON:
        now_s = datetime.now(UTC).timestamp()
        line = _json_line(now_s, "ERROR", "tieredstore.cli", sentence, exit_status=status)
    with suppress(OSError):
        click.echo(line, err=True)


def format_in(words: Sequence[str]) -> str:
    """The format that a command line asks for, which may be wrong otherwise."""
    pairs = zip(words, [*words[1:], ""], strict=True)
    is_json = f"--log-format={JSON}" in words or ("--log-format", JSON) in pairs
    return JSON if is_json else TEXT


def _time(created_s: float) -> str:
    return f"{datetime.fromtimestamp(created_s, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _json_line(created_s: float, level: str, logger: str, message: str, **fields: object) -> str:
    import orjson  # noqa: PLC0415 - only where JSON is wanted

    row = {"time": _time(created_s), "level": level, "logger": logger, "message": message}
    return orjson.dumps({**row, **fields}, default=str).decode()
