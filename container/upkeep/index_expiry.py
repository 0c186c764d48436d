"""Index files without messages become tombstones, whatever took the messages."""

from collections.abc import Mapping, Sequence

from container.metadata.operations import AddTombstones, DropIndexFile
from container.metadata.records import IndexFile, Queue
from container.metadata.state import StateChange, TierState
from container.names.index_base import IndexBase
from container.names.queue_id import QueueId
from container.upkeep.retention import EXPIRED
from container.upkeep.step import OwnedTier, Step


class IndexExpiryStep(Step):
    """Unpublishes index files all of whose messages have expired, were cut off or deleted.

    Looks only where messages have gone or files have come since the last look: O(coverage).
    """

    name = "index-expiry"

    def __init__(self, tier: OwnedTier) -> None:
        super().__init__(tier)
        self._is_due = True
        self._firsts = {
            one.id: one.min_offset for one in tier.state.queues.bounds() if one.min_offset
        }
        """Of each queue, the first offset as it was last seen; 0 where it is missing."""
        self._expired = 0

    def __repr__(self) -> str:
        return f"<IndexExpiryStep: {self._expired} files expired>"

    def published(self, changes: Sequence[StateChange]) -> None:
        """Look again if an entry has taken messages, or has published an index file."""
        for change in changes:
            self._is_due |= bool(change.index_files.changed)
            for queue_id, record in change.queues.changed.items():
                first = None if record is None else record.min_offset
                if self._firsts.get(queue_id, 0) != first:
                    self._note(queue_id, record)

    def _note(self, queue_id: QueueId, record: Queue | None) -> None:
        if record is None or not record.min_offset:
            self._firsts.pop(queue_id, None)
        else:
            self._firsts[queue_id] = record.min_offset
        self._is_due = True

    async def step(self) -> None:
        """Unpublish what has expired, in one entry.

        Raises:
            Unavailable, Fenced: as `Journal.publish`.
        """
        if not self._is_due:
            return
        names = expired(self.tier.journal.planned)
        if names:
            dead = tuple(self.tier.tombstone(name, EXPIRED) for name in names)
            drops = [DropIndexFile(name) for name in names]
            await self.tier.journal.publish([*drops, AddTombstones(dead)])
            self._expired += len(names)
        self._is_due = False

    @property
    def figures(self) -> Mapping[str, int]:
        """Index files whose messages were gone."""
        return {"index_files_expired": self._expired}


def expired(state: TierState) -> list[str]:
    """Index files all of whose messages are gone. Pure; O(coverage of all files).

    Of a file that RocketMQ made, which does not say which messages it has: it was made, and its
    newest message was stored, before the oldest of every queue. Where hosts are IPv6 addresses its
    header has a part of one as the time of the newest message, 1 for example; when it was made is
    right.
    """
    live = [one for name, one in state.index_files.items() if name not in state.tombstones]
    found = [one.object_name for one in live if one.coverage and not _has_messages(state, one)]
    bare = [one for one in live if not one.coverage]
    if not bare:
        return found
    oldest = [stamp for queue in state.queues.values() if (stamp := _oldest_ms(queue)) is not None]
    for file in bare:
        base = IndexBase.parse(file.object_name)
        is_cut_off = base is not None and base.epoch > 0  # ours: a cut took all that it covered
        newest_ms = max(file.begin_timestamp, file.end_timestamp)
        if is_cut_off or (oldest and newest_ms < min(oldest)):
            found.append(file.object_name)
    return found


def _has_messages(state: TierState, file: IndexFile) -> bool:
    """Whether a message that a file covers may be read."""
    queues = state.queues
    return any(
        queue in queues and end > queues[queue].min_offset for queue, _, end in file.coverage
    )


def _oldest_ms(queue: Queue) -> int | None:
    """Smallest store timestamp that a queue may still have; None for one without messages."""
    stamps = [ref.min_timestamp for ref in queue.manifests]
    stamps += [one.begin_timestamp for one in queue.commit_log if one.begin_timestamp is not None]
    return min(stamps, default=None)
