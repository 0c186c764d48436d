"""Speed of `serve`: `python -m tests.bench.serve_speed --directory DIR`.

A tier in 8 queues is served by the command, in a process of its own. A client asks for 32 messages
a pull, as the official one does, and decodes nothing: each queue from its start to its end, in
rounds. First a connection a queue with some requests in flight, of which the CPU time of the server
counts; then one request in flight, of which the time of each answer counts. Then `tier --follow`
serves the same queues while it tiers a backlog of another topic, and one request is in flight.
"""

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.bench.processes import TICKS_S, family
from tests.bench.rows import Defaults, Goal, print_and_keep, refuse_small
from tests.support.fake_broker import FakeBroker
from tests.support.http import free_port, get, value_of
from tests.support.patience import Patience, wait_until
from tests.support.remoting_client import pull_fields
from tieredstore.bench.run import spread
from tieredstore.serve.wire.frame import JSON, Command, RequestCode, ResponseCode, decode, encode

TOPIC, QUEUES, MESSAGES_A_PULL, IN_FLIGHT = "Bench", 8, 32, 4
DEFAULTS = Defaults(messages=400_000, warm_up_rounds=1, rounds=5)
COMMAND = [sys.executable, "-m", "tieredstore", "-D", "brokerClusterName=C", "-D", "brokerName=b"]
BACKLOG_MESSAGES, BACKLOG_BODY_BYTES, PULLS_BESIDE = 1_000_000, 1024, 1_000
GOALS = [
    Goal("cpu_us", "us of CPU a message", most=3.0),
    Goal("messages_s", "messages a second", least=250_000),
    Goal("p99_ms", "ms p99 of one request in flight", most=1.0),
    Goal("beside_tiering_p99_ms", "ms p99 beside tiering", most=40.0),
]


def pull(queue: int, offset: int) -> bytes:
    """A request of the official client."""
    fields = {name: str(value) for name, value in pull_fields(TOPIC, queue, offset).items()}
    return encode(Command(RequestCode.PULL_MESSAGE, fields, b"", offset, 0, JSON), 0)


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def answer(self) -> bytes:
        head = await self.reader.readexactly(4)
        return head + await self.reader.readexactly(int.from_bytes(head, "big"))

    async def read(self, queue: int, messages: int, in_flight: int) -> list[float]:
        """Seconds of each answer since the one before it."""
        offsets = iter(range(0, messages, MESSAGES_A_PULL))
        for _, offset in zip(range(in_flight), offsets, strict=False):
            self.writer.write(pull(queue, offset))
        seconds: list[float] = []
        began = time.perf_counter()
        for number in range(0, messages, MESSAGES_A_PULL):
            frame = await self.answer()
            seconds.append(time.perf_counter() - began)
            if number == 0 or number + MESSAGES_A_PULL >= messages:
                found = decode(frame)
                assert found.code == ResponseCode.SUCCESS, found
            began = time.perf_counter()
            if (offset := next(offsets, None)) is not None:
                self.writer.write(pull(queue, offset))
        return seconds


async def round_of(port: int, process: int, messages: int) -> dict[str, float]:
    """All queues at once, then one after the other."""
    clients = [
        Client(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 20))
        for _ in range(QUEUES)
    ]
    each = messages // QUEUES
    cpu_s, began = cpu_of(process), time.perf_counter()
    await asyncio.gather(*(one.read(queue, each, IN_FLIGHT) for queue, one in enumerate(clients)))
    seconds, cpu_s = time.perf_counter() - began, cpu_of(process) - cpu_s
    single = [s for queue in range(QUEUES) for s in await clients[0].read(queue, each, 1)]
    for one in clients:
        one.writer.close()
    return {
        "messages_s": messages / seconds,
        "cpu_us": cpu_s / messages * 1e6,
        "messages_cpu_s": messages / cpu_s,
        "p50_ms": at(0.5, single),
        "p99_ms": at(0.99, single),
    }


def at(share: float, seconds: list[float]) -> float:
    """Milliseconds within which a share of the answers came."""
    return sorted(seconds)[int(len(seconds) * share)] * 1e3


def cpu_of(process: int) -> float:
    """CPU seconds of a process below this one, all its threads."""
    return family()[process].ticks / TICKS_S


async def beside_tiering(port: int, pages: int, messages: int) -> list[float]:
    """Seconds of answers of one request in flight, all of them before the backlog is tiered."""
    client = Client(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 20))
    seconds = await client.read(0, min(PULLS_BESIDE * MESSAGES_A_PULL, messages // QUEUES), 1)
    client.writer.close()
    page = await asyncio.to_thread(get, pages, "/metrics")
    left = value_of(page[1], "rocketmq_tiered_store_dispatch_behind")
    assert left > 0, "the backlog was tiered before the last answer"
    return seconds


@contextmanager
def serving(place: Path, *words: str | Path) -> Iterator[tuple[int, int, int]]:
    """Ports of the server and of its metrics, and its process."""
    port, pages = free_port(), free_port()
    given = {"tieredStoreServePort": port, "tieredStoreMetricsPort": pages}
    given |= {"tieredStoreServeStatePath": place / "state"}
    defines = [part for key, value in given.items() for part in ("-D", f"{key}={value}")]
    with subprocess.Popen(
        [*COMMAND, *defines, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            patience = Patience("it is not ready", pids=[process.pid])
            wait_until(lambda: get(pages, "/readyz")[0] == 200, patience, 0.02)
            yield port, pages, process.pid
        finally:
            process.terminate()


def measured(place: Path, body_bytes: int, options: Defaults) -> dict[str, Any]:
    """One row."""
    broker = FakeBroker(place / "store", commit_log_bytes=1 << 30, consume_queue_bytes=6_000_000)
    broker.fill(TOPIC, range(QUEUES), options.messages, body_bytes)
    tier = place / "tier"
    tiering = [*COMMAND, "--tier", tier, "tier", broker.directory]
    subprocess.run(tiering, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    rounds: list[dict[str, float]] = []
    with serving(place, "serve", tier) as (port, _, process):
        for number in range(-options.warm_up_rounds, options.rounds):
            found = asyncio.run(round_of(port, process, options.messages))
            if number >= 0:
                rounds.append(found)
    broker.fill("Backlog", range(QUEUES), BACKLOG_MESSAGES, BACKLOG_BODY_BYTES, 1)
    with serving(place, "--tier", tier, "tier", "--follow", broker.directory) as (port, pages, _):
        beside = asyncio.run(beside_tiering(port, pages, options.messages))
    spreads = {name: spread([one[name] for one in rounds])._asdict() for name in rounds[0]}
    return {
        "body_bytes": body_bytes,
        "messages": options.messages,
        "queues": QUEUES,
        "rounds": options.rounds,
        "warm_up_rounds": options.warm_up_rounds,
        **spreads,
        "beside_tiering_p50_ms": at(0.5, beside),
        "beside_tiering_p99_ms": at(0.99, beside),
    }


def main() -> None:
    """Measure, and print the row beside its goals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=DEFAULTS.messages)
    parser.add_argument("--body-bytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=DEFAULTS.rounds)
    parser.add_argument("--directory", type=Path, help="on what is to be measured")
    parser.add_argument("--store-results", type=Path, help="keep a JSON file there")
    given = parser.parse_args()
    options = Defaults(given.messages, DEFAULTS.warm_up_rounds, given.rounds)
    if given.store_results is not None:
        refuse_small(parser, options, DEFAULTS)
    with tempfile.TemporaryDirectory(dir=given.directory) as place:
        row = measured(Path(place), given.body_bytes, options)
    kept = given.store_results
    print_and_keep(row, GOALS, kept and kept / f"serve-{given.body_bytes}-bytes.json")


if __name__ == "__main__":
    main()
