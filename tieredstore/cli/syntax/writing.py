"""Commands that write a tier or a store of our own."""

import click

from tieredstore.cli.invocation import done_by
from tieredstore.cli.syntax.arguments import (
    GIVEN_PATH,
    QUEUE,
    TOPIC,
    WholeNumber,
    json_option,
    new_tier_option,
    standby_option,
    take_over_option,
)

HOURS_MAX = 999_999_999
"""As that of `store/local.py`."""


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


@click.command("tier")
@click.argument("stores", type=GIVEN_PATH, nargs=-1, metavar="[STORE_DIR]...")
@click.option(
    "--broker",
    "brokers",
    multiple=True,
    metavar="NAME",
    help="Broker of one of several stores; one for each, in the same order.",
)
@click.option(
    "--follow", is_flag=True, help="Continue with new messages until SIGINT, SIGTERM or SIGHUP."
)
@take_over_option
@standby_option
@new_tier_option
@json_option
@done_by("tieredstore.cli.commands.tier")
def tier() -> None:
    """Copy every message in STORE_DIR into the tier.

    STORE_DIR is a broker's store directory; without it, the storePathRootDir of the
    configuration. The broker may be running, stopped or crashed, and its directory is never
    written. Give the broker's own configuration with --conf, or its name with
    -D brokerName=NAME: a store of another broker is refused.

    Several stores of one host are tiered by one process, each into the tier of its own broker.
    Name each broker with --broker, or give the brokers' configuration files in place of
    directories. What fails is named; the other stores are tiered. With --follow it is tried again
    every 10 s, unless the configuration is wrong or another process owns the tier.

    With --follow and tieredStoreServePort, the same process serves RocketMQ clients, as
    `tieredstore serve` does, with tieredStoreConsolePort it has the pages of `tieredstore console`.
    If a port cannot be listened at, tiering continues without it, and it is tried again.

    The tier has one owner: while another process tiers the same broker, this command names it
    and ends.

    \b
    Exit status, besides those of `tieredstore --help`:
      1  a queue is stopped or damaged, messages were lost or had rotted
         before they could be tiered, or could not be tiered yet, or a part of
         the store could not be read
      3  the tier's storage failed; with --follow, only if it still fails
         at the end
      4  another process owns the tier, or took it over
    Of several stores, the largest status counts. The next start continues where this one ended.
    """  # noqa: D301 - \b is click's mark of lines that stay


@click.command("run")
@click.option(
    "--put",
    "puts",
    is_flag=True,
    help="Also append the messages of standard input: JSON objects as for `put --json`, each "
    "with its topic. Each line is answered by an object with its number.",
)
@take_over_option
@standby_option
@new_tier_option
@json_option
@done_by("tieredstore.cli.commands.run")
def run() -> None:
    """Run the configured store in storePathRootDir until SIGINT, SIGTERM or SIGHUP.

    It opens the hot log and the plug-ins around it (messageStorePlugIn), tiers old and new
    messages, and deletes old tiered messages from the hot log. Messages come from
    --put, or from a program that embeds the store; while this command runs, no other process
    writes the store. With tieredStoreServePort, RocketMQ clients are served from the tier, as by
    `tieredstore serve`; what is not tiered yet is not served. With tieredStoreConsolePort it
    has the pages of `tieredstore console`.

    A signal ends it cleanly: the backlog is tiered for at most tieredStoreShutdownTimeout, then the
    store is closed, and a Java broker may be started on it. A second signal ends it at once; then,
    and after a crash, the next start has all acknowledged messages.

    \b
    Exit status, besides those of `tieredstore --help`:
      1  a queue is stopped or damaged, or messages were lost
      3  the tier's storage failed, and still fails at the end
      4  another process owns the store or the tier, or took the tier over
    """  # noqa: D301 - \b is click's mark of lines that stay


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
@done_by("tieredstore.cli.commands.put")
def put() -> None:
    """Append messages to TOPIC in the store that storePathRootDir names, or begin that store.

    Each BODY is one message. Without BODY, each line of standard input is one; empty lines are
    skipped. With --json lines are objects with the fields that `read --json` prints, so that
    `read --json | put --json` copies messages with their properties, hosts and times of birth.
    Options override these fields. Queue offset and store time are always new.

    Prints topic, queue and queue offset of each message, separated by tabs. Plug-ins of the
    configuration see the messages; they reach a tier with the next `run`, or with `tier`. While
    another process writes the store, this command names it and ends.
    """


@click.command("delete-topic")
@click.argument("topics", type=TOPIC, nargs=-1, required=True, metavar="TOPIC...")
@click.option("--dry-run", is_flag=True, help="Print what would be deleted; change nothing.")
@click.option(
    "--tier-only",
    is_flag=True,
    help="Delete from the tier alone, as for the tier of a broker. Delete the topic on the broker "
    "first: the next `tier` tiers again the messages that the broker still has.",
)
@take_over_option
@json_option
@done_by("tieredstore.cli.commands.maintaining", "run_delete_topic")
def delete_topic() -> None:
    """Delete topics with all their messages, for good, without a confirmation.

    The topics are deleted from the store in storePathRootDir, which no process may be writing, and
    from its tier in tieredStoreFilePath; or from a tier alone, which no process may own. Deleted
    messages can no longer be read. The tier's files are deleted by the end of the command, or by
    the next owner, and the records in the store's CommitLog when its files expire. A topic that is
    created again continues above its old end. After an interruption run the command again. Only a
    broker deletes from its own store, even if it is stopped: use --tier-only there.

    Prints the deleted queues and messages of each topic. Exit status 1: a topic had no messages,
    and no interrupted deletion was completed.
    """


@click.command("set-retention")
@click.argument("topic", type=TOPIC)
@click.argument("hours", type=WholeNumber(1, HOURS_MAX), required=False)
@click.option(
    "--default", "is_default", is_flag=True, help="Keep it for tieredStoreFileReservedTime."
)
@done_by("tieredstore.cli.commands.maintaining", "run_set_retention")
def set_retention() -> None:
    """Have the tier keep TOPIC for HOURS, or for its default time again.

    Notes RocketMQ's attribute reserve.time in config/topics.json of the store in storePathRootDir,
    which no process may be writing. The next `run` or `tier` applies it, if
    tieredStoreDeleteFileEnable is on.
    """
