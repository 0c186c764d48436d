"""What waits of deleted queues, kept beside the pins, so that a restart goes on with it.

```
deleted_queues.json   {"store": directory of the ConsumeQueues, "queues": [
                          [topic, queue id, start, end, position, end position], ...],
                       "ended": [[topic, queue id, start, end, end position], ...],
                       "hidden": [[topic, queue id, offset, position], ...]}
```

`queues` has the messages that wait: those of several queues that had a name, the oldest first.
`ended` is the last queue of a name of which nothing waits any more, where another one comes after
it. `hidden` is the first message of a queue that has the name now and waits for its turn. Earlier
versions wrote `queues` alone, with one row for each name.

It lies in the first directory of `tieredStorePinPath`, and is there while something waits. With the
ConsumeQueues gone, nothing else tells a later start that the pinned records are still to be tiered.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from container.names.queue_id import QueueId
from tieredstore.following.queue.remains import Remainder

NAME = "deleted_queues.json"


class Ended(NamedTuple):
    """A deleted queue of which nothing waits."""

    start: int
    """Its first message that was seen."""
    end: int
    """The offset after its last one."""
    end_position: int
    """Where that one ends in the CommitLog."""


class Hidden(NamedTuple):
    """The first message of a queue that waits for the end of an earlier one of its name."""

    offset: int
    position: int


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept of one store."""

    remains: Mapping[QueueId, list[Remainder]] = field(default_factory=dict[QueueId, Any])
    ended: Mapping[QueueId, Ended] = field(default_factory=dict[QueueId, Ended])
    hidden: Mapping[QueueId, Hidden] = field(default_factory=dict[QueueId, Hidden])


class KeptRemains:
    """The file of one store's remainders. One thread at a time."""

    def __init__(self, directory: Path | None, store: Path) -> None:
        """`directory` is that of the pins; without one nothing is kept."""
        self._path = None if directory is None else directory / NAME
        self._store = str(store)
        self._kept: bytes | None = None

    def __repr__(self) -> str:
        return f"<KeptRemains {self._path}>"

    def read(self) -> Kept:
        """What an earlier process left; nothing if there is none, or it is another store's."""
        if self._path is None:
            return Kept()
        try:
            raw = self._path.read_bytes()
            said = orjson.loads(raw)
            if said["store"] != self._store:
                return Kept()
            found = _parsed(said)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return Kept()  # as where nothing was kept
        self._kept = raw
        return found

    def write(self, kept: Kept) -> str:
        """Keep this in place of what was kept; returns why that failed, "" if it did not.

        One small file is replaced, if anything changed; that may be lost by a power failure.
        """
        if self._path is None:
            return ""
        rows = _rows(kept)
        raw = orjson.dumps({"store": self._store, **rows}) if any(rows.values()) else None
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


def _rows(kept: Kept) -> dict[str, list[list[object]]]:
    return {
        "queues": [
            [*queue, rest.start, rest.end, rest.position, rest.end_position]
            for queue, rests in kept.remains.items()
            for rest in rests
        ],
        "ended": [[*queue, *ended] for queue, ended in kept.ended.items()],
        "hidden": [[*queue, *hidden] for queue, hidden in kept.hidden.items()],
    }


def _parsed(said: Mapping[str, list[list[Any]]]) -> Kept:
    remains: dict[QueueId, list[Remainder]] = {}
    for topic, queue_id, start, end, place, end_place in said["queues"]:
        rest = Remainder(int(start), int(end), position=int(place), end_position=int(end_place))
        remains.setdefault(QueueId(str(topic), int(queue_id)), []).append(rest)
    ended = {
        QueueId(str(topic), int(queue_id)): Ended(int(start), int(end), int(place))
        for topic, queue_id, start, end, place in said.get("ended", ())
    }
    hidden = {
        QueueId(str(topic), int(queue_id)): Hidden(int(offset), int(position))
        for topic, queue_id, offset, position in said.get("hidden", ())
    }
    return Kept(remains, ended, hidden)
