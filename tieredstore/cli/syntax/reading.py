"""Commands that read a tier."""

import re

import click

from tieredstore.cli.invocation import done_by
from tieredstore.cli.syntax.arguments import (
    MOMENT,
    OFFSET_MAX,
    QUEUE,
    TOPIC,
    WholeNumber,
    brokers_option,
    java_metadata_option,
    json_option,
)
from tieredstore.interrupt import imported

COPY_STATES = ("COPY_STARTED", "COPY_FINISHED", "DELETE_STARTED", "DELETE_FINISHED")
"""The names of `CopyState`."""
BOUNDARIES, TIME_RULES = ("lower", "upper"), ("local", "tiered")
"""The values of `Boundary` and of `TimeRules`."""


class MomentCommand(click.Command):
    """A command whose last argument is a moment, which may begin with a dash."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Move a span with a dash after all options, so that it is not parsed as one."""
        dashed = [word for word in args if re.match(r"-\d", word)]
        spans = [word for word in dashed if imported("tieredstore.reader.cursor").is_span(word)]
        if spans and "--" not in args:
            args = [*(word for word in args if word not in spans), "--", *spans]
        return super().parse_args(ctx, args)


@click.command("topics")
@click.option(
    "--by",
    type=click.Choice(["queue", "topic", "broker"]),
    default="queue",
    help="A row for each queue (default), for each topic or for each broker.",
)
@brokers_option
@java_metadata_option
@json_option
@done_by("tieredstore.cli.commands.listing", "topics")
def topics() -> None:
    """List the queues of a tier: first and next offset, lost messages, size, newest message.

    With --broker '*' those of all its brokers; --by topic adds them up.
    """


@click.command("brokers")
@json_option
@done_by("tieredstore.cli.commands.listing", "brokers")
def brokers() -> None:
    """List the brokers of a tier: cluster, queues, messages, size, newest message.

    The other commands take one of them: -D brokerClusterName=CLUSTER -D brokerName=BROKER, if there
    are several.
    """


@click.command("status")
@brokers_option
@json_option
@done_by("tieredstore.cli.commands.status")
def status() -> None:
    """Show who owns a tier and whether that process lives, what the tier holds, and what it lost.

    Reads the tier alone, from any host. If the configuration sets tieredStoreMetricsPort, it also
    asks the process there. Exit status 1: the owner's process is gone or silent, or not ready.
    """


@click.command("segments")
@click.argument("topic", type=TOPIC, required=False)
@click.argument("queue", type=QUEUE, required=False)
@click.option(
    "--state",
    type=click.Choice(COPY_STATES, case_sensitive=False),
    metavar="STATE",
    help="Only segments in this state: COPY_STARTED, COPY_FINISHED (what is published),"
    " DELETE_STARTED (unpublished, its file waits for its deletion) or DELETE_FINISHED (none: it is"
    " forgotten).",
)
@click.option(
    "--offset",
    type=WholeNumber(0, OFFSET_MAX),
    metavar="N",
    help="Only the CommitLog segment that has the message with this offset of QUEUE.",
)
@java_metadata_option
@json_option
@done_by("tieredstore.cli.commands.listing", "segments")
def segments() -> None:
    """List the segment files of all queues, of the queues of TOPIC, or of one QUEUE."""


@click.command("read")
@click.argument("topic", type=TOPIC)
@click.argument("queue", type=QUEUE, required=False)
@click.option(
    "--offset",
    type=WholeNumber(0, OFFSET_MAX),
    metavar="N",
    help="First queue offset in QUEUE. Default: the oldest message.",
)
@click.option(
    "--since",
    type=MOMENT,
    metavar="TIME",
    help="Only what the broker stored at TIME or later: 2026-11-21T12:00:00Z, 2h"
    " (s, m, h, d or w before now) or Unix milliseconds. UTC without a time zone.",
)
@click.option("--until", type=MOMENT, metavar="TIME", help="Only what was stored before TIME.")
@click.option(
    "--max",
    "messages_max",
    type=WholeNumber(1, OFFSET_MAX),
    metavar="N",
    help="Maximum number of messages. Default: all; with --once, 32.",
)
@click.option(
    "--tags",
    metavar="EXPR",
    help='Print only messages with these tags, such as "TagA || TagB".',
)
@click.option(
    "--order",
    type=click.Choice(["queue", "time"]),
    default="queue",
    help="Queue after queue (default), or all queues, also of several brokers, merged by store "
    "time.",
)
@click.option(
    "--skip-damaged",
    is_flag=True,
    help="Name damaged messages on standard error, pass over them and exit with 1.",
)
@click.option(
    "--digest",
    is_flag=True,
    help="Print SHA-256 and length of each body instead of the body.",
)
@click.option("--once", is_flag=True, help="Make one fetch, then print its status and offsets.")
@brokers_option
@java_metadata_option
@json_option
@done_by("tieredstore.cli.commands.read")
def read() -> None:
    """Read the messages of TOPIC, or of its queue number QUEUE, with their bodies decompressed.

    On a terminal it prints a table, which cuts long fields off (…) and shows the size of a body
    that is no text. Into a pipe it prints a whole message a line: queue, offset, store time, bytes,
    tags, keys and body, separated by tabs. --json prints all fields; bodies are text if they are
    UTF-8, else Base64. Standard error names the end of a queue, and lost and damaged messages.
    With --broker '*' it reads one broker after another.
    """


@click.command("offset-by-time", cls=MomentCommand)
@click.argument("topic", type=TOPIC)
@click.argument("queue", type=QUEUE)
@click.argument("moment", type=MOMENT)
@click.option(
    "--boundary",
    type=click.Choice(BOUNDARIES),
    default=BOUNDARIES[0],
    help="lower (default): the first message stored at MOMENT or later, or the queue's end."
    " upper: the last one stored at MOMENT or earlier, or the queue's first offset.",
)
@click.option(
    "--rules",
    type=click.Choice(TIME_RULES),
    default=TIME_RULES[0],
    help="What upper means where no message was stored at exactly MOMENT. local (default): as"
    " above, like RocketMQ's local store; tiered: the message after it, like its tiered store.",
)
@java_metadata_option
@json_option
@done_by("tieredstore.cli.commands.listing", "offset_by_time")
def offset_by_time() -> None:
    """Print the offset of QUEUE of TOPIC at the time MOMENT of the broker.

    MOMENT is 2026-11-21T12:00:00Z, 2h (s, m, h, d or w before now) or Unix milliseconds, in UTC
    without a time zone. `read TOPIC QUEUE --offset N` reads from there.
    """


@click.command("query")
@click.argument("topic", type=TOPIC)
@click.argument("key")
@click.option(
    "--max",
    "messages_max",
    type=WholeNumber(1, OFFSET_MAX),
    default=32,
    metavar="N",
    help="Maximum number of messages. Default: 32.",
)
@click.option(
    "--since",
    type=MOMENT,
    metavar="TIME",
    help="Only what the broker stored at TIME or later, written as for `read`.",
)
@click.option("--until", type=MOMENT, metavar="TIME", help="Only what was stored before TIME.")
@click.option("--oldest-first", is_flag=True, help="The oldest messages, oldest first.")
@click.option(
    "--scan",
    is_flag=True,
    help="Read all messages that no index has yet; else the newest 256 MiB of them.",
)
@click.option(
    "--digest", is_flag=True, help="Print SHA-256 and length of each body instead of the body."
)
@brokers_option
@java_metadata_option
@json_option
@done_by("tieredstore.cli.commands.query")
def query() -> None:
    """Find the messages of TOPIC that have KEY: one of their keys, or their unique id (UNIQ_KEY).

    The newest come first, with --broker '*' those of all brokers. They are printed as `read` prints
    them. Exits with 1 if there is none, or if the search is incomplete, which standard error names.
    """
