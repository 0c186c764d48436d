"""Commands that repair a tier or a hot log, and exchange metadata and keys."""

import click

from tieredstore.cli.invocation import done_by
from tieredstore.cli.syntax.arguments import (
    GIVEN_PATH,
    QUEUE,
    QUEUE_NAME,
    TOPIC,
    WholeNumber,
    json_option,
    take_over_option,
)


@click.command("repair")
@click.argument("topic", type=TOPIC, required=False)
@click.argument("queue", type=QUEUE, required=False)
@click.option(
    "--cut-to-hot",
    is_flag=True,
    required=True,
    help="Unpublish the newest messages, down to the last one that broker and tier share.",
)
@click.option(
    "--store",
    type=GIVEN_PATH,
    metavar="DIR",
    help="The broker's store directory. Default: storePathRootDir.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be unpublished; change nothing.")
@click.option(
    "--save",
    type=GIVEN_PATH,
    metavar="FILE",
    help="Write the messages first into FILE, as `read --json` prints them.",
)
@click.option(
    "--leave-nothing", is_flag=True, help="Allow that no message of a queue stays in the tier."
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@take_over_option
@json_option
@done_by("tieredstore.cli.commands.repair")
def repair() -> None:
    """Lift the stop of queues after their broker lost or rewrote the newest messages.

    Of one QUEUE, of all stopped queues of TOPIC, or of all stopped queues. Stop `tier --follow` of
    this broker first. Messages that are unpublished can no longer be read; their bytes stay for
    tieredStoreCutGraceTime hours, and --save keeps the messages.

    Exit status 1: the cut of some queues is unknown, or nothing of them would stay.

    `repair --journal-to ENTRY` lifts the damage of a journal, `repair --hot-log` that of a hot log;
    each has a --help of its own.
    """


@click.command("repair")
@click.option(
    "--journal-to",
    "entry",
    type=WholeNumber(1, 10**19),
    metavar="ENTRY",
    required=True,
    help="The last entry that stays: the one before the damaged one.",
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
@done_by("tieredstore.cli.commands.repair_log", "repair_journal")
def repair_journal() -> None:
    """Continue without the entries after ENTRY, the last whole one of a damaged journal.

    Bring a damaged entry back from a backup first, if there is one. Refused while an owner lives.
    Nothing is deleted before `tier` has written a newer snapshot: messages that are unpublished are
    tiered again if the broker still has them.
    """


@click.command("repair")
@click.option(
    "--hot-log", is_flag=True, required=True, help="Repair the hot log of a store of our own."
)
@click.option(
    "--store",
    type=GIVEN_PATH,
    metavar="DIR",
    help="The store directory. Default: storePathRootDir.",
)
@click.option("--dry-run", is_flag=True, help="Print what is damaged; change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
@done_by("tieredstore.cli.commands.repair_log", "repair_hot_log")
def repair_hot_log() -> None:
    """Continue without the damaged records of a hot log, which no process may be writing.

    Prints each damaged place with its position, and the lost messages by queue and offset.
    Restore the file from a backup first, if there is one. The damaged bytes are copied to files in
    DIR/truncated and replaced by placeholders. All other messages keep positions and offsets. Lost
    messages that are in the tier are still read from it, others become a gap. After an
    interruption run the command again.

    Exit status 1: --dry-run found damage.
    """


@click.group("metadata")
def metadata() -> None:
    """Exchange metadata with RocketMQ's own tiered store."""


@metadata.command("export", short_help="Write a metadata file for RocketMQ's tiered store.")
@click.argument("file", type=GIVEN_PATH)
@click.option("--overwrite", is_flag=True, help="Replace FILE if it exists.")
@click.option(
    "--with-index",
    is_flag=True,
    help="Write index files for the broker into the tier, with its number of slots.",
)
@json_option
@done_by("tieredstore.cli.commands.metadata", "export")
def metadata_export() -> None:
    """Write FILE, a tieredStoreMetadata.json with which RocketMQ's tiered store opens this tier.

    Stop the broker, put FILE into its store/config/, and start it again.

    RocketMQ reads only index files that have as many slots as it is configured with
    (tieredStoreIndexFileMaxHashSlotNum). --with-index also writes such files, so that RocketMQ
    finds messages by key; tieredstore does not use them.
    """


@metadata.command("import", short_help="Take over a tier that RocketMQ's tiered store wrote.")
@click.argument("file", type=GIVEN_PATH)
@click.option(
    "--without",
    "left_out",
    type=QUEUE_NAME,
    multiple=True,
    metavar="TOPIC[/QUEUE]",
    help="Leave out a damaged queue, or all of a topic; repeatable. Move their files away first.",
)
@click.option(
    "--partly",
    type=QUEUE_NAME,
    multiple=True,
    metavar="TOPIC[/QUEUE]",
    help="Truncate a queue whose newest files are missing, shorter than in FILE, or "
    "unknown to FILE; repeatable.",
)
@json_option
@done_by("tieredstore.cli.commands.metadata", "import_")
def metadata_import() -> None:
    """Take over a tier that RocketMQ's tiered store wrote, with its metadata FILE.

    Reads every message twice to verify it and to compute checksums; no segment file changes.
    RocketMQ's store must not write to the tier afterwards.

    If a message would be left out, nothing is imported: each such queue is named. Bring its files
    back; or make the metadata from the messages there (`rebuild --metadata --backup FILE`);
    or give up the end of the queue with --partly, or the whole queue with --without.
    """


@click.command("rewrap-keys")
@click.option("--dry-run", is_flag=True, help="Say what would be done; change nothing.")
@take_over_option
@json_option
@done_by("tieredstore.cli.commands.maintaining", "run_rewrap")
def rewrap_keys() -> None:
    """Wrap all data keys under the first master key, and delete the wraps of the others.

    The environment variable TIEREDSTORE_OBJECT_STORE_ENCRYPTION_KEYS names the new master key and
    then the old ones: new:BASE64,old:BASE64. Give the new master key to every process before you
    remove the old one. If the tier has a second store, the keys of both are wrapped, after those
    of both were opened.

    Objects of older programs are not bound to the tier. They are rewritten under the same names
    and read back, and such objects are refused from then on. No process may own the tier
    meanwhile. Other messages are not read or rewritten. An interrupted run loses nothing, and the
    next one continues. Exit status 1: an object is damaged, and stays unchanged.
    """
