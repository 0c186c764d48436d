"""Killed at any moment, a restart finds a sound tier and ends with an undisturbed run's files."""

import asyncio
import contextlib
import hashlib
import os
import random
import signal
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from container.check.tier import check_tier
from container.names.queue_id import QueueId, SegmentType
from container.tier_view import TierReader
from provider.errors import NotFound
from provider.posix.store import PosixStore
from provider.ranges import ByteRange
from tests.soak.forked_commands import ForkedCommands
from tests.support.cli import settings
from tests.support.fake_broker import FakeBroker
from tests.support.golden import ROCKETMQ_533, unpacked
from tests.support.level import by_level
from tests.support.patience import HANGS_AFTER_S

KILLS = 20
BY_NIGHT = pytest.mark.nightly
"""By day, runs once are killed at twenty steps, and followers at random moments."""
LONG_KILLS = by_level(quick=5, full=5, nightly=200)
"""In each of the two long tests."""
STARTS_MAX = 2 * LONG_KILLS
"""A command that ends before it is killed is no kill."""
# The journal of a run depends on when it was killed; what it says is compared by `check`.
FLAT_FILES = ("COMMIT_LOG", "CONSUME_QUEUE")
CLUSTER, BROKER = "KilledCluster", "killed"
SPIN_S = 0.0002
"""Between two looks at the journal: short beside a commit, and the machine has work to do."""


def digests(tier: Path) -> dict[str, str]:
    files = [path for kind in FLAT_FILES for path in tier.glob(f"*/*/*/*/{kind}/*")]
    return {
        str(path.relative_to(tier)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files
    }


def defines(values: Mapping[str, object]) -> list[str]:
    return [part for key, value in values.items() for part in ("-D", f"{key}={value}")]


def small_steps(options: list[str]) -> list[str]:
    """Batches of a few messages, so that there is much to be killed in between."""
    steps = {
        "tieredStoreGroupCommitCount": 2,
        "tieredStoreBatchesPerCommit": 1,
        "tieredStoreBytesInFlight": 4194304 * 2,
    }
    return [*options, *defines(steps)]


def entries(tier: Path) -> int:
    """How far the journal is: it grows, though its oldest entries go."""
    names = (name for d in tier.glob("*/*/@journal") for name in os.listdir(d))  # noqa: PTH208
    return max((int(name) for name in names if name.isdigit()), default=0)


def long_settings(tier: Path) -> list[str]:
    """One batch of a few messages a commit, many segments, a journal that is often cut."""
    return defines(
        {
            "brokerClusterName": CLUSTER,
            "brokerName": BROKER,
            "tieredStoreFilePath": tier,
            "tieredStoreCommitLogMaxSize": 1 << 16,
            "tieredStoreConsumeQueueMaxSize": 4000,
            "tieredStoreExtentMaxSize": 1 << 14,
            "tieredStoreGroupCommitCount": 8,
            "tieredStoreGroupCommitTimeout": 20,
            "tieredStorePollInterval": 20,
            "tieredStoreBatchesPerCommit": 1,
            "tieredStoreJournalSnapshotCount": 25,
            "tieredStoreJournalGraceTime": 0,
        }
    )


def directory_in(tier: Path) -> Path:
    """The broker's directory in a tier of one broker, or the tier if nobody has begun it."""
    return next((journal.parent for journal in tier.glob("*/*/@journal")), tier)


@contextlib.asynccontextmanager
async def reading(tier: Path) -> AsyncIterator[TierReader]:
    store = PosixStore(directory_in(tier))
    try:
        yield await TierReader.open(store)
    finally:
        await store.close()


async def logical_files(tier: Path) -> dict[tuple[QueueId, str], bytes]:
    """Every flat file by content, whatever segments it has."""
    found: dict[tuple[QueueId, str], bytes] = {}
    async with reading(tier) as reader:
        for queue, record in reader.state.queues.items():
            container = reader.container(queue)
            assert container is not None
            log_end = record.flat_end(SegmentType.COMMIT_LOG)
            units = await container.units(container.min_offset, container.next_offset)
            found[queue, "units"] = units.tobytes()
            found[queue, "log"] = bytes(await container.log(ByteRange(0, log_end)))
    return found


Ends = dict[QueueId, tuple[int, int]]
"""Commit offset and length of the CommitLog, as published."""


def ends_of(reader: TierReader) -> Ends:
    return {
        queue: (record.next_offset, record.flat_end(SegmentType.COMMIT_LOG))
        for queue, record in reader.state.queues.items()
    }


@dataclass
class Killer:
    """Starts the command and kills it, again and again, and looks at the tier each time."""

    commands: ForkedCommands
    arguments: list[str]
    tier: Path
    rng: random.Random
    kills: int = 0
    starts: int = 0
    kills_before_a_commit: int = 0
    acknowledged: Ends = field(default_factory=dict)

    async def strike(self) -> None:
        """One start, one kill, one look."""
        before = entries(self.tier)
        wanted = self.rng.choice([0, 1, 2, 2, 3, 3, 4, 5])
        later_s = self.rng.choice([0.0, self.rng.uniform(0, 0.004), self.rng.uniform(0, 0.03)])
        self.commands.start(self.arguments)
        self.starts += 1
        patience = self.commands.patience(
            f"start {self.starts} writes no {wanted} entries", lambda: entries(self.tier)
        )
        while not self.commands.has_ended() and entries(self.tier) - before < wanted:
            patience.look()
            await asyncio.sleep(SPIN_S)
        await asyncio.sleep(later_s)
        await self.acknowledge()
        status = self.commands.kill()
        assert status in {-signal.SIGKILL, 0}, self.commands.last_words()
        self.kills += status != 0
        self.kills_before_a_commit += entries(self.tier) - before <= 1
        await self.look()

    async def acknowledge(self) -> None:
        """See what any reader could see just now."""
        with contextlib.suppress(NotFound):  # nobody has begun the tier yet
            async with reading(self.tier) as reader:
                self.acknowledged = ends_of(reader)

    async def look(self) -> None:
        """Nothing is wrong, and nothing that was seen has gone."""
        try:
            async with reading(self.tier) as reader:
                findings = [finding async for finding in check_tier(reader)]
                ends = ends_of(reader)
        except NotFound:
            assert not self.acknowledged, "the tier has gone"
            return
        assert findings == [], f"after kill {self.kills} (start {self.starts})"
        for queue, (offset, log_bytes) in self.acknowledged.items():
            now = ends[queue]
            assert now[0] >= offset, f"kill {self.kills}: {queue} was at {offset}, is at {now}"
            assert now[1] >= log_bytes, f"kill {self.kills}: {queue} had {log_bytes} B, has {now}"

    def __str__(self) -> str:
        messages = sum(offset for offset, _ in self.acknowledged.values())
        return (
            f"{self.kills} kills of {self.starts} starts, {self.kills_before_a_commit} of them "
            f"before a commit, {messages} messages, {entries(self.tier)} journal entries"
        )


def some_messages(broker: FakeBroker, rng: random.Random, messages: int) -> None:
    """Append to a few queues, in short rows."""
    for _ in range(messages // 4):
        topic, queue_id = rng.choice("ABC"), rng.randrange(3)
        body = rng.randbytes(rng.randrange(1, 300))
        broker.put_many(topic, queue_id, [body] * 3, tags=rng.choice(["", "TagA"]))
        broker.put(topic, queue_id, body, tags="TagB", keys=f"key-{rng.random()}")


@contextlib.contextmanager
def writing(broker: FakeBroker, rng: random.Random, messages_max: int) -> Iterator[None]:
    """A broker that goes on writing in a thread while the block runs, up to a bound."""
    stopped = threading.Event()

    def write() -> None:
        for _ in range(messages_max // 8):
            if stopped.wait(0.01):
                return
            some_messages(broker, rng, 8)

    with ThreadPoolExecutor(1) as threads:
        written = threads.submit(write)
        try:
            yield
        finally:
            stopped.set()
        written.result()


@pytest.mark.slow
@pytest.mark.timeout(HANGS_AFTER_S)
@pytest.mark.parametrize(
    "follow",
    [pytest.param([], id="once"), pytest.param(["--follow"], id="follow", marks=BY_NIGHT)],
)
async def test_twenty_kills_leave_a_sound_tier_and_the_same_files(
    follow: list[str], tmp_path: Path
) -> None:
    """Of a real broker's store, with every kind of message."""
    tree = unpacked(ROCKETMQ_533)
    tier, undisturbed = tmp_path / "tier", tmp_path / "undisturbed"
    arguments = [*small_steps(settings(tree, tier)), "tier", str(tree.store)]
    with ForkedCommands(tmp_path / "commands.log") as commands:
        commands.start([*settings(tree, undisturbed), "tier", str(tree.store)])
        assert commands.ended() == 0, commands.last_words()
        killer = Killer(commands, [*arguments, *follow], tier, random.Random(7))
        while killer.kills < KILLS:
            await killer.strike()
        print(killer)
        commands.start(arguments)
        assert commands.ended() == 0, commands.last_words()
        await killer.look()
    assert digests(tier) == digests(undisturbed)


@pytest.mark.slow
@pytest.mark.scales
@pytest.mark.timeout(HANGS_AFTER_S)
@pytest.mark.parametrize(
    "follow", [pytest.param(False, id="once", marks=BY_NIGHT), pytest.param(True, id="follow")]
)
async def test_many_kills_at_random_moments_lose_and_repeat_nothing(
    tmp_path: Path, *, follow: bool
) -> None:
    started_s = time.monotonic()
    rng = random.Random(11)
    broker = FakeBroker(tmp_path / "store", commit_log_bytes=1 << 18, consume_queue_bytes=8000)
    some_messages(broker, rng, 400 if follow else 200 * LONG_KILLS)
    tier = tmp_path / "tier"
    arguments = [*long_settings(tier), "tier", str(broker.directory)]
    with ForkedCommands(tmp_path / "commands.log") as commands:
        following = [*arguments, "--follow"] if follow else arguments
        killer = Killer(commands, following, tier, random.Random(13))
        with writing(broker, rng, 1_000 * LONG_KILLS) if follow else contextlib.nullcontext():
            while killer.kills < LONG_KILLS:
                assert killer.starts < STARTS_MAX, f"too few could be killed: {killer}"
                await killer.strike()
        commands.start(arguments)
        assert commands.ended() == 0, commands.last_words()
        await killer.look()
        undisturbed = tmp_path / "undisturbed"
        commands.start([*long_settings(undisturbed), "tier", str(broker.directory)])
        assert commands.ended() == 0, commands.last_words()
    found, wanted = await logical_files(tier), await logical_files(undisturbed)
    assert found.keys() == wanted.keys()
    for file, content in wanted.items():
        assert found[file] == content, f"{file} differs"
    assert {queue: len(found[queue, "units"]) // 20 for queue in broker.next_offsets} == dict(
        broker.next_offsets
    )
    assert digests(tier) == digests(undisturbed)
    print(f"{killer}, {time.monotonic() - started_s:.0f} s")
