"""What an error means for a queue: one table, and the sentences that people read. Pure."""

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from container.errors import BytesMissing, Refused
from container.names.queue_id import QueueId
from container.queue.commit_plan import CommitPlan
from provider.errors import (
    AlreadyExists,
    Closed,
    Denied,
    Fenced,
    OutOfRange,
    StoreError,
    Unavailable,
)


class Reaction(Enum):
    """What follows an error."""

    END = "end"
    """All dispatching ends: the tier or the hot log is not ours any more."""
    RETRY = "retry"
    """The same is tried again after a pause."""
    REOPEN = "reopen"
    """The queue is opened again after a pause; the next poll says what the hot log still has."""
    REST = "rest"
    """The queue is opened again after pauses that grow, and is halted between them: what keeps it
    from the tier may pass. Published bytes are missing, another writer has the file, or files of
    a dropped queue still have to be deleted."""
    HALT = "halt"
    """The queue is halted until the hot log is mended, a person repairs it, or a restart."""


class _Row(NamedTuple):
    error: type[StoreError]
    reading: Reaction
    """When the messages of a queue, or their references, were to be read from the hot log."""
    tiering: Reaction
    """When a queue was to be opened, or its commit to be written and published."""


_TABLE = (
    _Row(Fenced, Reaction.END, Reaction.END),
    _Row(Closed, Reaction.END, Reaction.END),
    _Row(Unavailable, Reaction.RETRY, Reaction.RETRY),
    _Row(Denied, Reaction.RETRY, Reaction.RETRY),
    _Row(OutOfRange, Reaction.REOPEN, Reaction.REST),
    _Row(AlreadyExists, Reaction.HALT, Reaction.REST),
    _Row(Refused, Reaction.HALT, Reaction.REST),
    _Row(StoreError, Reaction.HALT, Reaction.HALT),
)
"""The first row whose class fits decides."""


def reaction_to_reading(error: StoreError) -> Reaction:
    """What follows an error of the hot log while it was read, or of planning what was read."""
    return _row(error).reading


def reaction_to_tiering(error: StoreError) -> Reaction:
    """What follows an error of opening a queue or of committing a round."""
    return _row(error).tiering


def _row(error: StoreError) -> _Row:
    return next(row for row in _TABLE if isinstance(error, row.error))


def refused_queue(plans: Sequence[CommitPlan], error: StoreError) -> QueueId | None:
    """The queue that a round failed for; None if it may be any of them, or the whole tier's.

    Names of queues, segments and records begin with topic and queue.
    """
    if reaction_to_tiering(error) is Reaction.RETRY:
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
