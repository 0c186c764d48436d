"""Where a stream begins, how far a batch goes, and what it must not pass over. Pure.

Offsets are `{"topic/queue": n}`: the stream has every message of that queue below `n`. Spark keeps
them in the checkpoint, and asks for a batch again between the same two after a failure. Marks
beside them, whose names begin with `@` as no topic does, say in which tier and queues they count:

    {"Orders/0": 17, "@tier": 1795490527751, "@generation Orders/0": 2}
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import orjson

from container.metadata.records import Gap
from container.names.queue_id import QueueId
from tieredstore.config.sources import ConfigError

EARLIEST, LATEST = "earliest", "latest"
Offsets = dict[str, int]
"""By `topic/queue`: the first queue offset that is not in the stream yet; and marks."""
MARK, TIER_MARK, GENERATION_MARK = "@", "@tier", "@generation "


class Bounds(NamedTuple):
    """What the tier has of a queue: offsets `[first, end)`, without those in gaps."""

    first: int
    end: int
    gaps: Sequence[Gap] = ()
    generation: int = 0
    """Raised by every cut, and where a queue is made again."""


class MissingMessages(ValueError):
    """Messages that the stream should have next are not in the tier; one sentence says which."""


def parse_queue(name: str) -> QueueId:
    """The queue that `topic/queue` names.

    Raises:
        ConfigError: it is no such name.
    """
    topic, slash, number = name.rpartition("/")
    if not slash or not topic or not number.isascii() or not number.isdecimal():
        raise ConfigError(f'{name!r} names no queue: write "topic/queue", such as "Orders/0"')
    return QueueId(topic, int(number))


def parse_offsets(text: str, *, option: str, words: Sequence[str] = (EARLIEST, LATEST)) -> Offsets:
    """The offsets in a JSON object, such as `{"Orders/0": 17}`.

    Raises:
        ConfigError: it is none; names `option`, and the words that it takes besides.
    """
    found: Any
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        found = None
    if not isinstance(found, dict):
        raise ConfigError(
            f"{option}: {text!r} is neither {' nor '.join(map(repr, words))} nor a JSON object "
            f'such as {{"Orders/0": 17}}'
        )
    offsets: Offsets = {}
    for name, offset in cast("dict[str, Any]", found).items():
        if not isinstance(offset, int) or isinstance(offset, bool) or offset < 0:
            raise ConfigError(f"{option}: {offset!r} of {name} is no queue offset")
        offsets[str(parse_queue(name))] = offset
    return offsets


def capped(start: Mapping[str, int], bounds: Mapping[str, Bounds], rows_max: int | None) -> Offsets:
    """How far the next batch goes: at most `rows_max` queue offsets, shared fairly.

    Every queue gets the same share, and what small ones leave goes to the others; if there are
    more queues than rows, those with most waiting messages get one each. A queue that `start` does
    not know gets its first offset and no message: from then on it is known, so that no batch
    depends on when it was looked at. What is in `start` never goes back.
    """
    offsets = dict(start)
    behind: list[tuple[int, str]] = []
    for name, has in bounds.items():
        if name not in offsets:
            offsets[name] = has.first
        elif has.end > offsets[name]:
            behind.append((has.end - offsets[name], name))
    left = rows_max
    behind.sort(reverse=left is not None and left < len(behind))
    for number, (waiting, name) in enumerate(behind):
        step = waiting if left is None else min(waiting, -(-left // (len(behind) - number)))
        offsets[name] += step
        left = None if left is None else left - step
    return offsets


class Stretch(NamedTuple):
    """Messages `[start, end)` of one queue."""

    queue: QueueId
    start: int
    end: int


def stretches(
    start: Mapping[str, int],
    end: Mapping[str, int],
    bounds: Mapping[str, Bounds],
    *,
    fail_on_data_loss: bool,
) -> list[Stretch]:
    """What a batch between two offsets consists of, in order of queues.

    Raises:
        MissingMessages: with `fail_on_data_loss`, messages of the batch are not in the tier: they
            expired, were deleted or cut off, or were lost before they could be tiered.
    """
    found: list[Stretch] = []
    for name, last in sorted(end.items()):
        first = start.get(name, last)
        if first >= last or name.startswith(MARK):
            continue
        has = bounds.get(name, Bounds(last, last))
        if fail_on_data_loss:
            _refuse_loss(name, first, last, has)
        low, high = max(first, has.first), min(last, has.end)
        if low < high:
            found.append(Stretch(parse_queue(name), low, high))
    return found


def _refuse_loss(name: str, first: int, last: int, has: Bounds) -> None:
    """Raise for what the tier lacks of `[first, last)`."""
    reasons: Iterable[tuple[int, int, str]] = (
        (first, min(last, has.first), "expired or were deleted"),
        (max(first, has.end), last, "were cut off the tier"),
        *(
            (max(first, gap.start), min(last, gap.end), "were lost before they could be tiered")
            for gap in has.gaps
        ),
    )
    for low, high, reason in reasons:
        if low < high:
            raise MissingMessages(
                f"messages {low} to {high - 1} of {name} {reason}; failOnDataLoss=false passes "
                f"over what is missing"
            )


def refuse_ahead(start: Mapping[str, int], bounds: Mapping[str, Bounds]) -> None:
    """Refuse to go on where the tier has fewer messages than the stream was given.

    Raises:
        MissingMessages: a queue ends before the offset that the stream has reached: it was cut
            back, or deleted and made again, and new messages would be taken for old ones.
    """
    for name, offset in sorted(start.items()):
        has = bounds.get(name)
        if has is not None and has.end < offset:
            raise MissingMessages(
                f"{name} ends at {has.end}, and the stream has read up to {offset}: the queue was "
                f"cut back or made again; failOnDataLoss=false goes on when it is longer"
            )


def marked(offsets: Mapping[str, int], bounds: Mapping[str, Bounds], begun_ms: int) -> Offsets:
    """Offsets that say in which tier they count, begun at `begun_ms` (0: not known). Keeps order.

    Generations of 0, which nearly all are, need no mark.
    """
    found = {**offsets, TIER_MARK: begun_ms}
    for name in offsets:
        mark, has = GENERATION_MARK + name, bounds.get(name)
        if has is not None and (has.generation or mark in found):
            found[mark] = has.generation
    return found


def refuse_other_tier(start: Mapping[str, int], begun_ms: int) -> None:
    """Refuse to go on in a tier that was made again at the same place.

    Raises:
        MissingMessages: it was; where either of the two is not known, nothing is compared.
    """
    before = start.get(TIER_MARK, 0)
    if before and begun_ms and before != begun_ms:
        raise MissingMessages(
            "the tier was made again since the stream's checkpoint was begun, so its offsets may "
            "be those of other messages: begin with a new checkpoint"
        )


def refuse_other_generation(start: Mapping[str, int], bounds: Mapping[str, Bounds]) -> None:
    """Refuse to take messages of a queue that was cut or made again for those to come.

    Raises:
        MissingMessages: one was, even if it is longer by now than the stream has read. Offsets
            without marks are of an older program, and are not compared.
    """
    if TIER_MARK not in start:
        return
    for name, offset in sorted(start.items()):
        has = bounds.get(name)
        if offset and has is not None:
            before = start.get(GENERATION_MARK + name, 0)
            if has.generation != before:
                raise MissingMessages(
                    f"{name} was cut back or made again since the stream has read up to {offset}, "
                    f"so its offsets may be those of other messages; failOnDataLoss=false goes on"
                )
