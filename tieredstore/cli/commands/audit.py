"""`tieredstore audit`: compares all of a tier, in both directions, by many processes."""

from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import click

from tieredstore.cli.invocation import Invocation
from tieredstore.cli.jobs import engine_of
from tieredstore.cli.output import bytes_progress, write_json, write_table
from tieredstore.cli.reading import each_broker
from tieredstore.cli.streams import FINDINGS
from tieredstore.config.effective import Config
from tieredstore.metrics.summary import counted
from tieredstore.offline import import_job
from tieredstore.offline.jobs.report import AuditReport
from tieredstore.session.reader import existing_tiers
from tieredstore.texts import count_text, printable, size_text


def run(
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
                _write_json(report, with_broker=bool(brokers))
            else:
                _print(report)
        return len(report.findings)

    with engine_of(engine, processes) as workers:
        done = each_broker(existing_tiers(given, brokers) if brokers else [given], audit)
    return FINDINGS if any(found for _, found in done) else 0


def _write_json(report: AuditReport, *, with_broker: bool) -> None:
    origin = {"cluster": report.cluster, "broker": report.broker} if with_broker else {}
    write_json([*(origin | asdict(finding) for finding in report.findings)])
    write_json([origin | {"summary": report.summary}])


def _print(report: AuditReport) -> None:
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
