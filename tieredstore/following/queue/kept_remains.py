"""What waits of deleted queues, kept beside the pins, so that a restart goes on with it.

```
deleted_queues.json   {"store": directory of the ConsumeQueues, "queues": [
                          [topic, queue id, start, end, position, end position], ...]}
```

It lies in the first directory of `tieredStorePinPath`, and is there while something waits. With the
ConsumeQueues gone, nothing else tells a later start that the pinned records are still to be tiered.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import orjson

from container.names.queue_id import QueueId
from tieredstore.following.queue.remains import Remainder

NAME = "deleted_queues.json"


class KeptRemains:
    """The file of one store's remainders. One thread at a time."""

    def __init__(self, directory: Path | None, store: Path) -> None:
        """`directory` is that of the pins; without one nothing is kept."""
        self._path = None if directory is None else directory / NAME
        self._store = str(store)
        self._kept: bytes | None = None

    def __repr__(self) -> str:
        return f"<KeptRemains {self._path}>"

    def read(self) -> dict[QueueId, Remainder]:
        """What an earlier process left; nothing if there is none, or it is another store's."""
        if self._path is None:
            return {}
        try:
            raw = self._path.read_bytes()
            said = orjson.loads(raw)
            if said["store"] != self._store:
                return {}
            found = {
                QueueId(str(topic), int(queue_id)): Remainder(
                    int(start), int(end), position=int(place), end_position=int(end_place)
                )
                for topic, queue_id, start, end, place, end_place in said["queues"]
            }
        except (OSError, ValueError, KeyError, TypeError):
            return {}  # as where nothing was kept
        self._kept = raw
        return found

    def write(self, remains: Mapping[QueueId, Remainder]) -> str:
        """Keep these in place of what was kept; returns why that failed, "" if it did not.

        One small file is replaced, if anything changed; that may be lost by a power failure.
        """
        if self._path is None:
            return ""
        rows = [
            [queue.topic, queue.queue_id, rest.start, rest.end, rest.position, rest.end_position]
            for queue, rest in remains.items()
        ]
        raw = orjson.dumps({"store": self._store, "queues": rows}) if rows else None
        if raw == self._kept:
            return ""
        temporary = self._path.with_suffix(".new")
        try:
            if raw is None:
                self._path.unlink(missing_ok=True)
            else:
                temporary.write_bytes(raw)
                os.replace(temporary, self._path)  # noqa: PTH105 - one call, which cannot be half done
        except OSError as error:
            return (
                f"{self._path} cannot be written ({error.strerror}): a restart would give up what "
                "waits of deleted topics."
            )
        self._kept = raw
        return ""
