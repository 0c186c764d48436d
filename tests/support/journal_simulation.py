"""Several owners of one journal, with naps, lost replies, deaths, snapshots and deletions.

The oracle: the truth is the first entry that was ever created under each number (and was not lost
with the power before anybody could know of it). Whatever an owner acknowledged is in the truth,
once, under the number that it named, and below no newer owner's fence; whatever a follower saw is
what the truth says up to the number that it had reached; an owner that has an older epoch than
the journal when it begins a commit stops with `Fenced`, and with nothing else; and the next owner
can always go on.
"""

import asyncio
from collections import Counter
from contextlib import suppress
from itertools import pairwise
from random import Random

from container.journal.frame import Frame, FrameKind, apply_entry, decode_entry
from container.journal.journal import Journal
from container.journal.reader import JournalFollower, JournalReader
from container.metadata.codec import decode_operations
from container.metadata.operations import AddTombstones
from container.metadata.records import Tombstone
from container.metadata.state import TierState
from container.names.tier_objects import JOURNAL_PREFIX, SNAPSHOT_PREFIX, EntryName
from container.options import JournalOptions, UpkeepOptions
from container.upkeep.upkeep import Upkeep
from provider.errors import Fenced, NotFound, Unavailable
from provider.testing.faulty import flipped
from tests.support.rival_store import RivalObjects, RivalStore, Weather
from tests.support.simulated_time import SimulatedClock, simulated

FOREVER_MS = 2**60
FOLLOWER, LAST = 99, 98
"""Numbers of processes that are not among the rivals."""
LANES = 2
PUBLISHED = (2, 4, 12)
DELAY_S_MAX = 0.02
NAP_S_MAX = 1.5
LOOK_S_MAX = 2.0
TOO_LONG_S = 600.0
WOKEN_LATE = ("create @journal/", "list @boundary/")
"""Sleeps before an entry is created, and again while it is looked whether that means anything."""
READS_LATE = ("list @snapshot/", "read @snapshot/", "list @boundary/")
NAPS_AT = (
    ("",),
    ("create @journal/",),
    WOKEN_LATE,
    ("read @journal/", "list @boundary/"),
    READS_LATE,
    ("create @snapshot/", "create @boundary/"),
    ("list @journal/",),
    ("delete",),
)


class JournalSimulation:
    """One seeded run."""

    def __init__(self, seed: int, *, owners: int) -> None:
        self.rng = Random(seed)
        self.seed = seed
        self.owners = owners
        self.shared = RivalObjects()
        self.counts: Counter[str] = Counter()
        self.options = JournalOptions(
            entry_transactions_max=self.rng.choice([1, 2]),
            listing_s_max=self.rng.choice([0.07, 0.4, 2.0]),
            retry_s_min=0.01,
            retry_s_max=self.rng.choice([0.05, 0.5]),
            catch_up_entries_max=2,
        )
        self.upkeep = UpkeepOptions(
            interval_s=0.1,  # a snapshot that fails is soon tried again, or loads grow too long
            backoff_s_max=0.1,
            snapshot_entries_max=self.rng.choice([1, 2, 3]),
            snapshot_age_s_max=self.rng.choice([0.5, 5.0]),
            grace_s=self.rng.choice([0.0, 0.0, 0.1]),
        )
        self.sleeper = self.rng.randrange(owners) if self.rng.random() < 0.5 else None
        self.rotten = self.rng.choice([0, 0, 0.3])
        self.acknowledged: list[tuple[int, int, str]] = []
        """Number, epoch, mark."""
        self.followed: list[tuple[int, frozenset[str]]] = []
        self.follower: JournalFollower | None = None
        self.living = owners

    def _store(self, number: int, weather: Weather | None = None) -> RivalStore:
        rng = Random(1000 * self.seed + number)
        return RivalStore(self.shared, rng, weather or self._weather(number))

    def _weather(self, number: int) -> Weather:
        if self.sleeper is not None:  # one sleeps and wakes, the others never stop
            nap_at, nap = WOKEN_LATE, 0.3 if number == self.sleeper else 0.0
        elif number == FOLLOWER and self.rng.random() < 0.5:
            nap_at, nap = READS_LATE, 0.3
        else:
            nap_at = self.rng.choice(NAPS_AT)
            nap = self.rng.choice([0, 0.05] if "" in nap_at else [0.03, 0.3])
        return Weather(
            delay_s_max=DELAY_S_MAX,
            refused=self.rng.choice([0, 0.05]),
            lost_reply=self.rng.choice([0, 0.1, 0.3]),
            late=self.rng.choice([0, 0.05]),
            late_s_max=self.rng.choice([0.1, NAP_S_MAX]),
            nap=nap,
            nap_s_max=self.rng.choice([NAP_S_MAX, NAP_S_MAX / 3]),
            nap_at=nap_at,
            rotten=self.rotten,
        )

    async def run(self) -> Counter[str]:
        """Let them fight, and look at what came of it."""
        try:
            async with asyncio.timeout(TOO_LONG_S), asyncio.TaskGroup() as group:
                owners = [group.create_task(self._owner(n)) for n in range(self.owners)]
                follower = group.create_task(self._follow())
                if self.rng.random() < 0.5:
                    everybody = [*owners, follower] if self.rng.random() < 0.4 else []
                    dying = everybody or [self.rng.choice(owners)]
                    await asyncio.sleep(self.rng.random() * 2)
                    for task in dying:
                        task.cancel()
                    self.living -= len(dying) if everybody else 0
                    await asyncio.wait(dying)
                    if everybody:
                        self.shared.lose_power()
        except TimeoutError:
            raise AssertionError("it does not come to an end") from None
        self.shared.land(2 * TOO_LONG_S)
        await self._check()
        self.counts.update(self.shared.counts)
        self.counts["acknowledged"] = len(self.acknowledged)
        self.counts["followed"] = len(self.followed)
        return self.counts

    async def _owner(self, number: int) -> None:
        try:
            await asyncio.sleep(self.rng.random() * number)
            store = self._store(number)
            journal = await self._own(store, number)
            async with asyncio.TaskGroup() as group:
                upkeep = self._upkeep_of(journal, store, number)
                workers = [group.create_task(self._write(journal)), group.create_task(upkeep.run())]
                async with asyncio.TaskGroup() as lanes:
                    for lane in range(LANES):
                        lanes.create_task(self._publish(journal, number, f"o{number}l{lane}"))
                for worker in workers:
                    worker.cancel()
        finally:
            self.living -= 1

    async def _own(self, store: RivalStore, number: int) -> Journal:
        """Own the journal. All owners look alike, and no clock differs: but for their nonces."""
        clock = SimulatedClock(wall_speed=0)
        rng = Random(77_000 * self.seed + number)
        while True:
            with suppress(Unavailable):
                return await Journal.take_ownership(
                    store,
                    clock=clock,
                    rng=rng,
                    owner="the same host",
                    cluster="c",
                    broker="b",
                    options=self.options,
                )

    def _upkeep_of(self, journal: Journal, store: RivalStore, number: int) -> Upkeep:
        rng = Random(78_000 * self.seed + number)
        clock = SimulatedClock(wall_speed=0)
        upkeep = Upkeep.of(journal, store, clock=clock, rng=rng, options=self.upkeep)

        def check(_: object) -> None:
            journal.check()
            upkeep.check()

        journal.subscribe(check)
        return upkeep

    async def _write(self, journal: Journal) -> None:
        with suppress(Fenced):
            await journal.run()

    def _published(self, owner: int) -> int:
        if self.sleeper is None:
            return self.rng.choice(PUBLISHED)
        return PUBLISHED[0] if owner == self.sleeper else PUBLISHED[-1]

    async def _publish(self, journal: Journal, owner: int, lane: str) -> None:
        for number in range(self._published(owner)):
            mark = f"{lane}n{number}"
            newest = self.shared.epoch
            try:
                if self.rng.random() < 0.1:
                    await self._verify(journal, newest)
                tombstone = Tombstone(mark, FOREVER_MS, "mark")
                sequence = await journal.publish([AddTombstones((tombstone,))])
            except Fenced:
                self.counts["fenced"] += 1
                return
            assert newest <= journal.epoch, f"{mark} was acknowledged behind a newer fence"
            self.acknowledged.append((sequence, journal.epoch, mark))
            await asyncio.sleep(self.rng.choice([0, 0.01, 0.2]) * self.rng.random())

    async def _verify(self, journal: Journal, newest: int) -> None:
        try:
            await journal.verify_owner()
        except Unavailable:
            return
        assert newest <= journal.epoch, "an owner that is fenced is told that it is not"

    async def _follow(self) -> None:
        store, clock = self._store(FOLLOWER), SimulatedClock()
        while self.living:
            await asyncio.sleep(self.rng.random() * LOOK_S_MAX)
            with suppress(NotFound, Unavailable):
                if self.follower is None or self.rng.random() < 0.2:
                    self.follower = await JournalFollower.open(
                        store, options=self.options, clock=clock
                    )
                await self._look(self.follower)

    async def _look(self, follower: JournalFollower) -> None:
        await follower.refresh()
        self.followed.append((follower.state.sequence, frozenset(follower.state.tombstones)))

    async def _check(self) -> None:
        """Compare everything that was seen with the truth."""
        truth = self.shared.truth
        assert sorted(truth) == list(range(1, len(truth) + 1)), "the numbers are not dense"
        state = TierState()
        epochs, marks, seen = {0: 0}, {0: set[str]()}, list[str]()
        for number, raw in sorted(truth.items()):
            frame = Frame.decode(raw, FrameKind.ENTRY, path="truth")
            apply_entry(state, raw, EntryName(number))
            for operation in decode_operations(frame.payload, path="truth"):
                if isinstance(operation, AddTombstones):
                    seen += [one.object_name for one in operation.tombstones]
            epochs[number], marks[number] = frame.epoch, set(state.tombstones)
        assert len(seen) == len(set(seen)), "something was applied twice"
        for number, epoch, mark in self.acknowledged:
            assert mark in marks.get(number, ()), f"{mark} was acknowledged in {number} and is lost"
            assert mark not in marks[number - 1], f"{mark} is in an earlier entry than {number}"
            assert epoch == epochs[number], f"{mark} of epoch {epoch} is in another's entry"
        for number, names in self.followed:
            if number <= len(truth):  # what it saw beyond was lost with the power, and it, too
                assert names == marks[number], f"a follower at {number} saw something else"
        await self._catch_up(state)
        await self._go_on(state)

    async def _catch_up(self, state: TierState) -> None:
        """Whoever has followed so far comes to the end, too."""
        while self.follower is not None and self.follower.state.sequence < state.sequence:
            with suppress(Unavailable):
                before = self.follower.state.sequence
                assert await self.follower.refresh(), f"a follower stays at {before}"
                assert self.follower.state.sequence > before
        if self.follower is not None and self.follower.state.sequence == state.sequence:
            assert self.follower.state == state

    async def _go_on(self, state: TierState) -> None:
        """A last owner, alone, in good weather."""
        store = self._store(LAST, Weather())
        snapshots = sorted(self.shared.names(SNAPSHOT_PREFIX))
        damaged = not self.rotten and snapshots and self.rng.random() < 0.5
        if damaged:
            whole = self.shared.objects[snapshots[-1]]
            self.shared.objects[snapshots[-1]] = flipped(whole, self.rng)
        self._rot_entries()
        loaded = await JournalReader(store, self.options, clock=SimulatedClock()).load()
        assert loaded.state == state
        assert self.rotten or len(loaded.damaged) == bool(damaged)
        journal = await self._own(store, LAST)
        assert journal.epoch == state.broker.epoch + 1
        assert journal.state.tombstones == state.tombstones

    def _rot_entries(self) -> None:
        """Damage or delete entries of which the next one, left alone, has a copy."""
        names = [EntryName(int(name[-20:])) for name in sorted(self.shared.names(JOURNAL_PREFIX))]
        last = None
        for name, after in pairwise(names):
            raw = self.shared.objects[str(after)]
            _, own = decode_entry(raw, after)
            is_copied = after.sequence == name.sequence + 1 and len(own) < len(raw)
            if not is_copied or last == name or self.rng.random() < 0.5:
                continue
            if self.rng.random() < 0.3:
                del self.shared.objects[str(name)]
            else:
                self.shared.objects[str(name)] = flipped(self.shared.objects[str(name)], self.rng)
            last = after
            self.counts["rotten entries"] += 1


def simulate(seed: int, *, owners: int) -> Counter[str]:
    """Run one seed; what it did, by name."""

    async def run() -> Counter[str]:
        return await JournalSimulation(seed, owners=owners).run()

    return simulated(run())
