"""A tier in an object store that its owner changes while a job reads it."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar
from unittest.mock import patch

from click.testing import Result

from container.move.repack import RepackStep
from container.options import HOUR_MS
from container.steps import OwnedTier
from container.tier import Tier
from container.tier_view import TierReader
from container.upkeep.retention import RetentionStep
from container.upkeep.snapshots import ManifestStep
from provider.clock import SystemClock
from provider.errors import Unavailable
from provider.object_store import ObjectStore
from provider.ranges import ByteRange
from provider.stores.retrying import RetryingStore
from tests.support.cli import invoke
from tests.support.fake_broker import FakeBroker
from tieredstore import sync
from tieredstore.config.effective import Config
from tieredstore.config.location import OFFLOAD_PATH
from tieredstore.offline.jobs.engine import OneProcess
from tieredstore.session.owner import running_owner
from tieredstore.session.places import directory_of, storage_at

Row = tuple[str, int, int, bytes]
"""Topic, queue, queue offset and body."""
ResultT = TypeVar("ResultT")
DAYS_KEPT = 3
SETTINGS = {
    "tieredStoreGroupCommitTimeout": "50",
    "tieredStoreCommitLogMaxSize": "4000",
    "tieredStoreConsumeQueueMaxSize": "200",
    "tieredStoreIndexFileMaxIndexNum": "16",
    "tieredStoreIndexFileMaxHashSlotNum": "16",
    "tieredStoreIndexFileMergedMaxIndexNum": "64",
    "brokerName": "b",
    "brokerClusterName": "C",
}


class LivingTier:
    """Topics of two queues, tiered in small parts. Objects without references go at once."""

    def __init__(self, directory: Path, url: str, *, second: str = "") -> None:
        """`second`: the URL of a second store."""
        self.url = url
        self.settings = {**SETTINGS, **({OFFLOAD_PATH: second} if second else {})}
        """Of all who read the tier or own it."""
        self.rows: dict[Row, None] = {}
        """What the tier has, in no order."""
        now_ms = SystemClock().now_ms()
        self._broker = FakeBroker(
            directory / "store", commit_log_bytes=1 << 22, now_ms=now_ms - 100 * HOUR_MS
        )
        self._old: set[Row] = set()
        self._put = 0
        self._outage: Any = None

    @property
    def config(self) -> Config:
        """Of the tier, for jobs."""
        return Config.load(settings={"tieredStoreFilePath": self.url, **self.settings})

    def grow(self, count: int, *topics: str) -> None:
        """Tier `count` messages of each queue, each topic in parts of its own."""
        for topic in topics or ("A", "B"):
            rows: list[Row] = []
            for queue in (0, 1):
                for _ in range(count):
                    body = b"%d" % self._put
                    offset = self._broker.put(
                        topic, queue, body, keys=f"k{self._put}", tags=f"Tag{self._put % 3}"
                    )
                    rows.append((topic, queue, offset, body))
                    self._put += 1
            with sync.follow(self._broker.directory, self.url, settings=self.settings) as follower:
                follower.drain()
            self.rows |= dict.fromkeys(rows)

    def age(self) -> None:
        """Let what was put so far be older than retention keeps it; the rest is not."""
        self._old = set(self.rows)
        self._broker.now_ms = SystemClock().now_ms() - HOUR_MS

    def merge(self) -> None:
        """Merge small parts bit by bit, as an owner does beside its commits; their objects go."""

        async def merged(tier: Tier) -> None:
            owned = self._owned(tier, merge_extents_min=1, merge_fan=2, seal_wait_s_max=0.0)
            extents_max = self.config.tier.extent_bytes_max
            step = RepackStep(owned, tier._segments, extent_bytes_max=extents_max)
            await step.step()
            assert step.repacker.jobs, "something was merged"

        asyncio.run(self._as_owner(merged))
        self.delete_unreferenced()

    def merge_manifests(self, *, per_level_max: int = 2) -> None:
        """Move all sealed segments but one into manifests, and merge these; the old ones go."""

        async def merged(tier: Tier) -> None:
            owned = self._owned(tier, sealed_segments_max=1, manifests_per_level_max=per_level_max)
            await ManifestStep(owned).step()

        asyncio.run(self._as_owner(merged))
        self.delete_unreferenced()

    def compact(self) -> None:
        """Merge everything at once by the command; the objects that were merged go."""
        before = len(self.objects())
        self.command("compact")
        self.delete_unreferenced()
        assert len(self.objects()) < before or not before, "something was merged"

    def offload(self) -> None:
        """Move everything to the second store; the first copies go."""
        for topic in sorted({row[0] for row in self.rows}):
            self.command("-D", "tieredStoreOffloadDeletionLag=0", "offload", topic)
        self.delete_unreferenced()
        assert self.objects() == [], "everything was moved"

    def expire(self) -> None:
        """Expire what `age` made old, in whole segments."""
        first = asyncio.run(self._as_owner(self._expired))
        self.rows = {row: None for row in self.rows if row[2] >= first[row[0], row[1]]}
        assert len(self.rows) < self._put, "something expired"
        self.delete_unreferenced()

    def delete_topic(self, topic: str = "A") -> None:
        """Delete a topic from the broker and the tier; a topic of that name counts from 0 again."""
        self._broker.delete_topics(topic)
        self.command("delete-topic", topic, "--tier-only")
        self.rows = {row: None for row in self.rows if row[0] != topic}
        self.delete_unreferenced()

    def take_over(self) -> None:
        """Give the tier another owner, which leaves a fence."""
        self.grow(2)
        self.compact()

    def go_away(self) -> None:
        """Let nothing in this process get an answer from the storage, as after all repetitions."""

        async def unanswered(*_: object) -> NoReturn:
            raise Unavailable("the storage does not answer", "")

        self._outage = patch.object(RetryingStore, "_call", unanswered)
        self._outage.start()

    def come_back(self) -> None:
        """End the outage, if there is one."""
        outage, self._outage = self._outage, None
        if outage is not None:
            outage.stop()

    @property
    def is_away(self) -> bool:
        """Whether there is an outage."""
        return self._outage is not None

    def lose_metadata(self) -> None:
        """Delete everything but parts, as no owner does."""
        names = [name for name in self.objects("") if not name.startswith("@parts/")]
        asyncio.run(self._delete(names))

    def lose(self, name: str) -> None:
        """Delete an object that is published, as no owner does."""
        asyncio.run(self._delete([name]))

    def copied(self) -> dict[str, bytes]:
        """A copy of all objects, by name."""

        async def read(store: ObjectStore) -> dict[str, bytes]:
            return {
                one.name: bytes(await store.read(one.name, ByteRange(0, one.size_bytes)))
                for one in await store.list("")
            }

        return asyncio.run(self._with_store(read))

    def put_back(self, copy: Mapping[str, bytes]) -> None:
        """Let the storage be as it was: a replica that lags, or the mount of another host."""

        async def put(store: ObjectStore) -> None:
            there = {one.name for one in await store.list("")}
            await store.delete(sorted(there - copy.keys()))
            for name in sorted(copy.keys() - there):
                await store.create(name, [copy[name]])

        asyncio.run(self._with_store(put))

    def delete_unreferenced(self) -> None:
        """Let the grace time of everything that is unpublished be over."""
        asyncio.run(self._delete(None))

    def objects(self, prefix: str = "@parts/") -> list[str]:
        """Names of objects."""

        async def listed(store: ObjectStore) -> list[str]:
            return [entry.name for entry in await store.list(prefix)]

        return asyncio.run(self._with_store(listed))

    def command(self, *words: str, status: int = 0) -> Result:
        """A command on the tier, without grace times."""
        given = [part for key, value in self.settings.items() for part in ("-D", f"{key}={value}")]
        grace = ("-D", "tieredStoreJournalGraceTime=0")
        return invoke(self.url, *given, *grace, *words, status=status)

    async def unpublish(self, topic: str) -> None:
        """Delete a topic as a process does that dies after its journal entry."""
        owned = running_owner(self.config, clock=SystemClock(), has_upkeep=False)
        async with owned as tier:
            await tier.delete_topic(topic)

    def unreferenced(self) -> list[str]:
        """Names of objects that are to be deleted."""
        return asyncio.run(self._with_store(_tombstones))

    async def _delete(self, names: list[str] | None) -> None:
        async def delete(store: ObjectStore) -> None:
            await store.delete(await _tombstones(store) if names is None else names)

        await self._with_store(delete)

    async def _with_store(self, work: Callable[[ObjectStore], Awaitable[ResultT]]) -> ResultT:
        store = storage_at(self.config, directory_of(self.config), clock=SystemClock())
        try:
            return await work(store)
        finally:
            await store.close()

    async def _expired(self, tier: Tier) -> dict[tuple[str, int], int]:
        await RetentionStep(self._owned(tier, expires=True, retention_hours=24 * DAYS_KEPT)).step()
        return {
            (name.topic, name.queue_id): int(queue.min_offset)
            for name, queue in tier.state.queues.items()
        }

    def _owned(self, tier: Tier, **options: Any) -> OwnedTier:
        return OwnedTier(
            tier.journal, tier.store, SystemClock(), random.Random(0),
            replace(self.config.upkeep, **options), tier.upkeep.deletions, tier.upkeep.topic_hours,
        )  # fmt: skip

    async def _as_owner(self, work: Callable[[Tier], Awaitable[ResultT]]) -> ResultT:
        async with running_owner(self.config, clock=SystemClock()) as tier:
            return await work(tier)


async def _tombstones(store: ObjectStore) -> list[str]:
    return list((await TierReader.open(store)).state.tombstones)


Event = Callable[[LivingTier], None]


def made_again(tier: LivingTier) -> None:
    tier.delete_topic()
    tier.grow(7, "A")
    tier.delete_unreferenced()


MOVES: dict[str, Event] = {
    "merge": LivingTier.merge,
    "compaction": LivingTier.compact,
    "offload": LivingTier.offload,
    "take-over": LivingTier.take_over,
}
"""After these every planned message is in the tier still."""
LOSSES: dict[str, Event] = {
    "retention": LivingTier.expire,
    "topic deletion": LivingTier.delete_topic,
    "topic made again": made_again,
}


@contextmanager
def before_request(
    is_it: Callable[[int, str, str], bool], happens: Callable[[], None]
) -> Iterator[list[str]]:
    """Let something happen before the first request that `is_it` knows; yields all until then.

    `is_it` receives the number of the request, from 1 on, its verb, and its first name.
    """
    real, seen, waiting = RetryingStore._call, list[str](), [happens]

    async def called(store: RetryingStore, verb: str, names: Sequence[str], *more: Any) -> Any:
        if waiting:
            name = names[0] if names else ""
            seen.append(f"{verb} {name}")
            if is_it(len(seen), verb, name):
                await asyncio.to_thread(waiting.pop())
        return await real(store, verb, names, *more)

    with patch.object(RetryingStore, "_call", called):
        yield seen


class Interrupted(OneProcess):
    """An engine that lets something happen between a job's plan and its first task."""

    def __init__(self, happens: Callable[[], None]) -> None:
        self._happens = happens

    def map_group(self, *arguments: Any, **named: Any) -> Any:
        happens, self._happens = self._happens, lambda: None
        happens()
        return super().map_group(*arguments, **named)
