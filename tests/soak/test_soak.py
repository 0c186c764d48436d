"""A broker, a follower that is killed and fenced, and twenty readers over faults, for a long time.

`SOAK_SECONDS` sets the seconds of writing; without it 180 in CI (where `CI` is true) and 30
elsewhere. How long readers, followers and checks take is not measured: they must get on.
"""

import asyncio
import gc
import json
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path

import pytest

from container.names.queue_id import QueueId
from container.names.rocketmq import broker_directory
from tests.soak.broker_thread import BrokerThread
from tests.soak.follower import Follower
from tests.soak.ledger import Ledger
from tests.soak.reader import Reader, ReadingProcess, reading
from tests.soak.resources import MIB, WARM_UP_PHASES, Slack, Usage, peak_of, settled, usage_of
from tests.support.cli import run
from tests.support.fake_broker import FakeBroker
from tests.support.patience import Patience, until

SOAK_S = float(os.environ.get("SOAK_SECONDS") or 180)
HANGS_AFTER_S = 1800 + 20 * SOAK_S
PHASES = 8
READERS = 20
PROCESSES = 4
MESSAGES_PER_S = 800
CLUSTER, BROKER = "SoakCluster", "soak"
LOG_FILE_BYTES = MIB // 2
UNDECIDED_BYTES_MAX = 20 * LOG_FILE_BYTES
"""What the broker writes at most until it may or may not delete its oldest file."""
FOLLOWER_SLACK = Slack(memory_bytes=24 * MIB, memory_share=0.15, descriptors=24)
"""Mapped files of the broker come and go: a few megabytes, and a descriptor each."""
READERS_SLACK = Slack(memory_bytes=48 * MIB, memory_share=0.15, descriptors=16)
"""Caches fill up within the first phases at most; the metadata of more segments is small."""


def options(root: Path) -> list[str]:
    values = {
        "brokerClusterName": CLUSTER,
        "brokerName": BROKER,
        "tieredStoreFilePath": root / "tier",
        "tieredStorePinPath": root / "pins",
        "tieredStoreCommitLogMaxSize": 4 * MIB,
        "tieredStoreConsumeQueueMaxSize": 100_000,
        "tieredStoreExtentMaxSize": MIB,
        "tieredStoreGroupCommitTimeout": 100,
        "tieredStoreGroupCommitCount": 256,
        "tieredStoreBytesInFlight": 16 * MIB,
        "tieredStoreMappedBytesMax": 16 * MIB,
        "tieredStoreOpenFilesMax": 64,
        "tieredStoreJournalSnapshotCount": 100,
        "tieredStoreJournalGraceTime": 2000,
        "tieredStoreShutdownTimeout": 600_000,
    }
    return [part for key, value in values.items() for part in ("-D", f"{key}={value}")]


class Soak:
    """Who takes part, and the phases that they go through."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        self.rng = random.Random(seed)
        self.ledger = Ledger(root / "ledger")
        self.broker = BrokerThread(
            FakeBroker(root / "store", commit_log_bytes=LOG_FILE_BYTES),
            self.ledger,
            self.committed,
            messages_per_s=MESSAGES_PER_S,
            seed=seed,
        )
        arguments = [*options(root), "tier", str(root / "store"), "--follow"]
        self.follower = Follower(arguments, root / "follower.log", self.entries)
        self.readers = [
            Reader(f"group-{number:02}", self.ledger, random.Random(seed + number))
            for number in range(READERS)
        ]
        self.processes: list[ReadingProcess] = []
        self.follower_usage: list[list[Usage]] = []
        self.own_usage: list[list[Usage]] = []
        self.checks = 0
        self.is_over = False

    def committed(self) -> dict[QueueId, int]:
        """What a reader knows to be tiered."""
        if not self.processes:
            return {}
        queues = self.processes[0].tier.state.queues
        return {queue: record.next_offset for queue, record in queues.copy().items()}

    def entries(self) -> int:
        """How far the tier's journal is."""
        names = (path.name for path in self.root.glob("tier/*/*/@journal/*"))
        return max((int(name) for name in names if name.isdigit()), default=0)

    async def phase(self, number: int) -> None:
        """Write and read under disturbances, or none, then settle and check."""
        self.follower_usage.append([])
        self.own_usage.append([])
        if number < WARM_UP_PHASES:
            self.broker.topics.append(f"Topic{number}")
        for reader in self.readers[number % 4 :: 4]:
            reader.begin_again()
        self.follower.start()
        self.broker.go_on()
        end_s = time.monotonic() + SOAK_S / PHASES
        async with asyncio.TaskGroup() as group:
            group.create_task(self.look(end_s))
            if number % 2:
                group.create_task(self.disturb(end_s))
        if number % 2:
            await self.delete_while_nobody_follows()
        self.broker.pause()
        await self.settle(number)

    async def look(self, end_s: float) -> None:
        """Sample both processes until the phase ends."""
        while time.monotonic() < end_s:
            self.sample(self.follower_usage[-1], self.follower.usage())
            self.sample(self.own_usage[-1], usage_of(os.getpid()))
            await asyncio.sleep(min(1.0, SOAK_S / PHASES / 10))

    def sample(self, looks: list[Usage], usage: Usage | None) -> None:
        if usage is not None:
            looks.append(usage)

    async def disturb(self, end_s: float) -> None:
        """Kill, stop and fence the follower until the phase ends."""
        while True:
            pause_s = self.rng.uniform(0.2, max(1.0, SOAK_S / PHASES / 8))
            if time.monotonic() + pause_s > end_s:
                return
            await asyncio.sleep(pause_s)
            match self.rng.choice(["kill", "kill", "stop", "replace"]):
                case "kill":
                    await self.follower.kill()
                    self.follower.start()
                case "stop":
                    await self.follower.stop()
                    self.follower.start()
                case _:
                    await self.follower.replace()

    async def delete_while_nobody_follows(self) -> None:
        """Let the broker delete what only a pin keeps, and what nobody has tiered.

        The follower may die just when the broker has begun a file that it has not pinned yet. Then
        there is nothing that may be deleted, and a follower must come and die once more.
        """
        broker, written = self.broker, self.broker.written
        deleted = written.files_deleted_untiered
        while written.files_deleted_untiered == deleted:
            patience = self.follower.patience("the newest file is not pinned")
            await until(broker.newest_is_pinned, patience)
            await self.follower.kill()
            broker.waits_for_a_follower = False
            begin = written.bytes

            def is_decided(begin: int = begin) -> bool:
                assert written.bytes - begin < UNDECIDED_BYTES_MAX, broker.oldest()
                return broker.waits_for_a_follower or written.files_deleted_untiered > deleted

            await until(is_decided, Patience("nobody writes", marks=lambda: written.bytes))
            self.follower.start()

    async def settle(self, number: int) -> None:
        """Every reader reads everything; then the follower stops, and the tier is checked."""

        def nobody_is_behind() -> bool:
            self.follower.check_alive()
            return not any(reader.behind() for reader in self.readers)

        await until(nobody_is_behind, Patience(lambda: self.lateness(number), marks=self.places))
        await self.follower.stop()
        done = await asyncio.to_thread(run, *options(self.root), "check", "--json", status=None)
        assert (done.status, done.out) == (0, ""), f"after phase {number}: {done}"
        self.checks += 1
        gc.collect()
        self.sample(self.own_usage[-1], usage_of(os.getpid()))

    def places(self) -> object:
        """How far everybody is."""
        return self.committed(), sum(reader.messages for reader in self.readers)

    def lateness(self, number: int) -> str:
        """Who is behind, and where."""
        late = [reader for reader in self.readers if reader.behind()]
        return (
            f"phase {number}: {len(late)} readers are behind; {late[0].name}: {late[0].behind()}; "
            f"{self.ledger}; committed {self.committed()}; {self.follower.last_words()}"
        )

    def figures(self) -> dict[str, object]:
        """What happened, for people."""
        return {
            "seconds": SOAK_S,
            "messages_written": self.ledger.messages,
            "messages_read": sum(reader.messages for reader in self.readers),
            "passes": sum(reader.passes + 1 for reader in self.readers),
            "broker": asdict(self.broker.written),
            "follower": repr(self.follower),
            "checks": self.checks,
            "faults": [dict(process.store.struck) for process in self.processes],
            "read_failures_seen": sum(reader.failures for reader in self.readers),
            "refreshes_failed": sum(process.refreshes_failed for process in self.processes),
            "follower_curve": [curve(looks) for looks in self.follower_usage],
            "own_curve": [curve(looks) for looks in self.own_usage],
        }


def curve(looks: list[Usage]) -> str:
    """One phase in a few words."""
    now, peak = settled(looks), peak_of(looks)
    return (
        f"{now.rss_bytes / MIB:.0f} MiB (peak {peak.rss_bytes / MIB:.0f}, anonymous "
        f"{now.anonymous_bytes / MIB:.0f}), {now.descriptors} descriptors "
        f"(peak {peak.descriptors}), {now.threads} threads"
    )


async def open_readers(soak: Soak, stack: AsyncExitStack) -> None:
    directory = soak.root / "tier" / broker_directory(CLUSTER, BROKER)
    for number in range(PROCESSES):
        mine = soak.readers[number::PROCESSES]
        soak.processes.append(
            await stack.enter_async_context(
                reading(directory, mine, verify=number == 0, seed=number)
            )
        )


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.timeout(HANGS_AFTER_S)
async def test_every_message_is_read_once_in_order_whatever_happens_and_nothing_grows(
    tmp_path: Path,
) -> None:
    soak = Soak(tmp_path, seed=5)
    loop = asyncio.get_running_loop()
    try:
        with ThreadPoolExecutor(1) as threads:
            writing = loop.run_in_executor(threads, soak.broker.run)
            try:
                await follow(soak)
            finally:
                soak.broker.stop()
                await writing
    finally:
        soak.follower.close()
        soak.ledger.close()
        figures = json.dumps(soak.figures(), indent=1)
        (tmp_path / "figures.json").write_text(figures)
        print(figures)
        print(f"the follower said: {soak.follower.last_words()}")
    assert soak.follower.kills
    assert soak.broker.written.files_deleted_untiered
    assert all(reader.failures for reader in soak.readers), "no fault struck"
    growth = FOLLOWER_SLACK.findings("the follower", soak.follower_usage)
    growth += READERS_SLACK.findings("the readers", soak.own_usage)
    assert growth == []


async def follow(soak: Soak) -> None:
    """Let the readers begin once there is a tier, and go through the phases."""
    soak.follower.start()

    def has_begun() -> bool:
        soak.follower.check_alive()
        return any((soak.root / "tier").glob("*/*/@journal/*0"))

    await until(has_begun, soak.follower.patience("nobody begins the tier"))
    await soak.follower.stop()
    async with AsyncExitStack() as stack:
        await open_readers(soak, stack)
        async with asyncio.TaskGroup() as group:
            for process in soak.processes:
                group.create_task(process.run(lambda: soak.is_over))
            for number in range(PHASES):
                await soak.phase(number)
            soak.is_over = True
