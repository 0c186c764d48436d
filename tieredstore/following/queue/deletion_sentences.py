"""What a person must know of queues that were deleted, and of those that were made again. Pure."""

from collections.abc import Mapping, Sequence

from container.names.queue_id import QueueId
from dispatcher.ports import DeletedQueue

NAMED_MAX = 3
"""Topics that one sentence names."""


def deletion_sentence(waiting: Mapping[QueueId, int], *, has_pins: bool) -> str:
    """What a person must know of queues that were deleted, and how many messages of each wait.

    Pure; at least one queue.
    """
    named = _named(list(dict.fromkeys(queue.topic for queue in waiting)))
    left = sum(waiting.values())
    if not left:
        return f"{named} deleted on the broker; all that was seen of that is tiered."
    if has_pins:
        became = "is tiered all the same, from pinned files"
    else:
        became = "becomes a gap, for nothing is pinned"
    noun = "message" if left == 1 else "messages"
    return f"{named} deleted on the broker; what waits of that, {left:,} {noun}, {became}."


def beyond_sentences(ends: Mapping[QueueId, int]) -> list[str]:
    """What a person must know of queues that were deleted while they were not known to their end.

    Given where each was damaged or unreadable. One sentence or none. Pure.
    """
    if not ends:
        return []
    queue, end = next(iter(ends.items()))
    others = f", as {len(ends) - 1:,} other queues were," if len(ends) > 1 else ""
    sentence = (
        f"{queue} was damaged or unreadable from offset {end} on{others} when it was deleted: how "
        "many messages lay there is not known, and none of them is tiered."
    )
    return [sentence]


def again_deleted_sentence(queue: QueueId, waiting: int) -> str:
    """What a person must know of a queue that was made again and deleted before its turn came."""
    return (
        f"{queue} was deleted again on the broker while messages of an earlier deletion waited; "
        f"{waiting:,} messages of later queues are tiered in their turn, from pinned files."
    )


def again_sentences(again: Mapping[QueueId, DeletedQueue]) -> list[str]:
    """What a person must know of queues that were made again; one sentence or none. Pure."""
    hidden = {queue: deleted.end for queue, deleted in again.items() if deleted.end}
    if not hidden:
        return []
    queue, end = next(iter(hidden.items()))
    named = _named(list(dict.fromkeys(queue.topic for queue in hidden)))
    sentence = (
        f"{named} made again on the broker after a deletion, and counts offsets from 0 again: "
        f"messages below the old end are not tiered, which is {end} in {queue}."
    )
    return [sentence]


def _named(topics: Sequence[str]) -> str:
    """The topics and their verb."""
    if len(topics) == 1:
        return f"{topics[0]} was"
    if len(topics) <= NAMED_MAX:
        return f"{' and '.join(topics)} were"
    return f"{len(topics):,} topics, such as {topics[0]}, were"
