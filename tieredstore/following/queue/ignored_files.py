"""Files in a queue's directory that hold nothing of the queue: each is said once."""

from collections.abc import Iterator

from container.names.rocketmq import local_file_name
from container.record.unit import UNIT_BYTES
from tieredstore.following.queue.files import ConsumeQueueFiles


class IgnoredFiles:
    """Which files of one queue were said to be ignored. One thread at a time."""

    def __init__(self) -> None:
        self._said: set[int] = set()
        """Their first bytes."""

    def __repr__(self) -> str:
        return f"<IgnoredFiles: {len(self._said)}>"

    def beyond(self, files: ConsumeQueueFiles, end: int) -> Iterator[str]:
        """A sentence for each new one after the queue's end; none for one that was just added.

        Raises:
            Unavailable, Denied: one cannot be read now.
        """
        for first, units in files.heads(end):
            is_new = files.is_next(first, end) and len(units) > 0 and not units["size"].any()
            if first * UNIT_BYTES not in self._said and not is_new:
                self._said.add(first * UNIT_BYTES)
                path, _ = files.path_of(first)
                yield (
                    f"{path} lies beyond the queue's end at offset {end} and holds no unit of a "
                    "message that is there: it is ignored."
                )

    def misplaced(self, files: ConsumeQueueFiles) -> list[str]:
        """A sentence for each new one whose name no file of this queue has."""
        run = files.run
        new = [base for base in run.foreign if base not in self._said]
        self._said.update(new)
        return [
            f"{run.directory / local_file_name(base)} is no file of this queue, whose files have "
            f"{run.file_bytes or 'no'} bytes and names that are multiples of that: it is ignored."
            for base in new
        ]
