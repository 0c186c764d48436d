"""Ledger of writes in a store directory: started and finished ones."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from provider.errors import Corrupt
from provider.names import is_there
from provider.posix.files import posix_errors
from tieredstore.hot.log.files import replace_file

DIRECTORY: Final = "writes"
STAGED: Final = "staged"
WRITE_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class WritePlan:
    """Plan of a write: its files, their order, and the offsets at which it starts."""

    write_id: str
    directory: str
    """Of the staged files."""
    parts: tuple[tuple[str, int], ...]
    """Names of the files in order, with their messages."""
    queues: Mapping[str, int] = field(default_factory=dict[str, int])
    """Number of queues of each topic that take turns."""
    starts: Mapping[str, Mapping[int, int]] = field(default_factory=dict[str, Mapping[int, int]])
    """By topic and queue, the first offset that a message of this write may have."""
    is_done: bool = False

    @property
    def messages(self) -> int:
        """All of them."""
        return sum(messages for _, messages in self.parts)

    def encode(self) -> bytes:
        """As a JSON object."""
        return orjson.dumps(
            {
                "id": self.write_id,
                "done": self.is_done,
                "directory": self.directory,
                "parts": self.parts,
                "queues": self.queues,
                "starts": {
                    topic: {str(queue_id): offset for queue_id, offset in offsets.items()}
                    for topic, offsets in self.starts.items()
                },
            }
        )

    @classmethod
    def decode(cls, raw: bytes, *, path: str) -> "WritePlan":
        """Parse the output of `encode`.

        Raises:
            Corrupt: `raw` has another form.
        """
        try:
            found: Any = orjson.loads(raw)
            return cls(
                write_id=found["id"],
                directory=found["directory"],
                parts=tuple((str(name), int(messages)) for name, messages in found["parts"]),
                queues={topic: int(count) for topic, count in found["queues"].items()},
                starts={
                    topic: {int(queue_id): int(offset) for queue_id, offset in offsets.items()}
                    for topic, offsets in found["starts"].items()
                },
                is_done=bool(found["done"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Corrupt("this is no record of a write", path) from error


class WriteLedger:
    """The records of a store directory; only who holds the store's lock changes them."""

    def __init__(self, root: Path) -> None:
        self._directory = root / DIRECTORY

    def __repr__(self) -> str:
        return f"<WriteLedger {self._directory}>"

    def load(self, write_id: str) -> WritePlan | None:
        """The write with that id; None if none was begun.

        Raises:
            Corrupt: the record is damaged.
            Denied, Unavailable: it cannot be read.
        """
        path = self._path(write_id)
        with posix_errors(str(path)):
            raw = path.read_bytes() if is_there(path) else None
        return None if raw is None else WritePlan.decode(raw, path=str(path))

    def save(self, plan: WritePlan) -> None:
        """Write it down, durably, wholly or not at all.

        Raises:
            Denied, Unavailable: it cannot be written.
        """
        path = self._path(plan.write_id)
        with posix_errors(str(path)):
            self._directory.mkdir(exist_ok=True)
            replace_file(path, plan.encode())

    def forget(self, write_id: str) -> None:
        """Have no record of it.

        Raises:
            Denied, Unavailable: it cannot be removed.
        """
        path = self._path(write_id)
        with posix_errors(str(path)):
            path.unlink(missing_ok=True)

    def _path(self, write_id: str) -> Path:
        assert WRITE_ID.fullmatch(write_id), "checked where it was given"
        return self._directory / f"{write_id}.json"
