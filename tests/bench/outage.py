"""Memory during an outage of S3, and how fast it is caught up: `python -m tests.bench.outage`.

A store directory grows at a steady rate while a process of its own tiers it to a SeaweedFS on this
machine, through a proxy that resets every connection for as long as the outage lasts. The resident
memory of that process is read once a second. At the end every queue is read back and must have all
messages in order.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tieredstore
from tests.bench.rows import Goal, Row, goals_beside
from tests.support.fake_broker import FakeBroker
from tests.support.fault_proxy import FaultProxy, WireFault
from tests.support.patience import cpu_s_of
from tests.support.seaweedfs import SeaweedFs

MIB = 1 << 20
BUCKET = "outage"
TOPIC, QUEUES = "Outage", 8
NAMED: dict[str, Any] = {"cluster": "OutageCluster", "broker": "outage"}
SETTINGS = {"tieredStoreGroupCommitTimeout": 1000}
"""A round a second, so that a short run shows many."""
TICK_S = 0.25
WARM_S = 20.0
LAG_S = 5.0
"""Who is no further behind has caught up."""
PLACE = f"s3://{BUCKET}/tier"
GOALS = [
    Goal("outage_growth", "memory in the last tenth to the first", most=1.25),
    Goal("catching_up_bytes", "bytes while catching up", most=400e6),
    Goal("times_real_time", "times as fast as it came", least=5.0),
]


async def follow(store: Path) -> None:
    """Tier the directory for ever, and print how many messages are tiered, once a second."""
    async with (
        tieredstore.follow(store, PLACE, settings=SETTINGS, **NAMED) as follower,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(follower.run())
        while True:
            print(follower.statistics().messages, flush=True)
            await asyncio.sleep(1.0)


class Following:
    """The process that tiers, and what it said last."""

    def __init__(self, store: Path, env: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.outage", "--worker", str(store)],
            env=env,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.messages = 0
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.messages = int(line)

    @property
    def resident_bytes(self) -> int:
        """Resident memory of the process; AssertionError if it has ended."""
        assert self._process.poll() is None, "the follower ended"
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        (line,) = (one for one in lines if one.startswith("VmRSS:"))
        return int(line.split()[1]) << 10

    @property
    def cpu_s(self) -> float:
        """User and system time that the process has used, all threads."""
        return cpu_s_of(self._process.pid)

    def end(self) -> None:
        """Kill it: that loses nothing."""
        self._process.kill()
        self._process.wait()


class Producer:
    """Messages at a steady rate."""

    def __init__(self, broker: FakeBroker, *, rate: int, body_bytes: int) -> None:
        self._broker = broker
        self._rate = rate
        self._pad = os.urandom(body_bytes)
        self._began_s = time.monotonic()
        self.messages = 0

    def keep_up(self) -> None:
        """Write what is due by now."""
        due = int((time.monotonic() - self._began_s) * self._rate) - self.messages
        for number in range(QUEUES):
            count = due // QUEUES
            if count:
                first = self.messages // QUEUES
                bodies = [b"%d " % (first + n) + self._pad for n in range(count)]
                self._broker.put_many(TOPIC, number, bodies)
        self.messages += due // QUEUES * QUEUES


def watched(producer: Producer, following: Following, seconds: float) -> Iterator[int]:
    """Resident bytes of the follower, once a tick, while the producer goes on."""
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        producer.keep_up()
        yield following.resident_bytes
        time.sleep(TICK_S)


@contextmanager
def followed(directory: Path) -> Iterator[tuple[FaultProxy, Following, FakeBroker, dict[str, str]]]:
    """A server, a proxy before it, a store, and who follows it."""
    with SeaweedFs(directory / "server") as server, FaultProxy(server.endpoint) as proxy:
        server.make_bucket(BUCKET)
        env = {**os.environ, **server.environment, "AWS_ENDPOINT_URL": proxy.endpoint}
        env["XDG_RUNTIME_DIR"] = str(directory)
        broker = FakeBroker(directory / "store")
        following = Following(directory / "store", env)
        try:
            yield proxy, following, broker, {**server.environment}
        finally:
            following.end()


def measure(directory: Path, seconds: float, rate: int, body_bytes: int) -> Row:
    """What an outage of so many seconds costs; AssertionError if a message is missing."""
    with followed(directory) as (proxy, following, broker, env):
        producer = Producer(broker, rate=rate, body_bytes=body_bytes)
        while not following.messages:
            max(watched(producer, following, 1.0))
        before = max(watched(producer, following, WARM_S))
        proxy.faults = [WireFault("reset")]
        began = len(proxy.requests)
        memory = list(watched(producer, following, seconds))
        asked = len(proxy.requests) - began
        left = producer.messages - following.messages
        proxy.faults = []
        over_s = time.monotonic()
        after = [0]
        while producer.messages - following.messages > LAG_S * rate:
            after += watched(producer, following, 1.0)
        caught_up_s = time.monotonic() - over_s
        while following.messages < producer.messages:
            after.append(following.resident_bytes)
            time.sleep(TICK_S)
        os.environ.update(env)
        cpu_s = following.cpu_s
        first, last = max(memory[: len(memory) // 10]), max(memory[-len(memory) // 10 :])
        return {
            "warm_up_rounds": 0,
            "rounds": 1,
            "messages": producer.messages,
            "cpu_s": cpu_s,
            "cpu_us": 1e6 * cpu_s / producer.messages,
            "outage_s": seconds,
            "messages_s": rate,
            "body_bytes": body_bytes,
            "before_bytes": before,
            "outage_bytes_first_tenth": first,
            "outage_bytes_last_tenth": last,
            "outage_growth": last / first,
            "outage_bytes_max": max(memory),
            "catching_up_bytes": max(after),
            "requests": asked,
            "messages_behind": left,
            "caught_up_s": caught_up_s,
            "times_real_time": (left / rate + caught_up_s) / caught_up_s,
            "read_back": asyncio.run(read_back(producer.messages)),
        }


async def read_back(messages: int) -> int:
    """How many messages the tier has; AssertionError unless all are there, in order."""
    found = 0
    async with tieredstore.open(PLACE, **NAMED) as tier:
        for number in range(QUEUES):
            at = 0
            async for message in tier.messages(TOPIC, number):
                assert int(message.body.split(b" ", 1)[0]) == at, f"queue {number} at {at}"
                at += 1
            found += at
    assert found == messages, f"{found} of {messages}"
    return found


def main(arguments: Sequence[str]) -> None:
    """Measure, and print what was found."""
    if arguments[:1] == ["--worker"]:
        asyncio.run(follow(Path(arguments[1])))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="how long the outage lasts")
    parser.add_argument("--messages-per-second", type=int, default=1000)
    parser.add_argument("--body-bytes", type=int, default=1024)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        found = measure(
            Path(name), options.seconds, options.messages_per_second, options.body_bytes
        )
    print(json.dumps(found, indent=1))
    print(goals_beside(found, GOALS), flush=True)
    os._exit(0)  # obstore's threads abort a process that ends just after a request


if __name__ == "__main__":
    main(sys.argv[1:])
