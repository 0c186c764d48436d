"""A random tier comes back from its messages byte for byte; see `make rebuild-million`."""

import asyncio
import hashlib
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from container.metadata.state import TierState
from container.names.rocketmq import INDEX_QUEUE
from container.tier_view import TierReader
from provider.posix.store import PosixStore
from tests.support.patience import HANGS_AFTER_S
from tests.support.random_tier import Written, sizes_for, with_codas, write_random_tier
from tests.test_tieredstore.offline.test_rebuild import remove_derived, remove_metadata
from tieredstore.config.effective import Config
from tieredstore.offline.jobs.audit import audit
from tieredstore.offline.jobs.engine import Engine, LocalEngine, OneProcess
from tieredstore.offline.jobs.rebuild_files import restore
from tieredstore.offline.jobs.rebuild_metadata import remake
from tieredstore.session.places import directory_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(HANGS_AFTER_S)]

MESSAGES = int(os.environ.get("RANDOM_MESSAGES", "20000"))
SEED = int(os.environ.get("RANDOM_SEED", "7"))
SPLIT_BYTES = (64 << 10, 1 << 20, 1 << 40)
BY_DAY = [
    pytest.param(one, marks=[pytest.mark.nightly] if one == SPLIT_BYTES[1] else [])
    for one in SPLIT_BYTES
]
"""Spark rebuilds the same tier by day with the one between."""
Hashes = dict[str, bytes]


@dataclass(frozen=True)
class RandomTier:
    """One that is sound; copied by those who damage it."""

    place: Path | str
    written: Written

    @property
    def config(self) -> Config:
        return config_of(self.place)

    @property
    def broker(self) -> Path:
        return broker_of(self.place)

    def copied(self, place: Path) -> "RandomTier":
        shutil.copytree(self.broker, broker_of(place))
        return RandomTier(place, self.written)


def config_of(place: Path | str) -> Config:
    named = {"brokerClusterName": "C", "brokerName": "b"}
    return Config.load(settings={"tieredStoreFilePath": place, **named, **sizes_for(MESSAGES)})


def broker_of(place: Path | str) -> Path:
    broker = directory_of(config_of(place))
    assert isinstance(broker, Path)
    return broker


def made_at(place: Path | str) -> RandomTier:
    """A tier with so many random messages."""
    made = RandomTier(place, asyncio.run(write_random_tier(config_of(place), MESSAGES, SEED)))
    if isinstance(place, Path):
        for name in asyncio.run(state_of(made)).tombstones:  # index files that were merged
            (made.broker / name).unlink(missing_ok=True)
    return made


@pytest.fixture(scope="session")
def sound_random(tmp_path_factory: pytest.TempPathFactory) -> RandomTier:
    return made_at(tmp_path_factory.mktemp("random") / "tier")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with LocalEngine(2, staging=tmp_path_factory.mktemp("staging")) as found:
        yield found


def hashes_of(broker: Path) -> Hashes:
    """Of each file. Those whose names begin with `@` are metadata, never the same twice."""
    return {
        path.relative_to(broker).as_posix(): hashlib.blake2b(path.read_bytes()).digest()
        for path in sorted(broker.rglob("*"))
        if path.is_file()
    }


def is_restored(tier: RandomTier, engine: Engine, split_bytes: int) -> None:
    """All derived files of a tier come back with all their bytes."""
    before = hashes_of(tier.broker)
    remove_derived(tier.broker)
    lost = before.keys() - hashes_of(tier.broker).keys()
    assert any(name.startswith(INDEX_QUEUE.topic) for name in lost)
    report = restore(tier.config, engine, split_bytes=split_bytes)
    assert (report.faults, report.findings) == ([], [])
    assert {file.path for file in report.files} == lost
    assert hashes_of(tier.broker) == before


def is_remade(tier: RandomTier, wanted: Hashes, engine: Engine, split_bytes: int) -> Hashes:
    """A tier of CommitLogs alone gets these ConsumeQueues; the hashes of its index files."""
    assert all("/COMMIT_LOG/" in name for name in hashes_of(tier.broker))
    report = remake(tier.config, engine, split_bytes=split_bytes)
    assert (report.faults, report.findings) == ([], [])
    assert report.messages == tier.written.messages
    made = {name: raw for name, raw in hashes_of(tier.broker).items() if name[0] != "@"}
    index = {name: raw for name, raw in made.items() if name.startswith(INDEX_QUEUE.topic)}
    assert index
    assert {name: raw for name, raw in made.items() if name not in index} == wanted
    same_offsets(asyncio.run(state_of(tier)), tier.written)
    return index


async def state_of(tier: RandomTier) -> TierState:
    store = PosixStore(tier.broker)
    state = (await TierReader.open(store)).state
    await store.close()
    return state


def same_offsets(state: TierState, written: Written) -> None:
    spans = {
        queue.id: (
            queue.min_offset,
            queue.next_offset,
            [(gap.start, gap.end) for gap in queue.gaps],
        )
        for queue in state.queues.values()
    }
    assert spans == {
        queue: (first, written.ends[queue], written.gaps.get(queue, []))
        for queue, first in written.firsts.items()
    }


def is_sound(tier: RandomTier, engine: Engine, split_bytes: int) -> None:
    """Every record, unit and key is compared with every other thing that says something of it."""
    report = audit(tier.config, engine, split_bytes=split_bytes, bodies=True)
    assert report.findings == []
    assert report.counts["messages"] == report.counts["units"] == tier.written.messages


def kept(hashes: Hashes) -> Hashes:
    """What follows from the messages alone, whoever wrote it: logs and units."""
    return {
        name: raw
        for name, raw in hashes.items()
        if name[0] != "@" and not name.startswith(INDEX_QUEUE.topic)
    }


def test_the_tier_has_all_that_may_mislead_a_rebuild(sound_random: RandomTier) -> None:
    names = kept(hashes_of(sound_random.broker))
    segments = Counter(name.rsplit("/", 1)[0] for name in names if "/COMMIT_LOG/" in name)
    assert max(segments.values()) > 3
    assert sum(map(len, sound_random.written.gaps.values())) > 3
    assert len([*sound_random.broker.glob(f"{INDEX_QUEUE.topic}/*/*/*")]) > 3


@pytest.mark.parametrize("split_bytes", BY_DAY)
def test_lost_units_and_index_files_come_back_byte_for_byte(
    sound_random: RandomTier, tmp_path: Path, engine: Engine, split_bytes: int
) -> None:
    is_restored(sound_random.copied(tmp_path), engine, split_bytes)


@pytest.mark.parametrize("split_bytes", BY_DAY)
def test_commit_logs_alone_give_all_back(
    sound_random: RandomTier, tmp_path: Path, engine: Engine, split_bytes: int
) -> None:
    tier = sound_random.copied(tmp_path)
    wanted = kept(hashes_of(tier.broker))
    remove_derived(tier.broker)
    remove_metadata(tier.broker)
    is_remade(tier, wanted, engine, split_bytes)
    is_sound(tier, engine, split_bytes)
    is_restored(tier, engine, split_bytes)


@pytest.mark.parametrize("split_bytes", BY_DAY)
def test_commit_logs_with_codas_give_all_back(
    sound_random: RandomTier, tmp_path: Path, split_bytes: int
) -> None:
    tier = RandomTier(tmp_path, sound_random.written)
    units = with_codas(sound_random.broker, tier.broker)
    wanted = hashes_of(tier.broker)
    wanted |= {name: hashlib.blake2b(raw).digest() for name, raw in units.items()}
    is_remade(tier, wanted, OneProcess(), split_bytes)
    is_sound(tier, OneProcess(), split_bytes)
    is_restored(tier, OneProcess(), split_bytes)
