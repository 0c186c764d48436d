"""Several owners of one journal, with pauses, lost replies, crashes, snapshots and deletions.

The oracle: the truth is the first object that was ever created under each number. Whatever an
owner acknowledged is in the truth, under the number that it named; and whatever a follower saw is
what the truth says up to the number that it had reached.
"""

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass, field

from container.journal import Journal
from container.journal_entry import Frame, FrameKind
from container.journal_follower import JournalFollower
from container.journal_options import JournalOptions
from container.journal_reader import JournalReader, apply_entry
from container.tier_codec import decode_operations
from container.tier_names import EntryName
from container.tier_operations import AddTombstones
from container.tier_records import Tombstone
from container.tier_state import TierState
from provider.clock import ManualClock
from provider.errors import NotFound, StoreError, Unavailable
from tests.support.journal_store import DictStore, Faults, StoreView

OPTIONS = JournalOptions(
    entry_transactions_max=2,
    snapshot_entries_max=3,
    snapshot_age_s_max=1.0,
    housekeeping_s=0.2,
    grace_s=0.0,
    retry_s_min=0.05,
    retry_s_max=0.2,
    catch_up_entries_max=2,
)
FOREVER_MS = 2**60


class TruthStore(DictStore):
    """Remembers the first bytes of every journal entry, whatever is deleted later."""

    def __init__(self) -> None:
        super().__init__()
        self.truth: dict[int, bytes] = {}
        self.strays = 0

    def put(self, name: str, raw: bytes) -> bool:
        created = super().put(name, raw)
        if created and name.startswith("@journal/"):
            number = int(name.rpartition("/")[2])
            if self.truth.setdefault(number, raw) != raw:
                self.strays += 1
        return created


@dataclass(slots=True)
class Result:
    """What a simulation saw."""

    acknowledged: list[tuple[int, str]] = field(default_factory=list)
    followed: list[tuple[int, frozenset[str]]] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)
    deleted: int = 0
    reloads: int = 0
    strays: int = 0
    cut_through: int = 0


class Simulation:
    """One seeded run."""

    def __init__(self, seed: int, *, owners: int = 3) -> None:
        self.rng = random.Random(seed)
        self.seed = seed
        self.owners = owners
        self.store = TruthStore()
        self.clock = ManualClock()
        self.result = Result()
        self.living = owners
        self.views: list[StoreView] = []

    def _view(self, number: int) -> StoreView:
        faults = Faults(
            lost_request=self.rng.choice([0, 0.05]),
            lost_reply=self.rng.choice([0, 0.1]),
            late=self.rng.choice([0, 0.05]),
            turns_max=self.rng.choice([1, 4, 15]),
        )
        view = self.store.view(1000 * self.seed + number, faults)
        self.views.append(view)
        return view

    async def _turns(self, turns_max: int) -> None:
        for _ in range(self.rng.randint(0, turns_max)):
            await asyncio.sleep(0)

    async def _owner(self, number: int) -> None:
        try:
            await self._turns(150 * number)
            view = self._view(number)
            journal = await self._own(view, number)
            async with asyncio.TaskGroup() as group:
                worker = group.create_task(self._run(journal))
                async with asyncio.TaskGroup() as publishers:
                    for lane in range(2):
                        publishers.create_task(self._publish(journal, f"o{number}l{lane}"))
                worker.cancel()
        except StoreError as error:
            self._count(error)
        finally:
            self.living -= 1

    async def _own(self, view: StoreView, number: int) -> Journal:
        while True:
            try:
                return await Journal.take_ownership(
                    view,
                    clock=self.clock,
                    rng=random.Random(77_000 * self.seed + number),
                    owner=f"owner {number}",
                    cluster="c",
                    broker="b",
                    options=OPTIONS,
                )
            except Unavailable:
                await self._turns(10)

    async def _run(self, journal: Journal) -> None:
        try:
            await journal.run()
        except StoreError as error:
            self._count(error)

    def _count(self, error: StoreError) -> None:
        name = type(error).__name__
        self.result.errors[name] = self.result.errors.get(name, 0) + 1

    async def _publish(self, journal: Journal, lane: str) -> None:
        for number in range(self.rng.randint(5, 25)):
            name = f"{lane}n{number}"
            try:
                grave = Tombstone(name, FOREVER_MS, "mark")
                sequence = await journal.publish([AddTombstones((grave,))])
            except StoreError:
                return
            self.result.acknowledged.append((sequence, name))
            await self._turns(30)

    async def _follow(self) -> None:
        view = self._view(99)
        follower: JournalFollower | None = None
        while self.living:
            try:
                if follower is None:
                    follower = await JournalFollower.open(view, options=OPTIONS)
                await follower.refresh()
            except NotFound:
                continue
            except StoreError as error:
                self._count(error)
                continue
            finally:
                await self._turns(40)
            state = follower.state
            self.result.followed.append((state.sequence, frozenset(state.tombstones)))

    async def _disturb(self, owners: list[asyncio.Task[None]]) -> None:
        """Move time; let connections sleep and wake; kill an owner now and then."""
        kill = self.rng.random() < 0.4
        while self.living:
            await self.clock.advance(self.rng.choice([0.01, 0.1, 0.3]))
            for view in self.views:
                if self.rng.random() < (0.3 if view.paused else 0.03):
                    view.paused = not view.paused
            if kill and self.rng.random() < 0.03:
                self.rng.choice(owners).cancel()
        for view in self.views:
            view.paused = False

    async def run(self) -> Result:
        async with asyncio.TaskGroup() as group:
            owners = [group.create_task(self._owner(n)) for n in range(self.owners)]
            group.create_task(self._follow())
            await self._disturb(owners)
        self.result.deleted = len(self.store.truth) - len(self.store.names("@journal/"))
        self.result.strays = self.store.strays
        return self.result

    async def check(self) -> None:
        """Compare everything that was seen with the truth."""
        assert "Corrupt" not in self.result.errors, self.result.errors
        marks: dict[int, set[str]] = {}
        seen: list[str] = []
        state = TierState()
        assert sorted(self.store.truth) == list(range(1, len(self.store.truth) + 1)), "I1 dense"
        for number, raw in sorted(self.store.truth.items()):
            apply_entry(state, raw, EntryName(number))
            frame = Frame.decode(raw, FrameKind.ENTRY, path="truth")
            for operation in decode_operations(frame.payload, path="truth"):
                if isinstance(operation, AddTombstones):
                    seen += [grave.object_name for grave in operation.tombstones]
            marks[number] = set(state.tombstones)
        assert len(seen) == len(set(seen)), "something was applied twice"
        for number, name in self.result.acknowledged:
            assert name in marks[number], f"{name} was acknowledged in {number} and is lost"
            assert name not in marks.get(number - 1, set()), f"{name} is in an earlier entry"
        for number, names in self.result.followed:
            assert names == marks[number], f"a follower at {number} saw something else"
        loaded = await JournalReader(self.store.view(), OPTIONS).load()
        assert loaded.state == state
        assert not loaded.damaged


async def simulate(seed: int, *, owners: int = 3) -> Result:
    """Run one seed and check it."""
    simulation = Simulation(seed, owners=owners)
    with suppress(asyncio.CancelledError):
        await simulation.run()
    await simulation.check()
    return simulation.result
