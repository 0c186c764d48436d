"""The open index files beside the metadata of a tier that RocketMQ's own store wrote."""

import mmap
from collections.abc import Sequence
from pathlib import Path

from container.index.items import KeyItems
from container.index.open_file import OpenIndex
from container.lookup.find import OpenFileItems
from container.lookup.query import Unsealed
from provider.errors import Corrupt
from provider.names import is_regular_file
from tieredstore.config.effective import Config

DIRECTORY = "tiered_index_file"
"""In the broker's store directory, beside `config`."""
SLOTS_KEY = "tieredStoreIndexFileMaxHashSlotNum"


def open_index_files(config: Config, java_metadata: Path) -> Sequence[Unsealed]:
    """Those of `<store>/tiered_index_file`, where the metadata lies in `<store>/config`.

    They are mapped, and read where a query looks at them; damage becomes damage of the query. Few
    system calls; blocks.
    """
    slots = int(config.settings[SLOTS_KEY].value)
    found: list[OpenIndex] = []
    damaged: list[Unsealed] = []
    for path in _paths(java_metadata):
        try:
            found.append(OpenIndex.of(_mapped(path), slots=slots, path=str(path)))
        except Corrupt as error:
            damaged.append(_Damaged(error))
    return [OpenFileItems(found), *damaged]


class _Damaged(OpenFileItems):
    """A file of which nothing can be used."""

    def __init__(self, error: Corrupt) -> None:
        super().__init__(())
        self._error = error

    def items_of(self, key_hash: int, topic_id: int) -> KeyItems:  # noqa: ARG002 - has none
        raise self._error


def _paths(java_metadata: Path) -> list[Path]:
    """The files of the directory; none where it cannot be listed."""
    try:
        found = [*(java_metadata.resolve().parent.parent / DIRECTORY).iterdir()]
    except OSError:
        return []
    return sorted(path for path in found if path.name.isdecimal() and is_regular_file(path))


def _mapped(path: Path) -> bytes | memoryview:
    """The bytes of a file; not read before they are looked at."""
    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # no file any more, or an empty one
        raise Corrupt(f"the open index file cannot be read: {error}", str(path)) from error
    return memoryview(mapped)
