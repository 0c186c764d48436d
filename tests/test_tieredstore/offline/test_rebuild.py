"""A tier gets back, byte for byte, what follows from its messages; or nothing changes at all."""

import asyncio
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from container.check.tier import check_tier
from container.errors import Owned
from container.names.rocketmq import INDEX_QUEUE
from container.record.header import layout_of
from container.tier_view import TierReader
from fetcher.fetcher import TieredMessageFetcher
from provider.clock import SystemClock
from provider.errors import NotFound, Unavailable
from provider.posix.locks import OwnerLock
from provider.posix.staged_files import STAGING_NAME, StagedFiles
from provider.posix.store import PosixStore
from provider.stores.in_place_segments import LOCK_NAME
from tests.support.cli import invoke, run, settings
from tests.support.golden import (
    ROCKETMQ_533,
    VARIANTS_533,
    GoldenSet,
    GoldenTree,
    expected,
    tree_name,
    unpacked,
)
from tests.support.golden_reads import normal, read_all
from tests.test_container.lookup.test_golden import answers
from tests.test_golden.test_cold_reads import check_pulls
from tests.test_golden.test_offset_by_time import check_rows
from tieredstore import follow
from tieredstore.config.effective import Config
from tieredstore.config.sources import ConfigError
from tieredstore.offline.jobs.engine import OneProcess, Piece
from tieredstore.offline.jobs.rebuild_files import OWNED_FAULT, restore
from tieredstore.offline.jobs.rebuild_metadata import remake
from tieredstore.offline.jobs.report import RebuildReport

Tree = dict[str, bytes]
DERIVED = ("*/*/CONSUME_QUEUE/*", f"{INDEX_QUEUE}/INDEX/*")
SPLIT_BYTES = (64 << 10, 1 << 20, 1 << 40)
SETS = (ROCKETMQ_533, VARIANTS_533)


def options_of(tree: GoldenTree, tier: Path) -> list[str]:
    return [*settings(tree, tier), "-D", "tieredStoreIndexFileMaxIndexNum=1000"]


@pytest.fixture(scope="module", params=SETS, ids=tree_name)
def sound(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[GoldenTree, Path]:
    """A tier of a golden store with index files; copied by those who damage it."""
    golden: GoldenSet = request.param
    tree = unpacked(golden)
    root = tmp_path_factory.mktemp("rebuild") / "tier"
    run(*options_of(tree, root), "tier", tree.store)
    return tree, root


@pytest.fixture
def tier(sound: tuple[GoldenTree, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound[1], tmp_path / "tier"))


def config_of(tree: GoldenTree, tier: Path) -> Config:
    defines = [word for word in options_of(tree, tier) if word != "-D"]
    return Config.load(defines=defines)


def broker_of(tree: GoldenTree, tier: Path) -> Path:
    return tier / tree.broker_directory.relative_to(tree.tier)


def derived_of(broker: Path) -> Tree:
    return {
        path.relative_to(broker).as_posix(): path.read_bytes()
        for pattern in DERIVED
        for path in broker.glob(pattern)
    }


def all_of(broker: Path) -> Tree:
    return {
        path.relative_to(broker).as_posix(): path.read_bytes()
        for path in broker.rglob("*")
        if path.is_file()
    }


def remove_derived(broker: Path) -> None:
    for pattern in DERIVED:
        for path in broker.glob(pattern):
            path.unlink()


def remove_metadata(broker: Path) -> None:
    for path in broker.glob("@*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize("split_bytes", SPLIT_BYTES)
def test_lost_consume_queues_and_index_files_come_back_byte_for_byte(
    sound: tuple[GoldenTree, Path], tier: Path, split_bytes: int
) -> None:
    tree, _ = sound
    broker = broker_of(tree, tier)
    before = all_of(broker)
    derived = derived_of(broker)
    assert len(derived) > 20
    remove_derived(broker)
    report = restore(config_of(tree, tier), OneProcess(), split_bytes=split_bytes)
    assert (report.faults, report.findings) == ([], [])
    assert {file.path for file in report.files} == derived.keys()
    assert all_of(broker) == before
    again = restore(config_of(tree, tier), OneProcess())
    assert (again.files, again.messages) == ([], 0)


def test_damaged_files_are_replaced_and_the_beginning_of_a_growing_one_is_kept(
    sound: tuple[GoldenTree, Path], tier: Path
) -> None:
    tree, _ = sound
    broker = broker_of(tree, tier)
    before = all_of(broker)
    for name, raw in derived_of(broker).items():
        (broker / name).write_bytes(raw[:9] + bytes([raw[9] ^ 1]) + raw[10:] + b"appended")
    report = restore(config_of(tree, tier), OneProcess())
    assert report.faults == []
    for name, raw in all_of(broker).items():
        assert raw in {before[name], before[name] + b"appended"}
    assert restore(config_of(tree, tier), OneProcess()).files == []


@pytest.mark.parametrize("split_bytes", SPLIT_BYTES)
async def test_a_tier_of_commit_logs_alone_gets_all_back(
    sound: tuple[GoldenTree, Path], tier: Path, split_bytes: int
) -> None:
    tree, _ = sound
    broker = broker_of(tree, tier)
    before = all_of(broker)
    remove_derived(broker)
    remove_metadata(broker)
    assert all("/COMMIT_LOG/" in name for name in all_of(broker))
    report = await in_thread(
        lambda: remake(config_of(tree, tier), OneProcess(), split_bytes=split_bytes)
    )
    assert (report.faults, report.findings) == ([], [])
    after = all_of(broker)
    for name, raw in before.items():
        if not name.startswith("@") and not name.startswith(INDEX_QUEUE.topic):
            assert after[name] == raw, name
    store = PosixStore(broker)
    reader = await TierReader.open(store, verify=True)
    assert [str(one) async for one in check_tier(reader)] == []
    await same_answers(reader, tree)
    await store.close()


async def same_answers(reader: TierReader, tree: GoldenTree) -> None:
    golden = tree.golden
    rows = expected(golden, "messages")
    assert await read_all(reader, rows) == [normal(row, golden) for row in rows]
    async with TieredMessageFetcher(reader, clock=SystemClock()) as fetcher:
        await check_pulls(fetcher, golden)
        await check_rows(golden, fetcher.offset_by_time)
    if golden is ROCKETMQ_533:  # the others have keys that Java finds wrongly
        await answers(reader, tree)


async def in_thread(work: Callable[[], RebuildReport]) -> RebuildReport:
    return await asyncio.to_thread(work)


async def test_the_store_goes_on_with_what_was_made_anew(
    sound: tuple[GoldenTree, Path], tier: Path
) -> None:
    tree, _ = sound
    broker = broker_of(tree, tier)
    remove_derived(broker)
    remove_metadata(broker)
    await in_thread(lambda: remake(config_of(tree, tier), OneProcess()))
    golden = tree.golden
    async with follow(tree.store, tier, cluster=golden.cluster, broker=golden.broker) as follower:
        done = await follower.drain()
        assert done.messages == 0


def test_a_dry_run_says_the_same_and_writes_nothing(
    sound: tuple[GoldenTree, Path], tier: Path
) -> None:
    tree, _ = sound
    broker = broker_of(tree, tier)
    remove_derived(broker)
    left = all_of(broker)
    dry = restore(config_of(tree, tier), OneProcess(), dry_run=True)
    assert all_of(broker) == left
    assert restore(config_of(tree, tier), OneProcess()).files == dry.files
    remove_derived(broker)
    remove_metadata(broker)
    left = all_of(broker)
    assert remake(config_of(tree, tier), OneProcess(), dry_run=True).files != []
    assert all_of(broker) == left


class Killed(BaseException):
    """Stands for a SIGKILL: nothing is tidied up behind it."""


class Dies:
    """An engine that ends when the reducers have done their work."""

    def map_group(self, *args: object, **options: object) -> list[Piece]:
        OneProcess().map_group(*args, **options)  # type: ignore[arg-type]
        raise Killed


@pytest.mark.parametrize("job", [restore, remake], ids=["restore", "remake"])
def test_a_run_that_is_killed_before_its_end_leaves_nothing_visible(
    sound: tuple[GoldenTree, Path],
    tier: Path,
    job: Callable[..., RebuildReport],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tree, _ = sound
    broker = broker_of(tree, tier)
    remove_derived(broker)
    if job is remake:
        remove_metadata(broker)
    left = all_of(broker)
    with monkeypatch.context() as patched:
        patched.setattr(StagedFiles, "close", lambda staged: os.close(staged._lock))
        with pytest.raises(Killed):
            job(config_of(tree, tier), Dies())
    garbage = {name for name in all_of(broker) if STAGING_NAME in name}
    assert garbage
    assert {k: v for k, v in all_of(broker).items() if not k.startswith("@tmp-")} == left
    job(config_of(tree, tier), OneProcess())
    assert not any(name.startswith("@tmp-") for name in all_of(broker))


def test_two_rival_runs_are_one(sound: tuple[GoldenTree, Path], tier: Path) -> None:
    tree, _ = sound
    broker = broker_of(tree, tier)
    remove_derived(broker)
    staged = StagedFiles.begin(broker)
    with pytest.raises(Unavailable, match="another rebuild of this tier is under way"):
        restore(config_of(tree, tier), OneProcess())
    staged.close()
    restore(config_of(tree, tier), OneProcess())
    remove_metadata(broker)
    remake(config_of(tree, tier), OneProcess())
    with pytest.raises(ConfigError, match="has a journal, which is not replaced"):
        remake(config_of(tree, tier), OneProcess())


@pytest.mark.leaves_findings(
    "object-missing", "unreadable", why="what its owner continues is left alone"
)
def test_while_the_owner_lives_only_what_it_does_not_continue_is_made(
    sound: tuple[GoldenTree, Path], tier: Path
) -> None:
    tree, _ = sound
    broker = broker_of(tree, tier)
    before = derived_of(broker)
    remove_derived(broker)
    owner = OwnerLock(str(broker / LOCK_NAME))
    owner.hold(1)
    report = restore(config_of(tree, tier), OneProcess())
    owner.close()
    assert {file.fault for file in report.faults} == {OWNED_FAULT}
    made = derived_of(broker)
    assert len(before) > len(made) > 0
    assert made.items() <= before.items()


def test_no_metadata_are_made_for_an_owner_that_lives_without_its_journal(
    sound: tuple[GoldenTree, Path], tier: Path
) -> None:
    tree, _ = sound
    broker = broker_of(tree, tier)
    remove_metadata(broker)
    owner = OwnerLock(str(broker / LOCK_NAME))
    owner.hold(3)
    before = all_of(broker)
    with pytest.raises(Owned, match="owns the tier and lives"):
        remake(config_of(tree, tier), OneProcess())
    assert all_of(broker) == before
    owner.close()
    remake(config_of(tree, tier), OneProcess())


KINDS = ("checksum", "record", "unreadable", "log-outruns-units", "units-do-not-join", "body-crc")


@pytest.mark.slow
@pytest.mark.leaves_findings(*KINDS, why="the test damages messages")
@pytest.mark.parametrize("sound", [ROCKETMQ_533], indirect=True, ids=tree_name)
def test_of_a_damaged_log_all_other_messages_are_published_and_the_damage_is_told(
    sound: tuple[GoldenTree, Path], tier: Path
) -> None:
    tree, _ = sound
    broker = broker_of(tree, tier)
    log = largest_log(broker)
    raw = bytearray(log.read_bytes())
    first = int.from_bytes(raw[:4], "big")
    raw[first + 6] ^= 8
    log.write_bytes(raw)
    remove_derived(broker)
    report = restore(config_of(tree, tier), OneProcess())
    assert {one.finding for one in report.findings} == {"log-gap"}
    topic = log.relative_to(broker).parts[0]
    assert {file.path.split("/")[0] for file in report.faults} <= {topic, INDEX_QUEUE.topic}
    remove_derived(broker)
    remove_metadata(broker)
    made = remake(config_of(tree, tier), OneProcess(), split_bytes=5_000)
    assert {one.finding for one in made.findings} == {"log-gap"}
    assert made.messages == len(expected(tree.golden, "messages")) - 1
    rows = [json.loads(line) for line in invoke(tier, "topics", "--json").stdout.splitlines()]
    gaps = [gap for row in rows for gap in row["gaps"]]
    assert [gap["end"] - gap["start"] for gap in gaps] == [1]


@pytest.mark.leaves_findings(*KINDS, why="the test damages messages")
def test_an_impossible_queue_offset_is_damage_of_one_message(
    sound: tuple[GoldenTree, Path], tier: Path
) -> None:
    tree, _ = sound
    broker = broker_of(tree, tier)
    log = largest_log(broker)
    raw = bytearray(log.read_bytes())
    queue_offset = int.from_bytes(raw[:4], "big") + 20
    raw[queue_offset] ^= 1 << 6
    log.write_bytes(raw)
    remove_derived(broker)
    remove_metadata(broker)
    made = remake(config_of(tree, tier), OneProcess())
    assert {one.finding for one in made.findings} == {"log-gap"}
    assert "impossible queue offset" in made.findings[0].detail
    assert made.messages == len(expected(tree.golden, "messages")) - 1


def test_a_flipped_bit_of_a_body_does_not_change_what_follows_from_the_message(
    sound: tuple[GoldenTree, Path], tier: Path
) -> None:
    tree, _ = sound
    broker = broker_of(tree, tier)
    before = derived_of(broker)
    log = largest_log(broker)
    raw = bytearray(log.read_bytes())
    flipped = first_body(raw)
    raw[flipped] ^= 1
    log.write_bytes(raw)
    remove_derived(broker)
    assert restore(config_of(tree, tier), OneProcess()).faults == []
    assert derived_of(broker) == before
    raw[flipped] ^= 1
    log.write_bytes(raw)


def largest_log(broker: Path) -> Path:
    """The CommitLog file with the most bytes of all first queues."""
    return max(broker.glob("*/0/COMMIT_LOG/*"), key=lambda path: path.stat().st_size)


def first_body(log: bytes | bytearray) -> int:
    """Where the first body begins that is not empty."""
    at = 0
    while True:
        body = at + layout_of(int.from_bytes(log[at + 36 : at + 40])).body
        if any(log[body - 4 : body]):
            return body
        at += int.from_bytes(log[at : at + 4])


@pytest.mark.slow
def test_wrong_use_is_one_sentence(
    sound: tuple[GoldenTree, Path], tier: Path, tmp_path: Path
) -> None:
    tree, _ = sound
    with pytest.raises(NotFound, match="there is no tier"):
        restore(Config.load(settings={"tieredStoreFilePath": tmp_path / "none"}), OneProcess())
    done = invoke(tier, "rebuild", "--processes", "1")
    assert "no ConsumeQueue and no index file is missing" in done.output
    assert "has a journal" in invoke(tier, "rebuild", "--metadata", status=2).output
    broker = broker_of(tree, tier)
    lost = min(broker.glob(DERIVED[0]))
    lost.unlink()
    assert "1 file of" in invoke(tier, "rebuild", "--dry-run", "--processes", "1").output
    rows = [
        json.loads(line)
        for line in invoke(tier, "rebuild", "--json", "--processes", "1").stdout.splitlines()
    ]
    assert rows[0]["path"] == lost.relative_to(broker).as_posix()
    assert rows[-1]["summary"]["files"] == 1
