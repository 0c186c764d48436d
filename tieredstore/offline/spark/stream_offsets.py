"""The beginning of a stream, the end of a batch, and data loss that ends a stream. Pure.

Offsets are `{"topic/queue": n}`: the stream has every message of that queue below `n`. Spark keeps
them in the checkpoint, and requests a batch again between the same two after a failure. Marks
beside them identify tier and queues; their names begin with `@`, as no topic does:

    {"Orders/0": 17, "@tier": 1795490527751, "@generation Orders/0": 2, "@initial": 0}

Spark keeps only the end of the first batch, and requests its beginning again after a restart, when
the answer may differ. So the first batch is empty: its end is the beginning of the stream.
`@initial` is 1 in a beginning, which no checkpoint has, and 0 in every end. Checkpoints of older
versions lack it. A stream that may lack messages starts again in a queue that was created again:
`@life Orders/0` is the generation of its last such start. A batch whose end has another generation
than its start begins at the first message of the queue. `@topic Orders/0` is the id of its topic,
which a topic that is created again does not keep, as one that was truncated does.

`@sequence`, `@entry`, `@epoch` and `@owner` are number and checksum of the journal entry, and the
owner, that the stream saw last. A tier that was put back from an older copy has an earlier entry,
another entry of that number, or another owner in that epoch. Checkpoints of older versions lack
`@entry`, and an entry that was deleted after a snapshot is not compared.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import orjson

from container.metadata.records import Gap
from container.names.queue_id import QueueId
from tieredstore.config.sources import ConfigError
from tieredstore.offline.scan.split import Runs, Seen

EARLIEST, LATEST = "earliest", "latest"
Offsets = dict[str, int]
"""By `topic/queue`: the first queue offset that is not in the stream yet; and marks."""
MARK, TIER_MARK, GENERATION_MARK = "@", "@tier", "@generation "
INITIAL_MARK, LIFE_MARK, TOPIC_MARK = "@initial", "@life ", "@topic "
SEQUENCE_MARK, ENTRY_MARK = "@sequence", "@entry"
EPOCH_MARK, OWNER_MARK = "@epoch", "@owner"
POSITION_MARKS = (SEQUENCE_MARK, EPOCH_MARK, OWNER_MARK, ENTRY_MARK)
"""Of the fields of `Seen`, without the first."""


class TieredOffsets(NamedTuple):
    """Offsets `[first, end)` of a queue in the tier, without those in gaps."""

    first: int
    end: int
    gaps: Sequence[Gap] = ()
    generation: int = 0
    """Increased by every truncation, and when a queue is created again."""
    is_made_again: bool = False
    """Whether the queue was ever created again, with no message of before."""
    topic_id: int | None = None
    """Id of the topic. None: unknown."""


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


def initial(offsets: Mapping[str, int]) -> Offsets:
    """The beginning of a stream at these offsets."""
    return {**offsets, INITIAL_MARK: 1}


def is_initial(offsets: Mapping[str, int]) -> bool:
    """Whether offsets are a beginning, which Spark keeps nowhere."""
    return bool(offsets.get(INITIAL_MARK))


def end_of_first_batch(start: Mapping[str, int]) -> Offsets:
    """The end of the empty first batch, which keeps the beginning in the checkpoint."""
    assert is_initial(start), "later batches have messages"
    return {**start, INITIAL_MARK: 0}


def is_first_batch_of_older_program(start: Mapping[str, int], end: Mapping[str, int]) -> bool:
    """Whether a first batch was planned by a program that did not keep its beginning."""
    return is_initial(start) and INITIAL_MARK not in end


def refuse_unknown_beginning() -> None:
    """Refuse to read a first batch whose beginning depends on the time of the question.

    Raises:
        MissingMessages: always.
    """
    raise MissingMessages(
        "an older program planned the first batch of this checkpoint and did not keep its "
        "beginning, which startingOffsets=latest or a relative startTime cannot give again: begin "
        "with a new checkpoint; failOnDataLoss=false begins at what the options mean now"
    )


def capped(
    start: Mapping[str, int], bounds: Mapping[str, TieredOffsets], rows_max: int | None
) -> Offsets:
    """The end of the next batch: at most `rows_max` messages, shared fairly.

    Every queue gets the same share, and what small ones leave goes to the others; if there are
    more queues than rows, those with most waiting messages get one each. Offsets without a message
    (expired, or in a gap) count nothing. A queue that `start` does not know gets its first offset
    and no message: from then on it is known, so that no batch depends on the time of a poll. What
    is in `start` never goes back.
    """
    offsets = dict(start)
    backlog: list[tuple[int, str, Runs]] = []
    for name, has in bounds.items():
        if name not in offsets:
            offsets[name] = has.first
        elif has.end > offsets[name]:
            runs = _present(offsets[name], has)
            backlog.append((sum(end - first for first, end in runs), name, runs))
    left = rows_max
    backlog.sort(reverse=left is not None and left < len(backlog))
    for number, (waiting, name, runs) in enumerate(backlog):
        step = waiting if left is None else min(waiting, -(-left // (len(backlog) - number)))
        left = None if left is None else left - step
        if step == waiting:
            offsets[name] = bounds[name].end
        elif step:
            offsets[name] = _after(step, runs)
    return offsets


def _present(first: int, has: TieredOffsets) -> Runs:
    """The queue offsets from `first` on that have a message, as far as the metadata know."""
    runs: Runs = []
    at = max(first, has.first)
    for gap in sorted(has.gaps, key=lambda one: one.start):
        if at < gap.start < has.end:
            runs.append((at, gap.start))
        at = max(at, gap.end)
    return [*runs, (at, has.end)] if at < has.end else runs


def _after(count: int, runs: Runs) -> int:
    """The offset after the first `count` messages of runs that have more."""
    for first, end in runs:
        if count <= end - first:
            return first + count
        count -= end - first
    raise AssertionError("the runs have fewer messages")


class Stretch(NamedTuple):
    """Messages `[start, end)` of one queue."""

    queue: QueueId
    start: int
    end: int


def stretches(
    start: Mapping[str, int],
    end: Mapping[str, int],
    bounds: Mapping[str, TieredOffsets],
    *,
    fail_on_data_loss: bool,
) -> list[Stretch]:
    """Return the stretches of a batch between two offsets, in order of queues.

    Raises:
        MissingMessages: with `fail_on_data_loss`, messages of the batch are not in the tier: they
            expired, were deleted or truncated, or were lost before they could be tiered.
    """
    found: list[Stretch] = []
    for name, last in sorted(end.items()):
        life, has = LIFE_MARK + name, bounds.get(name, TieredOffsets(last, last))
        begins_anew = start.get(life) != end.get(life)
        first = 0 if begins_anew else start.get(name, last)
        if first >= last or name.startswith(MARK) or _is_other_life(end, name, has):
            continue
        if fail_on_data_loss:
            _refuse_loss(name, first, last, has)
        low, high = max(first, has.first), min(last, has.end)
        if low < high:
            found.append(Stretch(parse_queue(name), low, high))
    return found


def begun_anew(start: Mapping[str, int], bounds: Mapping[str, TieredOffsets]) -> Offsets:
    """Return the start of a stream that may lack messages.

    Queues that were created again begin at their first message.
    """
    found = dict(start)
    for name, has in bounds.items():
        if name in start and _is_other_life(start, name, has):
            found |= {name: has.first, LIFE_MARK + name: has.generation}
    return found


def _is_other_life(offsets: Mapping[str, int], name: str, has: TieredOffsets) -> bool:
    """Whether a queue was recreated since; offsets without marks are not compared."""
    if TIER_MARK not in offsets or offsets.get(GENERATION_MARK + name, 0) == has.generation:
        return False
    topic_id = offsets.get(TOPIC_MARK + name)
    return has.is_made_again and (topic_id is None or topic_id != has.topic_id)


def _refuse_loss(name: str, first: int, last: int, has: TieredOffsets) -> None:
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


def refuse_ahead(start: Mapping[str, int], bounds: Mapping[str, TieredOffsets]) -> None:
    """Refuse to continue if the tier has fewer messages than the stream has read.

    Raises:
        MissingMessages: a queue ends before the offset that the stream has reached: it was cut
            back, or deleted and recreated, and new messages would be taken for old ones.
    """
    for name, offset in sorted(start.items()):
        has = bounds.get(name)
        if has is not None and has.end < offset:
            raise MissingMessages(
                f"{name} ends at {has.end}, and the stream has read up to {offset}: the queue was "
                f"truncated or recreated; failOnDataLoss=false continues when it is longer"
            )


def refuse_deleted(start: Mapping[str, int], names: Collection[str]) -> None:
    """Refuse to continue without queues that the stream reads and the tier no longer has.

    Args:
        start: the offsets of the stream, of queues that are wanted.
        names: the queues of the tier.

    Raises:
        MissingMessages: one was deleted. Messages that were published after the last batch are
            unknown.
    """
    for name, offset in sorted(start.items()):
        if not name.startswith(MARK) and name not in names:
            raise MissingMessages(
                f"{name} was deleted, and the stream has read up to {offset}: messages from there "
                f"on may be lost; failOnDataLoss=false goes on without the queue"
            )


def marked(
    offsets: Mapping[str, int], bounds: Mapping[str, TieredOffsets], journal: Seen
) -> Offsets:
    """Return offsets with the marks of the tier in which they count. Keeps order.

    Generations of 0, which nearly all are, need no mark.
    """
    found = {**offsets, TIER_MARK: journal.begun_ms}
    seen = dict(zip(POSITION_MARKS, journal[1:], strict=True))
    found = {name: number for name, number in found.items() if name not in seen}
    found |= {mark: number for mark, number in seen.items() if number}
    for name in offsets:
        mark, has = GENERATION_MARK + name, bounds.get(name)
        if has is not None and (has.generation or mark in found):
            found[mark] = has.generation
            found |= {} if has.topic_id is None else {TOPIC_MARK + name: has.topic_id}
    return found


def advances(start: Mapping[str, int], end: Mapping[str, int]) -> bool:
    """Whether there is a batch between two offsets. New journal entries alone are none."""
    one, two = (
        {name: number for name, number in offsets.items() if name not in POSITION_MARKS}
        for offsets in (start, end)
    )
    return one != two


def refuse_other_tier(start: Mapping[str, int], now: Seen, entry: int = 0) -> None:
    """Refuse to continue in a tier that was created again, or put back from an older copy.

    Only what is known on both sides is compared. `entry` is the checksum that the journal's entry
    of the number in `start` has now; 0: unknown.

    Raises:
        MissingMessages: it was, or this process sees an older state of the tier.
    """
    before = Seen(start.get(TIER_MARK, 0), *(start.get(mark, 0) for mark in POSITION_MARKS))
    if before.begun_ms and now.begun_ms and before.begun_ms != now.begun_ms:
        raise MissingMessages(
            "the tier was recreated since the stream's checkpoint was begun, so its offsets may "
            "be those of other messages: begin with a new checkpoint"
        )
    if not before.is_continued_by(now, entry):
        raise MissingMessages(
            f"the tier is at entry {now.sequence} of owner {now.epoch}, and the stream has read up "
            f"to entry {before.sequence} of owner {before.epoch} of another history: read it where "
            f"it is up to date; if it was put back from an older copy, its offsets may be those of "
            f"other messages: begin with a new checkpoint"
        )


def refuse_other_generation(start: Mapping[str, int], bounds: Mapping[str, TieredOffsets]) -> None:
    """Refuse to take messages of a queue that was cut or recreated for those to come.

    Raises:
        MissingMessages: one was, even if it is longer by now than the stream has read, and even if
            the stream has read nothing of it: its messages are gone. Offsets without marks are of
            an older program, and are not compared.
    """
    if TIER_MARK not in start:
        return
    for name, offset in sorted(start.items()):
        has = bounds.get(name)
        if has is not None:
            before = start.get(GENERATION_MARK + name, 0)
            if has.generation != before:
                raise MissingMessages(
                    f"{name} was truncated or recreated since the stream has read up to {offset}, "
                    f"so its offsets may be those of other messages; failOnDataLoss=false goes on"
                )
