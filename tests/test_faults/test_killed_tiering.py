"""Tiering processes and their stores, killed at any moment: nothing acknowledged is lost."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from container.names.queue_id import QueueId
from container.tier_view import TierReader
from provider.posix.store import PosixStore
from tests.support.level import by_level
from tests.support.patience import HANGS_AFTER_S, Patience, until, wait_until
from tests.support.store_reader import findings
from tests.support.tiering_parent import TOPIC, body_of, message_of, new_store, side_of

pytestmark = [pytest.mark.process, pytest.mark.timeout(HANGS_AFTER_S)]
ROOT = Path(__file__).parents[2]
QUEUE = QueueId(TOPIC, 0)
KILLS = by_level(quick=1, full=1, nightly=60)
PAUSE_S_MAX = 0.6
"""Longest life of what is killed, in seconds: through its start, commits, and deletions."""


def has_ended(pid: int) -> bool:
    """Whether a process has ended. A zombie, which waits for its parent, has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


async def bodies_of_all(root: Path) -> list[bytes]:
    """Every message of the store, once all are tiered and a later start has closed it."""
    async with new_store(root) as store:
        end = await store.max_offset(TOPIC, 0)
        await store.log.flush()
        side = side_of(store)
        await until(
            lambda: not end or side.holds_back(QUEUE) == end,
            Patience("it is not tiered", pids=[os.getpid()]),
        )
        found: list[bytes] = []
        reading = store.messages("g", TOPIC, 0, 0)
        while len(found) < end:
            found.append((await anext(reading)).body)
        await reading.aclose()
    tier = PosixStore(next((root / "tier").glob("*/*")))
    assert await findings(tier) == []
    queue = (await TierReader.open(tier)).queue(QUEUE)
    assert end == (0 if queue is None else queue.next_offset)
    await tier.close()
    return found


def lines_of(parent: "subprocess.Popen[bytes]") -> Iterator[int]:
    """What it printed whole."""
    assert parent.stdout is not None
    for line in parent.stdout:
        if line.endswith(b"\n"):
            yield int(line)


@pytest.mark.slow
@pytest.mark.scales
def test_a_killed_store_takes_its_tiering_process_with_it_and_loses_nothing(
    tmp_path: Path,
) -> None:
    rng = random.Random(2)
    acknowledged = 0
    for number in range(KILLS):
        with subprocess.Popen(
            [sys.executable, "-m", "tests.support.tiering_parent", tmp_path],
            stdout=subprocess.PIPE,
            cwd=ROOT,
        ) as parent:
            lines = lines_of(parent)
            child = next(lines)
            assert next(lines) > acknowledged
            threading.Timer(rng.uniform(0, PAUSE_S_MAX), parent.kill).start()
            acknowledged = max(lines)
            wait_until(partial(has_ended, child), Patience(f"the child {child} lives on"))
        assert parent.returncode == -signal.SIGKILL, f"kill {number}"
    found = asyncio.run(bodies_of_all(tmp_path))
    assert found[:acknowledged] == [body_of(at) for at in range(acknowledged)]
    assert found == [body_of(at) for at in range(len(found))]


@pytest.mark.slow
@pytest.mark.scales
async def test_a_killed_tiering_process_is_replaced_and_nothing_is_lost(tmp_path: Path) -> None:
    rng = random.Random(3)
    kills = 0
    async with new_store(tmp_path, durable=True) as store:
        side = side_of(store)
        ends = asyncio.Event()

        async def put() -> int:
            end = 0
            while not ends.is_set():
                calls = [store.put_message(message_of(at)) for at in range(end, end + 20)]
                for call in calls:
                    await call
                end += 20
            return end

        async with asyncio.TaskGroup() as group:
            putting = group.create_task(put())
            while kills < KILLS:
                before = await store.max_offset(TOPIC, 0)
                await asyncio.sleep(rng.uniform(0, PAUSE_S_MAX))
                if (process := side._process) is not None and not has_ended(process.pid):  # pyright: ignore[reportPrivateUsage] - also while it starts
                    os.kill(process.pid, signal.SIGKILL)
                    kills += 1
                after = Patience("appends wait for the tier", pids=[os.getpid()])
                end = before
                while end == before:
                    after.look()
                    await asyncio.sleep(0.01)
                    end = await store.max_offset(TOPIC, 0)
            ends.set()
        end = putting.result()
        await until(
            lambda: side.holds_back(QUEUE) == end,
            Patience("it is not tiered", marks=lambda: side.holds_back(QUEUE), pids=[os.getpid()]),
        )
        assert side.restarts > 0
    assert await bodies_of_all(tmp_path) == [body_of(at) for at in range(end)]


@pytest.mark.nightly
async def test_signals_to_the_group_are_the_stores_to_answer(tmp_path: Path) -> None:
    async with new_store(tmp_path) as store:
        side = side_of(store)
        pid = side.pid
        for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(pid, one)
        await store.put_message(message_of(0))
        await store.log.flush()
        await until(lambda: side.holds_back(QUEUE) == 1, Patience("it is not tiered", pids=[pid]))
        assert (side.pid, side.restarts) == (pid, 0)
    assert has_ended(pid)


@pytest.mark.nightly
async def test_a_stopped_tiering_process_is_noticed_and_dies_with_its_store(tmp_path: Path) -> None:
    parent = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.support.tiering_parent",
        tmp_path,
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    assert parent.stdout is not None
    child = int(await parent.stdout.readline())
    os.kill(child, signal.SIGSTOP)
    acknowledged = int(await parent.stdout.readline())
    while acknowledged < 1_000:  # appends go on
        acknowledged = int(await parent.stdout.readline())
    parent.kill()
    await parent.communicate()
    await until(lambda: has_ended(child), Patience(f"the child {child} lives on"))
    assert len(await bodies_of_all(tmp_path)) >= acknowledged
