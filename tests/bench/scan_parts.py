"""What `tests/bench/scan_speed.py` measures: raw reads, scans and rebuilds, each counted."""

import gc
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from provider.sequential import DirectorySource
from tests.bench.processes import watched
from tests.bench.scan_data import config_of, remove_made, splits_of
from tieredstore.offline.jobs.engine import Engine, OneProcess, Piece
from tieredstore.offline.jobs.rebuild_metadata import remake
from tieredstore.offline.scan.log_window import WINDOW_BYTES
from tieredstore.offline.scan.scanner import scan
from tieredstore.offline.scan.sources import source_of
from tieredstore.offline.scan.split import Split

INDEX_COLUMNS = ("queue_offset", "store_timestamp", "store_size", "tier_physical_offset")
KEY_COLUMNS = (*INDEX_COLUMNS, "tags", "keys", "msg_id")
COLUMNS = {
    "numbers": INDEX_COLUMNS,
    "tags and keys": KEY_COLUMNS,
    "with bodies": (*KEY_COLUMNS, "body"),
}
RAW, ONE, SPARK = "raw", "one process", "spark"


class TooFew(Exception):
    """A part met another number of messages than there are."""


@dataclass(frozen=True, slots=True)
class Data:
    """The logs of one length of bodies."""

    root: Path
    body_bytes: int
    messages: int

    def splits(self, split_bytes: int) -> list[Split]:
        """All of it."""
        return splits_of(self.root, split_bytes)

    @property
    def bytes(self) -> int:
        """Of all CommitLog files."""
        return sum(split.end - split.start for split in self.splits(1 << 40))


@dataclass(frozen=True, slots=True)
class Part:
    """One thing that is measured, once a round."""

    job: str
    """`read`, `scan` or `rebuild`."""
    by: str
    """`raw`, `one process`, or the name of an engine."""
    columns: str
    """Of a scan; "" elsewhere."""
    split_bytes: int


@dataclass(frozen=True, slots=True)
class Took:
    """What one run of a part took."""

    seconds: float
    cpu_s: float
    worker_bytes: int
    java_bytes: int


def parts_of(
    engines: Sequence[str],
    body_bytes: int,
    split_bytes: int,
    other_splits: Mapping[int, Sequence[int]],
) -> list[Part]:
    """All parts of one length of bodies: engines by columns, rebuilds, and other split sizes."""
    parts = [Part("read", RAW, "", split_bytes)]
    parts += [
        Part("scan", by, columns, split_bytes) for columns in COLUMNS for by in (ONE, *engines)
    ]
    parts += [Part("rebuild", by, "", split_bytes) for by in engines]
    parts += [
        Part("scan", by, "tags and keys", other)
        for other in other_splits.get(body_bytes, ())
        for by in engines[1:]
        if other != split_bytes
    ]
    return parts


def measured(part: Part, data: Data, engine: Engine) -> Took:
    """Do a part once.

    Raises:
        TooFew: it did not meet all messages.
    """
    splits = data.splits(part.split_bytes)
    if part.job == "rebuild":
        remove_made(data.root)
        work = partial(rebuild, data.root, engine, part.split_bytes)
    elif part.job == "read":
        work = partial(read_raw, splits)
    else:
        work = partial(scanned, splits, engine, COLUMNS[part.columns])
    gc.collect()
    with watched() as used:
        began = time.perf_counter()
        met = work()
        seconds = time.perf_counter() - began
    there = data.bytes if part.job == "read" else data.messages
    if met != there:
        raise TooFew(f"{part} of {data.body_bytes} B bodies met {met:,} of {there:,}")
    worker_bytes = used.worker_bytes if part.by not in (RAW, ONE) else used.own_bytes
    # The Java machine tidies up while others work, too.
    java_bytes = used.java_bytes if part.by.startswith(SPARK) else 0
    return Took(seconds, used.cpu_s, worker_bytes, java_bytes)


def read_raw(splits: Sequence[Split]) -> int:
    """Read all into one buffer that is used again; how many bytes."""
    room = memoryview(bytearray(WINDOW_BYTES))
    source = DirectorySource(Path(splits[0].place.location))
    count = 0
    for split in splits:
        for at in range(split.start, split.end, WINDOW_BYTES):
            name, place = split.place_of(at)
            count += source.read_into(name, place, room[: split.end - at])
    source.close()
    return count


class Count:
    """A mapper that scans and tells how many messages there were."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = columns

    def __call__(self, split: Split) -> Iterator[Piece]:
        source = source_of(split.place)
        rows = sum(batch.num_rows for batch in scan(source, split, self.columns))
        source.close()
        yield Piece("count", rows, b"")


def added(target: str, pieces: Sequence[Piece]) -> Iterator[Piece]:
    """The reducer of `Count`."""
    yield Piece(target, sum(piece.order for piece in pieces), b"")


def scanned(splits: Sequence[Split], engine: Engine, columns: Sequence[str]) -> int:
    """Scan all splits; how many messages there were."""
    (piece,) = engine.map_group(splits, Count(columns), added)
    return piece.order


def rebuild(root: Path, engine: Engine, split_bytes: int) -> int:
    """Make all but the CommitLog files again, with index and journal; how many messages.

    Raises:
        TooFew: files were not made, or damage was met.
    """
    report = remake(config_of(root), engine, split_bytes=split_bytes)
    if report.faults or report.findings or not report.makes_metadata:
        raise TooFew(f"the rebuild made not all: {report.summary}")
    return report.messages


def engine_of(part: Part, engines: Mapping[str, Engine]) -> Engine:
    """The engine that does a part."""
    return engines.get(part.by, OneProcess())
