"""What the tier refuses of one queue: whose fault a failed round is, and how it is told. Pure."""

from collections.abc import Sequence

from container.errors import BytesMissing, Refused
from container.names.queue_id import QueueId
from dispatcher.tier_port import CommitPlan
from provider.errors import AlreadyExists, Denied, OutOfRange, StoreError, Unavailable

MAY_PASS = (OutOfRange, AlreadyExists, Refused)
"""Why the tier refuses one queue's messages for as long as something lasts: published bytes are
missing, a file is being taken over, files of a dropped queue await their deletion."""


def refused_queue(plans: Sequence[CommitPlan], error: StoreError) -> QueueId | None:
    """The queue that a round failed for; None if it may be any of them, or the whole tier's.

    Names of queues, segments and records begin with topic and queue.
    """
    if isinstance(error, Unavailable | Denied):
        return None
    if len(plans) == 1:
        return plans[0].queue
    named = f"{error.path}/"
    return next((plan.queue for plan in plans if named.startswith(f"{plan.queue}/")), None)


def refusal_sentence(error: StoreError) -> str:
    """What a person must know of what keeps a queue from the tier."""
    if isinstance(error, BytesMissing):
        return (
            f"{error.reason} ({error.path} at {error.position}): bring the file back, then it goes "
            f"on; `tieredstore check` tells all that is missing"
        )
    return str(error)
