"""Filters of a query as choices of what is read.

Spark 4.3.0 keeps what one query has pushed for the next query of the same DataFrame, which then
lacks rows. So filters are pushed only on a word (`pushFilters`), for a DataFrame of one query.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from container.names.rocketmq import INT64_MAX
from tieredstore.offline.wanted_messages import WantedMessages

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
Narrow = Callable[[WantedMessages, Any], WantedMessages]


class PushedFilters:
    """Narrows what a reader reads by filters on topic, queue_id, queue_offset, store_timestamp.

    Each filter is also given back, so Spark applies it to the rows that come: what is read may be
    more than what is wanted, never less.
    """

    _wanted: WantedMessages

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Take what narrows the reading; returns all filters."""
        for one in filters:
            self._wanted = narrowed(self._wanted, one)
        return filters


def narrowed(wanted: WantedMessages, one: Filter) -> WantedMessages:
    """What is wanted where a filter holds, too; the same where it says nothing to us."""
    attribute = getattr(one, "attribute", ())
    narrow = _NARROW.get((attribute[0], type(one))) if len(attribute) == 1 else None
    return wanted if narrow is None else narrow(wanted, getattr(one, "value", None))


def _topics(wanted: WantedMessages, values: Iterable[Any]) -> WantedMessages:
    found = frozenset(str(value) for value in values if value is not None)
    return replace(wanted, topics_seen=_both(wanted.topics_seen, found))


def _queues(wanted: WantedMessages, values: Iterable[Any]) -> WantedMessages:
    found = frozenset(int(value) for value in values if value is not None)
    return replace(wanted, numbers=_both(wanted.numbers, found))


def _both(one: frozenset[Any] | None, other: frozenset[Any]) -> frozenset[Any]:
    return other if one is None else one & other


def _offsets(wanted: WantedMessages, low: int, high: int) -> WantedMessages:
    first, end = wanted.offsets
    return replace(wanted, offsets=(max(first, low), min(end, high)))


def _times(wanted: WantedMessages, low: int | None, high: int | None) -> WantedMessages:
    since = [one for one in (wanted.since_ms, low) if one is not None]
    until = [one for one in (wanted.until_ms, high) if one is not None]
    return replace(wanted, since_ms=max(since, default=None), until_ms=min(until, default=None))


def _ms(value: Any) -> int | None:  # noqa: ANN401 - whatever Spark gives
    """The millisecond that holds a moment; None for what is no moment with a time zone."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return (value - _EPOCH) // _MS


def _until(value: Any) -> int | None:  # noqa: ANN401 - as above
    """The first millisecond behind the one that holds a moment."""
    at = _ms(value)
    return None if at is None else at + 1


_NARROW: Mapping[tuple[str, type[Filter]], Narrow] = {
    ("topic", EqualTo): lambda wanted, value: _topics(wanted, [value]),
    ("topic", In): _topics,
    ("queue_id", EqualTo): lambda wanted, value: _queues(wanted, [value]),
    ("queue_id", In): _queues,
    ("queue_offset", EqualTo): lambda wanted, value: _offsets(wanted, value, value + 1),
    ("queue_offset", GreaterThan): lambda wanted, value: _offsets(wanted, value + 1, INT64_MAX),
    ("queue_offset", GreaterThanOrEqual): lambda wanted, value: _offsets(wanted, value, INT64_MAX),
    ("queue_offset", LessThan): lambda wanted, value: _offsets(wanted, 0, value),
    ("queue_offset", LessThanOrEqual): lambda wanted, value: _offsets(wanted, 0, value + 1),
    ("store_timestamp", EqualTo): lambda wanted, value: _times(wanted, _ms(value), _until(value)),
    ("store_timestamp", GreaterThan): lambda wanted, value: _times(wanted, _ms(value), None),
    ("store_timestamp", GreaterThanOrEqual): lambda wanted, value: _times(wanted, _ms(value), None),
    ("store_timestamp", LessThan): lambda wanted, value: _times(wanted, None, _until(value)),
    ("store_timestamp", LessThanOrEqual): lambda wanted, value: _times(wanted, None, _until(value)),
}
