"""A tier whose disk becomes full: what is on it is published, and room is all that it needs."""

import asyncio
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from container.names.queue_id import QueueId
from container.options import TierOptions
from container.tier_view import TierReader
from provider.errors import Unavailable
from provider.object_store import Append
from provider.options import PosixOptions
from provider.testing.manual_clock import ManualClock
from tests.support.full_disk import BLOCK_BYTES, SmallDisk, used_bytes
from tests.support.inline_store import InlineStore
from tests.support.lacking import lacks
from tests.support.simulated_time import SimulatedClock, simulated
from tests.support.store_harness import DISPATCH_OPTIONS, StoreHotLog, StoreProcess
from tests.support.store_reader import assert_follows, contents, findings

KIB = 1 << 10
QUEUES = 4
"""Queues of the topic; each has two files."""
MESSAGES = 60
BODY_BYTES = 4 * KIB
PATIENCE_S = 60.0
INODES = 20
TIER = TierOptions(commit_log_bytes_max=1 << 20, consume_queue_bytes_max=200 * KIB)
DISPATCH = replace(
    DISPATCH_OPTIONS,
    batch_messages_max=16,
    batch_bytes_max=64 * KIB,
    batches_per_commit_max=4,
    bytes_in_flight_max=512 * KIB,
    references_max=1_000,
)
POSIX = PosixOptions(reserve_bytes=64 * KIB)
"""Several entries of this tier, each some KiB."""


@pytest.fixture
def nothing_blocks_the_loop() -> None:
    """Calls block here: the loop's time is simulated, and the store has no threads."""


class Filled:
    """A broker with more messages than the disk has room for, and the tier on that disk."""

    def __init__(self, directory: Path, grow: Callable[[], None]) -> None:
        self.directory = directory
        self.grow = grow
        """Makes the disk large enough for everything."""
        self.clock = SimulatedClock()
        self.hot = StoreHotLog(self.clock)
        self.store = InlineStore(directory, options=POSIX, clock=self.clock)
        for number in range(QUEUES):
            bodies = [bytes([n, number]) * (BODY_BYTES // 2) for n in range(MESSAGES)]
            self.hot.append(QueueId("T", number), *bodies)

    async def run(self) -> None:
        """Fill the disk, look, make room, and look again."""
        first = StoreProcess(
            self.store, self.hot.reopened(), self.clock, 1, tier=TIER, dispatch=DISPATCH
        )

        async def fills(process: StoreProcess) -> None:
            assert process.dispatcher is not None
            with pytest.raises(Unavailable):
                await process.dispatcher.drain(patience_s=PATIENCE_S)
            await self.assert_published()
            self.grow()
            await process.dispatcher.drain(patience_s=PATIENCE_S)

        await first.live(fills)
        assert first.error is None
        assert await self.published_bytes() > QUEUES * MESSAGES * BODY_BYTES
        await first.client.close()
        await self.assert_clean()

    async def run_and_die(self) -> None:
        """Fill the disk and die; the next owner begins on the full disk."""
        first = StoreProcess(
            self.store, self.hot.reopened(), self.clock, 1, tier=TIER, dispatch=DISPATCH
        )

        async def fills(process: StoreProcess) -> None:
            assert process.dispatcher is not None
            with pytest.raises(Unavailable):
                await process.dispatcher.drain(patience_s=PATIENCE_S)
            process.kill()
            raise Unavailable("killed", "tier")

        await first.live(fills)
        await self.assert_published()
        second = StoreProcess(
            self.store, self.hot.reopened(), self.clock, 2, tier=TIER, dispatch=DISPATCH
        )

        async def makes_room() -> None:
            await self.clock.sleep(PATIENCE_S)
            await self.assert_published()
            self.grow()

        async def drains(process: StoreProcess) -> None:
            assert process.dispatcher is not None
            await process.dispatcher.drain(patience_s=2 * PATIENCE_S)

        async with asyncio.TaskGroup() as group:
            group.create_task(makes_room())
            await second.live(drains)
        assert second.error is None
        await second.client.close()
        await self.assert_clean()

    async def assert_published(self) -> None:
        """What the full disk holds of messages is published, but for what ends a block."""
        published = await self.published_bytes()
        taken = used_bytes(self.directory / "T")
        assert published > 64 * KIB
        assert taken - published <= 2 * QUEUES * BLOCK_BYTES, (taken, published)

    async def published_bytes(self) -> int:
        """Bytes of the messages and units that a reader sees; each is the broker's."""
        with self.reading() as store:
            seen = await contents(await TierReader.open(store, verify=True))
        for queue, one in seen.items():
            assert_follows(one, self.hot.queues[queue])
        return sum(len(one.log) + len(one.units) for one in seen.values())

    async def assert_clean(self) -> None:
        with self.reading() as store:
            assert await findings(store) == []

    @contextmanager
    def reading(self) -> Iterator[InlineStore]:
        store = self.store.another_client()
        try:
            yield store
        finally:
            store.kill()


@pytest.mark.parametrize(
    ("size_kib", "dies"), [(300, False), (517, False), (801, False), (450, True)]
)
def test_d10_a_full_disk_holds_nothing_that_cannot_be_published(
    tmp_path: Path, size_kib: int, *, dies: bool
) -> None:
    disk = SmallDisk(tmp_path / "tier", size_kib * KIB)

    async def run() -> None:
        filled = Filled(disk.directory, lambda: setattr(disk, "size_bytes", 64 << 20))
        await (filled.run_and_die() if dies else filled.run())

    with disk.mounted():
        simulated(run())
    assert disk.refusals > 0


@contextmanager
def mounted(directory: Path, options: str) -> Iterator[Path]:
    """A real file system in memory; only root may mount one."""
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(directory)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        lacks("a tmpfs cannot be mounted here; simulated file systems hold the same")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


@pytest.fixture
def small_tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 640 KiB."""
    with mounted(tmp_path / "mounted", "size=640k") as directory:
        yield directory


@pytest.fixture
def few_inodes(tmp_path: Path) -> Iterator[Path]:
    """A real file system that has space, and few inodes."""
    with mounted(tmp_path / "mounted", f"size=8m,nr_inodes={INODES}") as directory:
        yield directory


def test_d10_a_real_file_system_that_is_full_holds_nothing_that_cannot_be_published(
    small_tmpfs: Path,
) -> None:
    def grow() -> None:
        larger = ["mount", "-o", "remount,size=64m", str(small_tmpfs)]
        subprocess.run(larger, check=True)

    async def run() -> None:
        filled = Filled(small_tmpfs / "tier", grow)
        await filled.run()

    simulated(run())


async def create_many(store: InlineStore) -> None:
    for number in range(INODES):
        await store.create(f"T/{number}", [b"x"])


def test_a_real_file_system_without_inodes_is_named_so_and_goes_on_with_more(
    few_inodes: Path,
) -> None:
    store = InlineStore(few_inodes / "tier", options=POSIX, clock=ManualClock())

    async def fills() -> None:
        with pytest.raises(Unavailable, match="no inodes left"):
            await create_many(store)
        for number in range(2):  # a file of data takes what a temporary file has given back
            with suppress(Unavailable):
                await store.append([Append(f"T/log{number}", 0, (b"x",), new=True)])
        with pytest.raises(Unavailable, match="no inodes left"):
            await store.append([Append("T/log", 0, (b"x",), new=True)])

    async def goes_on() -> None:
        await store.append([Append("T/log", 0, (b"x",), new=True)])
        assert bytes(await store.read("T/log")) == b"x"
        await store.close()

    simulated(fills())
    more = ["mount", "-o", f"remount,nr_inodes={2 * INODES}", str(few_inodes)]
    subprocess.run(more, check=True)
    simulated(goes_on())
