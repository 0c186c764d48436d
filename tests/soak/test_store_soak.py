"""A message store with a tier in use for a long time: 64 queues, 20 groups, retention running.

`SOAK_SECONDS` sets the seconds of writing; without it 16. How long groups and checks take is not
measured: they must get on. `put_message` is timed and reported, never asserted.
"""

import asyncio
import gc
import json
import os
import random
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.soak.resources import MIB, Slack, Usage, peak_of, settled, usage_of
from tests.soak.store_soak import (
    GROUPS,
    PRODUCERS,
    Ends,
    Group,
    Producer,
    assert_no_more_expired_than_may,
    new_store,
    p99_us,
)
from tests.support.left_tiers import findings_below
from tests.support.patience import Patience, until

SOAK_S = float(os.environ.get("SOAK_SECONDS") or 16)
HANGS_AFTER_S = 1800 + 20 * SOAK_S
PHASES = 8
LOOKS = 10
SLACK = Slack(memory_bytes=32 * MIB, memory_share=0.15, descriptors=24)
"""Caches fill up within the first phases; metadata of more segments is small."""


class StoreSoak:
    """Who takes part, and the phases that they go through."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ends = Ends()
        self.store = new_store(root)
        self.producers = [Producer(self.store, number, self.ends) for number in range(PRODUCERS)]
        self.groups = [
            Group(f"group-{number:02}", self.store, self.ends, random.Random(number))
            for number in range(GROUPS)
        ]
        self.usage: list[list[Usage]] = []
        self.rests = False
        self.is_over = False

    async def phase(self, number: int) -> None:
        """Write and read; then wait until every group has read everything, and check."""
        self.usage.append([])
        for place, group in enumerate(self.groups[number % 4 :: 4]):
            group.begin_again(place / 4)
        end_s = time.monotonic() + SOAK_S / PHASES
        async with asyncio.TaskGroup() as tasks:
            for producer in self.producers:
                tasks.create_task(producer.run(lambda: time.monotonic() > end_s))
            tasks.create_task(self.look(end_s))

        def nobody_is_behind() -> bool:
            return not any(group.behind() for group in self.groups)

        await until(
            nobody_is_behind,
            Patience(
                lambda: f"phase {number}: {[group.behind() for group in self.groups]}",
                marks=lambda: sum(group.messages for group in self.groups),
            ),
        )
        await assert_no_more_expired_than_may(self.store, self.ends)
        self.sample()

    async def look(self, end_s: float) -> None:
        """Sample the process until the phase ends."""
        while time.monotonic() < end_s:
            self.sample()
            await asyncio.sleep(SOAK_S / PHASES / LOOKS)

    def sample(self) -> None:
        gc.collect()
        usage = usage_of(os.getpid())
        assert usage is not None
        self.usage[-1].append(usage)

    def figures(self) -> dict[str, object]:
        """What happened, for people."""
        return {
            "seconds": SOAK_S,
            "cpu_seconds": round(time.process_time(), 1),
            "messages_put": self.ends.messages,
            "messages_read": sum(group.messages for group in self.groups),
            "expired_before_read": sum(group.expired for group in self.groups),
            "passes": sum(group.passes for group in self.groups),
            "put_message_p99_us": round(p99_us(self.producers)),
            "curve": [
                f"{settled(looks).rss_bytes / MIB:.0f} MiB (peak "
                f"{peak_of(looks).rss_bytes / MIB:.0f}), {peak_of(looks).descriptors} descriptors"
                for looks in self.usage
            ],
        }


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.timeout(HANGS_AFTER_S)
async def test_every_group_reads_each_message_once_or_it_expired_and_nothing_grows(
    tmp_path: Path,
) -> None:
    soak = StoreSoak(tmp_path)
    async with soak.store as store:
        async with asyncio.TaskGroup() as tasks:
            for group in soak.groups:
                tasks.create_task(group.run(lambda: soak.is_over))
            for number in range(PHASES):
                await soak.phase(number)
            soak.is_over = True
        statistics = dict(store.statistics())
    print(json.dumps({**soak.figures(), "statistics": statistics}, indent=1))
    assert sum(group.expired for group in soak.groups), "nothing expired"
    assert statistics["hot_files_deleted"], "the hot log kept everything"
    assert await asyncio.to_thread(findings_below, tmp_path) == []
    assert SLACK.findings("the store", soak.usage) == []
    await assert_all_is_there_after_a_restart(soak)


async def assert_all_is_there_after_a_restart(soak: StoreSoak) -> None:
    """Whoever reads everything once more sees the same."""
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(new_store(soak.root))
        group = Group("late", store, soak.ends, random.Random(99))
        await group.run(lambda: not group.behind())
        assert group.messages
        assert group.messages + group.expired == soak.ends.messages
