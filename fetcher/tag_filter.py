"""Subscriptions by tag, decided on ConsumeQueue units before any record is read."""

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
"""What an SQL92 filter has, and hardly any tag: words in capitals, or what is no plain text."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """The tags that are wanted; at least one."""

    tags: frozenset[str]
    hashes: frozenset[int]
    """Signed 32-bit hashes of the tags."""


def parse_subscription(expression: str | None) -> Subscription | None:
    """Read `TagA || TagB`; None for what means every message: None, "" and `*`.

    Pieces are trimmed and empty ones dropped, as RocketMQ's FilterAPI does.

    Raises:
        ValueError: the expression consists of `||` and blanks; or it is an SQL92 filter, which as
            a tag would match nothing, without a word; or it is no text, such as a list of tags.
    """
    if expression is None:
        return None
    given = cast("object", expression)
    if not isinstance(given, str):
        kind = type(given).__name__
        raise ValueError(f"the subscription is of type {kind}, not str: say 'TagA || TagB'")  # noqa: TRY004 - as other wrong arguments
    return _parsed(expression)


@lru_cache(maxsize=1024)
def _parsed(expression: str) -> Subscription | None:
    if expression in ("", "*"):
        return None
    tags = frozenset(filter(None, (piece.strip() for piece in expression.split("||"))))
    if not tags:
        raise ValueError(f"no tag in subscription {expression!r}; for every message say '*'")
    for tag in tags:
        if _SQL.search(tag):
            raise ValueError(
                f"{tag!r} is an SQL92 filter, and only tags are compared, such as TagA || TagB"
            )
    return Subscription(tags, frozenset(tag_hash(tag) for tag in tags))


def matching(tag_hashes: NDArray[np.int32], subscription: Subscription) -> NDArray[np.bool_]:
    """Which messages' tags code is wanted, by its low 32 bits like RocketMQ's broker.

    A collision of hashes lets a foreign tag through; RocketMQ leaves that to its client. O(n) for
    each tag, some 2 ns a message.
    """
    hashes = iter(subscription.hashes)
    mask = tag_hashes == next(hashes)
    for value in hashes:
        mask |= tag_hashes == value
    return mask
