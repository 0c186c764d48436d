"""An owner whose journal's directory is moved, emptied or replaced by hand while it runs."""

import asyncio
import shutil
from pathlib import Path

from container.journal.reader import JournalReader
from container.names.tier_objects import EntryName
from provider.errors import Unavailable
from provider.posix.store import PosixStore
from provider.testing.manual_clock import ManualClock, settle
from tests.support.journal_run import mark, own, running
from tests.support.journal_store import DictStore


async def test_d3_nothing_is_published_after_an_entry_that_is_gone() -> None:
    store, clock = DictStore(), ManualClock()
    view = store.view()
    journal = await own(view, clock)
    async with running(journal), asyncio.TaskGroup() as group:
        await journal.publish(mark("one"))
        moved = {
            str(EntryName(number)): store.objects.pop(str(EntryName(number))) for number in (1, 2)
        }
        view.down = True
        published = group.create_task(journal.publish(mark("two")))
        await settle()
        view.down = False
        for _ in range(5):
            await clock.advance(5.0)
        assert not published.done()
        assert "put its directory back" in journal.statistics().last_error
        assert str(EntryName(2)) in journal.statistics().last_error
        assert str(EntryName(3)) not in store.objects
        store.objects.update(moved)
        await clock.advance(5.0)
        assert await published == 3
    assert (await own(store.view())).state.tombstones.keys() == {"one", "two"}


async def test_d3_an_owner_whose_journal_is_moved_away_waits_until_it_is_back(
    tmp_path: Path,
) -> None:
    clock, failed = ManualClock(), asyncio.Event()
    store = PosixStore(tmp_path / "tier")

    class Failing:
        """Tells when a create has failed."""

        def __getattr__(self, verb: str) -> object:
            return getattr(store, verb)

        async def create(self, name: str, buffers: list[bytes]) -> None:
            try:
                await store.create(name, buffers)
            except Unavailable:
                failed.set()
                raise

    journal = await own(Failing(), clock)  # type: ignore[arg-type]
    async with running(journal), asyncio.TaskGroup() as group:
        await journal.publish(mark("one"))
        (tmp_path / "tier/@journal").rename(tmp_path / "aside")
        (tmp_path / "tier/@journal").mkdir()
        published = group.create_task(journal.publish(mark("two")))
        await failed.wait()
        while "put its directory back" not in journal.statistics().last_error:
            await clock.advance(1.0)
            await asyncio.sleep(0.001)
        assert not published.done()
        shutil.rmtree(tmp_path / "tier/@journal")
        (tmp_path / "aside").rename(tmp_path / "tier/@journal")
        while not published.done():
            await clock.advance(1.0)
            await asyncio.sleep(0.001)
    loaded = await JournalReader(store, journal.options).load()
    assert loaded.state.tombstones.keys() == {"one", "two"}
    await store.close()
