"""`tieredstore restore`: a broker's store directory, written from its tier."""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from provider.errors import Corrupt, NotFound
from provider.posix.files import posix_errors
from tieredstore.cli.invocation import GIVEN_PATH, Invocation, json_option, pass_invocation
from tieredstore.cli.jobs import engine_of
from tieredstore.cli.output import bytes_progress, write_json, write_table
from tieredstore.cli.reading import MOMENT, TOPIC, TOPICS
from tieredstore.cli.streams import FINDINGS
from tieredstore.config.sources import ConfigError
from tieredstore.following.directory.layout import COMMIT_LOG, commit_log_directories
from tieredstore.hot.log.topics import given_topics
from tieredstore.metrics.summary import counted
from tieredstore.serve.options import ServeOptions
from tieredstore.session.consumer_offsets import Table, parse
from tieredstore.session.reader import existing_tier
from tieredstore.texts import count_text, size_text, time_text

if TYPE_CHECKING:
    from tieredstore.config.effective import Config
    from tieredstore.offline.jobs.restore_store import GroupMessages, RestoreReport

ParsedT = TypeVar("ParsedT")
QUEUES_LISTED_MAX, TOPICS_LISTED_MAX = 40, 10


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
@pass_invocation
def command(
    invocation: Invocation,
    *,
    directory: Path,
    since: int | None,
    topics: tuple[str, ...],
    lists: tuple[frozenset[str], ...],
    offsets: Path | None,
    topics_json: Path | None,
    processes: int | None,
    as_json: bool,
) -> int:
    """Write a store directory from the tier, on which a broker starts again.

    DIRECTORY is new or empty. It becomes a store (storePathRootDir) with CommitLog, ConsumeQueues,
    topics and offsets of groups; producers continue above the tier's end, and `tier --follow` with
    the same tier. An interrupted run is continued by the next one, and no broker starts before the
    end. mappedFileSizeCommitLog and mappedFileSizeConsumeQueue are those of the broker: give its
    configuration with --conf. Exit status 1: messages are missing, which the summary names.
    """
    from tieredstore.offline.jobs.restore_store import Wanted, restore_store  # noqa: PLC0415 - `--help` needs none of it

    config = existing_tier(invocation.load_config())
    kept = _offsets(config, offsets)
    settings = None if topics_json is None else _parsed(topics_json, given_topics)
    wanted = Wanted(frozenset(topics).union(*lists) or None, since)
    with engine_of("local", processes) as engine, bytes_progress("restoring") as progress:
        report = restore_store(
            config,
            engine,
            directory,
            wanted=wanted,
            offsets=kept,
            topics=settings,
            progress=progress,
        )
    if as_json:
        write_json([asdict(queue) for queue in report.queues])
        write_json([{"summary": report.summary}])
    else:
        _print(report, directory)
        _print_log_place(config, directory)
    return 0 if report.is_whole else FINDINGS


def _offsets(config: "Config", given: Path | None) -> Table:
    """Offsets of groups, from a file; none if `serve` kept none."""
    if given is not None:
        return _parsed(given, lambda raw, path: parse(raw, str(path)))[0]
    path = ServeOptions.of(config).offsets_path
    with suppress(NotFound), posix_errors(str(path)):
        return parse(path.read_bytes(), str(path))[0]
    return {}


def _parsed(path: Path, parser: Callable[[bytes, Path], ParsedT]) -> ParsedT:
    """Content of a file that the user gave.

    Raises:
        ConfigError: it cannot be read, or is another file. It is no damage of the tier.
    """
    try:
        return parser(path.read_bytes(), path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except Corrupt as error:
        raise ConfigError(f"{path} is damaged, or another file: {error.reason}") from error


def _print_log_place(config: "Config", directory: Path) -> None:
    """Name the place of the CommitLog that the broker is configured for, if it is another one."""
    place = commit_log_directories(directory, config.hot)[0]
    usual = {(root / COMMIT_LOG).resolve() for root in (directory, config.store_dir)}
    if place.resolve() not in usual:
        click.echo(
            f"storePathCommitLog is {place}: move {directory / COMMIT_LOG} there before the broker "
            "starts, for without its CommitLog it drops all queues"
        )


def _by_group(found: "Sequence[GroupMessages]") -> list[tuple[tuple[str, str], int]]:
    """Numbers of messages by group and topic, over all queues."""
    total = Counter[tuple[str, str]]()
    for one in found:
        total[one.group, one.topic] += one.messages
    return sorted(total.items())


def _print(report: "RestoreReport", directory: Path) -> None:
    click.echo(
        f"{directory} has {counted(report.messages, 'message')} of "
        f"{counted(len(report.queues), 'queue')}, {size_text(report.bytes)}"
    )
    if report.groups_before:
        click.echo(f"{report.groups_before} of {report.groups} parts are of an earlier run")
    short = [one for one in report.queues if one.why]
    if short:
        rows = [
            (one.topic, str(one.queue_id), f"{one.tier_first:,} to {one.first - 1:,}", one.why)
            for one in short[:QUEUES_LISTED_MAX]
        ]
        write_table(("topic", "queue", "not in the directory", "because of"), rows)
        if len(short) > QUEUES_LISTED_MAX:
            click.echo(f"and {len(short) - QUEUES_LISTED_MAX:,} more; --json lists all")
    if report.deleted:
        click.echo(f"deleted topics are left out: {', '.join(report.deleted)}")
    if report.guessed:
        more = f" and {len(report.guessed) - TOPICS_LISTED_MAX:,} more"
        click.echo(
            f"the tier has no settings of {', '.join(report.guessed[:TOPICS_LISTED_MAX])}"
            f"{more if len(report.guessed) > TOPICS_LISTED_MAX else ''}: permission 6, and as many "
            "queues as have messages, are a guess: restore again with --topics-json FILE of a "
            "backup, or set them with `mqadmin updateTopic`"
        )
    for (group, topic), count in _by_group(report.offsets.beyond):
        click.echo(
            f"{group} had consumed {counted(count, 'message')} of {topic} that "
            f"{'is' if count == 1 else 'are'} not in the tier: lost"
        )
    for (group, topic), count in _by_group(report.offsets.before):
        click.echo(
            f"{group} had not consumed {counted(count, 'offset')} of {topic} before the first one "
            f"in the directory: it passes over {'it' if count == 1 else 'them'}, unless the broker "
            "has the plug-in"
        )
    if report.newest_ms:
        click.echo(
            f"the newest message was stored {time_text(report.newest_ms)} (UTC): what the broker "
            "took later was not tiered, and is lost"
        )
    else:
        click.echo(f"{count_text(0)} messages were wanted: all stay in the tier")
