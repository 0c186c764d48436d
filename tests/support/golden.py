"""The golden data: stores and tiers that real RocketMQ brokers wrote, and what they answered."""

import atexit
import functools
import json
import lzma
import shutil
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from container.names.queue_id import QueueId
from container.names.rocketmq import broker_directory

GOLDEN = Path(__file__).parents[1] / "golden"


@dataclass(frozen=True, slots=True)
class GoldenSet:
    """One broker's data. The sizes are those it was configured with, in bytes or entries."""

    name: str
    kinds: tuple[str, ...]
    """Which archives there are: "closed", "running"."""
    broker: str
    commit_log_file_bytes: int
    consume_queue_file_bytes: int
    commit_log_segment_bytes: int
    consume_queue_segment_bytes: int
    index_slots: int
    index_items: int
    has_codas: bool = False
    has_record_crc: bool = False
    cluster: str = "GoldenCluster"

    def __str__(self) -> str:
        return self.name

    @property
    def broker_conf(self) -> Path:
        """The broker's own configuration file; not for the variants, which had no broker."""
        path = GOLDEN / self.name / "broker.conf"
        assert path.exists(), f"{self} was not written by a broker"
        return path


@dataclass(frozen=True, slots=True)
class GoldenTree:
    """An unpacked archive."""

    golden: GoldenSet
    kind: str
    root: Path

    def __str__(self) -> str:
        return f"{self.golden.name}-{self.kind}"

    @property
    def store(self) -> Path:
        """The broker's store directory (storePathRootDir)."""
        return self.root / "store"

    @property
    def tier(self) -> Path:
        """The tier's root (tieredStoreFilePath)."""
        return self.root / "tier"

    @property
    def broker_directory(self) -> Path:
        """The broker's directory in the tier."""
        return self.tier / broker_directory(self.golden.cluster, self.golden.broker)

    @property
    def java_metadata(self) -> Path:
        return self.store / "config" / "tieredStoreMetadata.json"

    def queues(self) -> list[QueueId]:
        """The queues that the Java store tiered, in order; without the index."""
        found = (path.parent for path in self.broker_directory.glob("*/*/COMMIT_LOG"))
        return sorted(QueueId(path.parent.name, int(path.name)) for path in found)

    def segments(self, queue: QueueId, type_name: str) -> list[tuple[int, Path]]:
        """Bases and files of one flat file, in order."""
        directory = self.broker_directory / queue.topic / str(queue.queue_id) / type_name
        return sorted((int(path.name[-20:]), path) for path in directory.iterdir())

    def flat_bytes(self, queue: QueueId, type_name: str) -> bytes:
        """The bytes of one flat file from its first base on."""
        return b"".join(path.read_bytes() for _, path in self.segments(queue, type_name))

    def local_commit_log(self) -> list[tuple[int, bytes]]:
        """First byte and bytes of every local CommitLog file, in order."""
        return [(int(p.name), p.read_bytes()) for p in sorted((self.store / "commitlog").iterdir())]


ROCKETMQ_533 = GoldenSet(
    "rocketmq-5.3.3", ("closed", "running"), "golden-a", 1 << 20, 20_000, 1 << 18, 10_000, 500, 2000
)
ROCKETMQ_550 = GoldenSet(
    "rocketmq-5.5.0", ("closed",), "golden-b", 1 << 20, 20_000, 1 << 18, 10_000, 500, 2000
)
VARIANTS_533 = GoldenSet(
    "variants-5.3.3", ("closed", "running"), "golden-a", 1 << 19, 2000, 1 << 16, 1000, 500, 600
)
VARIANTS_CRC = GoldenSet(
    "variants-5.3.3-crc",
    ("closed",),
    "golden-a",
    1 << 18,
    2000,
    1 << 16,
    1000,
    500,
    1000,
    has_record_crc=True,
)
VARIANTS_520 = GoldenSet(
    "variants-5.2.0",
    ("closed", "running"),
    "golden-a",
    1 << 19,
    2000,
    1 << 16,
    1000,
    500,
    600,
    has_codas=True,
)
GOLDEN_SETS = (ROCKETMQ_533, ROCKETMQ_550, VARIANTS_533, VARIANTS_CRC, VARIANTS_520)
GOLDEN_TREES = [(golden, kind) for golden in GOLDEN_SETS for kind in golden.kinds]
"""Every archive, as arguments for `unpacked` and `pytest.mark.parametrize`."""


def tree_name(value: object) -> str:
    """For `parametrize(..., ids=tree_name)`."""
    return str(value)


def unpack(golden: GoldenSet, kind: str, directory: Path) -> GoldenTree:
    """A fresh copy below `directory` that the test may change."""
    assert kind in golden.kinds
    extract(GOLDEN / golden.name / f"{kind}.tar.xz", directory)
    return GoldenTree(golden, kind, directory)


def extract(archive_path: Path, directory: Path) -> None:
    """Unpack an archive below `directory`."""
    with tarfile.open(archive_path) as archive:
        # Python 3.11.2, which Debian 12 ships, does not take it as an argument yet.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(directory)


@functools.cache
def unpacked(golden: GoldenSet, kind: str = "closed") -> GoldenTree:
    """A copy that all tests of the process share: read it, never change it."""
    directory = tempfile.mkdtemp(prefix=f"golden-{golden.name}-{kind}-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return unpack(golden, kind, Path(directory))


@functools.cache
def expected(golden: GoldenSet, what: str) -> list[dict[str, Any]]:
    """The lines of `expect/<what>.jsonl`: messages, pulls, queries, offset_by_time; read-only."""
    with lzma.open(GOLDEN / golden.name / "expect" / f"{what}.jsonl.xz", "rt") as lines:
        return [json.loads(line) for line in lines]
