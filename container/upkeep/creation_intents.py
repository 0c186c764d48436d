"""Creation intents: the first files of a queue are announced before they are created."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice

from container.metadata.operations import (
    AddTombstones,
    DropTombstones,
    EndAttempt,
    Operation,
    PutAttempt,
)
from container.metadata.records import Attempt
from container.metadata.state import TierState
from container.names.queue_id import QueueId
from container.names.rocketmq import parse_segment_name
from container.steps.deletion import NEVER_PUBLISHED
from container.steps.step import OwnedTier, Step
from container.upkeep.snapshots import SnapshotStep
from provider.file_segments import FileSegments

KIND = "first files"
"""The kind of the attempts that announce them."""
DROPPED = "dropped queue"
"""The kind of the attempts that announce what a deleted queue may still leave."""


def attempt_of(queue: QueueId) -> str:
    """The name of the attempt that announces a queue's first files."""
    return f"{KIND}: {queue}"


def announcements(
    state: TierState, queues: Iterable[QueueId], *, epoch: int, now_ms: int
) -> list[PutAttempt]:
    """What must be published before files of `queues` are made. Pure; empty if all are known."""
    wanted: list[PutAttempt] = []
    for queue in queues:
        known = state.attempts.get(attempt_of(queue))
        is_known = known is not None and (known.kind, known.epoch) == (KIND, epoch)
        if queue not in state.queues and not is_known:
            wanted.append(PutAttempt(Attempt(attempt_of(queue), KIND, now_ms, epoch, f"{queue}/")))
    return wanted


def taken_up(state: TierState, queues: Collection[QueueId]) -> list[Operation]:
    """What the transaction that begins `queues` does to their announcements. Pure.

    Files that an earlier owner has left of them may be ours by now: their tombstones go. The
    commit itself says which of the names are in use.
    """
    announced = {str(queue): queue for queue in queues if attempt_of(queue) in state.attempts}
    ended: list[Operation] = [EndAttempt(attempt_of(queue)) for queue in announced.values()]
    left = left_of(state, queues)
    return [*ended, DropTombstones(tuple(left))] if left else ended


def left_of(state: TierState, queues: Iterable[QueueId]) -> list[str]:
    """Files with tombstones in the directories of `queues` that the tier does not have. Pure.

    No deletion of them may be on its way when their tombstones go: nothing would repeat it.
    """
    begun = {str(queue) for queue in queues if queue not in state.queues}
    return [
        name for queue in sorted(begun) for name in sorted(state.tombstones.in_directory(queue))
    ]


def _queue_of(attempt: Attempt) -> QueueId:
    """The queue that an attempt has announced."""
    topic, number = attempt.output_prefix.rstrip("/").rsplit("/", 1)
    return QueueId(topic, int(number))


class FirstFilesStep(Step):
    """Gives tombstones to files that earlier owners have announced and not published.

    Those are first files, and what a deleted queue has left.

    One request for each announced queue, after the first snapshot and at a clean end; at most
    `orphan_queues_per_step_max` in a run. Waits while the owner that announced them may still live.
    """

    name = "first_files"

    def __init__(
        self, tier: OwnedTier, snapshots: SnapshotStep, segments: FileSegments | None
    ) -> None:
        super().__init__(tier)
        self._snapshots = snapshots
        self._segments = segments
        self._found = 0

    async def step(self) -> None:
        """Look for what the next announced queues have left.

        Raises:
            Unavailable: the next run begins again.
            Fenced: a newer owner has the tier.
        """
        if self._snapshots.written > 0:
            await self._search()

    async def finish(self) -> None:
        """Look once more. Raises what `step` raises."""
        await self._search()

    async def _search(self) -> None:
        left = islice(self._of_earlier_owners(), self.tier.options.orphan_queues_per_step_max)
        listed: list[tuple[Attempt, Sequence[str]]] = []
        for attempt in list(left):
            entries = await self.tier.store.list(attempt.output_prefix)
            segments = [one.name for one in entries if parse_segment_name(one.name) is not None]
            listed.append((attempt, segments))
        operations: list[Operation] = []
        found: list[str] = []
        planned = self.tier.journal.planned
        for attempt, names in listed:
            if planned.attempts.get(attempt.attempt_id) != attempt:
                continue  # a commit of ours has taken it up meanwhile
            operations.append(EndAttempt(attempt.attempt_id))
            if _queue_of(attempt) not in planned.queues:
                found += [name for name in names if name not in planned.tombstones]
        if found:
            dead = (self.tier.tombstone(name, NEVER_PUBLISHED) for name in found)
            operations.append(AddTombstones(tuple(dead)))
        if operations:
            await self.tier.journal.publish(operations)
            self._found += len(found)

    def _of_earlier_owners(self) -> Iterable[Attempt]:
        epoch = self.tier.journal.epoch
        return (
            one
            for one in self.tier.state.attempts.values()
            if one.kind in {KIND, DROPPED}
            and one.epoch < epoch
            and not (self._segments is not None and self._segments.must_roll(one.epoch))
        )

    @property
    def figures(self) -> Mapping[str, int]:
        """First files of earlier owners that were never published, and were given tombstones."""
        return {"first_files": self._found}
