"""`tieredstore restore`: a broker's store directory, written from its tier."""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

import click

from provider.errors import Corrupt, NotFound
from provider.posix.files import posix_errors
from tieredstore.cli.invocation import Invocation
from tieredstore.cli.jobs import engine_of
from tieredstore.cli.output import bytes_progress, write_json, write_table
from tieredstore.cli.streams import FINDINGS
from tieredstore.config.effective import Config
from tieredstore.config.sources import ConfigError
from tieredstore.following.directory.layout import COMMIT_LOG, commit_log_directories
from tieredstore.hot.log.topics import given_topics
from tieredstore.metrics.summary import counted
from tieredstore.offline.jobs.restore_plan import Wanted
from tieredstore.offline.jobs.restore_store import GroupMessages, RestoreReport, restore_store
from tieredstore.serve.options import ServeOptions
from tieredstore.session.consumer_offsets import Table, parse
from tieredstore.session.reader import existing_tier
from tieredstore.texts import count_text, size_text, time_text

ParsedT = TypeVar("ParsedT")
QUEUES_LISTED_MAX, TOPICS_LISTED_MAX = 40, 10


def run(
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
    """Write a store directory from the tier, on which a broker starts again."""
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


def _offsets(config: Config, given: Path | None) -> Table:
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


def _print_log_place(config: Config, directory: Path) -> None:
    """Name the place of the CommitLog that the broker is configured for, if it is another one."""
    place = commit_log_directories(directory, config.hot)[0]
    usual = {(root / COMMIT_LOG).resolve() for root in (directory, config.store_dir)}
    if place.resolve() not in usual:
        click.echo(
            f"storePathCommitLog is {place}: move {directory / COMMIT_LOG} there before the broker "
            "starts, for without its CommitLog it drops all queues"
        )


def _by_group(found: Sequence[GroupMessages]) -> list[tuple[tuple[str, str], int]]:
    """Numbers of messages by group and topic, over all queues."""
    total = Counter[tuple[str, str]]()
    for one in found:
        total[one.group, one.topic] += one.messages
    return sorted(total.items())


def _print(report: RestoreReport, directory: Path) -> None:
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
