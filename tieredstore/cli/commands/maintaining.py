"""Upkeep by hand: `compact`, `offload`, `rewrap-keys`, `delete-topic`, `set-retention`, `scrub`."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass

import click

from container.check.scrub import (
    Scrubber,
    ScrubMark,
    ScrubPlace,
    read_mark,
    unclaimed_since,
    write_mark,
)
from container.move.offload_plan import Until
from container.names.queue_id import SegmentType
from container.upkeep.offload import OffloadedQueue
from provider.clock import SystemClock
from provider.errors import NotFound, StoreError
from provider.stores.two_stores import FIRST_STORE, SECOND_STORE
from tieredstore.admin.compact import CompactReport, Holdings, compact
from tieredstore.admin.delete import (
    DeletedTopic,
    DeletionPlaces,
    delete_topics,
    places_of,
    topics_in,
)
from tieredstore.admin.offload import offload_topic, offloading_config, plan
from tieredstore.admin.rewrap import Moved, move_to_bound
from tieredstore.admin.scrub import give_up
from tieredstore.cli.commands.check import print_finding
from tieredstore.cli.invocation import (
    Invocation,
)
from tieredstore.cli.output import Row, bytes_progress, write_json, write_table
from tieredstore.cli.reading import with_tier
from tieredstore.cli.streams import FINDINGS
from tieredstore.config.effective import Config, second_location
from tieredstore.config.location import TierUrl
from tieredstore.config.sources import ConfigError
from tieredstore.metrics.summary import counted
from tieredstore.reader.readable_tier import ReadableTier
from tieredstore.session.places import directory_of, rewrap_keys
from tieredstore.session.reader import existing_tier
from tieredstore.store.configured import plan_store
from tieredstore.store.plugins import opened
from tieredstore.texts import count_text, printable, size_text, time_text


def run_compact(
    invocation: Invocation,
    *,
    topics: tuple[str, ...],
    merge_bytes_max: int | None,
    jobs: int,
    dry_run: bool,
    take_over: bool,
    as_json: bool,
) -> int:
    """Merge small objects of messages, and small index files, into large ones."""
    config = existing_tier(invocation.load_config())
    with bytes_progress("compacting") as move:
        report = asyncio.run(
            compact(
                config,
                clock=SystemClock(),
                topics=topics,
                merge_bytes_max=merge_bytes_max,
                jobs_max=jobs,
                dry_run=dry_run,
                take_over=take_over,
                progress=move,
            )
        )
    with suppress(BrokenPipeError):
        if as_json:
            write_json([_failure(error) for error in report.failures])
            write_json([{"summary": _row(report)}])
        else:
            _print(report)
    return FINDINGS if report.failures else 0


def _failure(error: StoreError) -> Row:
    return {"path": error.path, "position": error.position, "reason": error.reason}


def _row(report: CompactReport) -> Row:
    return {
        "dry_run": report.is_dry,
        "before": asdict(report.before),
        "after": asdict(report.after),
        "bytes_rewritten": report.bytes_rewritten,
        "objects_replaced": report.objects_replaced,
        "deletable_ms": report.deletable_ms or None,
        "objects_deleted": report.objects_deleted,
        "failures": len(report.failures),
    }


def _print(report: CompactReport) -> None:
    for error in report.failures:
        click.echo(printable(f"{error.path} at {error.position}: {error.reason}"))
    if report.is_nothing:
        click.echo(f"nothing is to be done: {_holdings_text(report.after)}")
        return
    names = {"objects": "objects of messages", "extents": "pieces in them"}
    before, after = asdict(report.before), asdict(report.after)
    rows = [
        (names.get(name, "index files"), count_text(before[name]), count_text(after[name]))
        for name in before
        if before[name] or after[name]
    ]
    write_table(("", "before", "after"), rows, numbers=frozenset({"before", "after"}))
    would = "would be " if report.is_dry else ""
    replaced = counted(report.objects_replaced, "object")
    click.echo(f"{size_text(report.bytes_rewritten)} {would}rewritten, {replaced} {would}replaced")
    if report.deletable_ms:
        when = time_text(report.deletable_ms)
        click.echo(f"the next owner deletes what was replaced after {when} (UTC), or `compact`")
    if report.objects_deleted:
        deleted = counted(report.objects_deleted, "object")
        click.echo(f"{deleted} {would}deleted that earlier work had replaced")


def _holdings_text(now: Holdings) -> str:
    """`1 object of messages, 2 index files`."""
    held = [counted(now.index_files, "index file")]
    if now.objects:
        held.insert(0, f"{counted(now.objects, 'object')} of messages")
    return ", ".join(held)


OFFLOAD_COLUMNS = ("topic", "queue", "segments", "size")


def run_offload(
    invocation: Invocation,
    *,
    topic: str,
    until: Until | None,
    dry_run: bool,
    take_over: bool,
    as_json: bool,
) -> int:
    """Move messages of TOPIC to the second store."""
    config = offloading_config(invocation.load_config())
    clock, wanted = SystemClock(), until or Until()
    work = (
        plan(config, topic, wanted, clock=clock)
        if dry_run
        else offload_topic(config, topic, wanted, clock=clock, take_over=take_over)
    )
    found = asyncio.run(work)
    _print_offload(found, as_json=as_json)
    errors = [error for one in found for error in one.errors]
    for error in errors:
        click.echo(f"tieredstore: {error}", err=True)
    return FINDINGS if errors else 0


def _print_offload(found: Sequence[OffloadedQueue], *, as_json: bool) -> None:
    if as_json:
        write_json(map(_offload_row, found))
    elif not found:
        click.echo("nothing is to be moved")
    else:
        write_table(
            OFFLOAD_COLUMNS, map(_offload_cells, found), numbers=frozenset(OFFLOAD_COLUMNS[1:])
        )


def _offload_row(one: OffloadedQueue) -> Row:
    return {
        "topic": one.queue.topic,
        "queue_id": one.queue.queue_id,
        "segments": one.segments,
        "bytes": one.bytes,
        "errors": [str(error) for error in one.errors],
    }


def _offload_cells(one: OffloadedQueue) -> list[str]:
    return [
        one.queue.topic,
        str(one.queue.queue_id),
        count_text(one.segments),
        size_text(one.bytes),
    ]


def run_rewrap(invocation: Invocation, *, dry_run: bool, take_over: bool, as_json: bool) -> int:
    """Wrap all data keys under the first master key, and delete the wraps of the others."""
    config = existing_tier(invocation.load_config())
    places = {FIRST_STORE: directory_of(config), SECOND_STORE: second_location(config)}
    names = {place: name for name, place in places.items() if isinstance(place, TierUrl)}
    if not names:
        raise ConfigError(
            f"the tier in {places[FIRST_STORE]} is a directory, which is not encrypted"
        )
    found = asyncio.run(rewrap_keys(config, list(names), dry_run=dry_run))
    if not found:
        where = " and ".join(map(str, names))
        raise NotFound("there is no data key: the tier is not encrypted", where)
    rows = [
        {
            "store": names[place],
            "data_key": one.key_id,
            "was_under": list(one.was_under),
            "under": one.under,
        }
        for place, one in found
    ]
    moved = asyncio.run(
        move_to_bound(config, names, clock=SystemClock(), dry_run=dry_run, take_over=take_over)
    )
    if as_json:
        write_json([*rows, *(_moved_row(which, one) for which, one in moved.items())])
        return _rewrap_status(moved)
    title = "would be" if dry_run else "is"
    columns = ("store", "data key", "was under", f"{title} under")
    cells = [
        (names[place], one.key_id, ", ".join(one.was_under), one.under) for place, one in found
    ]
    write_table(columns, cells)
    for which, one in moved.items():
        would = "would be" if dry_run else "were"
        click.echo(
            f"{which} store: {counted(one.objects, 'object')} ({size_text(one.size_bytes)}) of the "
            f"older form {would} bound to the tier"
        )
        if one.left:
            click.echo(f"{which} store: {counted(one.left, 'object')} of other tiers are left")
        for error in one.failures:
            click.echo(printable(f"{error.path} at {error.position}: {error.reason}"))
    return _rewrap_status(moved)


def _moved_row(which: str, moved: Moved) -> Row:
    return {
        "store": which,
        "objects_bound": moved.objects,
        "bytes": moved.size_bytes,
        "objects_left": moved.left,
        "failures": [f"{one.path} at {one.position}: {one.reason}" for one in moved.failures],
    }


def _rewrap_status(moved: Mapping[str, Moved]) -> int:
    return FINDINGS if any(one.failures for one in moved.values()) else 0


def run_set_retention(
    invocation: Invocation, *, topic: str, hours: int | None, is_default: bool
) -> None:
    """Have the tier keep TOPIC for HOURS, or for its default time again."""
    if (hours is None) != is_default:
        raise ConfigError("give HOURS, or --default in place of them")
    asyncio.run(_set_retention(invocation.load_config(), topic, hours))
    kept = "its default time" if hours is None else f"{hours} hours"
    click.echo(f"{topic} is kept for {kept}")


async def _set_retention(config: Config, topic: str, hours: int | None) -> None:
    context, layers = await asyncio.to_thread(
        lambda: plan_store(config, clock=SystemClock(), tiers=False, continues=False)
    )
    async with opened(context, layers):
        await context.local.set_retention(topic, hours)


HOUR_MS = 3_600_000
SETTLE_S = 2.0
"""Seconds that a commit under way has to publish its files before they are reported."""


@dataclass(frozen=True, slots=True)
class Done:
    """Result of a run."""

    before: ScrubMark
    after: ScrubMark
    is_round_over: bool
    operations: int
    bytes_read: int
    findings: int


def run_scrub(
    invocation: Invocation,
    *,
    operations: int,
    from_start: bool,
    delete: bool,
    grace: int,
    take_over: bool,
    as_json: bool,
) -> int:
    """Verify the next part of a tier."""

    async def scrub(tier: ReadableTier) -> Done:
        return await _scrub(tier, operations, from_start=from_start, as_json=as_json)

    done = with_tier(invocation, None, scrub, damaged=False, from_disk=False)
    clock = SystemClock()
    due = unclaimed_since(done.after, clock.now_ms() - grace * HOUR_MS)
    given_up: list[str] = []
    if delete and due:
        config = existing_tier(invocation.load_config())
        grace_s = config.tier.cut_grace_hours * HOUR_MS / 1000
        given_up = asyncio.run(
            give_up(config, due, grace_s=grace_s, take_over=take_over, clock=clock)
        )
    with suppress(BrokenPipeError):
        _sum_up(done, due, given_up, delete=delete, as_json=as_json)
    return FINDINGS if done.findings else 0


async def _scrub(
    tier: ReadableTier, operations_max: int, *, from_start: bool, as_json: bool
) -> Done:
    """Scrub once, and write the mark even if a storage error ends the run."""
    store, before = tier.reader.store, await read_mark(tier.reader.store)
    if from_start:
        before = ScrubMark(before.number, before.round, unclaimed=before.unclaimed)
    scrubber = Scrubber(
        tier.reader, before, operations_max=operations_max, clock=SystemClock(), settle_s=SETTLE_S
    )
    count = 0
    try:
        async for finding in scrubber.run():
            count += 1
            print_finding(finding, as_json=as_json)
    except StoreError:
        with suppress(StoreError):  # the first error is reported
            await write_mark(store, scrubber.mark)
        raise
    await write_mark(store, scrubber.mark)
    return Done(
        before,
        scrubber.mark,
        scrubber.is_round_over,
        scrubber.operations,
        scrubber.bytes_read,
        count,
    )


def _sum_up(
    done: Done, due: list[str], given_up: list[str], *, delete: bool, as_json: bool
) -> None:
    if as_json:
        row = {
            "round": done.before.round,
            "round_over": done.is_round_over,
            "operations": done.operations,
            "bytes_read": done.bytes_read,
            "findings": done.findings,
            "unclaimed": len(done.after.unclaimed),
            "unclaimed_for_grace": len(due),
            "given_up": given_up,
        }
        write_json([row])
        return
    cost = f"{count_text(done.operations)} requests, {size_text(done.bytes_read)} read"
    found = f"{done.findings} {'finding' if done.findings == 1 else 'findings'}"
    result = found if done.findings else "nothing is wrong"
    if done.is_round_over:
        click.echo(f"{cost}: {result}; round {done.before.round} is over")
    else:
        where = printable(_place_text(done.after.place))
        click.echo(f"{cost}: {result}; round {done.before.round} continues after {where}")
    if given_up:
        click.echo(f"{count_text(len(given_up))} objects got tombstones")
    if due and not delete:
        click.echo(
            f"{count_text(len(due))} objects have had no reference for the grace time: --delete "
            f"gives those that a tier made tombstones"
        )


def _place_text(place: ScrubPlace) -> str:
    if place.phase:
        return f"index file {place.name}"
    queue = f"{place.name}/{place.queue_id}"
    return queue if place.type < 0 else f"{queue} {SegmentType(place.type).name} {place.base}"


DELETED_COLUMNS = ("topic", "queues", "queues in tier", "messages in tier", "size in tier")


def run_delete_topic(
    invocation: Invocation,
    *,
    topics: tuple[str, ...],
    dry_run: bool,
    tier_only: bool,
    take_over: bool,
    as_json: bool,
) -> int:
    """Delete topics with all their messages, for good, without a confirmation."""
    places = places_of(invocation.load_config(), tier_only=tier_only)
    found, completed = asyncio.run(_delete(places, topics, dry_run=dry_run, take_over=take_over))
    if as_json:
        write_json(map(_deleted_row, found))
    else:
        numbers = frozenset(DELETED_COLUMNS[1:])
        write_table(DELETED_COLUMNS, map(_deleted_cells, found), numbers=numbers)
    absent = [one.topic for one in found if not one.is_there]
    if completed:
        click.echo("what an interrupted deletion had left is deleted", err=True)
        return 0
    for topic in absent:
        click.echo(f"tieredstore: there is no topic {topic}", err=True)
    return FINDINGS if absent else 0


async def _delete(
    places: DeletionPlaces, topics: Sequence[str], *, dry_run: bool, take_over: bool
) -> tuple[Sequence[DeletedTopic], bool]:
    try:
        found = await topics_in(places, topics)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if dry_run:
        return found, False
    # Also what is not there: an interrupted deletion may have left something.
    return found, await delete_topics(places, topics, clock=SystemClock(), take_over=take_over)


def _deleted_row(one: DeletedTopic) -> Row:
    return {
        "topic": one.topic,
        "store_queues": one.store_queues,
        "tier_queues": one.tier_queues,
        "tier_messages": one.tier_messages,
        "tier_bytes": one.tier_bytes,
    }


def _deleted_cells(one: DeletedTopic) -> list[str]:
    return [
        one.topic,
        str(one.store_queues),
        str(one.tier_queues),
        count_text(one.tier_messages),
        size_text(one.tier_bytes),
    ]
