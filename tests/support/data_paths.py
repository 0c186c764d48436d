"""Counts the product files that a datum passes: `python -m tests.support.data_paths [--list]`.

Four paths, each on the sample of a real broker: a message into the tier, a cold read, a key query,
and the rebuild of a lost ConsumeQueue. A file counts if one of its functions is called between the
request and its answer; opening and closing of the tier are left out, but for the rebuild, which is
a command. The measure is wider than what a reader of the code must follow: it has each helper.
"""

import sys
import tempfile
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import tieredstore.sync
from tests.support.cli import invoke
from tests.support.golden import ROCKETMQ_533, unpack
from tests.support.sizes import PACKAGES

ROOT = Path(__file__).parents[2]
FILES_MAX = {"message": 40, "cold read": 20, "key query": 12, "rebuild": 25}
"""Goals."""


class Calls:
    """Files of product functions that are called while a block is `recorded`, in any thread."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self._is_on = False

    def start(self) -> None:
        """See calls of this thread and of all threads that begin later."""
        threading.setprofile(self._see)
        sys.setprofile(self._see)

    @contextmanager
    def recorded(self) -> Generator[None]:
        """Count calls of the block, from none on."""
        self.files, self._is_on = set(), True
        try:
            yield
        finally:
            self._is_on = False

    def _see(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if self._is_on and event == "call" and code.co_name != "<module>":
            self.files.add(code.co_filename)


def product_files(calls: Calls) -> list[str]:
    """Relative paths of the product's files among those seen."""
    inside = (Path(name) for name in calls.files if name.startswith(f"{ROOT}/"))
    found = (path.relative_to(ROOT) for path in inside)
    return sorted(str(path) for path in found if path.parts[0] in PACKAGES)


def measure(directory: Path) -> dict[str, list[str]]:
    """Files of each path, by its name."""
    store, place = unpack(ROCKETMQ_533, "closed", directory).store, directory / "own-tier"
    found: dict[str, list[str]] = {}
    calls = Calls()
    calls.start()
    with tieredstore.sync.follow(
        store, place, cluster=ROCKETMQ_533.cluster, broker=ROCKETMQ_533.broker
    ) as owner:
        with calls.recorded():
            owner.drain()
        found["message"] = product_files(calls)
    with tieredstore.sync.open(place) as tier:
        with calls.recorded():
            assert tier.get_message("group", "G_Orders", 0, 17).messages
        found["cold read"] = product_files(calls)
        with calls.recorded():
            assert tier.query_message("G_Orders", "order-76").messages
        found["key query"] = product_files(calls)
    lost = next(path for path in place.rglob("CONSUME_QUEUE/*") if path.is_file())
    lost.unlink()
    with calls.recorded():
        assert invoke(place, "rebuild", "--processes", "1").exit_code == 0
    found["rebuild"] = product_files(calls)
    return found


def main() -> None:
    """Print a line for each path; with `--list` its files."""
    with tempfile.TemporaryDirectory() as directory:
        for name, files in measure(Path(directory)).items():
            print(f"{name:10} {len(files):4} files (goal {FILES_MAX[name]})")
            if "--list" in sys.argv:
                print(*(f"  {file}" for file in files), sep="\n")


if __name__ == "__main__":
    main()
