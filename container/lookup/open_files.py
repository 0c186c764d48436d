"""Items of a Java broker's open index files, for queries."""

from collections.abc import Sequence

from container.index.items import KeyItems, joined
from container.index.open_file import OpenIndex
from container.lookup.coverage import Span
from container.names.queue_id import QueueId

CHAIN_ITEMS_MAX = 65_536
"""Items of one slot that are looked at; RocketMQ looks at 512."""


class OpenFileItems:
    """What open files have; nothing says which messages they cover."""

    has_exact_times = False
    revision = 0

    def __init__(self, files: Sequence[OpenIndex]) -> None:
        self._files = files

    def __repr__(self) -> str:
        return f"<OpenFileItems: {len(self._files)} files>"

    def items_of(self, key_hash: int, topic_id: int) -> KeyItems:
        """Those of a hash.

        Raises:
            Corrupt: the chain of a slot is damaged.
        """
        found = [file.chain(key_hash, items_max=CHAIN_ITEMS_MAX) for file in self._files]
        items = joined(found)
        return items[items["topic_id"] == topic_id]

    def spans(self, queue: QueueId) -> Sequence[Span]:  # noqa: ARG002 - of none it is known
        """None."""
        return ()
