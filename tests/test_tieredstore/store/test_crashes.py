"""A producer that is killed: what it was told is stored, all of it, once and in order."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tieredstore
from tests.support.patience import HANGS_AFTER_S, Patience, ended, wait_until
from tests.support.shown_blocks import environment_of

assert tieredstore.TieredMessageStore  # its imports read files: not left to a running loop
assert tieredstore.LocalMessageStore

PRODUCER = """
import asyncio, sys
import tieredstore
from tieredstore import HotWriteOptions, NewMessage, RetentionOptions

async def main(store_dir, tier, flush, first):
    hot = HotWriteOptions(commit_log_bytes=1 << 16, consume_queue_bytes=2000, flush=flush)
    retention = RetentionOptions(reserved_s=0)
    async with tieredstore.open_store(
        store_dir, tier, broker="b", hot=hot, retention=retention
    ) as store:
        number = int(first)
        while True:
            messages = [NewMessage("Orders", 0, b"%d" % (number + n)) for n in range(3)]
            await store.put_messages(messages)
            number += 3
            print(number, flush=True)  # everything below it is acknowledged

asyncio.run(main(*sys.argv[1:]))
"""
ROUNDS = 2
LINES = 300
"""Acknowledgements after which a producer is killed."""


def lines_of(path: Path) -> Iterator[int]:
    """The whole lines of a file that is written."""
    return (int(line) for line in path.read_text().split("\n")[:-1])


async def walked(directory: Path) -> list[bytes]:
    """Every body, from the first to the last, offsets checked."""
    hot = tieredstore.HotWriteOptions(commit_log_bytes=1 << 16, consume_queue_bytes=2000)
    bodies: list[bytes] = []
    store = tieredstore.open_store(directory / "store", directory / "tier", broker="b", hot=hot)
    async with store:
        end = await store.max_offset("Orders", 0)
        async for message in store.messages("g", "Orders", 0):
            assert message.queue_offset == len(bodies)
            bodies.append(message.body)
            if len(bodies) == end:
                break
    return bodies


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(HANGS_AFTER_S)
@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_no_acknowledged_message_is_lost_by_a_kill(flush: str, tmp_path: Path) -> None:
    """Slow, for it starts processes: each imports all, and is killed amid its work."""
    there = 0
    for turn in range(ROUNDS):
        said = tmp_path / f"said-{turn}"
        command = [sys.executable, "-c", PRODUCER, "store", "tier", flush, str(there)]
        with (
            said.open("w") as out,
            subprocess.Popen(command, stdout=out, cwd=tmp_path, env=environment_of()) as producer,
        ):
            patience = Patience("the producer does not get on", pids=[producer.pid])
            wait_until(lambda said=said: len(list(lines_of(said))) > LINES, patience)
            producer.kill()
            assert ended(producer) == -signal.SIGKILL
        bodies = asyncio.run(walked(tmp_path))
        assert bodies == [b"%d" % number for number in range(len(bodies))]
        assert max(lines_of(said)) <= len(bodies)
        there = len(bodies)
