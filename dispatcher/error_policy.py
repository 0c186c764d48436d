"""Error policy: the reaction to each error of a queue, and the sentences for operators. Pure."""

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
    """Consequence of an error."""

    END = "end"
    """All dispatching ends: a newer owner has the tier, or the tier or the hot log is closed."""
    RETRY = "retry"
    """The same operation is retried after a pause."""
    REOPEN = "reopen"
    """The queue is opened again after a pause. The next poll reports its bounds in the hot log."""
    REST = "rest"
    """The queue is opened again after growing pauses. From the third failure in a row on it counts
    as halted between them. The cause may pass: published bytes are missing, another writer has
    the file, or files of a dropped queue are not deleted yet."""
    HALT = "halt"
    """The queue is halted until the hot log recovers, an operator repairs it, or a restart."""


class _Row(NamedTuple):
    error: type[StoreError]
    reading: Reaction
    """Reaction if reading messages or references of a queue from the hot log failed."""
    tiering: Reaction
    """Reaction if opening a queue, or writing and publishing its commit, failed."""


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
"""Reactions by class of error. The first row that matches decides."""


def reaction_to_reading(error: StoreError) -> Reaction:
    """Return the reaction to an error of reading the hot log, or of planning a commit."""
    return _row(error).reading


def reaction_to_tiering(error: StoreError) -> Reaction:
    """Return the reaction to an error of opening a queue or of committing a round."""
    return _row(error).tiering


def _row(error: StoreError) -> _Row:
    return next(row for row in _TABLE if isinstance(error, row.error))


def refused_queue(plans: Sequence[CommitPlan], error: StoreError) -> QueueId | None:
    """Return the queue that made a round fail; None if the error names none, or is retried.

    The path of the error decides if the round has several queues: names of queues, segments and
    records begin with topic and queue.
    """
    if reaction_to_tiering(error) is Reaction.RETRY:
        return None
    if len(plans) == 1:
        return plans[0].queue
    named = f"{error.path}/"
    return next((plan.queue for plan in plans if named.startswith(f"{plan.queue}/")), None)


def refusal_sentence(error: StoreError) -> str:
    """Error sentence for an operator: the cause that keeps a queue from the tier, and a remedy."""
    if isinstance(error, BytesMissing):
        return (
            f"{error.reason} ({error.path} at {error.position}): bring the file back, then tiering "
            f"continues; `tieredstore check` finds all that is missing"
        )
    return str(error)
