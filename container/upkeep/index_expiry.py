"""Index files without messages become tombstones, whatever took the messages."""

from collections.abc import Mapping, Sequence

from container.metadata.operations import AddTombstones, DropIndexFile
from container.metadata.records import IndexFile, Queue
from container.metadata.state import StateChange, TierState
from container.names.index_base import IndexBase
from container.names.queue_id import QueueId
from container.upkeep.retention import EXPIRED
from container.upkeep.step import QUEUES_PER_TURN, OwnedTier, Step

ROWS_PER_TURN = 5_000
"""Rows of coverage that are looked at before other tasks get a turn: some ms."""


class IndexExpiryStep(Step):
    """Unpublishes index files all of whose messages have expired, were cut off or deleted.

    Each file has a *witness*: a row of its coverage that still has messages. Only where the queue
    of a witness lost messages is another one sought, from there on: what came before it is gone for
    good. So all runs together cost O(coverage) once for each file, whatever the tier has.
    """

    name = "index-expiry"

    def __init__(self, tier: OwnedTier) -> None:
        super().__init__(tier)
        self._sought: dict[str, int] = dict.fromkeys(tier.state.index_files, 0)
        """Files without a known witness, and the row from which one is sought."""
        self._witnesses: dict[QueueId, dict[str, int]] = {}
        """By queue, the files whose witness is a row of it, and which."""
        self._known: dict[str, QueueId] = {}
        """By file, the queue of its witness."""
        self._begins: dict[QueueId, int] | None = None
        """Of each queue its first offset, 0 where it is missing, while there are files without
        coverage; None: there are none."""
        self._bare_is_due = True
        self._firsts: dict[QueueId, int] = {}
        """Of each queue with a witness, the first offset as it was last seen."""
        self._expired = 0

    def __repr__(self) -> str:
        return f"<IndexExpiryStep: {self._expired} files expired>"

    def published(self, changes: Sequence[StateChange]) -> None:
        """Seek witnesses again where an entry has taken messages, or changed an index file."""
        for change in changes:
            for name, file in change.index_files.changed.items():
                self._forget(name)
                if file is not None:
                    self._sought[name] = 0
                    self._bare_is_due |= not file.coverage
            for queue_id, record in change.queues.changed.items():
                first = None if record is None else record.min_offset
                if queue_id in self._witnesses and self._firsts.get(queue_id) != first:
                    self._sought.update(self._witnesses.pop(queue_id))
                    self._firsts.pop(queue_id, None)
                if self._begins is not None and self._begins.get(queue_id, 0) != first:
                    self._begins[queue_id] = first or 0
                    self._bare_is_due = True

    def _forget(self, name: str) -> None:
        self._sought.pop(name, None)
        queue = self._known.pop(name, None)
        if queue is not None and queue in self._witnesses:
            self._witnesses[queue].pop(name, None)

    async def step(self) -> None:
        """Unpublish what has expired, in one entry. What happens meanwhile is for the next run.

        Raises:
            Unavailable, Fenced: as `Journal.publish`.
        """
        names = [name for name in list(self._sought) if not await self._has_witness(name)]
        if self._bare_is_due:
            self._bare_is_due = False
            names += await self._bare_expired()
        planned = self.tier.journal.planned
        names = [
            name
            for name in dict.fromkeys(names)
            if name in planned.index_files
            and name not in planned.tombstones
            and not _has_messages(planned, planned.index_files[name])
        ]
        if names:
            dead = tuple(self.tier.tombstone(name, EXPIRED) for name in names)
            drops = [DropIndexFile(name) for name in names]
            await self.tier.journal.publish([*drops, AddTombstones(dead)])
            self._expired += len(names)

    async def _has_witness(self, name: str) -> bool:
        """Seek a row with messages; others have turns meanwhile. True where none is needed."""
        while (at := self._sought.get(name)) is not None:
            file = self.tier.state.index_files.get(name)
            if file is None or name in self.tier.state.tombstones or not file.coverage:
                del self._sought[name]
                return True
            queues = self.tier.state.queues
            for row in range(at, min(at + ROWS_PER_TURN, len(file.coverage))):
                queue, _, end = file.coverage[row]
                bounds = queues.bounds_of(queue)
                if bounds is not None and end > bounds.min_offset:
                    del self._sought[name]
                    self._known[name] = queue
                    self._firsts[queue] = bounds.min_offset
                    self._witnesses.setdefault(queue, {})[name] = row
                    return True
            if at + ROWS_PER_TURN >= len(file.coverage):
                return False
            self._sought[name] = at + ROWS_PER_TURN
            await self.tier.clock.sleep(0)
        return True

    async def _bare_expired(self) -> list[str]:
        """Files without coverage whose messages are gone. O(queues) where RocketMQ made some."""
        state = self.tier.state
        files = [one for one in state.index_files.values() if not one.coverage]
        bare = [one for one in files if one.object_name not in state.tombstones]
        oldest_ms: int | None = None
        if all(map(_is_cut_off, bare)):
            self._begins = None
        else:
            known = state.queues
            self._begins = {one.id: int(one.min_offset) for one in known.bounds() if one.min_offset}
            oldest_ms = await self._oldest_ms()
        return bare_expired(bare, oldest_ms)

    async def _oldest_ms(self) -> int | None:
        """Smallest store timestamp that the tier may still have; others have turns meanwhile."""
        queues = self.tier.state.queues
        oldest_ms: int | None = None
        for number, name in enumerate(list(queues)):
            if number % QUEUES_PER_TURN == QUEUES_PER_TURN - 1:
                await self.tier.clock.sleep(0)
            queue = queues.peek(name)
            stamp = None if queue is None else _oldest_ms(queue)
            if stamp is not None and (oldest_ms is None or stamp < oldest_ms):
                oldest_ms = stamp
        return oldest_ms

    @property
    def figures(self) -> Mapping[str, int]:
        """Index files whose messages were gone."""
        return {"index_files_expired": self._expired}


def bare_expired(bare: Sequence[IndexFile], oldest_ms: int | None) -> list[str]:
    """Index files without coverage all of whose messages are older than those of all queues. Pure.

    RocketMQ made them, and they do not say which messages they have: one was made, and its newest
    message was stored, before the oldest of every queue. Where hosts are IPv6 addresses its header
    has a part of one as the time of the newest message, 1 for example; when it was made is right.
    """
    found: list[str] = []
    for file in bare:
        newest_ms = max(file.begin_timestamp, file.end_timestamp)
        if _is_cut_off(file) or (oldest_ms is not None and newest_ms < oldest_ms):
            found.append(file.object_name)
    return found


def _is_cut_off(file: IndexFile) -> bool:
    """Whether a file without coverage is ours, all that it covered having been cut off."""
    base = IndexBase.parse(file.object_name)
    return base is not None and base.epoch > 0


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
