"""Jobs beside an owner that merges, expires and deletes: absence is never taken for damage."""

import asyncio
import random
import shutil
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import fsspec
import pyarrow.dataset as ds
import pytest
from hypothesis import given
from hypothesis import strategies as st

from container.errors import Expired
from container.names.queue_id import QueueId
from container.names.tier_objects import EntryName
from provider.errors import Denied, NotFound, Unavailable
from provider.stores.retrying import RetryingStore
from tests.support.level import by_level
from tests.support.living_jobs import COLUMNS, JOBS, SPLIT_BYTES, TABLE, rows_in
from tests.support.living_tier import (
    LOSSES,
    MOVES,
    Event,
    Interrupted,
    LivingTier,
    Row,
    before_request,
)
from tieredstore.offline import scan_split
from tieredstore.offline.export import task
from tieredstore.offline.export.job import Export, ExportReport, planned_export
from tieredstore.offline.export.options import ExportOptions, Gone, Skips, TaskRead, gone_of
from tieredstore.offline.jobs.audit import audit
from tieredstore.offline.jobs.engine import OneProcess
from tieredstore.offline.scan.planning import WantedMessages, plan
from tieredstore.offline.spark.stream_offsets import MissingMessages
from tieredstore.offline.tables.open_tier import OpenTier
from tieredstore.offline.tables.planning import Part, parts_of_table
from tieredstore.offline.tables.reading import rows_of
from tieredstore.offline.tables.schemas import KEYS, SCHEMAS, UNITS
from tieredstore.session.reader import AS_OPTIONS

OUTAGE: dict[str, Event] = {"outage": LivingTier.go_away}
EVENTS = {**MOVES, **LOSSES, **OUTAGE}
NEEDS = {"export Iceberg": [pytest.mark.data], "stream": [pytest.mark.data]}


def begun(directory: Path, url: str, second: str) -> LivingTier:
    """Old and new messages of topics A and B, in six parts."""
    made = LivingTier(directory, url, second=second)
    for _ in range(2):
        made.grow(20)
    made.age()
    made.grow(20)
    return made


class Grown(NamedTuple):
    """A tier in memory that is built once; each test begins with its store and its objects."""

    tier: LivingTier
    store: Path
    copy: Path
    objects: dict[str, bytes]


def built(place: Path, *changes: Event) -> Grown:
    """As `begun` makes it, and changed."""
    memory = fsspec.filesystem("memory")
    memory.store.clear()  # of another template, whose tier has the same place
    store, kept = place / "store", place / "copy"
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_RUNTIME_DIR", str(place))
        tier = begun(place, "memory://living/tier", "memory://second/tier")
        for change in changes:
            change(tier)
    store.rename(kept)
    objects = {path: memory.cat_file(path) for path in memory.store}
    memory.store.clear()
    return Grown(tier, store, kept, objects)


def rebuilt(template: Grown) -> LivingTier:
    shutil.rmtree(template.store, ignore_errors=True)
    shutil.copytree(template.copy, template.store)
    fsspec.filesystem("memory").store.clear()
    fsspec.filesystem("memory").pipe(template.objects)
    return deepcopy(template.tier)


def put_into_manifests(tier: LivingTier) -> None:
    """Many sealed segments, in small manifests."""
    tier.grow(150)
    tier.merge_manifests(per_level_max=100)


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Grown:
    return built(tmp_path_factory.mktemp("living"))


@pytest.fixture(scope="module")
def grown_into_manifests(tmp_path_factory: pytest.TempPathFactory) -> Grown:
    return built(tmp_path_factory.mktemp("manifests"), put_into_manifests)


@pytest.fixture(params=["memory", pytest.param("s3", marks=[pytest.mark.s3, pytest.mark.nightly])])
def tier(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LivingTier]:
    """As `begun` makes it."""
    if request.param == "s3":
        url = request.getfixturevalue("s3_url")
        made = begun(tmp_path, url, f"{url}-second")
    else:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
        made = rebuilt(request.getfixturevalue("grown"))
    yield made
    made.come_back()
    fsspec.filesystem("memory").store.clear()


@pytest.fixture
def tier_of_manifests(request: pytest.FixtureRequest, tier: LivingTier) -> LivingTier:
    if tier.url.startswith("memory:"):
        return rebuilt(request.getfixturevalue("grown_into_manifests"))
    put_into_manifests(tier)
    return tier


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("job", [pytest.param(one, marks=NEEDS.get(one, ())) for one in JOBS])
def test_a_job_has_the_right_rows_whatever_happens_between_plan_and_read(
    tier: LivingTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str, event: str
) -> None:
    if job == "export Iceberg":
        begin_lake(tmp_path, monkeypatch)
    planned, out = set(tier.rows), tmp_path / "out"
    had = set[Row]()
    try:
        found = JOBS[job].run(tier, partial(EVENTS[event], tier), out)
    except Unavailable:
        assert event in OUTAGE
    except Expired as error:
        assert event in LOSSES
        assert not JOBS[job].reports
        assert error.reason.endswith("after this was planned: run it again")  # noqa: PT017 - one end of many
    else:
        if found.rows is not None:  # what left the tier may lie in an object that has more
            assert planned & set(tier.rows) <= found.rows <= planned
            assert sorted(found.lacking) == sorted(row[:3] for row in planned - found.rows)
            had = found.rows if job.startswith("export") else had
        assert found.findings == []
        assert event not in OUTAGE
    tier.come_back()
    again = JOBS[job].run(tier, lambda: None, out)
    refused = {row for row in tier.rows if row[0] == "A"} if again.refused else set[Row]()
    assert again.rows in (None, had | (set(tier.rows) - refused))
    assert again.findings == []
    assert again.refused == (event == "topic made again" and job.startswith("export"))


PLANNING = [
    pytest.param(one, marks=NEEDS.get(one, ())) for one in JOBS if one != "rebuild --metadata"
]
"""Jobs whose plan is that of metadata."""


@pytest.mark.parametrize("job", PLANNING)
def test_manifests_that_were_merged_since_the_metadata_were_read_are_not_missing(
    tier_of_manifests: LivingTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str
) -> None:
    tier = tier_of_manifests
    if job == "export Iceberg":
        begin_lake(tmp_path, monkeypatch)
    merged: list[set[str]] = []

    def happens() -> None:
        before = set(tier.objects("@manifest/"))
        tier.merge_manifests()
        merged.append(before - set(tier.objects("@manifest/")))

    with before_request(lambda _, __, name: name.startswith("@manifest/"), happens):
        found = JOBS[job].run(tier, lambda: None, tmp_path / "out")
    assert found.rows in (None, set(tier.rows))
    assert (found.findings, found.lacking) == ([], [])
    assert merged[0], "it reads manifests, which had gone"


@pytest.mark.parametrize("event", ["topic deletion", "topic made again"])
def test_manifests_that_were_deleted_since_they_were_listed_are_no_orphans(
    tier_of_manifests: LivingTier, tmp_path: Path, event: str
) -> None:
    tier, first_entry = tier_of_manifests, str(EntryName(1))
    before = set(tier.objects("@manifest/A/"))
    with before_request(lambda _, __, name: name == first_entry, partial(EVENTS[event], tier)):
        found = JOBS["audit"].run(tier, lambda: None, tmp_path / "out")
    assert len(before - set(tier.objects("@manifest/"))) > 10
    assert found.findings == []


def table_rows(parts: Sequence[Part], table: str) -> list[Any]:
    names = SCHEMAS[table].names
    return [row for one in parts for batch in rows_of(one, names) for row in batch.to_pylist()]


@pytest.mark.parametrize("event", [*MOVES, *LOSSES])
@pytest.mark.parametrize("table", [UNITS, KEYS])
def test_units_and_keys_are_those_of_their_plan_or_are_to_be_read_again(
    tier: LivingTier, table: str, event: str
) -> None:
    """Index files are merged as a whole: their items are not looked for in another one."""

    def planned() -> list[Part]:
        with OpenTier(lambda: tier.config, naming=AS_OPTIONS) as opened:
            return parts_of_table(opened, table, WantedMessages(), SPLIT_BYTES, skips_damage=True)

    parts = planned()
    before = table_rows(parts, table)
    assert len(before) == len(tier.rows)  # a message has one key
    EVENTS[event](tier)
    if event in LOSSES or (table == KEYS and event in {"compaction", "take-over"}):
        with pytest.raises(Expired, match="after this was planned: run it again"):
            table_rows(parts, table)
    else:
        assert table_rows(parts, table) == before
    again = table_rows(planned(), table)
    assert {row["topic"] for row in again} <= {row[0] for row in tier.rows}
    assert table == KEYS or len(again) == len(tier.rows)


ANY = {
    **MOVES,
    **LOSSES,
    "merge of manifests": LivingTier.merge_manifests,
    "growth": lambda tier: tier.grow(3),
}
REQUESTS_MAX = 60
SEEDS = by_level(quick=2, full=2, nightly=400)


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.scales
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_job_has_the_right_rows_at_whichever_of_its_requests_something_happens(
    tier: LivingTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng, out, had = random.Random(seed), tmp_path / "out", set[Row]()
    job, event = (
        rng.choice([one for one in JOBS if one != "rebuild --metadata"]),
        rng.choice([*ANY]),
    )
    number = rng.randrange(1, REQUESTS_MAX)
    begin_lake(tmp_path, monkeypatch)
    if event not in MOVES and rng.random() < 0.5:  # these leave what manifests name
        put_into_manifests(tier)
    before = set(tier.rows)
    try:
        with before_request(lambda at, *_: at == number, partial(ANY[event], tier)):
            found = JOBS[job].run(tier, lambda: None, out)
    except MissingMessages:
        assert event in LOSSES
        assert job == "stream"
    except Expired as error:
        assert event in LOSSES
        assert not JOBS[job].reports
        assert error.reason.endswith("after this was planned: run it again")  # noqa: PT017 - one end of many
    else:
        after = set(tier.rows)
        assert found.findings == []
        if found.rows is not None:
            assert before & after <= found.rows <= before | after
            lacking = sorted(row[:3] for row in before - found.rows)
            assert sorted(found.lacking) in ([], lacking), "it was planned after it, or before"
            had = found.rows if job.startswith("export") else had
    again = JOBS[job].run(tier, lambda: None, out)
    refused = {row for row in tier.rows if row[0] == "A"} if again.refused else set[Row]()
    assert again.rows in (None, had | (set(tier.rows) - refused))
    assert again.findings == []


def begin_lake(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalog of Iceberg on sqlite."""
    import pyiceberg.catalog  # noqa: PLC0415 - of `data`
    from pyiceberg.utils.config import Config  # noqa: PLC0415 - likewise

    name = TABLE.split(".")[0].upper()
    monkeypatch.setenv(f"PYICEBERG_CATALOG__{name}__URI", f"sqlite:///{place}/lake.db")
    monkeypatch.setenv(f"PYICEBERG_CATALOG__{name}__WAREHOUSE", f"file://{place}/lake")
    monkeypatch.setenv("PYICEBERG_HOME", str(place))
    monkeypatch.setattr(pyiceberg.catalog, "_ENV_CONFIG", Config())


def export_of(tier: LivingTier, out: Path, **more: Any) -> Export:
    return planned_export(
        tier.config, out, ExportOptions(), split_bytes=SPLIT_BYTES, naming=AS_OPTIONS, **more
    )


def exported(out: Path) -> list[Row]:
    return sorted(
        rows_in(ds.dataset(out, partitioning="hive").to_table(columns=COLUMNS).to_batches())
    )


def gone_in(report: ExportReport) -> list[tuple[QueueId, int]]:
    return [(one.queue, offset) for one in report.gone for offset in range(one.start, one.end)]


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


@pytest.mark.parametrize("event", LOSSES)
@pytest.mark.parametrize("at", [0, 2])
def test_what_a_task_wrote_that_died_before_its_line_in_the_ledger_is_not_gone(
    tier: LivingTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, event: str
) -> None:
    def died(_: Path, __: int, number: int, ___: object) -> None:
        if number == at:
            raise KeyboardInterrupt

    planned_rows, out = set(tier.rows), tmp_path / "out"
    with monkeypatch.context() as patched:
        patched.setattr(task, "write_done", died)
        with pytest.raises(KeyboardInterrupt):
            export_of(tier, out).run(OneProcess())
    before = set(exported(out))
    assert before
    LOSSES[event](tier)
    report = export_of(tier, out).run(OneProcess())
    found = exported(out)
    assert before | (planned_rows & set(tier.rows)) == set(found)
    lacking = sorted(row[:3] for row in planned_rows - set(found))
    assert sorted((*queue, offset) for queue, offset in gone_in(report)) == lacking
    assert sum(topic.messages for topic in report.topics) == len(found) == len(set(found))
    assert sum(topic.gone for topic in report.topics) == len(lacking)


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


def test_an_audit_finds_what_is_really_missing(tier: LivingTier) -> None:
    lost = tier.objects()[0]
    report = audit(tier.config, Interrupted(partial(tier.lose, lost)), split_bytes=SPLIT_BYTES)
    assert any(lost in one.path or lost in one.detail for one in report.findings)


def test_a_worker_that_does_not_see_the_tier_is_an_error(tier: LivingTier) -> None:
    splits = plan(tier.config).splits
    for name in ("@journal/", "@snapshot/", "@parts/", "@index/"):
        for one in tier.objects(name):
            tier.lose(one)
    with pytest.raises(NotFound, match="this process sees no tier there"):
        list(scan_split(splits[0], on_gap=lambda _: None))


@pytest.mark.parametrize("job", ["dataset", "batch query", "export Parquet"])
def test_a_worker_that_sees_the_tier_as_it_was_before_the_plan_is_an_error(
    tier: LivingTier, tmp_path: Path, job: str
) -> None:
    """What came later was not deleted, and what was merged later is not gone."""
    before = tier.copied()
    tier.grow(20, "New")
    tier.compact()
    with pytest.raises(Unavailable, match="this process sees the tier as it was before"):
        JOBS[job].run(tier, partial(tier.put_back, before), tmp_path / "out")


@pytest.mark.parametrize(
    "job", ["export Parquet", pytest.param("export Iceberg", marks=pytest.mark.data)]
)
def test_an_export_is_not_gone_on_with_by_older_metadata(
    tier: LivingTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str
) -> None:
    if job == "export Iceberg":
        begin_lake(tmp_path, monkeypatch)
    before, out = tier.copied(), tmp_path / "out"
    tier.grow(20, "New")
    JOBS[job].run(tier, lambda: None, out)
    after = tier.copied()
    tier.put_back(before)
    with pytest.raises(Unavailable, match="is seen as it was before the last run"):
        JOBS[job].run(tier, lambda: None, out)
    tier.put_back(after)
    tier.grow(1)
    assert JOBS[job].run(tier, lambda: None, out).rows == set(tier.rows)


@pytest.mark.parametrize(
    "job", ["export Parquet", pytest.param("export Iceberg", marks=pytest.mark.data)]
)
@pytest.mark.parametrize("owners", [1, 3])
def test_an_export_is_not_gone_on_with_in_a_tier_that_was_put_back_and_grew(
    tier: LivingTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str, owners: int
) -> None:
    """It is past what the last run saw by now, with other entries, and other messages."""
    if job == "export Iceberg":
        begin_lake(tmp_path, monkeypatch)
    before, out = tier.copied(), tmp_path / "out"
    tier.grow(3)
    JOBS[job].run(tier, lambda: None, out)
    tier.put_back(before)
    for _ in range(owners):
        tier.grow(2)
    with pytest.raises(Unavailable, match="was put back from an older copy"):
        JOBS[job].run(tier, lambda: None, out)


READING = [one for one in JOBS if not one.startswith("rebuild")]


@pytest.mark.parametrize("job", [pytest.param(one, marks=NEEDS.get(one, ())) for one in READING])
def test_a_worker_that_sees_a_tier_that_was_put_back_and_grew_is_an_error(
    tier: LivingTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str
) -> None:
    if job == "export Iceberg":
        begin_lake(tmp_path, monkeypatch)
    before = tier.copied()
    tier.grow(3)

    def happens() -> None:
        tier.put_back(before)
        for _ in range(3):
            tier.grow(2)
        tier.compact()

    with pytest.raises(Unavailable, match="was put back from an older copy"):
        JOBS[job].run(tier, happens, tmp_path / "out")


def test_a_worker_that_sees_another_tier_is_an_error(tier: LivingTier) -> None:
    (split, *_) = plan(tier.config).splits
    for name in {piece.object_name for piece in split.pieces}:
        tier.lose(name)
    other = replace(split, seen=split.seen._replace(begun_ms=1))
    with pytest.raises(NotFound, match="this process sees another tier there"):
        list(scan_split(other))


@pytest.mark.parametrize("left", ["all", "some", "one", "none"])
def test_an_interrupted_deletion_of_a_topic_is_completed_by_the_same_command(
    tier: LivingTier, left: str
) -> None:
    parts = set(tier.objects())
    asyncio.run(tier.unpublish("A"))
    assert set(tier.objects()) == parts, "the process died after its entry"
    due = sorted(parts & set(tier.unreferenced()))
    for name in due[{"all": len(due), "some": 2, "one": 1, "none": 0}[left] :]:
        tier.lose(name)
    words = ("delete-topic", "A", "--tier-only")
    assert "what an interrupted deletion had left is deleted" in tier.command(*words).stderr
    assert set(tier.objects()) == parts - set(due)
    assert len(due) == len(parts) / 2
    assert tier.unreferenced() == []
    assert "there is no topic A" in tier.command(*words, status=1).stderr


def test_an_interrupted_deletion_is_not_said_to_be_completed_while_the_storage_refuses_it(
    tier: LivingTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = RetryingStore.delete

    async def refused(store: RetryingStore, names: Sequence[str]) -> None:
        if any(name.startswith("@parts/") for name in names):
            raise Denied("injected: no permission to delete", names[0])
        await real(store, names)

    parts = set(tier.objects())
    asyncio.run(tier.unpublish("A"))
    words = ("-D", "tieredStoreJournalGraceTime=60000", "delete-topic", "A", "--tier-only")
    with monkeypatch.context() as patched:
        patched.setattr(RetryingStore, "delete", refused)
        said = tier.command(*words, status=1).stderr
    assert "until a later owner can delete it: injected: no permission" in said
    assert "is deleted" not in said
    assert set(tier.objects()) == parts


SPANS = st.lists(st.integers(0, 30), min_size=2, max_size=2).map(sorted)


@given(st.lists(st.tuples(SPANS, st.sampled_from(["read", "gone"])), max_size=8))
def test_each_row_that_is_gone_counts_once(spans: list[tuple[list[int], str]]) -> None:
    """Tasks know what is gone by whole extents, which other tasks may have read in part."""
    queue = QueueId("T", 0)
    tasks = [
        TaskRead(queue, [(a, b, "expired")] if what == "gone" and a < b else [], None)
        if what == "gone" or a == b
        else TaskRead(queue, [(0, a, "expired")] if a else [], (a, b))
        for (a, b), what in spans
    ]
    read = {at for one in tasks if one.read for at in range(*one.read)}
    lacking = {at for one in tasks for a, b, _ in one.gone for at in range(a, b)} - read
    found = [at for one in gone_of(tasks) for at in range(one.start, one.end)]
    assert found == sorted(lacking)


def test_what_a_task_lacks_within_what_it_read_is_gone() -> None:
    reports = [TaskRead(QueueId("T", 0), [(3, 5, "expired")], (0, 9))]
    assert gone_of(reports) == [Gone(QueueId("T", 0), 3, 5)]
