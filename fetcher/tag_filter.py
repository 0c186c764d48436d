"""Subscriptions by tag, matched on ConsumeQueue units before any record is read."""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

import numpy as np
from numpy.typing import NDArray

from container.record.properties import tag_hash

_SQL = re.compile(
    r"[<>=]|\s(AND|OR|IN|BETWEEN|LIKE)\s|^NOT\s"
    r"|(?i:\sis\s+(not\s+)?null\b|\sin\s*\(|\sbetween\s.+\sand\s|\slike\s+')",
    re.ASCII,
)
"""Pattern of SQL92 filters that hardly any tag matches: operators and keywords."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """Wanted tags, at least one."""

    tags: frozenset[str]
    hashes: frozenset[int]
    """Signed 32-bit hashes of the tags."""


def parse_subscription(expression: str | None) -> Subscription | None:
    """Parse `TagA || TagB`. Return None for every message: for None, "" and `*`.

    Tags are trimmed and empty ones dropped, as in RocketMQ's FilterAPI.

    Raises:
        ValueError: the expression consists of `||` and blanks; or it is an SQL92 filter, which as
            a tag would silently match nothing; or it is not a `str`, such as a list of tags.
    """
    if expression is None:
        return None
    given = cast("object", expression)
    if not isinstance(given, str):
        kind = type(given).__name__
        raise ValueError(f"the subscription is of type {kind}, not str: use 'TagA || TagB'")  # noqa: TRY004 - as other wrong arguments
    return _parsed(expression)


@lru_cache(maxsize=1024)
def _parsed(expression: str) -> Subscription | None:
    if expression in ("", "*"):
        return None
    tags = frozenset(filter(None, (piece.strip() for piece in expression.split("||"))))
    if not tags:
        raise ValueError(f"no tag in subscription {expression!r}; for every message use '*'")
    for tag in tags:
        if _SQL.search(tag):
            raise ValueError(
                f"{tag!r} is an SQL92 filter, and only tags are compared, such as TagA || TagB"
            )
    return Subscription(tags, frozenset(tag_hash(tag) for tag in tags))


def matching(tag_hashes: NDArray[np.int32], subscription: Subscription) -> NDArray[np.bool_]:
    """Return a mask of the messages whose tags code is wanted, by its low 32 bits as in RocketMQ.

    A hash collision passes a foreign tag; RocketMQ leaves that to its client. O(n) for each tag,
    about 2 ns a message.
    """
    hashes = iter(subscription.hashes)
    mask = tag_hashes == next(hashes)
    for value in hashes:
        mask |= tag_hashes == value
    return mask
