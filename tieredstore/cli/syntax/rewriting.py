"""Commands that rewrite the messages of a tier, or copy them elsewhere."""

import re
from typing import TYPE_CHECKING

import click

from tieredstore.cli.invocation import done_by
from tieredstore.cli.syntax.arguments import (
    GIVEN_PATH,
    GIVEN_PLACE,
    MOMENT,
    OFFSET_MAX,
    QUEUE,
    TOPIC,
    TOPICS,
    WholeNumber,
    brokers_option,
    engine_options,
    java_metadata_option,
    json_option,
    take_over_option,
)
from tieredstore.interrupt import imported

if TYPE_CHECKING:
    from container.move.offload_plan import Until

INTERVAL_S = 60
JOBS = 2
"""As `JOBS_MAX` of `admin/compact.py`."""


class UntilType(click.ParamType["Until"]):
    """A queue offset, which is a whole number, or a time, which is none."""

    name = "until"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> "Until":
        """Take a whole number for an offset."""
        until = imported("container.move.offload_plan").Until
        text = str(value)
        if re.fullmatch("[0-9]{1,19}", text) and int(text) <= OFFSET_MAX:
            return until(offset=int(text))
        return until(ms=MOMENT.convert(text, param, ctx))


@click.command("rebuild")
@click.option(
    "--metadata",
    is_flag=True,
    help="Also rebuild the journal of a tier that has lost it, from its CommitLog files or its "
    "parts in an object store. Readers see everything at once, or nothing.",
)
@click.option(
    "--backup",
    type=GIVEN_PATH,
    help="A file that `metadata export` wrote. With --metadata it is the source of gaps at the end "
    "of a queue, which leave no trace in messages.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be made; write nothing.")
@engine_options
@json_option
@done_by("tieredstore.cli.commands.rebuild")
def rebuild() -> None:
    """Rebuild lost or damaged ConsumeQueue and index files from the messages, byte for byte.

    A tier in a directory may be in use meanwhile. One in an object store is owned, if a file is
    lost. Files are published only after all are made. Exit status 1: a file could not be made, or
    damage was found.
    """


@click.command("restore")
@click.argument("directory", type=GIVEN_PATH)
@click.option(
    "--since",
    type=MOMENT,
    metavar="TIME",
    help="Only what was stored at TIME or later: 2026-11-21T12:00:00Z, 3d (s, m, h, d or w before "
    "now) or Unix milliseconds. UTC without a time zone. What is older stays in the tier.",
)
@click.option(
    "--topic",
    "topics",
    type=TOPIC,
    multiple=True,
    help="Only messages of this topic; repeatable. Default: all. Other queues get no messages, and "
    "continue at the tier's end.",
)
@click.option(
    "--topics",
    "lists",
    type=TOPICS,
    multiple=True,
    metavar="TOPIC,...",
    help="The same for several topics, separated by commas.",
)
@click.option(
    "--offsets",
    type=GIVEN_PATH,
    metavar="FILE",
    help="Offsets of consumer groups, a broker's consumerOffset.json. Default: those that `serve` "
    "kept for this tier.",
)
@click.option(
    "--topics-json",
    type=GIVEN_PATH,
    metavar="FILE",
    help="Settings of topics, a broker's topics.json from a backup: permissions, numbers of "
    "queues where the tier has no more, and attributes; reserve.time is the tier's. Default, and "
    "for other topics: the settings that the tier has.",
)
@click.option(
    "--processes",
    type=click.IntRange(1, 1024),
    metavar="N",
    help="Worker processes. Default: one for each core.",
)
@json_option
@done_by("tieredstore.cli.commands.restore")
def restore() -> None:
    """Write a store directory from the tier, on which a broker starts again.

    DIRECTORY is new or empty. It becomes a store (storePathRootDir) with CommitLog, ConsumeQueues,
    topics and offsets of groups; producers continue above the tier's end, and `tier --follow` with
    the same tier. An interrupted run is continued by the next one, and no broker starts before the
    end. mappedFileSizeCommitLog and mappedFileSizeConsumeQueue are those of the broker: give its
    configuration with --conf. Exit status 1: messages are missing, which the summary names.
    """


@click.command("compact")
@click.option(
    "--topic",
    "topics",
    type=TOPIC,
    multiple=True,
    help="Only messages of this topic, and no index file; repeatable. Default: everything.",
)
@click.option(
    "--merge-bytes-max",
    type=WholeNumber(64 << 10, 64 << 20),
    metavar="BYTES",
    help="Length of the objects that are made. Default: tieredStoreMergeBytesMax, which should not "
    "be larger, or the owner of the tier makes them again.",
)
@click.option(
    "--jobs",
    type=WholeNumber(1, 64),
    default=JOBS,
    metavar="N",
    help=f"Objects that are made side by side; default {JOBS}. Each takes twice their length "
    "and 32 MiB of memory.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be done; own and write nothing.")
@take_over_option
@json_option
@done_by("tieredstore.cli.commands.maintaining", "run_compact")
def compact() -> None:
    """Merge small objects of messages, and small index files, into large ones.

    Does at once the merges that an owner of the tier does gradually. No process may own the tier.
    In a directory segments are files of their own, and only index files are merged. Readers
    continue: replaced objects stay until tieredStoreJournalGraceTime is over, and the next owner
    deletes them. An interrupted run loses nothing, and the next one continues. Exit status 1:
    an object could not be read or deleted.
    """


@click.command("export")
@click.argument("directory", type=GIVEN_PLACE, required=False)
@click.option(
    "--iceberg",
    "table",
    metavar="CATALOG.NAMESPACE.TABLE",
    help="Write into this Iceberg table in place of DIRECTORY. The catalog is configured as"
    " pyiceberg's are: in ~/.pyiceberg.yaml or the environment.",
)
@click.option(
    "--topic",
    "topics",
    type=TOPIC,
    multiple=True,
    help="Only this topic; repeatable. Default: all.",
)
@click.option(
    "--queue",
    "queues",
    type=QUEUE,
    multiple=True,
    metavar="N",
    help="Only the queues of this number; repeatable. Default: all.",
)
@click.option(
    "--since",
    type=MOMENT,
    metavar="TIME",
    help="Only what was stored at TIME or later: 2026-11-21T12:00:00Z, 2h"
    " (s, m, h, d or w before now) or Unix milliseconds. UTC without a time zone.",
)
@click.option("--until", type=MOMENT, metavar="TIME", help="Only what was stored before TIME.")
@click.option("--tag", "tags", multiple=True, help="Only messages with this tag; repeatable.")
@click.option(
    "--columns",
    metavar="NAMES",
    help="Columns of the files, separated by commas, named as in `read --json`."
    " Default: all. The topic is in the names of the directories.",
)
@click.option(
    "--partition",
    type=click.Choice(("day", "hour")),
    help="Divide the export by topic and day, or by hour, too. Default: day.",
)
@click.option(
    "--body",
    type=click.Choice(("bytes", "text", "json")),
    help="Type of the column body. text: null if a body is not UTF-8; json: null if it"
    " is no JSON. Default: bytes.",
)
@click.option(
    "--property",
    "properties",
    multiple=True,
    metavar="NAME:TYPE",
    help="Add a column of this property: string, long, double or boolean. Null if a"
    " message has no such value. Repeatable.",
)
@click.option(
    "--skip-damaged",
    is_flag=True,
    help="Pass over damaged messages, count them, and exit with 1.",
)
@click.option(
    "--skip-missing",
    is_flag=True,
    help="Pass over messages whose published bytes are not in the storage, count them"
    " as damaged, and exit with 1.",
)
@click.option(
    "--follow",
    is_flag=True,
    help="Continue with new messages until SIGINT, SIGTERM or SIGHUP.",
)
@click.option(
    "--interval",
    "interval_s",
    type=WholeNumber(1, 86_400),
    metavar="SECONDS",
    default=INTERVAL_S,
    help=f"Time between two runs with --follow; default {INTERVAL_S}. Each run with new messages"
    " adds files, or a snapshot.",
)
@click.option(
    "--join",
    "joins",
    is_flag=True,
    help="Then join small files, so that a topic and day has one. In a directory of this host; with"
    " --follow where there are 16 of them.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be read, and write nothing.")
@engine_options
@brokers_option
@java_metadata_option
@json_option
@done_by("tieredstore.cli.commands.export")
def export() -> None:
    """Write messages into DIRECTORY as Parquet files, bodies decompressed, properties as a map.

    DIRECTORY may be a URL, such as s3://bucket/prefix, or one of any file system of fsspec. The
    files are DIRECTORY/topic=TOPIC/day=YYYY-MM-DD/*.parquet (with --partition hour, below
    hour=HH there), by the day in UTC when the broker
    stored the messages. An interrupted run is continued by the next one; a run on a complete
    export adds the new messages, each exactly once. With --iceberg they go into a table, by
    snapshots of 4 GiB of logs. With --broker '*' each broker has an export of its own, in
    DIRECTORY/cluster=CLUSTER/broker=BROKER, or in the same table.

    With --follow a signal lets the run under way end, and a second one ends the command at once.
    In either case the next start continues. A storage that does not answer is tried again. Only
    one process may export into a destination.

    \b
    Exit status, besides those of `tieredstore --help`:
      1  messages are missing, which standard error names
      3  the storage or the catalog failed; with --follow, only if it still
         fails at the end
      4  another process exports into the same destination
    """  # noqa: D301 - \b is click's mark of lines that stay


@click.command("offload")
@click.argument("topic", type=TOPIC)
@click.option(
    "--until",
    type=UntilType(),
    metavar="OFFSET|TIME",
    help="Only messages below this offset of their queue (a whole number), or stored before this"
    " time: 2026-11-21T12:00:00Z, 2h (s, m, h, d or w before now). UTC without a time zone."
    " Default: all.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be moved; change nothing.")
@take_over_option
@json_option
@done_by("tieredstore.cli.commands.maintaining", "run_offload")
def offload() -> None:
    """Move messages of TOPIC to the second store, tieredStoreOffloadPath, which no process may own.

    Segments go whole: one that has a message which is not wanted stays. If all messages of a queue
    are wanted, its open segments are closed and go, too. Each is copied, read back, compared and
    published; the first store's copy goes when tieredStoreOffloadDeletionLag is over. What
    retention would delete within that time stays. What was interrupted is ended by the same
    command.

    Prints what was moved of each queue. Exit status 1: bytes that should have gone are damaged.
    """
