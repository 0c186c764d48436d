"""Store directories whose broker keeps its ConsumeQueues in RocksDB: what is left is the log."""

import shutil
from pathlib import Path


def hide_queues(store: Path) -> None:
    """Make a store one of a broker with `storeType=defaultRocksDB`, as its names tell."""
    queues = store / "consumequeue"
    shutil.rmtree(queues, ignore_errors=True)
    queues.mkdir()
    (queues / "CURRENT").write_text("MANIFEST-000004\n")


def seen_without_queues(store: Path, directory: Path) -> Path:
    """A directory that has the store's log and settings, and no ConsumeQueues; the store stays."""
    directory.mkdir(parents=True)
    for path in store.iterdir():
        if path.name != "consumequeue":
            (directory / path.name).symlink_to(path)
    hide_queues(directory)
    return directory
