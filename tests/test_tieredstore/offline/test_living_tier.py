"""Jobs beside an owner that merges, expires and deletes: absence is never taken for damage."""

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import pyarrow.dataset as ds
import pytest

from container.errors import Expired
from container.names.queue_id import QueueId
from provider.errors import NotFound
from tests.support.living_tier import Interrupted, LivingTier, Row
from tieredstore.offline import dataset, restore_objects, scan_split
from tieredstore.offline.audit import audit
from tieredstore.offline.engine import OneProcess
from tieredstore.offline.export.job import Export, ExportReport, planned_export
from tieredstore.offline.export.options import ExportOptions, Skips
from tieredstore.offline.planning import plan
from tieredstore.offline.restore import restore
from tieredstore.offline.tables.open_tier import OpenTier
from tieredstore.offline.tables.planning import parts_of_table
from tieredstore.offline.tables.reading import rows_of
from tieredstore.offline.wanted_messages import WantedMessages
from tieredstore.opening import AS_OPTIONS

Event = Callable[[LivingTier], None]
MOVES: dict[str, Event] = {"merge": LivingTier.merge, "take-over": LivingTier.take_over}
"""After these every planned message is in the tier still."""


def made_again(tier: LivingTier) -> None:
    tier.delete_topic()
    tier.grow(7, "A")
    tier.delete_unreferenced()


LOSSES: dict[str, Event] = {
    "retention": LivingTier.expire,
    "topic deletion": LivingTier.delete_topic,
    "topic made again": made_again,
}


@pytest.fixture(params=["memory", pytest.param("s3", marks=[pytest.mark.s3, pytest.mark.nightly])])
def tier(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LivingTier]:
    """Old and new messages of topics A and B, in some ten parts."""
    if request.param == "s3":
        url = request.getfixturevalue("s3_url")
    else:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
        url = f"memory://living/{tmp_path.name}"
    made = LivingTier(tmp_path, url)
    for _ in range(4):
        made.grow(10)
    made.age()
    for _ in range(2):
        made.grow(10)
    yield made
    fsspec.filesystem("memory").store.clear()


def export_of(tier: LivingTier, out: Path, **more: Any) -> Export:
    return planned_export(
        tier.config, out, ExportOptions(), split_bytes=2000, naming=AS_OPTIONS, **more
    )


def exported(out: Path) -> list[Row]:
    columns = ["topic", "queue_id", "queue_offset", "body"]
    rows = ds.dataset(out, partitioning="hive").to_table(columns=columns).to_pylist()
    return sorted(tuple(row[name] for name in columns) for row in rows)


def gone_in(report: ExportReport) -> list[tuple[QueueId, int]]:
    return [(one.queue, offset) for one in report.gone for offset in range(one.start, one.end)]


BY_DAY = pytest.mark.parametrize(
    "tier", ["memory", pytest.param("s3", marks=pytest.mark.s3)], indirect=True
)
"""On S3, too, in `make test-full`: the other tests are by night."""


@BY_DAY
@pytest.mark.parametrize("event", MOVES)
def test_an_export_reads_what_moved_at_its_new_place(
    tier: LivingTier, tmp_path: Path, event: str
) -> None:
    planned_rows, out = sorted(tier.rows), tmp_path / "out"
    report = export_of(tier, out).run(Interrupted(partial(MOVES[event], tier)))
    assert (exported(out), report.is_whole) == (planned_rows, True)
    export_of(tier, out).run(OneProcess())
    assert exported(out) == sorted(tier.rows)


@pytest.mark.parametrize("event", LOSSES)
@pytest.mark.parametrize("skips", [Skips(), Skips(damage=True)])
def test_an_export_counts_what_left_the_tier_and_writes_the_rest(
    tier: LivingTier, tmp_path: Path, event: str, skips: Skips
) -> None:
    planned_rows, out = set(tier.rows), tmp_path / "out"
    export = export_of(tier, out, skips=skips)
    report = export.run(Interrupted(partial(LOSSES[event], tier)))
    kept = planned_rows & set(tier.rows)
    assert set(exported(out)) == kept
    assert {row[:3] for row in planned_rows - kept} == {
        (*queue, offset) for queue, offset in gone_in(report)
    }
    assert len(gone_in(report)) == len(planned_rows - kept), "each is counted once"
    assert not any(topic.damaged for topic in report.topics)
    assert not report.is_whole
    again = export_of(tier, out)
    again.run(OneProcess())
    replaced = {row for row in tier.rows if row[0] == "A"} if event == "topic made again" else set()
    assert set(exported(out)) == set(tier.rows) - replaced
    assert bool(again.refused) == bool(replaced)


@pytest.mark.parametrize("event", LOSSES)
def test_an_interrupted_export_keeps_what_is_done_and_goes_on(
    tier: LivingTier, tmp_path: Path, event: str
) -> None:
    class Dying(OneProcess):
        def map_group(self, items: Any, *more: Any, **named: Any) -> Any:
            super().map_group(items[::2], *more, **named)
            raise KeyboardInterrupt

    planned_rows, out = set(tier.rows), tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        export_of(tier, out).run(Dying())
    before = set(exported(out))
    LOSSES[event](tier)
    report = export_of(tier, out).run(OneProcess())
    found = set(exported(out))
    assert before <= found
    assert planned_rows & set(tier.rows) <= found, "all that is there is written"
    assert {row[:3] for row in planned_rows - found} == {
        (*queue, offset) for queue, offset in gone_in(report)
    }
    assert report.tasks_before


def test_missing_bytes_are_named_and_end_only_their_own_tasks(
    tier: LivingTier, tmp_path: Path
) -> None:
    planned_rows, out = set(tier.rows), tmp_path / "out"
    lost = tier.objects()[0]
    export = export_of(tier, out, skips=Skips(damage=True))
    report = export.run(Interrupted(partial(tier.lose, lost)))
    assert report.missing
    assert all(lost in reason for reason in report.missing)
    some = set(exported(out))
    assert some < planned_rows
    again = export_of(tier, out, skips=Skips(missing=True)).run(OneProcess())
    assert (again.missing, sum(topic.damaged for topic in again.topics) > 0) == ([], True)
    assert some <= set(exported(out)) < planned_rows


@pytest.mark.parametrize("event", MOVES)
def test_batches_and_tables_read_what_moved_at_its_new_place(tier: LivingTier, event: str) -> None:
    planned_rows = sorted(tier.rows)
    columns = ["topic", "queue_id", "queue_offset", "body"]
    reader = dataset(tier.url, columns=columns, broker="b")
    with OpenTier(lambda: tier.config) as opened:
        parts = parts_of_table(opened, "messages", WantedMessages(), 2000, skips_damage=True)
        units = parts_of_table(opened, "units", WantedMessages(), 2000, skips_damage=True)
    MOVES[event](tier)
    assert sorted(rows_in(reader.read_all().to_batches())) == planned_rows
    assert sorted(rows_in(b for part in parts for b in rows_of(part, columns))) == planned_rows
    found = [b for part in units for b in rows_of(part, ["topic", "queue_id", "queue_offset"])]
    assert sorted(rows_in(found)) == [row[:3] for row in planned_rows]


@pytest.mark.parametrize("event", LOSSES)
@pytest.mark.parametrize("skips_damage", [False, True])
@pytest.mark.parametrize("table", ["messages", "units"])
def test_rows_that_left_the_tier_are_an_error_that_says_so(
    tier: LivingTier, event: str, *, skips_damage: bool, table: str
) -> None:
    with OpenTier(lambda: tier.config) as opened:
        parts = parts_of_table(opened, table, WantedMessages(), 2000, skips_damage=skips_damage)
    LOSSES[event](tier)
    with pytest.raises(Expired, match=r"A/0.*after this was planned: run it again"):
        [batch for part in parts for batch in rows_of(part, ["queue_offset"])]


def rows_in(batches: Any) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize("event", [*MOVES, *LOSSES])
def test_an_audit_beside_a_living_owner_has_no_false_finding(tier: LivingTier, event: str) -> None:
    happens = {**MOVES, **LOSSES}[event]
    report = audit(tier.config, Interrupted(partial(happens, tier)), split_bytes=2000)
    assert [str(one) for one in report.findings] == []
    if event in MOVES:
        assert report.changed == []
        assert report.counts["messages"] >= 240


def test_an_audit_finds_what_is_really_missing(tier: LivingTier) -> None:
    lost = tier.objects()[0]
    report = audit(tier.config, Interrupted(partial(tier.lose, lost)), split_bytes=2000)
    assert any(lost in one.path or lost in one.detail for one in report.findings)


def test_a_worker_that_does_not_see_the_tier_is_an_error(tier: LivingTier) -> None:
    splits = plan(tier.config).splits
    for name in ("@journal/", "@snapshot/", "@parts/", "@index/"):
        for one in tier.objects(name):
            tier.lose(one)
    with pytest.raises(NotFound, match="this process sees no tier there"):
        list(scan_split(splits[0], on_gap=lambda _: None))


def test_an_interrupted_deletion_of_a_topic_is_completed_by_the_same_command(
    tier: LivingTier,
) -> None:
    parts = set(tier.objects())
    asyncio.run(tier.unpublish("A"))
    assert set(tier.objects()) == parts, "the process died after its entry"
    words = ("delete-topic", "A", "--tier-only")
    assert "what an interrupted deletion had left is deleted" in tier.command(*words).stderr
    assert len(tier.objects()) == len(parts) / 2
    assert "there is no topic A" in tier.command(*words, status=1).stderr


@pytest.mark.parametrize("event", [*MOVES, *LOSSES])
def test_a_rebuild_of_a_sound_tier_finds_nothing_lost_and_owns_nothing(
    tier: LivingTier, monkeypatch: pytest.MonkeyPatch, event: str
) -> None:
    """Its first look is at metadata that are older than what happens."""
    real, left = restore_objects.lost_index_files, [{**MOVES, **LOSSES}[event]]

    def older(*arguments: Any) -> Any:
        if left:
            left.pop()(tier)
        return real(*arguments)

    monkeypatch.setattr(restore_objects, "lost_index_files", older)
    epoch = epoch_of(tier)
    report = restore(tier.config, OneProcess())
    assert (report.files, report.faults) == ([], [])
    assert left == []
    assert epoch_of(tier) - epoch == OWNERS[event]


OWNERS = {"merge": 1, "take-over": 3, "retention": 1, "topic deletion": 1, "topic made again": 2}
"""Owners that an event has of its own."""


def epoch_of(tier: LivingTier) -> int:
    with OpenTier(lambda: tier.config) as opened:
        return opened.state().broker.epoch
