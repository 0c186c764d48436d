"""Whether what the hot log has now makes a queue's state one that must be found again. Pure."""

from dispatcher.hot_log import DeletedQueue, HotQueue, HotQueueState
from dispatcher.queue_state import QueueState
from provider.ranges import QueueOffset


def is_outdated(
    state: QueueState,
    hot: HotQueue,
    *,
    commit_offset: QueueOffset,
    heals_at: QueueOffset | None,
    damage_told: bool,
    deleted: DeletedQueue | None,
) -> bool:
    """Whether the queue must be opened again. Asked while no commit is under way.

    Args:
        state: the queue's, found with what the hot log had before.
        hot: what it has now.
        commit_offset: where the tier ends.
        heals_at: a halted queue is opened again once the hot log reaches this offset.
        damage_told: the hot log reported the damage, and will report the end of it.
        deleted: what `hot.deleted` was when the queue was opened.
    """
    if state is QueueState.UNSETTLED:
        return False
    if hot.deleted != deleted:
        return True
    lost = hot.min_offset > commit_offset
    caught_up = heals_at is not None and hot.max_offset >= heals_at
    if state is QueueState.READY:
        return lost
    if state is QueueState.STOPPED:
        return caught_up
    if state is QueueState.DAMAGED:
        mended = damage_told and hot.state is HotQueueState.READY
        return lost or caught_up or mended
    return state is QueueState.REFUSED
