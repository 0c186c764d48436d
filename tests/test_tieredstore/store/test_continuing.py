"""A hot log that ends below its tier, or contradicts it: by each way to lose, for each writer."""

import asyncio
import json
import logging
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

import tieredstore
from container.names.queue_id import QueueId
from provider.errors import Corrupt, Denied, Unavailable
from tests.support.hot_store import appender_at, put
from tests.support.patience import communicated
from tests.test_tieredstore.cli.test_run import asked, started
from tieredstore import HotWriteOptions, NewMessage
from tieredstore.cli.main import cli
from tieredstore.config.effective import Config
from tieredstore.offline.writing.appending import StagedWrite, append_staged
from tieredstore.offline.writing.staging import StagingOrder, stage
from tieredstore.store import cold_side
from tieredstore.store.plugins import PluggedStore
from tieredstore.store.tiered import TieredMessageStore

pytestmark = pytest.mark.slow

FILES = {"mappedFileSizeCommitLog": 8192, "mappedFileSizeConsumeQueue": 400}
HOT = HotWriteOptions(commit_log_bytes=8192, consume_queue_bytes=400)
KEPT = [QueueId("Orders", 0), QueueId("Orders", 1), QueueId("Idle", 0)]
LATER = [QueueId("Orders", 2), QueueId("New", 0)]
"""Queues that came after the copy was made."""
Store = TieredMessageStore | PluggedStore


class Place:
    """One store directory with its tier, and what was acknowledged of each queue."""

    def __init__(self, root: Path, tier: str) -> None:
        self.root = root / "store"
        self.copy = root / "copy"
        self.settings = {
            "storePathRootDir": str(self.root),
            "tieredStoreFilePath": tier,
            "brokerName": "b",
            "tieredStoreGroupCommitTimeout": 0,
            **FILES,
        }
        self.put: dict[QueueId, list[bytes]] = {}

    def store(self, level: str | None = None) -> Store:
        settings: dict[str, object] = {
            key: value for key, value in self.settings.items() if key != "storePathRootDir"
        }
        return tieredstore.open_store(self.root, settings=settings, level=level)

    @property
    def options(self) -> list[str]:
        """The settings for a command."""
        return [part for key, value in self.settings.items() for part in ("-D", f"{key}={value}")]

    def command(self, *words: str, status: int = 0) -> Result:
        result = CliRunner().invoke(cli, [*self.options, *words])
        assert result.exit_code == status, (result.stdout, result.stderr)
        return result

    def body(self, queue: QueueId) -> bytes:
        """The body of the next message of a queue."""
        mine = self.put.setdefault(queue, [])
        mine.append(f"{queue} message {len(mine)}".encode())
        return mine[-1]

    async def fill(self, store: Store, queues: list[QueueId], count: int) -> None:
        for _ in range(count):
            for queue in queues:
                at = len(self.put.get(queue, ()))
                done = await store.put_message(NewMessage(*queue, self.body(queue)))
                assert done.queue_offset == at, queue

    async def tiered(self, store: Store) -> None:
        assert store.cold is not None
        await store.cold.tier_now()

    def lived(self, *, is_running: bool) -> None:
        """A life in which the directory was copied, and a tier that has all of it."""
        asyncio.run(self.live(KEPT, 15, copies=is_running))
        if not is_running:
            shutil.copytree(self.root, self.copy)
        asyncio.run(self.live([*KEPT[:2], *LATER], 60))

    async def live(self, queues: list[QueueId], count: int, *, copies: bool = False) -> None:
        async with self.store() as store:
            await self.fill(store, queues, count)
            await self.tiered(store)
            if copies:
                await asyncio.to_thread(shutil.copytree, self.root, self.copy)

    async def opened(self, level: str | None = None) -> None:
        """Open the store and close it; nothing is put."""
        async with self.store(level):
            pass

    def verify(self) -> None:
        """Each message that was acknowledged can be read at its offset, at each level, once."""
        asyncio.run(self._verify())

    async def _verify(self) -> None:
        async with self.store() as store:
            statistics = store.dispatch_statistics()
            assert statistics is not None
            await self.tiered(store)
            assert not statistics.halted
            assert not statistics.gaps
            for level in ("NOT_IN_DISK", "NOT_IN_MEM", "FORCE"):
                await store.set_level(level)
                for queue, bodies in self.put.items():
                    assert await read_all(store, queue) == bodies, level
        async with tieredstore.open(str(self.settings["tieredStoreFilePath"])) as tier:
            assert [finding async for finding in tier.check()] == []


async def read_all(store: Store, queue: QueueId) -> list[bytes]:
    bodies: list[bytes] = []
    end = await store.max_offset(*queue)
    async for message in store.messages("g", *queue, 0):
        assert message.queue_offset == len(bodies)
        bodies.append(message.body)
        if len(bodies) == end:
            break
    return bodies


def older(place: Place) -> None:
    shutil.rmtree(place.root)
    shutil.copytree(place.copy, place.root)


def emptied(place: Place) -> None:
    shutil.rmtree(place.root)


def older_without_queues(place: Place) -> None:
    older(place)
    shutil.rmtree(place.root / "consumequeue")


def without_log(place: Place) -> None:
    shutil.rmtree(place.settings.get("storePathCommitLog", place.root / "commitlog"))


def without_log_as_an_older_version_left_it(place: Place) -> None:
    """That version zeroed the units and the checkpoint before it failed to open the store."""
    without_log(place)
    for path in [*place.root.glob("durableEnds*"), place.root / "checkpoint"]:
        path.unlink()
    for path in (place.root / "consumequeue").rglob("0*"):
        if path.is_file():
            path.write_bytes(bytes(path.stat().st_size))


WAYS: dict[str, tuple[Callable[[Place], None], bool]] = {
    "closed copy": (older, False),
    "running copy": (older, True),
    "empty directory": (emptied, False),
    "closed copy without ConsumeQueues": (older_without_queues, False),
    "running copy without ConsumeQueues": (older_without_queues, True),
    "CommitLog gone": (without_log, False),
    "CommitLog gone, elsewhere": (without_log, False),
    "CommitLog gone, older version": (without_log_as_an_older_version_left_it, False),
}


async def _fill(place: Place, level: str | None) -> None:
    async with place.store(level) as store:
        await place.fill(store, [*KEPT, *LATER], 3)


def by_library(place: Place) -> None:
    asyncio.run(_fill(place, None))


def by_library_at_disable(place: Place) -> None:
    asyncio.run(_fill(place, "DISABLE"))


def by_put(place: Place) -> None:
    for queue in [*KEPT, *LATER]:
        at = len(place.put[queue])
        words = ("put", queue.topic, place.body(queue).decode(), "--queue", str(queue.queue_id))
        assert place.command(*words).stdout == f"{queue.topic}\t{queue.queue_id}\t{at}\n"


def by_spark(place: Place) -> None:
    config = Config.load(settings=place.settings, environment={})
    rows = [
        {"topic": queue.topic, "body": place.body(queue), "queue_id": queue.queue_id}
        for queue in [*KEPT, *LATER]
    ]
    staged = str(place.root.parent / "staged")
    order = StagingOrder(staged, "w", config.hot_write)
    part = stage([pa.RecordBatch.from_pylist(rows)], order, 0)
    assert append_staged(config, StagedWrite("w", staged, is_named=True), [part]) == len(rows)


WRITERS: dict[str, Callable[[Place], None]] = {
    "library": by_library,
    "library at DISABLE": by_library_at_disable,
    "put": by_put,
    "Spark's writer": by_spark,
}


@pytest.fixture(params=["directory", pytest.param("memory", marks=pytest.mark.nightly)])
def place(request: pytest.FixtureRequest, tmp_path: Path):
    if request.param == "directory":
        yield Place(tmp_path, str(tmp_path / "tier"))
        return
    fsspec.filesystem("memory").store.clear()
    yield Place(tmp_path, f"memory://bucket/{tmp_path.name}")
    fsspec.filesystem("memory").store.clear()


KNOWS_ENDS = ("CommitLog gone", "CommitLog gone, elsewhere")


def lose(place: Place, way: str) -> None:
    """Fill a store and its tier, and lose what `way` says."""
    take, is_running = WAYS[way]
    if way.endswith("elsewhere"):
        place.settings["storePathCommitLog"] = str(place.root.parent / "disk" / "log")
    place.lived(is_running=is_running)
    take(place)


BY_ALL_WRITERS = ("running copy", "empty directory", "CommitLog gone")
"""By day, the library meets every way to lose over a directory, and these over an object store;
the other writers meet these over a directory."""


def is_by_day(writer: str, way: str, place: str) -> bool:
    usual = [writer == "library", way in BY_ALL_WRITERS, place == "directory"]
    return sum(usual) >= 2


CASES = [
    pytest.param(*case, marks=[] if is_by_day(*case) else [pytest.mark.nightly])
    for case in product(WRITERS, WAYS, ("directory", "memory"))
]


@pytest.mark.parametrize(("writer", "way", "place"), CASES, indirect=["place"])
def test_a_log_below_its_tier_continues_at_the_tiers_end(
    writer: str, way: str, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    lose(place, way)
    with caplog.at_level(logging.WARNING, "tieredstore"):
        WRITERS[writer](place)
    texts = [one.getMessage() for one in caplog.records]
    warnings = [one for one in texts if "ends below its tier" in one or "is lost with all" in one]
    assert str(place.root.parent) in warnings[0]
    below = [one for one in warnings if "below its tier" in one]
    assert len(below) == (way not in KNOWS_ENDS)  # such a log still knows where its queues ended
    assert all("nothing is lost" in one for one in below)
    place.verify()
    by_library(place)
    place.verify()


@pytest.mark.process
@pytest.mark.parametrize("way", ["closed copy", "CommitLog gone, elsewhere"])
def test_run_continues_at_the_tiers_end(way: str, tmp_path: Path) -> None:
    place = Place(tmp_path, str(tmp_path / "tier"))
    lose(place, way)
    with started([*place.options, "run", "--put"]) as process:
        for queue in [*KEPT, *LATER] * 3:
            at = len(place.put[queue])
            line = {"topic": queue.topic, "queue_id": queue.queue_id}
            answer = asked(process, json.dumps({**line, "body": place.body(queue).decode()}))
            assert answer["queue_offset"] == at, queue
        process.terminate()
        _, said = communicated(process)
    assert process.returncode == 0, said
    assert ("is lost with all" if way in KNOWS_ENDS else "ends below its tier") in said
    place.verify()


@pytest.mark.parametrize("writer", WRITERS)
def test_a_commit_log_that_lacks_its_newest_files_takes_nothing(writer: str, place: Place) -> None:
    """It lies on a disk of its own, which was put back from a copy; the ConsumeQueues are newer."""
    place.lived(is_running=False)
    without_log(place)
    shutil.copytree(place.copy / "commitlog", place.root / "commitlog")
    if writer == "put":
        said = place.command("put", "Orders", "x", status=1).stderr
        assert "the file is missing, though the log was durable up to" in said
    else:
        with pytest.raises(Corrupt, match="the file is missing, though the log was durable up to"):
            WRITERS[writer](place)


def contradicted(place: Place) -> None:
    """An older version, which asks no tier, put messages into an older copy."""
    place.lived(is_running=False)
    older(place)
    put_others(place, QueueId("Orders", 1), 70)


def put_others(place: Place, queue: QueueId, count: int = 5) -> None:
    with appender_at(place.root, HOT) as store:
        for number in range(count):
            put(store, [NewMessage(*queue, b"other %d" % number, {"KEYS": f"key-{number}"})])
        store.close()


@pytest.mark.parametrize("writer", WRITERS)
def test_a_log_that_contradicts_its_tier_takes_nothing_until_it_is_repaired(
    writer: str, place: Place
) -> None:
    contradicted(place)
    before = {path: path.stat().st_size for path in place.root.rglob("*/0*") if path.is_file()}
    if writer == "put":
        words = ("put", "Orders", "x", "--queue", "0")
        said = (place.command(*words, status=2)).stderr
    else:
        with pytest.raises(Denied) as raised:
            WRITERS[writer](place)
        said = str(raised.value)
    assert "at offset 15 of Orders/1 the hot log has a message of 7 bytes" in said
    assert "keys 'key-0' and the tier a message of 19 bytes stored at" in said
    assert "`tieredstore repair Orders 1 --cut-to-hot`" in said
    after = {path: path.stat().st_size for path in place.root.rglob("*/0*") if path.is_file()}
    assert after == before
    repaired = ("repair", "Orders", "1", "--cut-to-hot", "--yes")
    place.command(*repaired)
    queue = QueueId("Orders", 1)
    place.put = asyncio.run(kept_of(place))
    assert place.put[queue][15:] == [b"other %d" % number for number in range(70)]
    by_library(place)
    place.verify()


def test_a_record_whose_store_timestamp_rotted_is_named_with_the_number(tmp_path: Path) -> None:
    place = Place(tmp_path, str(tmp_path / "tier"))
    asyncio.run(place.live(KEPT, 15))
    last = place.put[KEPT[1]][-1]
    (path,) = (one for one in (place.root / "commitlog").iterdir() if last in one.read_bytes())
    raw = bytearray(path.read_bytes())
    at = raw.rindex(b"\xda\xa3\x20\xa7", 0, raw.index(last)) - 4
    stamp = int.from_bytes(raw[at + 56 : at + 64]) | 1 << 60
    raw[at + 56 : at + 64] = stamp.to_bytes(8)
    path.write_bytes(raw)
    with pytest.raises(Denied, match=f"the hot log has a message of .* stored at {stamp}"):
        by_library(place)


async def kept_of(place: Place) -> dict[QueueId, list[bytes]]:
    """What hot log and tier have after a repair."""
    async with place.store() as store:
        return {queue: await read_all(store, queue) for queue in place.put}


def test_put_into_many_queues_compares_those_that_end_below_the_tier(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_side, "COMPARED_QUEUES_MAX", 1)
    contradicted(place)  # that queue goes beyond its tier
    put_others(place, QueueId("Orders", 2))  # this one ends below it
    said = place.command("put", "Orders", "x", "--queue", "0", status=2).stderr
    assert "at offset 0 of Orders/2" in said
    place.command("repair", "Orders", "2", "--cut-to-hot", "--leave-nothing", "--yes")
    assert place.command("put", "Orders", "x", "--queue", "0").stdout == "Orders\t0\t75\n"


def test_a_contradicting_topic_can_be_deleted(place: Place) -> None:
    contradicted(place)
    place.command("delete-topic", "Orders")
    done = place.command("put", "Orders", "x", "--queue", "0")
    assert done.stdout == "Orders\t0\t75\n", "above what the tier had"


@pytest.mark.parametrize("writer", ["library at DISABLE", "put"])
def test_with_the_tier_away_a_whole_log_takes_puts_and_an_empty_one_does_not(
    writer: str, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.lived(is_running=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cold_side, "open_reader", _not_answering)
        with caplog.at_level(logging.WARNING, "tieredstore"):
            WRITERS[writer](place)
        assert "the tier does not answer" in caplog.text
        whole = place.root.rename(place.root.with_name("whole"))
        if writer == "put":
            result = place.command("put", "Orders", "x", status=3)
            assert "the hot log is empty and its tier does not answer" in result.stderr
        else:
            with pytest.raises(Unavailable, match="the hot log is empty"):
                by_library_at_disable(place)
    shutil.rmtree(place.root)
    whole.rename(place.root)
    place.verify()


@pytest.mark.parametrize("writer", ["library", "library at DISABLE", "put"])
def test_with_the_tier_away_a_copy_takes_nothing_until_it_answers(
    writer: str, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be an older one, also a copy of a store that never was opened again."""
    place.lived(is_running=True)
    older(place)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cold_side, "open_reader", _not_answering)
        patch.setattr(cold_side, "open_owner", _not_answering)
        for _ in range(2):
            if writer == "put":
                said = place.command("put", "Orders", "x", status=3).stderr
            else:
                with pytest.raises(Unavailable) as raised:
                    WRITERS[writer](place)
                said = f"{raised.value} {caplog.text}"
            assert "the hot log was copied to this place, perhaps from an older one, and" in said
    asyncio.run(place.opened())  # it answers, and the two are compared
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cold_side, "open_reader", _not_answering)
        patch.setattr(cold_side, "open_owner", _not_answering)
        WRITERS[writer](place)
    place.verify()


def test_with_the_tier_away_a_log_that_knows_none_of_its_ends_takes_nothing(place: Place) -> None:
    place.lived(is_running=False)
    without_log_as_an_older_version_left_it(place)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cold_side, "open_reader", _not_answering)
        said = place.command("put", "Orders", "x", status=3).stderr
    assert "the hot log is empty and its tier does not answer" in said
    by_put(place)
    place.verify()


REMAINS: dict[str, Callable[[Place, Path], object]] = {
    "empty, journal lost": lambda place, tier: emptied(place) or shutil.rmtree(tier / "@journal"),
    "copy, journal lost": lambda place, tier: older(place) or shutil.rmtree(tier / "@journal"),
    "empty, in the way": lambda place, tier: (
        emptied(place) or shutil.rmtree(tier) or tier.write_text("")
    ),
}


@pytest.mark.parametrize("writer", ["library at DISABLE", "put"])
@pytest.mark.parametrize("way", REMAINS)
def test_what_remains_of_a_tier_is_not_taken_for_one_that_was_never_begun(
    way: str, writer: str, tmp_path: Path
) -> None:
    place = Place(tmp_path, str(tmp_path / "tier"))
    place.lived(is_running=False)
    (place.copy / "config/tieredStore.json").unlink(missing_ok=True)
    (broker,) = (tmp_path / "tier").glob("*/*")
    REMAINS[way](place, broker)
    if writer == "put":
        said = place.command("put", "Orders", "x", status=3).stderr
    else:
        with pytest.raises(Unavailable) as raised:
            by_library_at_disable(place)
        said = str(raised.value)
    assert "its tier does not answer" in said
    assert "a file stands where" in said or "and no journal of ours" in said


def test_a_copy_of_a_store_that_was_begun_by_put_is_known_as_one(tmp_path: Path) -> None:
    place = Place(tmp_path, str(tmp_path / "tier"))
    place.command("put", "Orders", "x")
    place.command("tier")
    shutil.copytree(place.root, place.copy)
    shutil.rmtree(place.root)
    shutil.copytree(place.copy, place.root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cold_side, "open_reader", _not_answering)
        said = place.command("put", "Orders", "x", status=3).stderr
    assert "the hot log was copied to this place" in said


@pytest.mark.parametrize("is_other", [False, True])
def test_the_ends_of_another_tier_at_the_place_count_for_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, is_other: bool
) -> None:
    """Its volume is not mounted, or that of another store of the same broker's name is."""
    place, other = (
        Place(tmp_path, str(tmp_path / "tier")),
        Place(tmp_path / "b", str(tmp_path / "o")),
    )
    place.lived(is_running=False)
    (tmp_path / "tier").rename(tmp_path / "away")
    if is_other:
        other.lived(is_running=False)
        asyncio.run(_fill(other, None))
        (tmp_path / "o").rename(tmp_path / "tier")
    with caplog.at_level(logging.WARNING, "tieredstore"):
        by_put(place)
    assert "offsets continue from the hot log alone" in caplog.text
    assert ("is another one than" if is_other else "mount that volume") in caplog.text
    shutil.rmtree(tmp_path / "tier", ignore_errors=True)
    (tmp_path / "away").rename(tmp_path / "tier")
    place.verify()


def _not_answering(*_: Any, **__: Any) -> Any:
    raise Unavailable("the storage does not answer", "tier")


def test_ends_of_a_lost_log_are_remembered_for_an_outage_of_the_tier(place: Place) -> None:
    place.lived(is_running=False)
    emptied(place)
    asyncio.run(place.opened())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cold_side, "open_reader", _not_answering)
        by_put(place)
    place.verify()
