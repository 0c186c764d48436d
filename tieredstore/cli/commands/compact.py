"""`tieredstore compact`: small objects and index files of a tier become large ones, now."""

import asyncio
from contextlib import suppress
from dataclasses import asdict

import click

from provider.clock import SystemClock
from provider.errors import StoreError
from tieredstore.admin.compact import CompactReport, Holdings, compact
from tieredstore.cli.invocation import (
    Invocation,
)
from tieredstore.cli.output import Row, bytes_progress, write_json, write_table
from tieredstore.cli.streams import FINDINGS
from tieredstore.metrics.summary import counted
from tieredstore.session.reader import existing_tier
from tieredstore.texts import count_text, printable, size_text, time_text


def run(
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
