"""Two real followers on one tier: the first is stopped in the middle, the second takes over.

Journal entry 1 takes the tier, 2 announces the queue's first files, 3 and those after it are
commits.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from container.names.queue_id import QueueId
from container.names.rocketmq import broker_directory
from container.tier_view import TierReader
from provider.errors import NotFound
from provider.posix.store import PosixStore
from tests.support.cli import COMMAND, run
from tests.support.fake_broker import FakeBroker
from tests.support.patience import HANGS_AFTER_S, LOOK_S, Patience, ended, until, wait_until
from tests.support.store_reader import contents

CLUSTER, BROKER = "StoppedCluster", "stopped"
QUEUE = QueueId("Orders", 0)
FENCED = "took this tier over"

STOPS_ITSELF = """
import os, signal, sys
from provider.posix.store import PosixStore
from tieredstore.cli.main import cli

verb, prefix, wanted = sys.argv[1], sys.argv[2], int(sys.argv[3])
original, met = getattr(PosixStore, verb), 0

async def stopping(store, *arguments):
    global met
    names = [arguments[0]] if verb == "create" else [piece.name for piece in arguments[0]]
    met += any(name.startswith(prefix) for name in names)
    if met == wanted:
        met += 1
        os.kill(os.getpid(), signal.SIGSTOP)
    return await original(store, *arguments)

setattr(PosixStore, verb, stopping)
cli.main(sys.argv[4:])
"""
"""A command that stops itself before its n-th call of a verb on a name that starts so."""


def body(offset: int) -> bytes:
    return f"{offset:06d}".encode() * 150


class World:
    """A broker's directory, a tier, and the two processes that follow."""

    def __init__(self, directory: Path) -> None:
        self.broker = FakeBroker(directory / "store")
        self.tier = directory / "tier"
        self.root = self.tier / broker_directory(CLUSTER, BROKER)
        self.logs = {name: directory / f"{name}.log" for name in ("first", "second")}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def arguments(self) -> list[str]:
        # Commits of five messages and segments of four: each commit continues one and begins one.
        values = {
            "brokerClusterName": CLUSTER,
            "brokerName": BROKER,
            "tieredStoreFilePath": self.tier,
            "tieredStoreCommitLogMaxSize": 4500,
            "tieredStoreConsumeQueueMaxSize": 160,
            "tieredStoreGroupCommitCount": 5,
            "tieredStoreBatchesPerCommit": 1,
            "tieredStoreGroupCommitTimeout": 20,
            "tieredStorePollInterval": 20,
            "tieredStoreTakeoverTimeout": 0,
            "tieredStoreJournalSnapshotCount": 1,
            "tieredStoreJournalGraceTime": 0,
        }
        return [part for key, value in values.items() for part in ("-D", f"{key}={value}")]

    def put(self, messages: int) -> None:
        first = self.broker.next_offsets.get(QUEUE, 0)
        bodies = [body(offset) for offset in range(first, first + messages)]
        self.broker.put_many(*QUEUE, bodies)

    def start(self, name: str, *before: str) -> subprocess.Popen[bytes]:
        follow = [*self.arguments, "tier", str(self.broker.directory), "--follow", "--take-over"]
        command = [*(before or COMMAND), *follow]
        with self.logs[name].open("wb") as log:
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log)
        return self.processes[name]

    def start_stopped(self, verb: str, prefix: str, call: int) -> subprocess.Popen[bytes]:
        """Start the first one, and wait until it has stopped itself."""
        code = [sys.executable, "-c", STOPS_ITSELF, verb, prefix, str(call)]
        process = self.start("first", *code)
        seen = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        assert seen is not None
        assert seen.si_status == signal.SIGSTOP, self.said("first")
        return process

    def said(self, name: str) -> str:
        return self.logs[name].read_text(errors="replace")

    def published(self) -> dict[int, bytes]:
        """Every message that a reader sees, by offset."""
        return asyncio.run(self._published())

    async def _published(self) -> dict[int, bytes]:
        store = PosixStore(self.root)
        try:
            reader = await TierReader.open(store, verify=True)
            seen = (await contents(reader)).get(QUEUE)
        except NotFound:
            return {}
        finally:
            await store.close()
        if seen is None:
            return {}
        return {offset: seen.record_at(index) for index, offset in enumerate(seen.offsets)}

    async def _published_offset(self) -> int:
        store = PosixStore(self.root)
        try:
            queue = (await TierReader.open(store)).queue(QUEUE)
        except NotFound:
            return 0
        finally:
            await store.close()
        return 0 if queue is None else queue.next_offset

    async def catches_up(self) -> None:
        """Wait until all that the broker has is published."""
        wanted, seen = self.broker.next_offsets[QUEUE], 0
        second = self.processes["second"]
        patience = Patience(lambda: self.said("second"), marks=lambda: seen, pids=[second.pid])
        while seen < wanted:
            assert second.poll() is None, self.said("second")
            patience.look()
            seen = await self._published_offset()
            await asyncio.sleep(LOOK_S)

    def check(self) -> list[str]:
        done = run(*self.arguments, "check", "--json", status=None)
        return [f"{row['finding']} {row['path']}" for row in done.rows]

    def files(self) -> set[str]:
        return {str(path.relative_to(self.root)) for path in self.root.glob("Orders/*/*/*")}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    for process in world.processes.values():
        if process.poll() is None:
            process.kill()
        process.wait()


def wakes_and_stops(world: World, first: subprocess.Popen[bytes]) -> None:
    """The first one goes on, finds itself fenced, says so in one sentence and ends with 4."""
    first.send_signal(signal.SIGCONT)
    assert ended(first) == 4, world.said("first")
    last = world.said("first").splitlines()[-1]
    assert last.startswith("tieredstore: process ")
    assert FENCED in last


def ends_cleanly(world: World, second: subprocess.Popen[bytes]) -> None:
    second.send_signal(signal.SIGTERM)
    assert ended(second) == 0, world.said("second")


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(HANGS_AFTER_S)
@pytest.mark.parametrize(
    ("verb", "prefix", "call"),
    [("append", "Orders/", 2), ("create", "@journal/", 4), ("create", "@snapshot/", 1)],
    ids=["before its data", "before its entry", "before its snapshot"],
)
def test_an_owner_that_was_stopped_ends_and_nothing_of_it_is_seen(
    world: World, verb: str, prefix: str, call: int
) -> None:
    world.put(40)
    first = world.start_stopped(verb, prefix, call)
    before = world.published()
    second = world.start("second")
    asyncio.run(world.catches_up())
    patience = Patience("the second one writes no snapshot", pids=[second.pid])
    wait_until(lambda: any(world.root.glob("@snapshot/*-0000000002-*")), patience)
    seen = world.published()
    world.put(10)
    wakes_and_stops(world, first)
    asyncio.run(world.catches_up())
    now = world.published()
    assert before.items() <= seen.items() <= now.items(), "published messages changed"
    assert all(body(offset) in record for offset, record in now.items())
    assert all(one.startswith("orphan Orders/0/") for one in world.check())
    ends_cleanly(world, second)
    # The second one looked for strays when the first had not written its data yet: the third does.
    run(*world.arguments, "tier", str(world.broker.directory))
    assert world.check() == []
    assert world.published() == now


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(HANGS_AFTER_S)
def test_an_owner_in_the_way_is_named_and_once_it_ends_the_other_goes_on(world: World) -> None:
    world.put(40)
    first = world.start_stopped("create", "@journal/", 3)  # it began the queue's first files
    assert world.files()
    assert world.published() == {}
    second = world.start("second")
    patience = Patience("it says nothing", marks=lambda: world.said("second"), pids=[second.pid])
    asyncio.run(until(lambda: "end that process" in world.said("second"), patience))
    assert world.published() == {}
    wakes_and_stops(world, first)
    asyncio.run(world.catches_up())
    ends_cleanly(world, second)
    assert world.check() == []
    assert all(body(offset) in record for offset, record in world.published().items())


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(HANGS_AFTER_S)
def test_an_owner_that_is_killed_while_stopped_leaves_files_that_the_other_sweeps(
    world: World,
) -> None:
    world.put(40)
    first = world.start_stopped("create", "@journal/", 4)
    written = world.files()
    second = world.start("second")
    asyncio.run(world.catches_up())
    first.kill()
    first.wait()
    world.put(10)
    asyncio.run(world.catches_up())
    ends_cleanly(world, second)
    assert world.check() == []
    assert len(written - world.files()) == 2, "a CommitLog and a ConsumeQueue file were strays"
