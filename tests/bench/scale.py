"""What following many queues costs: `python -m tests.bench.scale --help`.

For each number of queues a store is written as a broker writes it, tiered once, and then followed
by the command of a user: at rest, and while a message a second arrives, each in another queue. CPU
time is that of the whole following process. Rows go to one JSON file.

With `--broker` a real broker makes the queues and stays beside the follower: without the trickle.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.bench.rows import Goal, goals_beside, keep
from tests.support.fake_broker import FakeBroker
from tests.support.rocketmq_broker import BrokerInstall, RunningBroker
from tieredstore import sync
from tieredstore.cli.output import write_table

QUEUES_OF_A_TOPIC = 8
MESSAGES_OF_A_QUEUE = 4
BODY = bytes(100)
CONSUME_QUEUE_BYTES = 2_000
ARRIVAL_S_MAX = 300.0
"""A message that is not in the tier after so many seconds ends the measurement."""
SETTLE_S = 5.0
"""Length of one such look at the CPU time."""
SETTLED_ROUNDS = 4
"""So often in turn the follower must take less than `SETTLED_PERCENT` over `SETTLE_S` seconds,
which ends its start: some steps of upkeep come half a minute after it."""
SETTLED_PERCENT = 10.0
SETTLE_ROUNDS_MAX = 60
KIB, MIB = 1024, 1 << 20
GOALS = [
    Goal("idle_percent", "idle % of a core", most=2.0),
    Goal("tier_peak_mib", "MiB while tiering", most=400.0),
]
GOAL_QUEUES_MAX = 10_000
"""The goals are for so many queues at most."""
DIGITS = {"tier_s": 2, "idle_percent": 2, "trickle_percent": 2}
"""Digits behind the point, where it is not one."""
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class ScaleFigure:
    """What one number of queues costs."""

    queues: int
    tier_s: float
    """`tieredstore tier` from start to end, with the start of the interpreter."""
    tier_cpu_us_a_queue: float
    tier_peak_mib: float
    start_cpu_us_a_queue: float
    """CPU time of the follower until all queues are compared with the tier, and followed."""
    idle_percent: float
    """CPU time of the follower in percent of a core, while nothing arrives."""
    trickle_percent: float | None
    """The same while a message a second arrives."""
    arrival_ms: float | None
    """From a message of the trickle being written to being readable in the tier: the median."""
    follower_mib: float
    """Resident memory of the follower at the end."""

    def row(self) -> dict[str, float | None]:
        """As it is kept and shown."""
        values = asdict(self).items()
        return {name: value and round(value, DIGITS.get(name, 1)) for name, value in values}


def topic_of(number: int) -> str:
    """Topic of the queue with this number."""
    return f"Scale-{number // QUEUES_OF_A_TOPIC:05d}"


def measure(directory: Path, queues: int, seconds: int) -> ScaleFigure:
    """Figures of one number of queues; takes some `2 x seconds`, and the time to tier."""
    broker = FakeBroker(
        directory / "store", commit_log_bytes=1 << 26, consume_queue_bytes=CONSUME_QUEUE_BYTES
    )
    for _ in range(MESSAGES_OF_A_QUEUE):
        for number in range(queues):
            broker.put(topic_of(number), number % QUEUES_OF_A_TOPIC, BODY, tags="TagA")
    command = _command("scale-a", directory / "tier")
    tiered = _tier(command, broker.directory, queues)
    following = [*command, "tier", str(broker.directory), "--follow"]
    with _follower(following, directory / "log") as pid, sync.open(directory / "tier") as tier:
        _arrival_s(broker, tier, 0)
        start_us = 1e6 * _start_cpu_s(pid) / queues
        idle = _cpu_percent(pid, seconds)
        arrivals: list[float] = []
        before_s, began_s = _cpu_s(pid), time.monotonic()
        for number in range(seconds):
            arrivals.append(_arrival_s(broker, tier, number * 7919 % queues))
            time.sleep(max(0.0, began_s + number + 1 - time.monotonic()))
        trickle = 100 * (_cpu_s(pid) - before_s) / (time.monotonic() - began_s)
        resident = _resident_bytes(pid)
    arrival_ms = 1e3 * sorted(arrivals)[len(arrivals) // 2]
    return ScaleFigure(queues, *tiered, start_us, idle, trickle, arrival_ms, resident / MIB)


def measure_broker(directory: Path, queues: int, seconds: int) -> ScaleFigure:
    """Figures of one number of queues that a real broker has; it runs meanwhile."""
    size = (str(queues // QUEUES_OF_A_TOPIC), str(QUEUES_OF_A_TOPIC))
    store = directory / "store"
    with RunningBroker(BrokerInstall.fetched(), directory, store, {}) as broker:
        sending = ("send", "S", *size, str(MESSAGES_OF_A_QUEUE), "one")
        broker.run("Topics", "make", "S", *size, "then", *sending)
        command = _command("test-a", directory / "tier", "--conf", str(broker.conf_path))
        tiered = _tier(command, store, queues)
        with _follower([*command, "tier", str(store), "--follow"], directory / "log") as pid:
            start_us = 1e6 * _start_cpu_s(pid) / queues
            idle = _cpu_percent(pid, seconds)
            resident = _resident_bytes(pid)
    return ScaleFigure(queues, *tiered, start_us, idle, None, None, resident / MIB)


def _command(broker: str, tier: Path, *options: str) -> list[str]:
    named = ("-D", f"brokerName={broker}", "-D", f"tieredStoreFilePath={tier}")
    return [sys.executable, "-m", "tieredstore", *options, *named]


def _tier(command: Sequence[str], store: Path, queues: int) -> tuple[float, float, float]:
    """Tier a store once; the first figures of a row: seconds, CPU us a queue, and MiB at most."""
    began_s = time.monotonic()
    process = subprocess.Popen([*command, "tier", str(store), "--json"], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    tier_s = time.monotonic() - began_s
    if status:
        raise RuntimeError(f"tieredstore tier ended with {status}")
    cpu_s = usage.ru_utime + usage.ru_stime
    return tier_s, 1e6 * cpu_s / queues, usage.ru_maxrss * KIB / MIB


def _resident_bytes(pid: int) -> int:
    """Proc(5), second field of statm."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def _follower(command: Sequence[str], log: Path) -> Iterator[int]:
    """The process id of a follower, which is asked to end afterwards."""
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def _arrival_s(broker: FakeBroker, tier: sync.SyncTier, number: int) -> float:
    """Seconds until a new message of a queue is in the tier."""
    topic, queue_id = topic_of(number), number % QUEUES_OF_A_TOPIC
    offset = broker.put(topic, queue_id, BODY, tags="TagA")
    began_s = time.monotonic()
    while time.monotonic() - began_s < ARRIVAL_S_MAX:
        tier.refresh()
        if tier.queue(topic, queue_id).max_offset > offset:
            return time.monotonic() - began_s
        time.sleep(0.01)
    raise RuntimeError(f"{topic}/{queue_id} at {offset} was not tiered in {ARRIVAL_S_MAX} s")


def _cpu_s(pid: int) -> float:
    """User and system seconds of a process, all threads: proc(5), fields 14 and 15."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_A_SECOND


def _cpu_percent(pid: int, seconds: float) -> float:
    before_s, began_s = _cpu_s(pid), time.monotonic()
    time.sleep(seconds)
    return 100 * (_cpu_s(pid) - before_s) / (time.monotonic() - began_s)


def _start_cpu_s(pid: int) -> float:
    """CPU seconds of a follower's start, which ends where the follower comes to rest."""
    quiet, before_s = 0, _cpu_s(pid)
    for _ in range(SETTLE_ROUNDS_MAX):
        quiet = quiet + 1 if _cpu_percent(pid, SETTLE_S) < SETTLED_PERCENT else 0
        if quiet == SETTLED_ROUNDS:
            return before_s
        if not quiet:
            before_s = _cpu_s(pid)
    raise RuntimeError(f"the follower is not at rest after {SETTLE_ROUNDS_MAX * SETTLE_S:.0f} s")


def main(arguments: Sequence[str]) -> None:
    """Measure each number of queues, print a table, and keep the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("queues", type=int, nargs="*", default=[10, 100, 1_000, 10_000, 20_000])
    parser.add_argument("--seconds", type=int, default=20, help="of rest, and of the trickle")
    parser.add_argument("--directory", type=Path, help="on the disk to be measured")
    parser.add_argument("--store-results", type=Path, help="keep the rows in this JSON file")
    parser.add_argument("--broker", action="store_true", help="let a real broker make the queues")
    options = parser.parse_args(arguments)
    measured = measure_broker if options.broker else measure
    os.environ.setdefault("COLUMNS", "180")  # a pipe has no width of its own
    figures: list[ScaleFigure] = []
    for queues in options.queues:
        print(f"{queues:,} queues", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(dir=options.directory) as directory:
            figures.append(measured(Path(directory), queues, options.seconds))
    titles = (
        "queues",
        "tier s",
        "us/queue",
        "MiB",
        "start us",
        "idle %",
        "trickle %",
        "arrival ms",
        "MiB ",
        "goal",
    )
    kept = [figure.row() for figure in figures]
    rows = [
        [
            *("" if value is None else f"{value:,}" for value in row.values()),
            goals_beside(row, GOALS if (row["queues"] or 0) <= GOAL_QUEUES_MAX else []),
        ]
        for row in kept
    ]
    write_table(
        list(titles),
        rows,
        numbers=frozenset(titles[:-1]),
        title=f"following many queues: {MESSAGES_OF_A_QUEUE} messages in each, 1 round without "
        f"warm-up, {options.seconds} s of rest; CPU time in us and %",
    )
    if options.store_results is not None:
        keep(kept, options.store_results)


if __name__ == "__main__":
    main(sys.argv[1:])
