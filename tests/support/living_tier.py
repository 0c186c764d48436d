"""A tier in an object store that its owner changes while a job reads it."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from click.testing import Result

from container.options import HOUR_MS
from container.tier_reader import TierReader
from container.upkeep.retention import RetentionStep
from container.upkeep.step import OwnedTier
from provider.clock import SystemClock
from tests.support.cli import invoke
from tests.support.fake_broker import FakeBroker
from tieredstore import sync
from tieredstore.config.effective import Config
from tieredstore.lifetime import running
from tieredstore.offline.engine import OneProcess
from tieredstore.owning import open_owner
from tieredstore.places import directory_of, storage_at

Row = tuple[str, int, int, bytes]
"""Topic, queue, queue offset and body."""
DAYS_KEPT = 3
SETTINGS = {
    "tieredStoreGroupCommitTimeout": "50",
    "tieredStoreCommitLogMaxSize": "4000",
    "tieredStoreConsumeQueueMaxSize": "200",
    "brokerName": "b",
    "brokerClusterName": "C",
}


class LivingTier:
    """Topics of two queues, tiered in small parts. Objects without references go at once."""

    def __init__(self, directory: Path, url: str) -> None:
        self.url = url
        self.rows: dict[Row, None] = {}
        """What the tier has, in no order."""
        now_ms = SystemClock().now_ms()
        self._broker = FakeBroker(
            directory / "store", commit_log_bytes=1 << 22, now_ms=now_ms - 100 * HOUR_MS
        )
        self._old: set[Row] = set()
        self._put = 0

    @property
    def config(self) -> Config:
        """Of the tier, for jobs."""
        return Config.load(settings={"tieredStoreFilePath": self.url, **SETTINGS})

    def grow(self, count: int, *topics: str) -> None:
        """Tier `count` messages of each queue, each topic in parts of its own."""
        for topic in topics or ("A", "B"):
            for queue in (0, 1):
                for _ in range(count):
                    body = b"%d" % self._put
                    offset = self._broker.put(
                        topic, queue, body, keys=f"k{self._put}", tags=f"Tag{self._put % 3}"
                    )
                    self.rows[topic, queue, offset, body] = None
                    self._put += 1
            with sync.follow(self._broker.directory, self.url, settings=SETTINGS) as follower:
                follower.drain()

    def age(self) -> None:
        """Let what was put so far be older than retention keeps it; the rest is not."""
        self._old = set(self.rows)
        self._broker.now_ms = SystemClock().now_ms() - HOUR_MS

    def merge(self) -> None:
        """Merge small parts, whose objects go."""
        self.command("compact")
        self.delete_unreferenced()

    def expire(self) -> None:
        """Expire what `age` made old, in whole segments."""
        first = asyncio.run(self._expired())
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
        self.merge()

    def lose(self, name: str) -> None:
        """Delete an object that is published, as no owner does."""
        asyncio.run(self._delete([name]))

    def delete_unreferenced(self) -> None:
        """Let the grace time of everything that is unpublished be over."""
        asyncio.run(self._delete(None))

    def objects(self, prefix: str = "@parts/") -> list[str]:
        """Names of objects."""

        async def listed() -> list[str]:
            store = storage_at(self.config, directory_of(self.config), clock=SystemClock())
            try:
                return [entry.name for entry in await store.list(prefix)]
            finally:
                await store.close()

        return asyncio.run(listed())

    def command(self, *words: str, status: int = 0) -> Result:
        """A command on the tier, without grace times."""
        given = [part for key, value in SETTINGS.items() for part in ("-D", f"{key}={value}")]
        grace = ("-D", "tieredStoreJournalGraceTime=0")
        return invoke(self.url, *given, *grace, *words, status=status)

    async def unpublish(self, topic: str) -> None:
        """Delete a topic as a process does that dies after its journal entry."""
        async with (
            open_owner(self.config, clock=SystemClock()) as tier,
            running([tier.journal.run]),
        ):
            await tier.delete_topic(topic)
            await tier.journal.close()

    async def _delete(self, names: list[str] | None) -> None:
        store = storage_at(self.config, directory_of(self.config), clock=SystemClock())
        try:
            if names is None:
                names = list((await TierReader.open(store)).state.tombstones)
            await store.delete(names)
        finally:
            await store.close()

    async def _expired(self) -> dict[tuple[str, int], int]:
        async with (
            open_owner(self.config, clock=SystemClock()) as tier,
            asyncio.TaskGroup() as group,
        ):
            group.create_task(tier.run())
            options = replace(self.config.upkeep, expires=True, retention_hours=24 * DAYS_KEPT)
            owned = OwnedTier(
                tier.journal, tier.store, SystemClock(), random.Random(0), options,
                tier.upkeep.deletions, tier.upkeep.topic_hours,
            )  # fmt: skip
            await RetentionStep(owned).step()
            first = {
                (name.topic, name.queue_id): int(queue.min_offset)
                for name, queue in tier.state.queues.items()
            }
            await tier.close()
        return first


class Interrupted(OneProcess):
    """An engine that lets something happen between a job's plan and its first task."""

    def __init__(self, happens: Callable[[], None]) -> None:
        self._happens = happens

    def map_group(self, *arguments: Any, **named: Any) -> Any:
        happens, self._happens = self._happens, lambda: None
        happens()
        return super().map_group(*arguments, **named)
