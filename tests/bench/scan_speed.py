"""How fast a scan is beside reading the same bytes: `python -m tests.bench.scan_speed`.

Makes logs of 100 B, 1 KiB and 16 KiB bodies in four queues, reads them all raw into one reused
buffer, and scans them: in one process, and in worker processes. Medians of `--rounds`, in turn.
"""

import argparse
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median

from provider.sequential import DirectorySource
from tests.bench.scan_data import splits_of, write_logs
from tieredstore.offline.engine import LocalEngine, Piece
from tieredstore.offline.log_window import WINDOW_BYTES
from tieredstore.offline.scanner import scan
from tieredstore.offline.sources import source_of
from tieredstore.offline.split import Split

INDEX_COLUMNS = ("queue_offset", "store_timestamp", "store_size", "tier_physical_offset")
KEY_COLUMNS = (*INDEX_COLUMNS, "tags", "keys", "msg_id")
COLUMNS = {
    "numbers": INDEX_COLUMNS,
    "tags and keys": KEY_COLUMNS,
    "with bodies": (*KEY_COLUMNS, "body"),
}


def read_raw(root: Path, splits: Sequence[Split]) -> None:
    room = memoryview(bytearray(WINDOW_BYTES))
    source = DirectorySource(root)
    for split in splits:
        for at in range(split.start, split.end, WINDOW_BYTES):
            name, place = split.place_of(at)
            source.read_into(name, place, room[: split.end - at])
    source.close()


class Count:
    """A mapper that scans and tells how many messages there were."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = columns

    def __call__(self, split: Split) -> Iterator[Piece]:
        source = source_of(split.place)
        rows = sum(batch.num_rows for batch in scan(source, split, self.columns))
        source.close()
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        yield Piece("count", rows, str(used).encode())


def highest(target: str, pieces: Sequence[Piece]) -> Iterator[Piece]:
    """Messages, and the most memory that a worker held, in MiB."""
    used = max(int(piece.payload) for piece in pieces)
    yield Piece(target, sum(piece.order for piece in pieces), str(used).encode())


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, default=256 << 20, help="of each set of messages")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--split-bytes", type=int, default=32 << 20)
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    print(f"{'bodies':>8} {'columns':>14} {'raw':>7} {'1 process':>10} {'workers':>8} MB/s  MiB")
    with (
        tempfile.TemporaryDirectory() as directory,
        LocalEngine(given.processes) as engine,
    ):
        for body_bytes in (100, 1 << 10, 16 << 10):
            root = Path(directory)
            write_logs(root, body_bytes, given.bytes)
            splits = splits_of(root, given.split_bytes)
            for name in COLUMNS:
                measure(engine, splits, body_bytes, name, given.rounds)
            for path in root.rglob("*"):
                if path.is_file():
                    path.unlink()


def measure(
    engine: LocalEngine, splits: Sequence[Split], body_bytes: int, name: str, rounds: int
) -> None:
    root = Path(splits[0].place.location)
    total = sum(split.end - split.start for split in splits) / 1e6
    columns = COLUMNS[name]
    count, used = Count(columns), [0]

    def by_workers() -> None:
        (piece,) = engine.map_group(splits, count, highest)
        used[0] = max(used[0], int(piece.payload))

    by_workers()  # starts the processes
    times = [
        (
            timed(lambda: read_raw(root, splits)),
            timed(lambda: [list(count(split)) for split in splits]),
            timed(by_workers),
        )
        for _ in range(rounds)
    ]
    raw, one, many = (total / median(column) for column in zip(*times, strict=True))
    print(f"{body_bytes:>8} {name:>14} {raw:>7,.0f} {one:>10,.0f} {many:>8,.0f} {used[0]:>10}")


if __name__ == "__main__":
    main()
