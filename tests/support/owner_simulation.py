"""A start that meets an earlier owner, on a clock of its own: who owns the tier, and from when."""

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from random import Random

from container.errors import Owned
from container.journal.heartbeat import Heartbeat
from container.journal.journal import Journal
from container.metadata.operations import PutTopic
from container.metadata.records import Topic
from container.options import JournalOptions
from provider.errors import Fenced
from provider.testing.manual_clock import ManualClock, settle
from provider.testing.memory import MemoryStore
from tests.support.journal_run import running
from tieredstore.config.location import location_at
from tieredstore.process_name import ProcessName, owner_name
from tieredstore.session.takeover import Takeover

BEAT_S = 30.0
SLACK_S = 5.0
"""The clock moves on by a second while evidence is found in a thread."""
NOBODY = 1 << 22
"""A process number above all of Linux."""
LIVES = ("lives elsewhere", "lives in another PID namespace")
LEFT = ("died here", "ended")
EARLIER = (*LIVES, *LEFT, "silent elsewhere")


async def step(clock: ManualClock) -> None:
    """Move the clock by a second once every task waits for it; evidence is found in a thread."""
    for _ in range(100):
        await asyncio.to_thread(lambda: None)
        await settle()
        if clock.sleeping:
            break
    await clock.advance(1.0)


async def threads_rest(task: asyncio.Task[object], clock: ManualClock) -> None:
    """Advance the clock until the task is done."""
    for _ in range(400):
        if task.done():
            return
        await step(clock)
    raise AssertionError("it does not end")


def _name_of(earlier: str, clock: ManualClock, rng: Random) -> str:
    name = owner_name(clock, beat_s=BEAT_S, rng=rng)
    said = ProcessName.parse(name)
    assert said is not None
    changes = {
        "lives elsewhere": (f"{socket.gethostname()}:", "elsewhere:"),
        "silent elsewhere": (f"{socket.gethostname()}:", "elsewhere:"),
        "lives in another PID namespace": (f";pidns={said.pid_namespace}", ";pidns=1"),
        "ended": (f";pidns={said.pid_namespace}", ";pidns=1"),
        "died here": ("", ""),
    }
    return name.replace(*changes[earlier]).replace(f":{said.pid} ", f":{NOBODY} ")


class OwnerSimulation:
    """O1  A living owner keeps the tier, and a start reports it.

    O2  An owner that ended, or whose process is gone from this host, is replaced at once.
    O3  An owner elsewhere without a sign is replaced once the lease has passed, and not before.
    O4  An owner that was replaced publishes nothing.
    """

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.earlier = EARLIER[seed % len(EARLIER)]
        self.clock = ManualClock()
        self.store = MemoryStore()
        self.topics = 0

    async def run(self) -> None:
        """Two owners, one after the other, or not."""
        # in order: `step` waits for the evidence that was asked for before
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        name = await asyncio.to_thread(_name_of, self.earlier, self.clock, self.rng)
        first = await self._own(name)
        beats = Heartbeat(first, self.store, name, clock=self.clock, interval_s=BEAT_S)
        showing = asyncio.create_task(beats.run())
        async with running(first):
            await settle()
            await self._put(first)
            for _ in range(self.rng.randrange(90)):
                await step(self.clock)
            if self.earlier not in LIVES:
                showing.cancel()
            if self.earlier == "ended":
                await first.close()
                await beats.end()
            await self._start(first)
            showing.cancel()

    async def _start(self, first: Journal) -> None:
        options = JournalOptions()
        where = location_at("memory://bucket/tier")
        takeover = Takeover(where, self.store, options, clock=self.clock, take_over=False)
        began_s = self.clock.monotonic_s()
        task = asyncio.create_task(self._own("new:1", takeover))
        await threads_rest(task, self.clock)
        waited_s = self.clock.monotonic_s() - began_s
        error = task.exception()
        if self.earlier in LIVES:
            assert isinstance(error, Owned), f"O1: {self.earlier}, {error!r}"
            await self._put(first)
            return
        second = task.result()
        least_s = 0.0 if self.earlier in LEFT else options.lease_s
        assert least_s <= waited_s <= least_s + SLACK_S, f"O2, O3: {self.earlier}, {waited_s} s"
        async with running(second):
            if self.earlier != "ended":
                await self._refused(first)
            await self._put(second)

    async def _own(self, owner: str, takeover: Takeover | None = None) -> Journal:
        permit = None if takeover is None else takeover.permit
        return await Journal.take_ownership(
            self.store, clock=self.clock, rng=self.rng, owner=owner, cluster="C", broker="b",
            permit=permit,
        )  # fmt: skip

    async def _put(self, journal: Journal) -> None:
        self.topics += 1
        await journal.publish([PutTopic(Topic(f"T{self.topics}", self.topics))])

    async def _refused(self, journal: Journal) -> None:
        try:
            await self._put(journal)
        except Fenced:
            return
        raise AssertionError("O4: an owner that was replaced has published")


def simulate_owners(seed: int) -> None:
    """Run one seed."""
    asyncio.run(OwnerSimulation(seed).run())
