"""Speed of `restore` beside its disk: `python -m tests.bench.restore_speed --directory DIR`.

A store of messages of 1 KiB in 8 queues is tiered into a directory. In each round as many bytes as
the tier's logs have are written into one file and synced, and the tier is restored by the command,
in turn, each in a process of its own. `of_disk` is the ratio of the medians. Memory is that of the
larger process. The ratio means something on two cores that do nothing else; CPU time is printed for
the others. In memory (`--directory /dev/shm`) it is that of two processors without a disk.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.bench.rows import Goal, goals_beside, keep
from tests.support.fake_broker import FakeBroker
from tieredstore.bench.run import machine_facts, spread

MIB = 1 << 20
BODY_BYTES, QUEUES, PIECE_BYTES = 1024, 8, 4 * MIB
MESSAGES_A_MS = 100
"""Messages of one store time: the order of a restored log is by time, over all queues."""
COMMAND = [sys.executable, "-m", "tieredstore"]
NAMED = ["-D", "brokerClusterName=C", "-D", "brokerName=b", "--tier"]
GOALS = [
    Goal("peak_bytes", "bytes of a process", most=256 * MIB),
    Goal("of_disk", "of the disk's speed", least=0.5),
]
RAW = """
import os, sys
piece = os.urandom(int(sys.argv[3]))
fd = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
for _ in range(int(sys.argv[2]) // len(piece)):
    os.write(fd, piece)
os.fsync(fd)
"""


def timed(words: list[str | Path]) -> tuple[float, float, int]:
    """Seconds, CPU seconds and peak bytes of a command and its workers; fails if it fails."""
    began = time.perf_counter()
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    assert status == 0, words
    seconds = time.perf_counter() - began
    return seconds, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024


def measured(place: Path, messages: int, rounds: int) -> dict[str, Any]:
    """One row."""
    broker = FakeBroker(place / "store", commit_log_bytes=1 << 30, consume_queue_bytes=6_000_000)
    for seed in range(messages // MESSAGES_A_MS):
        broker.fill("T", range(QUEUES), MESSAGES_A_MS, BODY_BYTES, seed)
        broker.now_ms += 1
    tier = [*COMMAND, *NAMED, place / "tier"]
    timed([*tier, "tier", broker.directory])
    shutil.rmtree(broker.directory)
    length = sum(file.stat().st_size for file in (place / "tier").rglob("COMMIT_LOG/*"))
    raws: list[float] = []
    seconds: list[float] = []
    cpu: list[float] = []
    peak = 0
    for _ in range(rounds):
        raw, restored = place / "raw", place / "restored"
        raws.append(timed([sys.executable, "-c", RAW, raw, str(length), str(PIECE_BYTES)])[0])
        raw.unlink()
        found = timed([*tier, "restore", restored])
        shutil.rmtree(restored)
        seconds.append(found[0])
        cpu.append(found[1])
        peak = max(peak, found[2])
    raw_s, restore_s = spread(raws), spread(seconds)
    return {
        "place": "memory" if place.is_relative_to("/dev/shm") else "disk",
        "messages": messages,
        "bytes": length,
        "rounds": rounds,
        "raw_s": raw_s._asdict(),
        "restore_s": restore_s._asdict(),
        "restore_cpu_s": spread(cpu)._asdict(),
        "of_disk": raw_s.median / restore_s.median,
        "peak_bytes": peak,
    }


def main() -> None:
    """Measure, and print the rows beside their goals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--directory", type=Path, action="append", help="on what is to be measured; repeatable"
    )
    parser.add_argument("--store-results", type=Path, help="keep a JSON file there")
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for directory in given.directory or [None]:
        with tempfile.TemporaryDirectory(dir=directory) as place:
            rows.append(measured(Path(place), given.messages, given.rounds))
        for name, value in rows[-1].items():
            print(f"{name:16}{value}")
        print(goals_beside(rows[-1], GOALS if rows[-1]["place"] == "disk" else GOALS[:1]))
    if given.store_results is not None:
        run = {"metric": "run", "load": os.getloadavg()[1], "machine": machine_facts()}
        keep([*rows, run], given.store_results / "restore.json")


if __name__ == "__main__":
    main()
