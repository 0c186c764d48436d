"""Jobs of many processes: `rebuild` recreates lost files, `audit` compares in both directions."""

from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path

import click

from tieredstore.cli.invocation import Invocation
from tieredstore.cli.jobs import engine_of
from tieredstore.cli.output import bytes_progress, write_json, write_table
from tieredstore.cli.reading import each_broker
from tieredstore.cli.streams import FINDINGS
from tieredstore.config.effective import Config
from tieredstore.config.sources import ConfigError
from tieredstore.metrics.summary import counted
from tieredstore.offline import import_job
from tieredstore.offline.jobs.report import AuditReport, RebuildReport
from tieredstore.session.reader import existing_tiers, known_offsets, read_bytes
from tieredstore.texts import count_text, printable, size_text

FILES_LISTED_MAX = 40


def run(
    invocation: Invocation,
    *,
    metadata: bool,
    backup: Path | None,
    dry_run: bool,
    engine: str,
    processes: int | None,
    split_bytes: int,
    as_json: bool,
) -> int:
    """Rebuild lost or damaged ConsumeQueue and index files from the messages, byte for byte."""
    config = invocation.load_config()
    if backup is not None and not metadata:
        raise ConfigError("--backup goes with --metadata")
    if metadata:
        known = {} if backup is None else known_offsets(config, read_bytes(backup), str(backup))
        job = partial(import_job("tieredstore.offline.jobs.rebuild_metadata").remake, known=known)
    else:
        job = import_job("tieredstore.offline.jobs.rebuild_files").restore
    with engine_of(engine, processes) as workers, bytes_progress("rebuilding") as move:
        report: RebuildReport = job(
            config, workers, split_bytes=split_bytes, dry_run=dry_run, progress=move
        )
    with suppress(BrokenPipeError):
        if as_json:
            write_json([asdict(file) for file in report.files])
            write_json([asdict(finding) for finding in report.findings])
            write_json([{"summary": report.summary}])
        else:
            _print(report)
    return FINDINGS if report.faults or report.findings else 0


def _print(report: RebuildReport) -> None:
    if report.files:
        listed = [*report.faults, *(file for file in report.files if not file.fault)]
        rows = [
            (file.path, size_text(file.bytes), file.fault) for file in listed[:FILES_LISTED_MAX]
        ]
        write_table(("file", "size", "not made because"), rows, numbers=frozenset({"size"}))
        if len(listed) > FILES_LISTED_MAX:
            click.echo(f"and {len(listed) - FILES_LISTED_MAX:,} more; --json lists all")
    if report.findings:
        rows = [(one.finding, one.path, str(one.position), one.detail) for one in report.findings]
        write_table(("met", "path", "position", "detail"), rows, numbers=frozenset({"position"}))
    made = len(report.files) - len(report.faults)
    what = f"{counted(made, 'file')} of {count_text(report.messages)} messages"
    if report.makes_metadata and not report.files:
        click.echo("nothing was published: of no queue could the metadata be made")
    elif not report.files:
        click.echo("no ConsumeQueue and no index file is missing")
    elif report.is_dry:
        click.echo(f"{what} would be made{' and published' if report.makes_metadata else ''}")
    else:
        click.echo(f"{what} {'are published' if report.makes_metadata else 'are at their places'}")


def audit(
    invocation: Invocation,
    java_metadata: Path | None,
    *,
    brokers: tuple[str, ...],
    bodies: bool,
    engine: str,
    processes: int | None,
    split_bytes: int,
    as_json: bool,
) -> int:
    """Compare all of a tier: records, units, checksums, keys, metadata, in both directions."""
    job = import_job("tieredstore.offline.jobs.audit")
    given = invocation.load_config()

    def audit(config: Config) -> int:
        with bytes_progress("auditing") as move:
            report: AuditReport = job.audit(
                config,
                workers,
                split_bytes=split_bytes,
                bodies=bodies,
                java_metadata=java_metadata,
                progress=move,
            )
        with suppress(BrokenPipeError):
            if as_json:
                _audit_json(report, with_broker=bool(brokers))
            else:
                _print_audit(report)
        return len(report.findings)

    with engine_of(engine, processes) as workers:
        done = each_broker(existing_tiers(given, brokers) if brokers else [given], audit)
    return FINDINGS if any(found for _, found in done) else 0


def _audit_json(report: AuditReport, *, with_broker: bool) -> None:
    origin = {"cluster": report.cluster, "broker": report.broker} if with_broker else {}
    write_json([*(origin | asdict(finding) for finding in report.findings)])
    write_json([origin | {"summary": report.summary}])


def _print_audit(report: AuditReport) -> None:
    if report.findings:
        columns = ("finding", "path", "position", "detail")
        rows = [(one.finding, one.path, str(one.position), one.detail) for one in report.findings]
        write_table(columns, rows, numbers=frozenset({"position"}))
    numbers = {name: count_text(number) for name, number in report.counts.items()}
    numbers["bytes"] = size_text(report.counts["bytes"])
    names = [name.replace("_", " ") for name in numbers]
    title = f"{report.cluster}/{report.broker}"
    write_table(
        ("compared", title), list(zip(names, numbers.values(), strict=True)),
        numbers=frozenset({title}),
    )  # fmt: skip
    found = len(report.findings) + report.findings_more
    click.echo("nothing is wrong" if not found else counted(found, "finding"))
    if report.findings_more:
        click.echo(f"{report.findings_more:,} of them are not listed: they are of the same parts")
    if report.changed:
        names = ", ".join(map(str, report.changed[:8]))
        more = "" if len(report.changed) <= 8 else " and others"  # noqa: PLR2004 - a line
        click.echo(printable(f"cut or trimmed meanwhile, so not judged: {names}{more}"))
