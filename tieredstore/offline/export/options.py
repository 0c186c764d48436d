"""Which messages an export has and what of them, and whether a later run is given the same."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

from tieredstore.config.sources import ConfigError
from tieredstore.offline.wanted_messages import WantedMessages
from tieredstore.reading.arrow import import_arrow

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
TOPIC = "topic"
"""The column that is in the names of directories, and so in no Parquet file of an export."""


class Target(NamedTuple):
    """Where an export goes, as people name it."""

    kind: str
    """`directory` or `table`."""
    name: str


class Skips(NamedTuple):
    """What an export passes over and counts; otherwise it is an error."""

    damage: bool = False
    missing: bool = False
    """Published bytes that are not in the storage."""


NO_SKIPS = Skips()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """Which messages an export has, and what of them. None: not said."""

    topics: tuple[str, ...] | None = None
    queues: tuple[int, ...] | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    tags: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None

    @property
    def wanted(self) -> WantedMessages:
        """Which messages; tags are looked at by the tasks."""
        return WantedMessages(
            topics=None if self.topics is None else frozenset(self.topics),
            queues=None if self.queues is None else frozenset(self.queues),
            since_ms=self.since_ms,
            until_ms=self.until_ms,
        )

    @classmethod
    def kept(cls, about: Mapping[str, Any]) -> Self:
        """Those that a ledger has."""
        kept: dict[str, Any] = about["options"]
        listed = {name: _as_tuple(kept[name]) for name in ("topics", "queues", "tags", "columns")}
        return cls(since_ms=kept["since_ms"], until_ms=kept["until_ms"], **listed)

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


def check_directory(directory: Path) -> None:
    """Refuse a URL, which would become the name of a directory on this machine.

    Raises:
        ConfigError: it is one.
    """
    if _URL.match(str(directory)):
        url = str(directory).replace(":/", "://", 1)  # a Path has one slash of the two
        raise ConfigError(
            f"an export is written into a directory, not to {url}: name one that all workers see, "
            f"such as a mounted bucket, or write a table of a warehouse there with --iceberg"
        )


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
    """The columns that were asked for; all where none was named.

    Raises:
        ConfigError: there is no such column, or one is named twice.
    """
    try:
        return import_arrow().schema_of(options.columns).names
    except ValueError as error:
        raise ConfigError(f"columns: {error}") from error


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
