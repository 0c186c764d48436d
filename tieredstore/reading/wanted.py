"""Which messages of a queue or of a topic are wanted. Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from numbers import Real
from typing import Self

from container.metadata.records import Gap
from container.names.queue_id import QueueId
from fetcher.tag_filter import parse_subscription
from provider.errors import Corrupt

Moment = datetime | int
"""A time: a datetime with its time zone, or Unix ms."""
OnDamage = Callable[[QueueId, int, Corrupt], None]
"""Told queue, offset and cause of a damaged message, which is then passed over."""
OnGap = Callable[[QueueId, Gap], None]
"""Told of messages that were lost before they could be tiered, when a read passes over them."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which messages, as `ReadableTier.messages` describes it."""

    offset: int | None = None
    """First queue offset; None: the oldest."""
    messages_max: int | None = None
    """Messages at most, over all queues; None: to the end."""
    tags: str | None = None
    since_ms: int | None = None
    """Stored at this time or later, Unix ms."""
    until_ms: int | None = None
    """Stored before this time, Unix ms."""
    on_damage: OnDamage | None = None
    on_gap: OnGap | None = None

    @classmethod
    def of(  # noqa: PLR0917 - in the order that the arguments of `messages` have
        cls,
        offset: int | None,
        messages_max: int | None,
        tags: str | None,
        since: Moment | None,
        until: Moment | None,
        on_damage: OnDamage | None,
        on_gap: OnGap | None,
    ) -> Self:
        """What the arguments of `ReadableTier.messages` say.

        Raises:
            ValueError: as `moment_ms` and `parse_subscription`.
        """
        parse_subscription(tags)
        return cls(
            offset=offset,
            messages_max=messages_max,
            tags=tags,
            since_ms=None if since is None else moment_ms(since),
            until_ms=None if until is None else moment_ms(until),
            on_damage=on_damage,
            on_gap=on_gap,
        )


def moment_ms(moment: Moment) -> int:
    """A time in Unix ms, the first that is not before it.

    Raises:
        ValueError: the datetime has no time zone, or this is no time.
    """
    if not isinstance(moment, datetime):
        if isinstance(moment, Real):  # numpy's, too
            return moment
        raise ValueError(f"{moment!r} is no time: give a datetime or Unix ms")
    if moment.tzinfo is None:
        raise ValueError(f"{moment.isoformat()} has no time zone: give one, such as datetime.UTC")
    return -((_EPOCH - moment) // timedelta(milliseconds=1))
