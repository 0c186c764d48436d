"""Options of an export, and the comparison with those of an earlier run."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple, Self, cast

from container.metadata.coverage import merged, without
from container.metadata.records import Queue
from container.metadata.state import TierState
from container.names.queue_id import QueueId
from provider.errors import Unavailable
from tieredstore.config.sources import ConfigError
from tieredstore.offline.scan.planning import WantedMessages
from tieredstore.offline.scan.relocation import EXPIRED
from tieredstore.offline.scan.split import Seen
from tieredstore.offline.tables.open_tier import OpenTier
from tieredstore.reader.arrow import import_arrow

TOPIC = "topic"
"""The column that is in the names of directories, and so in no Parquet file of an export."""
DAY, HOUR = "day", "hour"


class Target(NamedTuple):
    """Destination of an export, for messages to users."""

    kind: str
    """`directory` or `table`."""
    name: str


class Skips(NamedTuple):
    """Faults that an export skips and counts. Otherwise each of them is an error."""

    damage: bool = False
    missing: bool = False
    """Published bytes that are not in the storage."""


NO_SKIPS = Skips()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """Selection of messages and columns of an export. None: not given."""

    topics: tuple[str, ...] | None = None
    queues: tuple[int, ...] | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    tags: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    partition: str | None = None
    """`day`, or `hour` for partitions by topic, day and hour; None: by day in a new export."""

    @property
    def periods_per_day(self) -> int:
        """Partitions of a topic in a day."""
        return 24 if self.partition == HOUR else 1

    @property
    def wanted(self) -> WantedMessages:
        """The selection of messages without tags: tasks filter by tag."""
        return WantedMessages(
            topics=None if self.topics is None else frozenset(self.topics),
            queues=None if self.queues is None else frozenset(self.queues),
            since_ms=self.since_ms,
            until_ms=self.until_ms,
        )

    @classmethod
    def kept(cls, about: Mapping[str, Any]) -> Self:
        """Return the options that a ledger keeps."""
        kept: dict[str, Any] = about["options"]
        listed = {name: _as_tuple(kept[name]) for name in ("topics", "queues", "tags", "columns")}
        partition = kept.get("partition") or DAY
        return cls(
            since_ms=kept["since_ms"], until_ms=kept["until_ms"], partition=partition, **listed
        )

    def given_again(self, given: Self, target: Target) -> Self:
        """These, if nothing else was given for an export that was begun with them.

        Raises:
            ConfigError: something else was.
        """
        mine = asdict(self)
        for name, value in asdict(given).items():
            if value is not None and value != mine[name]:
                word = name.removesuffix("_ms")
                said = _said if word == name else _moment
                raise ConfigError(
                    f"the export in {target.name} was begun with {word} {said(mine[name])}, not "
                    f"{said(value)}: name another {target.kind}, or give no such option to go on"
                )
        return self


def columns_of(options: ExportOptions) -> tuple[str, ...]:
    """The columns of the files.

    Raises:
        ConfigError: as `named_columns`, or no column is left besides the topic.
    """
    found = tuple(name for name in named_columns(options) if name != TOPIC)
    if not found:  # no reader opens a file without a column
        raise ConfigError(
            "columns: the topic is in the names of directories, not in files: name another column"
        )
    return found


def named_columns(options: ExportOptions) -> Sequence[str]:
    """Return the requested columns; all if none is named.

    Raises:
        ConfigError: there is no such column, or one is named twice or as a partition.
    """
    try:
        names = import_arrow().schema_of(options.columns).names
    except ValueError as error:
        raise ConfigError(f"columns: {error}") from error
    partitions = (TOPIC, DAY, HOUR) if options.partition == HOUR else (TOPIC, DAY)
    for name in names:  # engines ignore case
        if name != TOPIC and name.lower() in partitions:
            raise ConfigError(
                f"columns: the property {name!r} cannot be a column, because an export is divided "
                f"by {' and '.join(partitions)}: read it from the column properties"
            )
    return names if options.columns is None else options.columns


def _as_tuple(listed: Sequence[Any] | None) -> tuple[Any, ...] | None:
    return None if listed is None else tuple(listed)


def _moment(value: int | None) -> str:
    if value is None:
        return _said(value)
    try:
        text = datetime.fromtimestamp(value / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(value)
    return text.replace("+00:00", "Z")


def _said(value: Any) -> str:  # noqa: ANN401 - of any option
    if value is None:
        return "not given"
    if not isinstance(value, tuple):
        return str(value)
    return ", ".join(map(str, cast("tuple[Any, ...]", value)))


class Reached(NamedTuple):
    """Progress of an export in a queue."""

    end: int
    """It has everything below this queue offset that it was to have."""
    generation: int | None = None
    """The queue's, when it was exported; None: not known (an older program's export)."""


class Gone(NamedTuple):
    """Queue offsets `[start, end)` that left the tier before they were exported."""

    queue: QueueId
    start: int
    end: int
    cause: str = EXPIRED
    """A predicate: what happened to their messages."""


Span = tuple[int, int]
"""Queue offsets `[from, to)`."""


class TaskRead(NamedTuple):
    """Offsets that a task has read, and those that left the tier before."""

    queue: QueueId
    gone: Sequence[tuple[int, int, str]]
    """Queue offsets `[from, to)` that left the tier, at most, and why. A task that begins or ends
    within an extent that is gone knows those of the extent alone."""
    read: Span | None
    """The first and after the last that it read, beside `gone`; None: not known, or nothing."""


@dataclass(frozen=True, slots=True)
class ExportSource:
    """Tier and broker whose messages an export has."""

    cluster: str
    broker: str
    begun_ms: int = 0
    """Creation time of the tier, Unix ms; 0 if unknown."""

    @classmethod
    def of(cls, state: TierState) -> Self:
        """Return the source of an export from this tier."""
        return cls(state.broker.cluster, state.broker.name, state.broker.begun_ms)

    @classmethod
    def kept(cls, about: Mapping[str, Any]) -> Self:
        """Return the source that an export keeps."""
        cluster, broker = about["whose"]
        return cls(cluster, broker, about.get("begun_ms", 0))

    def as_kept(self) -> dict[str, Any]:
        """For an export's own record."""
        return {"whose": [self.cluster, self.broker], "begun_ms": self.begun_ms}

    def refuse_other(self, now: Self, target: Target) -> None:
        """Refuse to add messages of another tier to those of this one.

        Raises:
            ConfigError: it is another broker's, or was recreated.
        """
        if (self.cluster, self.broker) != (now.cluster, now.broker):
            raise ConfigError(
                f"the export in {target.name} is of {self.broker} of cluster {self.cluster}"
            )
        if self.begun_ms and now.begun_ms and self.begun_ms != now.begun_ms:
            raise ConfigError(
                f"the tier was recreated since the export in {target.name} was begun, so its "
                f"offsets may be those of other messages: name another {target.kind}"
            )


def refuse_older(tier: OpenTier, before: Seen, target: Target) -> None:
    """Refuse to plan by metadata that are older than those of the last run, or of a copy.

    Raises:
        Unavailable: the tier does not continue what the last run saw.
    """
    if not tier.continues(before):
        raise Unavailable(
            f"the tier is seen as it was before the last run of the export in {target.name}, or "
            f"was put back from an older copy: read it where it is up to date; after a restore "
            f"its offsets may be those of other messages: name another {target.kind}",
            "",
        )


def other_history(
    queues: Mapping[QueueId, Queue], reached: Mapping[QueueId, Reached]
) -> frozenset[QueueId]:
    """The queues whose offsets mean other messages by now: truncated, or deleted and created again.

    An export has their earlier messages and gets no more of them; other queues continue.
    """
    return frozenset(
        name
        for name, queue in queues.items()
        for before in [reached.get(name)]
        if before is not None
        and before.end
        and (
            queue.next_offset < before.end
            or (before.generation is not None and before.generation != queue.generation)
        )
    )


def other_history_text(queue: QueueId, before: Reached, target: Target) -> str:
    """Say that a queue is not exported any further, and how its new messages are had."""
    return (
        f"{queue} was truncated, or deleted and created again, after the export in {target.name} "
        f"had it up to {before.end:,}: its new messages are not added there, because their offsets "
        f"are those of other messages: export them into another {target.kind}"
    )


def gone_of(tasks: Iterable[TaskRead]) -> list[Gone]:
    """Return the messages that left the tier before any task read them, each offset once."""
    of: dict[QueueId, list[TaskRead]] = {}
    for task in tasks:
        of.setdefault(task.queue, []).append(task)
    return [
        Gone(queue, *found)
        for queue, reports in sorted(of.items())
        if any(one.gone for one in reports)
        for found in _gone_of_queue(reports)
    ]


def _gone_of_queue(tasks: Sequence[TaskRead]) -> Iterator[tuple[int, int, str]]:
    read = merged(
        span
        for task in tasks
        if task.read is not None
        for span in without([task.read], (one[:2] for one in task.gone))
    )
    at = 0
    for first, end, cause in sorted(one for task in tasks for one in task.gone):
        for low, high in without([(max(first, at), end)], read):
            yield low, high, cause
        at = max(at, end)


def gone(queues: Iterable[Queue], reached: Mapping[QueueId, Reached]) -> list[Gone]:
    """Return the expired messages after the exported part of each queue, in order of queues."""
    found: list[Gone] = []
    for queue in sorted(queues, key=lambda one: one.id):
        before = reached.get(queue.id)
        if before is not None and before.end < queue.min_offset:
            found.append(Gone(queue.id, before.end, queue.min_offset))
    return found
