"""Who may take a tier from whom, what is settled before it is taken, and how an owner learns it."""

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner, Result

import tieredstore
from container.errors import Owned
from container.journal.heartbeat import Heartbeat
from container.journal.journal import Journal
from container.metadata.records import Broker
from container.names.tier_objects import SignName
from container.options import JournalOptions
from provider.errors import Fenced, Unavailable
from provider.object_store import ObjectEntry
from provider.testing.manual_clock import ManualClock, settle
from provider.testing.memory import MemoryStore
from tests.support.cli import COMMAND, run
from tests.support.fake_broker import FakeBroker
from tests.support.journal_run import mark, running
from tests.support.owner_simulation import step, threads_rest
from tests.support.patience import communicated
from tieredstore.cli.main import cli
from tieredstore.config.location import Location, location_at
from tieredstore.process_name import (
    ProcessLife,
    ProcessName,
    owner_name,
    process_name,
    process_words,
)
from tieredstore.session.takeover import Takeover, process_life, watch_ownership

assert tieredstore.Follower  # its imports read files, so they are not left to a running loop

US = f"process {os.getpid()} on {socket.gethostname()} (since 20"


@pytest.fixture
def broker(tmp_path: Path) -> FakeBroker:
    broker = FakeBroker(tmp_path / "store", consume_queue_bytes=400)
    broker.put_many("A", 0, [b"body"] * 10)
    return broker


def follow(broker: FakeBroker, *, take_over: bool = False, **given: object) -> tieredstore.Follower:
    tier = broker.directory.parent / "tier"
    quick = {"tieredStoreTakeoverTimeout": 0, **given}
    return tieredstore.follow(
        broker.directory, tier, broker="b", settings=quick, take_over=take_over
    )


def options(broker: FakeBroker) -> list[str]:
    tier = broker.directory.parent / "tier"
    return ["-D", "brokerName=b", "-D", f"tieredStoreFilePath={tier}"]


def invoke(broker: FakeBroker, *words: str | Path) -> Result:
    return CliRunner().invoke(cli, [*options(broker), *map(str, words)])


def epochs(broker: FakeBroker) -> int:
    """How often the tier was taken."""

    async def read() -> int:
        async with tieredstore.open(broker.directory.parent / "tier") as tier:
            return tier.reader.state.broker.epoch

    return asyncio.run(read())


async def test_an_owner_that_lives_is_named_and_keeps_the_tier(broker: FakeBroker) -> None:
    async with follow(broker) as owner:
        with pytest.raises(tieredstore.Owned) as raised:
            await follow(broker).__aenter__()
        assert US in raised.value.reason
        await owner.drain()
    async with follow(broker) as owner:  # it ended
        assert (await owner.drain()).messages == 0


@pytest.mark.parametrize(
    "words",
    [
        ["tier"],
        ["tier", "--follow"],
        ["repair", "A", "0", "--cut-to-hot", "--yes", "--store"],
    ],
    ids=["once", "follow", "repair"],
)
def test_no_command_takes_a_tier_by_accident(broker: FakeBroker, words: list[str]) -> None:
    assert invoke(broker, "tier", broker.directory).exit_code == 0
    tier = broker.directory.parent / "tier"
    with tieredstore.sync.follow(broker.directory, tier, broker="b") as owner:
        if words[0] == "repair":
            owner.drain()
            broker.crash(300)
        done = invoke(broker, *words, broker.directory)
        owner.drain()
    assert done.exit_code == 4, done.output
    assert US in done.stderr
    assert "--take-over" in done.stderr


def test_a_start_that_fails_on_its_port_takes_nothing(broker: FakeBroker) -> None:
    assert invoke(broker, "tier", broker.directory).exit_code == 0
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = f"tieredStoreMetricsPort={taken.getsockname()[1]}"
        words = ["tier", broker.directory, "--follow", "--take-over", "-D", port]
        done = invoke(broker, *words)
        assert (done.exit_code, "cannot be served" in done.stderr) == (2, True)
        assert epochs(broker) == 1
        once = invoke(broker, "tier", broker.directory, "-D", port)
        assert once.exit_code == 0, "a run that does not follow serves no page"


def test_a_repair_without_a_cut_takes_nothing(broker: FakeBroker) -> None:
    assert invoke(broker, "tier", broker.directory).exit_code == 0
    words = ["repair", "A", "0", "--cut-to-hot", "--store", broker.directory]
    assert "nothing is to be cut" in invoke(broker, *words).stdout
    broker.crash(300)
    asked = invoke(broker, *words)
    assert (asked.exit_code, "use --yes" in asked.stderr) == (2, True)
    assert epochs(broker) == 1
    assert invoke(broker, *words, "--yes").exit_code == 0
    assert epochs(broker) == 2


def takeover(where: Location, *, take_over: bool = False) -> Takeover:
    options, clock = JournalOptions(), ManualClock()
    return Takeover(where, MemoryStore(), options, clock=clock, take_over=take_over)


async def test_a_start_that_comes_second_sees_the_one_that_came_first(tmp_path: Path) -> None:
    first, second = (takeover(tmp_path) for _ in range(2))
    for one in (first, second):  # both read that nobody has the tier
        await one.permit(Broker("C", "b"))
    with pytest.raises(Owned):  # the fence of the first landed
        await second.permit(Broker("C", "b", 1, process_name(ManualClock())))
    first.close()
    await second.permit(Broker("C", "b", 1, process_name(ManualClock())))
    assert not second.earlier_lives
    second.close()


async def test_a_stopped_owner_before_the_last_one_is_not_taken_for_it(tmp_path: Path) -> None:
    stopped, dead, start = (takeover(tmp_path, take_over=one) for one in (False, True, False))
    await stopped.permit(Broker("C", "b"))
    await dead.permit(Broker("C", "b", 1, "host:1"))
    dead.close()
    await start.permit(Broker("C", "b", 2, "host:2"))
    assert not start.earlier_lives
    for one in (stopped, start):
        one.close()


@pytest.mark.parametrize(
    ("owner", "words"),
    [
        ("vm:17 since 2026-11-22T11:42:11Z", "process 17 on vm (since 2026-11-22T11:42:11Z)"),
        ("a:b:17", "process 17 on a:b"),
        ("somebody", "somebody"),
        ("", "an unnamed process"),
    ],
)
def test_an_owner_is_named_for_people(owner: str, words: str) -> None:
    assert process_words(owner) == words
    assert US in process_words(process_name(ManualClock()))


def elsewhere(name: str) -> str:
    """The name of an owner, as if it ran in another PID namespace of this host."""
    said = ProcessName.parse(name)
    assert said is not None
    return name.replace(f";pidns={said.pid_namespace}", ";pidns=1")


@dataclass
class Rival:
    """An owner elsewhere, and a start that meets it, on one clock."""

    stands_by: bool = False
    takes_over: bool = False
    clock: ManualClock = field(default_factory=ManualClock)
    store: MemoryStore = field(default_factory=MemoryStore)
    heartbeat: Heartbeat | None = None

    async def begin(self, owner: str = "") -> Journal:
        """`owner`: "" is elsewhere."""
        if not owner:
            owner = await asyncio.to_thread(lambda: elsewhere(owner_name(self.clock, beat_s=30.0)))
        journal = await Journal.take_ownership(
            self.store, clock=self.clock, rng=Random(1), owner=owner, cluster="C", broker="b"
        )
        self.heartbeat = Heartbeat(journal, self.store, owner, clock=self.clock, interval_s=30.0)
        return journal

    def start(self) -> Takeover:
        where = location_at("memory://bucket/lease")
        return Takeover(
            where,
            self.store,
            JournalOptions(),
            clock=self.clock,
            take_over=self.takes_over,
            stands_by=self.stands_by,
        )


async def test_a_living_owner_elsewhere_is_found_within_its_heartbeat() -> None:
    rival = Rival()
    journal = await rival.begin()
    assert rival.heartbeat is not None
    async with asyncio.TaskGroup() as group:
        beats = group.create_task(rival.heartbeat.run())
        await settle()
        asked = group.create_task(raised(rival.start().permit(journal.state.broker)))
        await rival.clock.advance(29.0)
        assert not asked.done()
        await rival.clock.advance(2.0)
        await threads_rest(asked, rival.clock)
        assert isinstance(asked.result(), Owned)
        assert f"process {os.getpid()} on " in str(asked.result())
        beats.cancel()
    await journal.close()


@pytest.mark.parametrize("owner", ["", f"{socket.gethostname()}:{2**22} since x;beat=30;id=0a"])
async def test_a_dead_owner_elsewhere_keeps_the_tier_for_its_lease(owner: str) -> None:
    """Elsewhere, or where it could not name its process."""
    rival = Rival()
    journal = await rival.begin(owner)
    asked = asyncio.create_task(raised(rival.start().permit(journal.state.broker)))
    began_s = rival.clock.monotonic_s()
    await threads_rest(asked, rival.clock)
    assert asked.result() is None
    assert 90.0 <= rival.clock.monotonic_s() - began_s <= 95.0
    await journal.close()


async def test_a_standby_waits_for_a_living_owner_and_takes_over_within_twice_the_lease(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    rival = Rival(stands_by=True)
    journal = await rival.begin()
    assert rival.heartbeat is not None
    beats = asyncio.create_task(rival.heartbeat.run())
    await settle()
    asked = asyncio.create_task(raised(rival.start().permit(journal.state.broker)))
    for _ in range(600):
        await step(rival.clock)
    assert not asked.done()
    assert f"standing by: process {os.getpid()} on " in caplog.text
    beats.cancel()
    ended_s = rival.clock.monotonic_s()
    await threads_rest(asked, rival.clock)
    assert asked.result() is None
    assert rival.clock.monotonic_s() - ended_s <= 180.0
    await journal.close()


async def test_a_standby_waits_one_lease_though_the_owner_wrote_entries_meanwhile() -> None:
    rival = Rival(stands_by=True)
    journal = await rival.begin()
    assert rival.heartbeat is not None
    lives = asyncio.create_task(rival.heartbeat.run())
    async with running(journal):
        taken = asyncio.create_task(
            Journal.take_ownership(
                rival.store, clock=rival.clock, rng=Random(2), owner="standby", cluster="C",
                broker="b", permit=rival.start().permit,
            )
        )  # fmt: skip
        for number in range(600):
            await step(rival.clock)
            if number % 60 == 0:
                await journal.publish(mark(f"m{number}"))
    assert not taken.done()
    lives.cancel()
    ended_s = rival.clock.monotonic_s()
    await threads_rest(taken, rival.clock)
    waited_s = rival.clock.monotonic_s() - ended_s
    assert taken.result().state.tombstones.keys() >= {"m0", "m540"}
    assert waited_s <= 90 + 30 + 5, "a lease from the look that saw the last sign"
    await taken.result().close()


class SlowListings(MemoryStore):
    """Takes its time to answer a look for signs."""

    clock = ManualClock()
    answer_s = 0.0

    async def list(self, prefix: str, *, after: str = "") -> list[ObjectEntry]:
        await self.clock.sleep(self.answer_s)
        return await super().list(prefix, after=after)


async def test_the_looks_of_a_standby_at_a_slow_store_do_not_lengthen_the_lease() -> None:
    store = SlowListings()
    rival = Rival(stands_by=True, store=store)
    store.clock = rival.clock
    journal = await rival.begin()
    assert rival.heartbeat is not None
    lives = asyncio.create_task(rival.heartbeat.run())
    asked = asyncio.create_task(raised(rival.start().permit(journal.state.broker)))
    for _ in range(100):
        await step(rival.clock)
    store.answer_s = 8.0
    for _ in range(100):
        await step(rival.clock)
    assert not asked.done()
    lives.cancel()
    ended_s = rival.clock.monotonic_s()
    await threads_rest(asked, rival.clock)
    assert asked.result() is None
    assert rival.clock.monotonic_s() - ended_s <= 90 + 30 + 8 + 5
    await journal.close()


async def test_a_clean_end_is_believed_at_once() -> None:
    rival = Rival()
    journal = await rival.begin()
    assert rival.heartbeat is not None
    await journal.close()
    await rival.heartbeat.end()
    await rival.start().permit(journal.state.broker)
    assert rival.clock.monotonic_s() == 0.0


@pytest.mark.parametrize("begins", [True, False])
@pytest.mark.parametrize("number", [None, 7])
async def test_signs_of_an_epoch_that_a_restored_journal_has_again_are_nobodys(
    number: int | None, *, begins: bool
) -> None:
    """They were left before the journal was put back from a copy; the new owner has few yet."""
    rival = Rival()
    sign = str(SignName(1, number))
    await rival.store.create(sign, [b"elsewhere:17 since 2026-11-21T12:00:00Z\n"])
    journal = await rival.begin()
    assert journal.epoch == 1
    assert rival.heartbeat is not None
    async with asyncio.TaskGroup() as group:
        beats = group.create_task(rival.heartbeat.run())
        asked = group.create_task(raised(rival.start().permit(journal.state.broker)))
        await settle()
        if begins:  # else it cannot delete them, and says nothing
            await rival.heartbeat.begin()
        await threads_rest(asked, rival.clock)
        assert isinstance(asked.result(), Owned)
        beats.cancel()
    await journal.close()


@pytest.fixture
def living() -> Iterator[str]:
    """The name of an owner whose process runs."""
    owner = owner_name(ManualClock(), beat_s=30.0)
    said = ProcessName.parse(owner)
    assert said is not None
    with subprocess.Popen(["sleep", "60"]) as process:
        started = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19]
        owner = owner.replace(f":{said.pid} ", f":{process.pid} ")
        yield owner.replace(f";start={said.start};", f";start={started};")
        process.kill()


@pytest.mark.process
async def test_a_clean_end_is_believed_although_the_process_lives_on(living: str) -> None:
    """A program that closed its store in an object store, and has more to do."""
    rival = Rival()
    journal = await rival.begin(living)
    assert rival.heartbeat is not None
    assert isinstance(await raised(rival.start().permit(journal.state.broker)), Owned)
    await journal.close()
    await rival.heartbeat.end()
    start = rival.start()
    assert await raised(start.permit(journal.state.broker)) is None
    assert not start.earlier_lives
    assert rival.clock.monotonic_s() == 0.0


@pytest.mark.process
def test_the_life_of_a_process_is_told_on_its_own_host_alone() -> None:
    ours = owner_name(ManualClock(), beat_s=30.0)
    said = ProcessName.parse(ours)
    assert said is not None
    assert (said.pid, said.host, said.beat_s) == (os.getpid(), socket.gethostname(), 30.0)
    assert said.is_ours
    assert said.life() == ProcessLife.LIVES
    ended = subprocess.run(["/bin/sh", "-c", "echo $$"], capture_output=True, check=True, text=True)
    assert replace(said, pid=int(ended.stdout)).life() == ProcessLife.GONE
    assert replace(said, start="1").life() == ProcessLife.GONE, "another process has the number now"
    for other in ("host", "boot", "pid_namespace"):
        assert replace(said, **{other: "another"}).life() == ProcessLife.UNKNOWN  # type: ignore[arg-type]


@pytest.mark.process
def test_a_killed_process_that_its_parent_has_not_reaped_is_gone() -> None:
    """Many a container's first process never reaps."""
    ours = ProcessName.parse(owner_name(ManualClock(), beat_s=30))
    assert ours is not None
    with subprocess.Popen(["sleep", "1000"]) as child:
        stat = Path(f"/proc/{child.pid}/stat")
        said = replace(ours, pid=child.pid, start=stat.read_text().rpartition(")")[2].split()[19])
        assert said.life() == ProcessLife.LIVES
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert said.life() == ProcessLife.GONE


def test_an_owner_of_an_older_program_is_judged_by_what_it_wrote(tmp_path: Path) -> None:
    here, url = socket.gethostname(), location_at("memory://bucket/t")
    gone = f"{here}:{2**22} since 2026-11-22T11:42:11Z"
    assert process_life(tmp_path, gone) == ProcessLife.GONE, "its lock is not held"
    assert process_life(url, gone) == ProcessLife.GONE
    parent = f"{here}:{os.getppid()} since 2026-11-22T11:42:11Z"
    assert process_life(url, parent) == ProcessLife.UNKNOWN
    assert process_life(url, "elsewhere:1 since 2026-11-22T11:42:11Z") == ProcessLife.UNKNOWN


@pytest.mark.parametrize("lacks", ["boot", "pidns", "start"])
def test_signs_judge_an_owner_that_could_not_name_its_process(lacks: str, tmp_path: Path) -> None:
    """Some sandboxes show no boot id (`ProcSubset=pid`), and containers may share a host name."""
    said = [f"{socket.gethostname()}:{2**22} since 2026-11-22T11:42:11Z"]
    said += [one for one in ("boot=b", "pidns=1", "start=2") if not one.startswith(lacks)]
    owner = ";".join([*said, "version=0.1.0", "beat=30", "id=0a"])
    for where in (tmp_path, location_at("memory://bucket/t")):
        assert process_life(where, owner) == ProcessLife.UNKNOWN


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("memory://bucket/tier", "memory://bucket/tier/"),
        ("memory://bucket/tier", "memory://alias/tier"),
        ("tier", "link"),
        ("tier", "tier/../tier"),
    ],
)
async def test_a_living_owner_of_this_process_is_known_under_every_spelling_of_its_place(
    first: str, second: str, tmp_path: Path
) -> None:
    (tmp_path / "tier").mkdir()
    (tmp_path / "link").symlink_to("tier")
    one, other = (
        takeover(location_at(place if "://" in place else str(tmp_path / place)))
        for place in (first, second)
    )
    name = await asyncio.to_thread(lambda: owner_name(ManualClock(), beat_s=30.0, rng=Random(7)))
    await one.permit(Broker("C", "b"))
    one.own(name)
    (tmp_path / "tier" / "@lock").unlink(missing_ok=True)  # else that tells it
    living = Broker("C", "b", 1, name)
    assert await asyncio.to_thread(process_life, location_at(second), name) == ProcessLife.LIVES
    if "://" in second:
        assert isinstance(await raised(other.permit(living)), Owned)
    one.close()
    assert await raised(other.permit(living)) is None
    other.close()


@pytest.mark.parametrize("ends", [True, False])
async def test_a_takeover_after_a_clean_end_is_not_forced(*, ends: bool) -> None:
    rival = Rival(takes_over=True)
    journal = await rival.begin()
    assert rival.heartbeat is not None
    await journal.close()
    if ends:
        await rival.heartbeat.end()
    start = rival.start()
    for _ in range(3):
        await start.permit(journal.state.broker)
        assert start.is_forced is not ends
    assert rival.clock.monotonic_s() == 0.0


@pytest.mark.process
async def test_a_takeover_after_a_clean_end_is_not_of_a_living_owner(living: str) -> None:
    rival = Rival(takes_over=True)
    journal = await rival.begin(living)
    assert rival.heartbeat is not None
    start = rival.start()
    await start.permit(journal.state.broker)
    assert (start.is_forced, start.earlier_lives) == (True, True)
    await journal.close()
    await rival.heartbeat.end()
    again = rival.start()
    await again.permit(journal.state.broker)
    assert (again.is_forced, again.earlier_lives) == (False, False)


async def raised(work: Coroutine[None, None, None]) -> Exception | None:
    try:
        await work
    except Owned as error:
        return error
    return None


class Listings(MemoryStore):
    """Counts requests, and is away on demand."""

    requests = 0
    away = False

    async def list(self, prefix: str, *, after: str = ""):
        self.requests += 1
        if self.away:
            raise Unavailable("away", prefix)
        return await super().list(prefix, after=after)

    async def read(self, name: str, wanted=None):
        self.requests += 1
        return await super().read(name, wanted)


async def test_an_idle_owner_looks_once_an_interval_and_learns_that_it_was_fenced() -> None:
    store, clock = Listings(), ManualClock()

    async def own(seed: int) -> Journal:
        rng = Random(seed)
        return await Journal.take_ownership(
            store, clock=clock, rng=rng, owner=f"host:{seed}", cluster="C", broker="b"
        )

    async def run() -> None:
        with pytest.raises(Fenced):
            await journal.run()

    journal = await own(1)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(run())
        watching = group.create_task(watch_ownership(journal, clock=clock, interval_s=10.0))
        await settle()
        store.requests = 0
        await clock.advance(100.0)
        assert store.requests == 10, "one listing each"
        store.away = True
        await clock.advance(10.0)
        store.away = False
        assert not watching.done(), "an outage tells nothing"
        newer = await own(2)
        await clock.advance(9.0)
        assert not journal.is_over
        await clock.advance(1.0)
        assert running.done()
        assert watching.done()
    await newer.close()


async def test_an_owner_that_is_not_to_look_makes_no_request() -> None:
    store, clock = Listings(), ManualClock()
    journal = await Journal.take_ownership(
        store, clock=clock, rng=Random(1), owner="x", cluster="C", broker="b"
    )
    store.requests = 0
    await watch_ownership(journal, clock=clock, interval_s=0)
    assert (store.requests, clock.sleeping) == (0, 0)
    await journal.close()


@pytest.mark.process
@pytest.mark.slow
def test_an_idle_follower_ends_with_4_and_says_who_took_it_and_a_killed_one_needs_no_word(
    broker: FakeBroker, tmp_path: Path
) -> None:
    given = [*options(broker), "-D", "tieredStoreOwnerCheckInterval=50"]
    command = [*COMMAND, *given, "tier", str(broker.directory), "--follow"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not list((tmp_path / "tier").glob("*/*/A/0/*/*")):
        assert process.poll() is None, process.communicate()
        os.sched_yield()
    run(*given, "tier", broker.directory, status=4)
    taken = run(*given, "tier", broker.directory, "--take-over")
    assert f"taken over from process {process.pid} on " in taken.err
    _, said = communicated(process)
    assert process.returncode == 4
    assert "took this tier over" in said.splitlines()[-1]
    before = set((tmp_path / "tier").glob("*/*/@journal/*"))
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    while before.issuperset((tmp_path / "tier").glob("*/*/@journal/*")):  # until it is the owner
        assert process.poll() is None
        os.sched_yield()
    run(*given, "tier", broker.directory, status=4)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert "WARNING" not in run(*given, "tier", broker.directory).err
