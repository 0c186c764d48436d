"""Cold reads of a broker's clients: `python -m tests.bench.plugin_speed --directory DIR`.

Two real brokers get the same messages. One has our plug-in and `serve`, the other one RocketMQ's
own tiered store with its POSIX provider; both have their defaults. Both tier all and delete their
CommitLogs but for the last files. A reader, one for all, then asks each broker for 32 messages a
pull, one request at a time, queue after queue from its first message to the last deleted one. Both
brokers are read in each round, either of them first in turn, and the port of `serve` after them.
"""

import argparse
import asyncio
import os
import struct
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from container.record.unit import UNIT_BYTES
from tests.bench.processes import TICKS_S, family
from tests.bench.rows import Defaults, Goal, add_run_options, print_and_keep, refuse_small
from tests.support.http import free_port
from tests.support.patience import LOOK_S, Patience, wait_until
from tests.support.plugged_broker import (
    connected,
    expire,
    make_topic,
    plugged_in,
    records_of,
    with_plugin,
)
from tests.support.remoting_client import RemotingClient
from tests.support.rocketmq_broker import BrokerInstall, RunningBroker, rocketmq_version
from tests.support.tieredstore_process import Serve, Tieredstore
from tieredstore.bench.run import spread
from tieredstore.serve.wire.frame import RequestCode, ResponseCode

TOPIC, QUEUES, MESSAGES_A_PULL, BATCH = "Cold", 4, 32, 64
DEFAULTS = Defaults(messages=102_400, warm_up_rounds=3, rounds=5)
BODY_BYTES, FILE_BYTES = 1024, 2 << 20
RECORD_BYTES_MAX = 200
"""Bytes of a record here but for its body, at most: what is read was deleted."""
FORM = struct.Struct(">5i")
"""Size, magic, checksum, flag and length of the body of a message in a batch."""
OF_BOTH = {
    "deleteWhen": ";".join(f"{hour:02}" for hour in range(24)),
    "cleanResourceInterval": "1000",
    "mappedFileSizeCommitLog": str(FILE_BYTES),
    "mappedFileSizeConsumeQueue": "6000000",
}
OF_JAVA = {
    "messageStorePlugIn": "org.apache.rocketmq.tieredstore.TieredMessageStore",
    "tieredBackendServiceProvider": "org.apache.rocketmq.tieredstore.provider.PosixFileSegment",
}
JAVA, PLUGIN, DIRECT = "java", "plugin", "direct"
GOALS = [Goal("plugin_of_java", "of the rate of RocketMQ's tiered store", least=0.5)]


@dataclass(frozen=True)
class Side:
    """Where the reader asks, and the processes whose CPU time counts."""

    name: str
    address: str
    processes: Mapping[str, int]


async def fill(broker: RunningBroker, messages: int, body_bytes: int) -> int:
    """Send the messages in batches, evenly to all queues; the bytes of a record."""
    body = os.urandom(body_bytes)
    properties = b"\x00\x0eKEYS\x01k\x02TAGS\x01A\x02"  # RocketMQ's tiered store takes none without
    size = FORM.size + body_bytes + len(properties)
    one = FORM.pack(size, 0, 0, 0, body_bytes) + body + properties
    names = "abcdefghijkm"
    async with connected(broker) as client:
        await make_topic(client, TOPIC, QUEUES)
        for number in range(messages // BATCH):
            values = ("P", TOPIC, "TBW102", 4, number % QUEUES, 0, 0, 0, "", 0, "false", "true")
            fields: dict[str, Any] = dict(zip(names, values, strict=True))
            answer = await client.ask(RequestCode.SEND_MESSAGE_V2, one * BATCH, **fields)
            assert answer.code == ResponseCode.SUCCESS, answer
        return len(next(iter(records_of(await client.pull(TOPIC, 0, 0)).values())))


async def read(address: str, ends: Mapping[int, int], *, verified: bool = False) -> list[float]:
    """Read each queue from its start to its end; the seconds of each answer."""
    seconds: list[float] = []
    async with await RemotingClient.connect(address) as client:
        for queue, end in ends.items():
            at, seen, patience = 0, set[int](), Patience("a queue is not read")
            while at < end:
                began = time.perf_counter()
                answer = await client.pull(TOPIC, queue, at)
                if answer.code != ResponseCode.SUCCESS:  # warming up: the tier is opened
                    assert verified, answer
                    patience.look()
                    await asyncio.sleep(LOOK_S)
                    continue
                seconds.append(time.perf_counter() - began)
                seen.update(records_of(answer) if verified else ())
                at = int(answer.fields["nextBeginOffset"])
            assert not verified or seen >= set(range(end)), (address, queue)
    return seconds


def measured(side: Side, ends: Mapping[int, int]) -> dict[str, float]:
    """One round of a side."""
    before, began = family(), time.perf_counter()
    seconds = sorted(asyncio.run(read(side.address, ends)))
    took, after = time.perf_counter() - began, family()
    messages = sum(ends.values())
    found = {
        f"{side.name}_messages_s": messages / took,
        f"{side.name}_p50_ms": seconds[len(seconds) // 2] * 1e3,
        f"{side.name}_p99_ms": seconds[len(seconds) * 99 // 100] * 1e3,
    }
    for name, pid in side.processes.items():
        ticks = after[pid].ticks - before[pid].ticks
        found[f"{side.name}_{name}_cpu_us"] = ticks / TICKS_S / messages * 1e6
    return found


@contextmanager
def java_side(place: Path, messages: int, body_bytes: int) -> Iterator[tuple[Side, int]]:
    """A broker with RocketMQ's tiered store, and how many bytes of its CommitLog it deleted."""
    place.mkdir()
    tier, store = place / "tier", place / "store"
    conf = {**OF_BOTH, **OF_JAVA, "tieredStoreFilePath": str(tier)}
    with RunningBroker(BrokerInstall.fetched(), place, store, conf, options=()) as broker:
        wanted = messages * (asyncio.run(fill(broker, messages, body_bytes)) + UNIT_BYTES)

        def bytes_tiered() -> int:
            files = (path for path in tier.rglob("*") if path.is_file())
            return sum(path.stat().st_size for path in files)

        wait_until(
            lambda: bytes_tiered() >= wanted,
            Patience("not all is tiered", marks=bytes_tiered, pids=[_pid(broker)]),
        )
        deleted = _expired(broker, store)
        yield Side(JAVA, broker.address, {"broker": _pid(broker)}), deleted


@contextmanager
def our_sides(place: Path, messages: int, body_bytes: int) -> Iterator[tuple[Side, Side, int]]:
    """A broker with our plug-in, the server that it asks, and how many bytes it deleted."""
    place.mkdir()
    store, port = place / "store", free_port()
    install = with_plugin(BrokerInstall.fetched(), place / "lib")
    conf = {**OF_BOTH, **plugged_in(port)}
    with RunningBroker(install, place, store, conf, options=()) as broker:
        asyncio.run(fill(broker, messages, body_bytes))
        ours = Tieredstore(broker.conf_path, place / "tier")
        ours.run("tier", str(store))
        serve = Serve(ours, place, port)
        with serve.running():
            assert serve.process is not None
            deleted, server = _expired(broker, store), {"server": serve.process.pid}
            plugin = Side(PLUGIN, broker.address, {"broker": _pid(broker), **server})
            yield plugin, Side(DIRECT, f"127.0.0.1:{port}", server), deleted


def _pid(broker: RunningBroker) -> int:
    assert broker.broker.process is not None
    return broker.broker.process.pid


def _expired(broker: RunningBroker, store: Path) -> int:
    """Have the broker delete its CommitLog but for two files; the bytes that it deleted."""
    asyncio.run(expire(broker, store))
    return min(int(path.name) for path in (store / "commitlog").iterdir())


def row_of(place: Path, body_bytes: int, options: Defaults) -> dict[str, Any]:
    """Measure."""
    rounds: list[dict[str, float]] = []
    size = options.messages, body_bytes
    with java_side(place / JAVA, *size) as (java, first), our_sides(place / PLUGIN, *size) as ours:
        plugin, direct, our_first = ours
        deleted = min(first, our_first) // (body_bytes + RECORD_BYTES_MAX)
        ends = dict.fromkeys(range(QUEUES), deleted // QUEUES)
        for side in (java, plugin, direct):
            asyncio.run(read(side.address, ends, verified=True))
        for number in range(-options.warm_up_rounds, options.rounds):
            found: dict[str, float] = {}
            for side in (*((java, plugin) if number % 2 else (plugin, java)), direct):
                found |= measured(side, ends)
            if number >= 0:
                found["plugin_of_java"] = found["plugin_messages_s"] / found["java_messages_s"]
                rounds.append(found)
    spreads = {name: spread([one[name] for one in rounds])._asdict() for name in rounds[0]}
    return {
        "body_bytes": body_bytes,
        "messages": options.messages,
        "messages_read": sum(ends.values()),
        "queues": QUEUES,
        "rounds": options.rounds,
        "warm_up_rounds": options.warm_up_rounds,
        "rocketmq": rocketmq_version(),
        **spreads,
    }


def main() -> None:
    """Measure, and print the row beside its goal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=DEFAULTS.messages)
    parser.add_argument("--body-bytes", type=int, default=BODY_BYTES)
    add_run_options(parser, DEFAULTS)
    given = parser.parse_args()
    messages = given.messages - given.messages % (BATCH * QUEUES)  # equal batches in each queue
    options = Defaults(messages, given.warm_up_rounds, given.rounds)
    if given.store_results is not None:
        refuse_small(parser, options, DEFAULTS)
    with tempfile.TemporaryDirectory(dir=given.directory) as place:
        row = row_of(Path(place), given.body_bytes, options)
    kept = given.store_results
    print_and_keep(row, GOALS, kept and kept / f"plugin-{given.body_bytes}-bytes.json")


if __name__ == "__main__":
    main()
