"""`tieredstore put`: appends messages to our own hot log."""

import asyncio
import logging
import os
import sys
from dataclasses import dataclass
from functools import partial

import click

from provider.clock import SystemClock
from provider.errors import StoreError
from tieredstore.cli.appending import (
    Appending,
    Decode,
    GivenFields,
    InputLines,
    message_of_body,
    message_of_line,
    properties_of,
    sentence_of,
    with_done,
)
from tieredstore.cli.invocation import Invocation
from tieredstore.cli.signals import EndingSignals, Signalled
from tieredstore.config.effective import Config
from tieredstore.hot.encoding import MessageRefused
from tieredstore.store.configured import plan_store
from tieredstore.store.plugins import PluginContext, StoreLayers, opened

LOGGER = logging.getLogger("tieredstore.cli.put")
ESCAPED_BYTES_MAX = 6
"""Bytes of JSON that one byte of a body takes at most: `\\u0000`."""
AROUND_BYTES_MAX = 1 << 20
"""Bytes of a line beside its body: properties and other fields."""


@dataclass(frozen=True, slots=True)
class PutOrder:
    """Options of `put`: the input, and the form of the output."""

    given: GivenFields
    bodies: tuple[str, ...]
    """Empty: the lines of standard input."""
    as_json: bool

    @property
    def decode(self) -> Decode:
        """Decoder of a line."""
        return partial(message_of_line if self.as_json else message_of_body, given=self.given)


def run(
    invocation: Invocation,
    *,
    topic: str,
    body: tuple[str, ...],
    queue: int | None,
    tags: str | None,
    keys: str | None,
    pairs: tuple[tuple[str, str], ...],
    as_json: bool,
) -> None:
    """Append messages to TOPIC in the store that storePathRootDir names, or begin that store."""
    config = invocation.load_config()
    order = PutOrder(GivenFields(topic, queue, properties_of(pairs, tags, keys)), body, as_json)
    context, layers = plan_store(config, clock=SystemClock(), tiers=False)
    asyncio.run(_put(config, context, layers, order))


async def _put(
    config: Config, context: PluginContext, layers: StoreLayers, order: PutOrder
) -> None:
    lines: InputLines | None = None
    if not order.bodies:
        most = line_bytes_max(config, as_json=order.as_json)
        lines = InputLines(sys.stdin.fileno(), line_bytes_max=most)
    task = asyncio.current_task()
    assert task is not None, "a command is a task"
    appending = Appending(layers.outermost, order.decode, as_json=order.as_json)
    is_open = False

    def ask() -> None:
        """End after the input that was read; at once while the store is not open."""
        if not is_open:
            task.cancel()
        elif lines is not None:
            lines.end()

    signals = EndingSignals(ask)
    try:
        async with opened(context, layers):
            is_open = True
            await _append(appending, lines, order)
    except StoreError as error:
        raise with_done(error, appending) from error
    except asyncio.CancelledError:
        if not signals.first:
            raise
    if signals.first:
        raise Signalled(signals.first, appending.done)


async def _append(appending: Appending, lines: InputLines | None, order: PutOrder) -> None:
    if lines is not None:
        if sys.stdin.isatty():
            LOGGER.info("each line is a message; Ctrl-D ends")
        await appending.append_lines(lines)
        return
    given = order.given
    try:
        await appending.append([message_of_body(os.fsencode(one), given) for one in order.bodies])
    except MessageRefused as error:
        raise click.ClickException(sentence_of(error)) from error


def line_bytes_max(config: Config, *, as_json: bool) -> int:
    """The longest line that can be a message."""
    body = int(config.settings["maxMessageSize"].value)
    return body * ESCAPED_BYTES_MAX + AROUND_BYTES_MAX if as_json else body
