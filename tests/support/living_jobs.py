"""The jobs over a tier that its owner changes, each stopped between its plan and its first read."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pyarrow.dataset as ds

from provider.errors import StoreError
from tests.support.living_tier import SETTINGS, Interrupted, LivingTier, Row
from tieredstore.config.effective import Config
from tieredstore.config.sources import ConfigError
from tieredstore.offline import dataset
from tieredstore.offline.export.job import planned_export
from tieredstore.offline.export.options import ExportOptions, Gone, Skips
from tieredstore.offline.jobs import rebuild_files
from tieredstore.offline.jobs.audit import audit
from tieredstore.offline.jobs.rebuild_files import restore
from tieredstore.offline.jobs.rebuild_metadata import remake
from tieredstore.offline.scan.planning import WantedMessages
from tieredstore.offline.tables.open_tier import OpenTier
from tieredstore.offline.tables.planning import parts_of_table
from tieredstore.offline.tables.reading import rows_of
from tieredstore.session.reader import AS_OPTIONS

COLUMNS = ["topic", "queue_id", "queue_offset", "body"]
SPLIT_BYTES = 2000
TABLE = "lake.mq.messages"
DAMAGE = Skips(damage=True)
"""Must change nothing: what is not there is not damaged."""
Happens = Callable[[], None]


@dataclass
class Outcome:
    """What a job gave, and what it said."""

    rows: set[Row] | None = None
    """None of a job that gives none."""
    lacking: list[tuple[str, int, int]] = field(default_factory=list[tuple[str, int, int]])
    """Topic, queue and offset of rows that were counted and named as gone, with repetitions."""
    refused: bool = False
    """Whether a queue that was made again is refused."""
    findings: list[str] = field(default_factory=list[str])
    """Damage, and all else that is not so in a sound tier."""


class Job(NamedTuple):
    """One of the jobs."""

    run: Callable[[LivingTier, Happens, Path], Outcome]
    """Takes what happens between plan and read, and a place of its own."""
    reports: bool
    """Whether what left the tier is reported; else it is an error that says to run it again."""


def rows_in(batches: Iterable[Any]) -> list[Row]:
    return [tuple(row[name] for name in COLUMNS) for one in batches for row in one.to_pylist()]


def once(rows: list[Row]) -> set[Row]:
    assert len(set(rows)) == len(rows), "each row is there once"
    return set(rows)


def _parquet(tier: LivingTier, happens: Happens, place: Path) -> Outcome:
    export = planned_export(
        tier.config, place, ExportOptions(), split_bytes=SPLIT_BYTES, naming=AS_OPTIONS,
        skips=DAMAGE,
    )  # fmt: skip
    report = export.run(Interrupted(happens))
    files = ds.dataset(place, partitioning="hive")
    return _exported(export, report, rows_in(files.to_table(columns=COLUMNS).to_batches()))


def _iceberg(tier: LivingTier, happens: Happens, _: Path) -> Outcome:
    from tieredstore.offline.export import iceberg_job, iceberg_table  # noqa: PLC0415 - of `data`

    name = iceberg_table.TableName.parse(TABLE)
    export = iceberg_job.planned_table_export(
        tier.config, name, ExportOptions(), split_bytes=SPLIT_BYTES, naming=AS_OPTIONS,
        skips=DAMAGE,
    )  # fmt: skip
    report = export.run(Interrupted(happens))
    table = iceberg_table.ExportTable(name).loaded()
    assert table is not None
    found = table.scan(selected_fields=tuple(COLUMNS)).to_arrow()
    return _exported(export, report, rows_in(found.to_batches()))


def _exported(export: Any, report: Any, rows: list[Row]) -> Outcome:
    gone: list[Gone] = [*export.gone, *report.gone] if not report.gone else list(report.gone)
    damaged = [str(topic) for topic in report.topics if topic.damaged]
    return Outcome(
        once(rows),
        [
            (one.queue.topic, one.queue.queue_id, offset)
            for one in gone
            for offset in range(one.start, one.end)
        ],
        bool(export.refused),
        [*damaged, *report.missing],
    )


def _dataset(tier: LivingTier, happens: Happens, _: Path) -> Outcome:
    reader = dataset(tier.url, columns=COLUMNS, broker="b", settings=tier.settings)
    happens()
    return Outcome(once(rows_in(reader.read_all().to_batches())))


def _batch_query(tier: LivingTier, happens: Happens, _: Path) -> Outcome:
    with OpenTier(lambda: tier.config) as opened:
        parts, units = (
            parts_of_table(opened, table, WantedMessages(), SPLIT_BYTES, skips_damage=True)
            for table in ("messages", "units")
        )
    happens()
    rows = once(rows_in(batch for part in parts for batch in rows_of(part, COLUMNS)))
    found = [batch for part in units for batch in rows_of(part, COLUMNS[:3])]
    places = [tuple(row.values()) for one in found for row in one.to_pylist()]
    assert sorted(places) == sorted(row[:3] for row in rows), "the units are those of the rows"
    return Outcome(rows)


def _stream(tier: LivingTier, happens: Happens, _: Path) -> Outcome:
    from pyspark.sql.streaming.datasource import ReadAllAvailable  # noqa: PLC0415 - of `spark`

    from tieredstore.offline.spark.conversion import ToSpark  # noqa: PLC0415 - likewise
    from tieredstore.offline.spark.options import stream_options  # noqa: PLC0415 - likewise
    from tieredstore.offline.spark.stream_reader import MessageStreamReader  # noqa: PLC0415 - likewise

    given = {"path": tier.url, "refreshInterval": "0", "damaged": "skip", **tier.settings}
    options = stream_options(given, now_ms=0)
    reader = MessageStreamReader(options, ToSpark(tuple(COLUMNS)))
    try:
        start = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        end = reader.latestOffset(start, ReadAllAvailable())
        parts = reader.partitions(start, end)
        happens()
        return Outcome(once(rows_in(batch for part in parts for batch in reader.read(part))))
    finally:
        reader.stop()


def _audit(tier: LivingTier, happens: Happens, _: Path) -> Outcome:
    report = audit(tier.config, Interrupted(happens), split_bytes=SPLIT_BYTES)
    return Outcome(findings=[str(one) for one in report.findings])


def _rebuild(tier: LivingTier, happens: Happens, _: Path) -> Outcome:
    """Its first look is at metadata that are older than what happens. It must own nothing."""
    waiting, owned = [happens], list[str]()
    real, real_owner = rebuild_files.lost_index_files, rebuild_files.running_owner

    def older(*arguments: Any) -> Any:
        if waiting:
            waiting.pop()()
        return real(*arguments)

    def owner(*arguments: Any, **named: Any) -> Any:
        owned.append("it took the tier")
        return real_owner(*arguments, **named)

    looks = patch.object(rebuild_files, "lost_index_files", older)
    with looks, patch.object(rebuild_files, "running_owner", owner):
        report = restore(tier.config, Interrupted(lambda: None))
    return Outcome(findings=[*map(str, report.files), *map(str, report.faults), *owned])


def _rebuild_metadata(tier: LivingTier, happens: Happens, _: Path) -> Outcome:
    """No owner can begin where the metadata are lost; what one would do is refused.

    Without the second store, which this job refuses.
    """
    tier.lose_metadata()

    def tried() -> None:
        before = tier.objects("")
        with _refused():
            happens()
        assert tier.is_away or tier.objects("") == before

    config = Config.load(settings={"tieredStoreFilePath": tier.url, **SETTINGS})
    report = remake(config, Interrupted(tried), split_bytes=SPLIT_BYTES)
    reader = dataset(tier.url, columns=COLUMNS, broker="b", settings=tier.settings)
    return Outcome(once(rows_in(reader)), findings=[str(one) for one in report.findings])


@contextmanager
def _refused() -> Iterator[None]:
    """What is in the block may be refused: by an error, or by a command with a status for that."""
    with suppress(AssertionError, ConfigError, StoreError):
        yield


JOBS = {
    "export Parquet": Job(_parquet, reports=True),
    "export Iceberg": Job(_iceberg, reports=True),
    "dataset": Job(_dataset, reports=False),
    "batch query": Job(_batch_query, reports=False),
    "stream": Job(_stream, reports=False),
    "audit": Job(_audit, reports=True),
    "rebuild": Job(_rebuild, reports=True),
    "rebuild --metadata": Job(_rebuild_metadata, reports=True),
}
