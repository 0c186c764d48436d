"""How far a CommitLog was followed and tiered, in a form that a later process can trust."""

from dataclasses import dataclass
from typing import Self

import orjson

from container.record.layout import HEAD
from provider.errors import Corrupt, NotFound
from tieredstore.following.log.commit_log import CommitLogFiles
from tieredstore.following.reput.log_scan import LastRecord


@dataclass(frozen=True, slots=True)
class Remembered:
    """Everything of the log below `position` that is to be tiered is durable in the tier."""

    position: int
    last: LastRecord | None
    """The last record that had been read then: the log is the same while it stands there."""

    def holds(self, log: CommitLogFiles) -> bool:
        """Whether the log still is the one that was followed. One small read.

        Where the file of the record was deleted, so was the one that `position` lies in, and
        reading begins at the log's first file whatever was remembered.

        Raises:
            Unavailable, Denied: it cannot be read now.
        """
        if self.last is None or self.position > log.table.end:
            return False
        try:
            return log.peek(self.last.position, HEAD.size) == self.last.head
        except (Corrupt, NotFound):
            return False

    def encode(self) -> bytes:
        """As JSON."""
        last = None if self.last is None else [self.last.position, self.last.head.hex()]
        return orjson.dumps({"position": self.position, "record": last})

    @classmethod
    def decode(cls, raw: bytes) -> Self | None:
        """What was encoded; None if that is anything else, for then all is read again."""
        try:
            said = orjson.loads(raw)
            position, record = int(said["position"]), said["record"]
            if record is None:
                return cls(position, None)
            return cls(position, LastRecord(int(record[0]), bytes.fromhex(record[1])))
        except (ValueError, KeyError, TypeError, IndexError):
            return None
