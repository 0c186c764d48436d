"""`tieredstore export`: messages as Parquet files, partitioned by topic and day."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from container.errors import InUse
from provider.errors import Unavailable
from tieredstore.cli.failures import explain
from tieredstore.cli.invocation import Invocation
from tieredstore.cli.jobs import engine_of
from tieredstore.cli.logs import LOGGER_NAME
from tieredstore.cli.output import Row, bytes_bar, write_json, write_table
from tieredstore.cli.reading import each_broker
from tieredstore.cli.signals import EndRequest
from tieredstore.cli.streams import FINDINGS
from tieredstore.config.effective import Config
from tieredstore.config.location import Location, location_at
from tieredstore.config.sources import ConfigError
from tieredstore.metrics.summary import counted
from tieredstore.session.reader import AS_OPTIONS, existing_tiers
from tieredstore.texts import count_text, size_text

if TYPE_CHECKING:
    from tieredstore.offline.export.iceberg_job import TableExport
    from tieredstore.offline.export.job import Export, ExportReport
    from tieredstore.offline.export.options import ExportOptions, Gone, Skips
    from tieredstore.offline.jobs.engine import Engine

LOGGER = logging.getLogger(LOGGER_NAME)
PARTITIONS = ("cluster", "broker")
"""Of an export of several brokers, besides those of each."""
FOLLOWED_FILES_MIN = 16
"""Small files of a partition that `--follow --join` joins: each run joins few bytes again."""
NUMBERS = frozenset({"messages", "files", "size", "queues", "offsets", "damaged"})


def run(
    invocation: Invocation,
    *,
    brokers: tuple[str, ...],
    directory: str | None,
    table: str | None,
    split_bytes: int,
    skip_damaged: bool,
    skip_missing: bool,
    dry_run: bool,
    java_metadata: Path | None,
    engine: str,
    processes: int | None,
    follow: bool,
    joins: bool,
    interval_s: int,
    as_json: bool,
    **given: Any,  # noqa: ANN401 - the fields of `ExportOptions`
) -> int:
    """Write messages into DIRECTORY as Parquet files, bodies decompressed, properties as a map."""
    if (directory is None) == (table is None):
        both = "" if directory is None else ", not both"
        raise click.UsageError(f"give a directory or --iceberg{both}")
    if follow and dry_run:
        raise click.UsageError("--follow writes: give it without --dry-run")
    if joins and (dry_run or directory is None or not isinstance(location_at(directory), Path)):
        raise click.UsageError(
            "--join is for a run into a directory of this host: a catalog compacts its tables, and "
            "an object store cannot exchange directories"
        )
    planned = {
        "options": _export_options(given, partitions=PARTITIONS if brokers else ()),
        "split_bytes": split_bytes,
        "skips": _skips(damage=skip_damaged, missing=skip_missing),
        "java_metadata": java_metadata,
        "naming": AS_OPTIONS,
    }
    with ExitStack() as stack:
        exports = _Exports(
            invocation.load_config(), brokers, planned, stack, directory=directory or "",
            table=table, as_json=as_json, is_dry=dry_run, follows=follow, joins=joins,
        )  # fmt: skip
        if not follow:
            exports.engine_of = lambda: engine_of(engine, processes)
            return 0 if exports.run() else FINDINGS
        end = stack.enter_context(EndRequest())
        made = stack.enter_context(engine_of(engine, processes))
        exports.engine_of = lambda: nullcontext(made)
        return _follow(exports.run, end.wait, interval_s)


def _follow(run: Callable[[], bool], wait: Callable[[float], bool], interval_s: float) -> int:
    """Run until `wait` returns true; return the exit status.

    Raises:
        as `run`, except Unavailable: the next run tries again.
    """
    is_whole, failure = True, None
    while True:
        try:
            is_whole, failure = run() and is_whole, None
        except Unavailable as error:
            failure = error
            LOGGER.warning("%s; tried again in %d s", explain(error)[1], interval_s)
        if wait(interval_s):
            break
    if failure is not None:
        raise failure
    return 0 if is_whole else FINDINGS


class _Exports:
    """The exports of one broker or of several into one destination, run once or repeatedly."""

    def __init__(
        self,
        config: Config,
        brokers: tuple[str, ...],
        planned: Mapping[str, Any],
        stack: ExitStack,
        *,
        directory: str,
        table: str | None,
        as_json: bool,
        is_dry: bool,
        follows: bool,
        joins: bool,
    ) -> None:
        """`planned`: arguments of each plan; `stack`: closes what stays open between runs."""
        self._config = config
        self._brokers = brokers
        self._directory = directory
        self._table = table
        self._planned = planned
        self._stack = stack
        self._as_json = as_json
        self._is_dry = is_dry
        self._follows = follows
        self._joins = joins
        self._topics: set[str] = set()
        self._exported: dict[tuple[str, str], Export | TableExport] = {}
        self._printed: set[str] = set()
        self.engine_of: Callable[[], AbstractContextManager[Engine]]
        """Opens the engine for a run."""

    def run(self) -> bool:
        """Export what is new of each broker; return whether nothing is missing.

        Raises:
            InUse: another process exports into the same destination.
            and as `planned_export`, `planned_table_export` and their runs.
        """
        configs = existing_tiers(self._config, self._brokers) if self._brokers else [self._config]
        met: list[InUse] = []

        def export(config: Config) -> bool:
            try:
                return self._export(config)
            except InUse as error:
                met.append(error)
                raise

        done = each_broker(configs, export)
        if met and self._follows:
            raise met[0]
        wanted: Sequence[str] = self._planned["options"].topics or ()
        missing = [topic for topic in wanted if topic not in self._topics] if self._brokers else []
        for topic in missing:
            self._warn(f"no broker has the topic {topic}")
        return len(done) == len(configs) and all(whole for _, whole in done) and not missing

    def _export(self, config: Config) -> bool:
        """Export what is new of a broker; return whether nothing is missing."""
        names = (config.cluster, config.broker) if self._brokers else ()
        origin: Row = dict(zip(PARTITIONS, names, strict=False))
        planned = {**self._planned, "config": config, "is_alone": not self._brokers}
        last = self._exported.get((config.cluster, config.broker))
        if self._table is not None:
            planned["has_lease"] = last is not None
            export = _into_table(self._table, planned)
        else:
            planned["ledger"] = getattr(last, "ledger", None)
            export = _into_directory(self._directory, origin, planned)
        if last is not None and export.before != last.after:
            raise InUse(
                "another process has exported meanwhile: let only one follow the tier",
                self._table or self._directory,
            )
        self._topics |= export.topics
        if self._is_dry:
            self._show_start(export, config)
            _show_plan(export, origin, as_json=self._as_json)
            return True
        if self._follows:
            if last is None:
                self._stack.enter_context(export.locked())
            self._exported[config.cluster, config.broker] = export
        return self._write(export, config, origin)

    def _write(self, export: "Export | TableExport", config: Config, origin: Row) -> bool:
        """Write what is planned, and print the report; return whether nothing is missing."""
        if not self._follows or export.waiting:
            self._show_start(export, config)
        with self.engine_of() as engine, bytes_bar("exporting", export.bytes_waiting) as progress:
            report = export.run(engine, progress)
        if report.topics or not self._follows:
            _show_report(report, origin, as_json=self._as_json)
        self._show_gone(report.gone)
        for reason in report.missing:
            self._warn(f"not exported yet: {reason}")
        if report.missing:
            self._warn(
                "bring the objects back and run this again; --skip-missing leaves their messages "
                "out"
            )
        if self._joins:
            self._join(export)
        return report.is_whole and not (export.gone or export.refused)

    def _join(self, export: "Export | TableExport") -> None:
        least = FOLLOWED_FILES_MIN if self._follows else 2
        done = cast("Export", export).join(Path(self._directory), files_min=least)
        if done.files:
            count, into = counted(done.files, "file"), counted(done.partitions, "partition")
            LOGGER.info("%s of %s joined, one in each", count, into)

    def _show_start(self, export: "Export | TableExport", config: Config) -> None:
        """Name the broker, messages that are gone, and queues that the export has no more of."""
        if self._brokers and not self._as_json:
            click.echo(f"{config.broker} of cluster {config.cluster}")
        self._show_gone(export.gone)
        for text in export.refused:
            self._warn(text)

    def _show_gone(self, gone: "Sequence[Gone]") -> None:
        """Print messages that expired between two runs, apart from the output for programs."""
        for one in gone:
            count = one.end - one.start
            self._warn(
                f"{one.queue}: {counted(count, 'queue offset')} from {one.start:,} on {one.cause} "
                f"before {'it was' if count == 1 else 'they were'} exported"
            )

    def _warn(self, text: str) -> None:
        """Print a line on standard error, once in a process."""
        if text not in self._printed:
            self._printed.add(text)
            click.echo(text, err=True)


def _place_of(directory: str, origin: Row, config: Config) -> Location:
    """The directory of one broker, or of one of several.

    Raises:
        ConfigError: the directory has an export of one broker, and this is one of several.
    """
    location = location_at(directory)
    if not origin:
        return location
    from tieredstore.offline.export.day_files import partition_value  # noqa: PLC0415 - as below
    from tieredstore.offline.export.export_directory import (  # noqa: PLC0415 - as below
        LEDGER,
        ExportPlace,
        directory_at,
    )

    if LEDGER in directory_at(ExportPlace.of(location, config)).entries():
        raise ConfigError(
            f"{directory} holds an export of one broker: name another directory for several"
        )
    for key, value in origin.items():
        location /= f"{key}={partition_value(str(value))}"
    return location


def _into_directory(directory: str, origin: Row, planned: dict[str, Any]) -> "Export":
    """The export into Parquet files.

    Raises:
        ConfigError: pyarrow is not installed.
        and as `_place_of` and `planned_export`.
    """
    try:
        from tieredstore.offline.export.job import planned_export  # noqa: PLC0415 - needs Arrow
    except ModuleNotFoundError as error:
        if error.name != "pyarrow":
            raise
        raise ConfigError("export needs pyarrow: pip install 'tieredstore[arrow]'") from error
    location = _place_of(directory, origin, planned["config"])
    return planned_export(directory=location, **planned)


def _into_table(name: str, planned: dict[str, Any]) -> "TableExport":
    """The export into an Iceberg table.

    Raises:
        ConfigError: pyiceberg is not installed.
        and as `planned_table_export`.
    """
    try:
        from tieredstore.offline.export.iceberg_job import (  # noqa: PLC0415 - needs pyiceberg
            TableName,
            planned_table_export,
        )
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"pyarrow", "pyiceberg"}:
            raise
        raise ConfigError(
            "export --iceberg needs pyiceberg: pip install 'tieredstore[iceberg]'"
        ) from error
    return planned_table_export(name=TableName.parse(name), **planned)


def _export_options(given: dict[str, Any], partitions: Sequence[str]) -> "ExportOptions":
    from tieredstore.offline.export.options import ExportOptions  # noqa: PLC0415 - as above

    since, until = given["since"], given["until"]
    if since is not None and until is not None and until <= since:
        raise click.UsageError("--until is not later than --since")
    names = [name.strip() for name in (given["columns"] or "").split(",") if name.strip()]
    if given["columns"] is not None and not names:
        raise ConfigError("--columns names no column")
    names = _typed_columns(names, given["body"], given["properties"])
    for name in names:
        if name.partition(":")[0].lower() in partitions:
            raise ConfigError(
                f"{name} cannot be a column, because an export of several brokers has "
                f"{' and '.join(partitions)}: read it from the column properties"
            )
    return ExportOptions(
        topics=tuple(sorted(set(given["topics"]))) or None,
        queues=tuple(sorted(set(given["queues"]))) or None,
        since_ms=since,
        until_ms=until,
        tags=tuple(sorted(set(given["tags"]))) or None,
        columns=tuple(names) or None,
        partition=given["partition"],
    )


def _typed_columns(names: list[str], body: str | None, properties: Sequence[str]) -> list[str]:
    """The columns with the wanted form of bodies, and with those of properties; [] for all."""
    if body in {None, "bytes"} and not properties:
        return names
    from tieredstore.reader.arrow import import_arrow  # noqa: PLC0415 - as above

    names = names or import_arrow().schema_of(None).names
    if body is not None and "body" not in names:
        raise click.UsageError("--body is given, and --columns names no body")
    if body in {"text", "json"}:
        names = [f"body:{body}" if name == "body" else name for name in names]
    return [*names, *properties]


def _skips(*, damage: bool, missing: bool) -> "Skips":
    from tieredstore.offline.export.options import Skips  # noqa: PLC0415 - as above

    return Skips(damage, missing)


def _show_plan(export: "Export | TableExport", origin: Row, *, as_json: bool) -> None:
    """Print the offsets that a run would read, by queue."""
    if as_json:
        write_json(
            {**origin, "topic": queue.topic, "queue_id": queue.queue_id, "from": first, "to": end}
            for queue, (first, end) in sorted(export.queues.items())
        )
        return
    rows = [
        (queue.topic, str(queue.queue_id), f"{count_text(first)} to {count_text(end - 1)}")
        for queue, (first, end) in sorted(export.queues.items())
        if first < end
    ]
    if rows:
        write_table(("topic", "queue", "offsets"), rows, numbers=NUMBERS)
    click.echo(f"{counted(len(export.waiting), 'task')}, {size_text(export.bytes_waiting)} to read")


def _show_report(report: "ExportReport", origin: Row, *, as_json: bool) -> None:
    if as_json:
        write_json({**origin, "run": report.run, **asdict(topic)} for topic in report.topics)
        return
    rows = [
        (one.topic, count_text(one.messages), count_text(one.files), size_text(one.bytes),
         count_text(one.damaged) if one.damaged else "")
        for one in report.topics
    ]  # fmt: skip
    if rows:
        write_table(("topic", "messages", "files", "size", "damaged"), rows, numbers=NUMBERS)
    else:
        click.echo("there is nothing new to export")
    if nulls := sum(one.null_times for one in report.topics):
        click.echo(f"{counted(nulls, 'time')} in no year from 1 to 9999: null in the columns")
    if report.tasks_before:
        click.echo(
            f"{report.tasks_before} of {counted(report.tasks, 'task')} were done by an earlier run"
        )
