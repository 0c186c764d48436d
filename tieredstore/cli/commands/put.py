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
from tieredstore.cli.invocation import Invocation, json_option, pass_invocation
from tieredstore.cli.reading import QUEUE, TOPIC
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


class PropertyType(click.ParamType[tuple[str, str]]):
    """`name=value`."""

    name = "property"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Refuse a text without a name or without `=`."""
        name, equals, text = str(value).partition("=")
        if not name or not equals:
            self.fail(f"it is name=value, not {str(value)!r}", param, ctx)
        return name, text


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


@click.command("put")
@click.argument("topic", type=TOPIC)
@click.argument("body", nargs=-1)
@click.option(
    "--queue", type=QUEUE, metavar="N", help="Queue number. Default: 0; with --json, the line's."
)
@click.option("--tags", metavar="TAG", help="Tag that consumers subscribe to.")
@click.option("--keys", metavar="KEYS", help="Keys of the message, separated by blanks.")
@click.option(
    "--property",
    "pairs",
    type=PropertyType(),
    multiple=True,
    metavar="NAME=VALUE",
    help="Another property; repeatable.",
)
@json_option
@pass_invocation
def command(
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
    """Append messages to TOPIC in the store that storePathRootDir names, or begin that store.

    Each BODY is one message. Without BODY, each line of standard input is one; empty lines are
    skipped. With --json lines are objects with the fields that `read --json` prints, so that
    `read --json | put --json` copies messages with their properties, hosts and times of birth.
    Options override these fields. Queue offset and store time are always new.

    Prints topic, queue and queue offset of each message, separated by tabs. Plug-ins of the
    configuration see the messages; they reach a tier with the next `run`, or with `tier`. While
    another process writes the store, this command names it and ends.
    """
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
