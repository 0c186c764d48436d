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
"""Kind of the attempts that announce first files."""
DROPPED = "dropped queue"
"""Kind of the attempts that announce files that a deleted queue may still leave."""


def attempt_of(queue: QueueId) -> str:
    """Name of the attempt that announces a queue's first files."""
    return f"{KIND}: {queue}"


def announcements(
    state: TierState, queues: Iterable[QueueId], *, epoch: int, now_ms: int
) -> list[PutAttempt]:
    """Announcements to publish before files of `queues` are created. Pure. Empty if known."""
    wanted: list[PutAttempt] = []
    for queue in queues:
        known = state.attempts.get(attempt_of(queue))
        is_known = known is not None and (known.kind, known.epoch) == (KIND, epoch)
        if queue not in state.queues and not is_known:
            wanted.append(PutAttempt(Attempt(attempt_of(queue), KIND, now_ms, epoch, f"{queue}/")))
    return wanted


def taken_up(state: TierState, queues: Collection[QueueId]) -> list[Operation]:
    """Changes of the announcements in the transaction that begins `queues`. Pure.

    Files left by an earlier owner may have been taken over: their tombstones are dropped. The
    commit itself defines the names in use.
    """
    announced = {str(queue): queue for queue in queues if attempt_of(queue) in state.attempts}
    ended: list[Operation] = [EndAttempt(attempt_of(queue)) for queue in announced.values()]
    left = left_of(state, queues)
    return [*ended, DropTombstones(tuple(left))] if left else ended


def left_of(state: TierState, queues: Iterable[QueueId]) -> list[str]:
    """Files with tombstones in the directories of `queues` that the tier does not have. Pure.

    No deletion of them may be in flight when their tombstones are dropped: nothing would repeat it.
    """
    begun = {str(queue) for queue in queues if queue not in state.queues}
    return [
        name for queue in sorted(begun) for name in sorted(state.tombstones.in_directory(queue))
    ]


def _queue_of(attempt: Attempt) -> QueueId:
    """Queue of an announcing attempt."""
    topic, number = attempt.output_prefix.rstrip("/").rsplit("/", 1)
    return QueueId(topic, int(number))


class FirstFilesStep(Step):
    """Adds tombstones to announced files that earlier owners did not publish.

    These are first files, and files left by a deleted queue.

    One request for each announced queue, after the first snapshot and at a clean end. At most
    `orphan_queues_per_step_max` in a run. Waits while the owner that announced them may be alive.
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
        """Search for files of the next announced queues.

        Raises:
            Unavailable: the next run begins again.
            Fenced: a newer owner has the tier.
        """
        if self._snapshots.written > 0:
            await self._search()

    async def finish(self) -> None:
        """Search once more. Raises as `step`."""
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
                continue  # a commit of ours has begun it since
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
        """First files of earlier owners that were never published, and got tombstones."""
        return {"first_files": self._found}
