"""`tieredstore query`: messages of a topic by key."""

import logging
from collections.abc import Iterator
from pathlib import Path

import click

from container.lookup.query import QueryResult
from container.names.queue_id import QueueId
from container.names.rocketmq import INT64_MAX
from provider.errors import Corrupt, StoreError
from tieredstore.cli.invocation import Invocation, WholeNumber, json_option, pass_invocation
from tieredstore.cli.message_printer import MessagePrinter
from tieredstore.cli.output import is_terminal
from tieredstore.cli.reading import MOMENT, TOPIC, java_metadata_option, with_tier
from tieredstore.cli.streams import FINDINGS
from tieredstore.message import Message
from tieredstore.reader.readable_tier import ReadableTier

MESSAGES_MAX = 32
LOGGER = logging.getLogger("tieredstore.cli.query")


@click.command("query")
@click.argument("topic", type=TOPIC)
@click.argument("key")
@click.option(
    "--max",
    "messages_max",
    type=WholeNumber(1, INT64_MAX),
    default=MESSAGES_MAX,
    metavar="N",
    help=f"Maximum number of messages. Default: {MESSAGES_MAX}.",
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
@java_metadata_option
@json_option
@pass_invocation
def command(
    invocation: Invocation,
    *,
    topic: str,
    key: str,
    messages_max: int,
    since: int | None,
    until: int | None,
    oldest_first: bool,
    scan: bool,
    digest: bool,
    java_metadata: Path | None,
    as_json: bool,
) -> int:
    """Find the messages of TOPIC that have KEY: one of their keys, or their unique id (UNIQ_KEY).

    The newest come first. They are printed as `read` prints them. Exits with 1 if there is none,
    or if the search is incomplete, which standard error names.
    """
    if since is not None and until is not None and until <= since:
        raise click.UsageError("--until is not later than --since")
    if not key.strip():
        raise click.UsageError("an empty text is no key")

    async def work(tier: ReadableTier) -> int:
        result = await tier.query_message(
            topic,
            key,
            messages_max=messages_max,
            since=since,
            until=until,
            newest_first=not oldest_first,
            scan_bytes_max=INT64_MAX if scan else None,
        )
        printer = MessagePrinter(
            as_json=as_json,
            is_terminal=is_terminal(),
            digest=digest,
            with_queue=True,
            max_offset=max(queue.max_offset for queue in tier.queues(topic)),
        )
        damage = list(result.damage)
        printer.print(list(_decoded(result, damage)))
        for error in damage:
            LOGGER.warning("a message may be missing: %s", error)
        _say_end(result, topic, key, messages_max)
        is_unsure = bool(damage) or bool(result.unsearched)
        return FINDINGS if is_unsure or not result.messages else 0

    return with_tier(invocation, java_metadata, work, topic=topic)


def _decoded(result: QueryResult, damage: list[StoreError]) -> Iterator[Message]:
    """The messages, bodies decompressed; those whose bodies are damaged are noted instead."""
    for stored in result.messages:
        queue = QueueId(stored.topic, stored.queue_id)
        try:
            yield Message.of(stored, path=str(queue))
        except Corrupt as error:
            damage.append(error)


def _say_end(result: QueryResult, topic: str, key: str, messages_max: int) -> None:
    """Report on standard error the facts that the messages do not show."""
    if result.unsearched:
        LOGGER.warning(
            "%d messages of %s are in no index yet and were not searched; --scan reads them",
            result.unsearched, topic,
        )  # fmt: skip
    if not result.messages:
        LOGGER.info("no message of %s has the key %s", topic, key)
    elif len(result.messages) == messages_max and not result.is_complete:
        LOGGER.info("there may be more; --max is the number of messages to print")
