"""Deleted queues whose records the CommitLog may still have, `config/deletedQueues.json`.

For each it has the offset at which a new queue of that name begins, and the CommitLog position
below which no record is a message of it. The file is an extension that a Java broker ignores. It
has a checksum, a number, and a copy beside it. Older versions wrote none of them.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from container.names.queue_id import QueueId
from provider.errors import Corrupt
from provider.names import is_there
from tieredstore.hot.log.durable_ends import (
    DurableEnds,
    NotSound,
    copy_of,
    decode_checked,
    encode_checked,
    is_checked,
)
from tieredstore.hot.log.files import replace_file

LOGGER = logging.getLogger("tieredstore.hot")
_NONE = '{"queues": []}'
"""Document of no deleted queue, without a checksum."""


class DeletedQueue(NamedTuple):
    """Last deleted queue of a name."""

    next_offset: int
    """Offset after its last message, at which the next queue of that name begins."""
    position: int
    """End of the CommitLog at the deletion. Records of the name below it are of deleted queues."""
    keeps_topic: bool = False
    """Whether the topic was kept: the queue continues at the end of its tier."""


class DeletedQueues(Mapping[QueueId, DeletedQueue]):
    """File of the deleted queues, replaced as a whole. One thread at a time changes it."""

    def __init__(self, path: Path, durable: DurableEnds | None, number: int = 0) -> None:
        """Read the file, or its copy if it is damaged or older. Empty if neither exists.

        Args:
            path: the file.
            durable: records whether the file had entries, and its number; None: unknown.
            number: least number of a first file, above those of an earlier log that was lost.

        Raises:
            Corrupt: both are damaged or older than `durable`, or missing although one is expected.
            OSError: one cannot be read.
        """
        self._path = path
        least = 0 if durable is None else durable.deletions
        is_expected = durable is not None and durable.has_deletions
        found, self.is_whole = _read(path, least=least, is_expected=is_expected)
        """`is_whole`: file and copy are sound, or neither exists. Else `replace` makes them so."""
        self._queues, known = found
        self.number = known or max(least, number)
        """`number`: of changes of the file. One without it is of an older version."""

    def __repr__(self) -> str:
        return f"<DeletedQueues {self._path}: {len(self)} queues>"

    def __getitem__(self, queue: QueueId) -> DeletedQueue:
        return self._queues[queue]

    def __iter__(self) -> Iterator[QueueId]:
        return iter(self._queues)

    def __len__(self) -> int:
        return len(self._queues)

    def has_record(self, queue: QueueId, position: int) -> bool:
        """Whether the record of `queue` at `position` is a deleted message."""
        deleted = self._queues.get(queue)
        return deleted is not None and position < deleted.position

    def continued(self) -> list[QueueId]:
        """Return the queues that continue at the end of their tier. Any thread."""
        return [queue for queue, one in self._queues.items() if one.keeps_topic]

    def replace(self, queues: Mapping[QueueId, DeletedQueue]) -> None:
        """Replace the content of the file. Durable on return.

        Raises:
            OSError: it cannot be written; the old file stays.
        """
        if not is_there(self._path):  # or the copy alone would count if this write fails
            replace_file(self._path, _encoded(self._queues, self.number))
        number = self.number + (queues != self._queues)
        raw = _encoded(queues, number)
        replace_file(copy_of(self._path), raw)
        replace_file(self._path, raw)  # last: it has precedence while it is sound
        self._queues, self.number, self.is_whole = dict(queues), number, True

    def still_needed(
        self, alive: Mapping[QueueId, int], min_position: int
    ) -> dict[QueueId, DeletedQueue]:
        """Return the entries that a start needs: no recreated queues whose old records are gone.

        Args:
            alive: queues that exist.
            min_position: first byte of the present CommitLog.
        """
        return {
            queue: one
            for queue, one in self._queues.items()
            if queue not in alive or one.position > min_position
        }


def _encoded(queues: Mapping[QueueId, DeletedQueue], number: int) -> bytes:
    rows = [
        {"topic": topic, "queueId": queue_id, "nextOffset": offset, "position": position}
        | ({"keepsTopic": True} if keeps_topic else {})
        for (topic, queue_id), (offset, position, keeps_topic) in sorted(queues.items())
    ]
    return encode_checked({"queues": rows, "number": number})


_Found = tuple[dict[QueueId, DeletedQueue], int]
"""Queues of a document, and its number."""


def _read(path: Path, *, least: int, is_expected: bool) -> tuple[_Found, bool]:
    """Return the queues with their number, and whether file and copy are sound.

    Raises:
        Corrupt: both are damaged or below the number `least`, or missing although one is expected.
    """
    copy = copy_of(path)
    raws = {one: one.read_bytes() for one in (path, copy) if is_there(one)}
    for one, raw in raws.items():
        try:
            found = _parsed(decode_checked(raw))
        except NotSound:
            continue
        if found[1] < least:
            continue
        if one == copy:
            LOGGER.warning("%s is damaged, older or missing; its copy %s is used", path, copy)
        return found, raws.get(path) == raws.get(copy)
    if not raws and not is_expected:
        return ({}, 0), True
    raw = raws.get(path, b"")
    try:
        if copy in raws or is_checked(raw):
            raise NotSound("its checksum is wrong, or it is older")
        return _parsed(json.loads(raw)), False  # of an older version
    except (ValueError, RecursionError) as error:
        raise Corrupt(
            "the deleted queues cannot be read: the file is not as it was last written, or missing."
            " Without them their messages would be back; restore it from a backup, or write"
            f' {_NONE} into it, and remove "{copy.name}", to take them back',
            str(path),
        ) from error


def _parsed(document: dict[str, Any]) -> _Found:
    """Return the queues of a document, and its number.

    Raises:
        NotSound: it has other fields than it should, or of other types.
    """
    try:
        rows = [
            (
                row["topic"],
                row["queueId"],
                row["nextOffset"],
                row["position"],
                row.get("keepsTopic", False),
            )
            for row in document["queues"]
        ]
        number = int(document.get("number", 0))
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise NotSound("a field is missing") from error
    for topic, *numbers, keeps in rows:
        is_right = isinstance(topic, str) and isinstance(keeps, bool)
        if not is_right or not all(type(n) is int and n >= 0 for n in numbers):
            raise NotSound("a field has another type")
    queues = {
        QueueId(topic, n): DeletedQueue(offset, at, keeps) for topic, n, offset, at, keeps in rows
    }
    return queues, number
