"""Options of Spark tables, streams and writes. Pure, without Spark."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Final
from uuid import uuid4

from container.names.queue_id import QueueId
from provider.names import is_directory, is_there
from provider.posix.files import posix_errors
from provider.setting import Kind
from tieredstore.config.effective import Config
from tieredstore.config.keys import KEYS
from tieredstore.config.sources import ConfigError
from tieredstore.hot.log.directory import COMMIT_LOG, refuse_if_written
from tieredstore.offline import PATTERN
from tieredstore.offline.scan.planning import TierAddress, WantedMessages
from tieredstore.offline.spark.stream_offsets import (
    EARLIEST,
    LATEST,
    Offsets,
    parse_offsets,
    parse_queue,
)
from tieredstore.offline.writing.appending import DIRECTORY, STAGED, WRITE_ID, StagedWrite
from tieredstore.reader.cursor import is_span, parse_moment

FORMAT: Final = "tieredstore"
KEPT_PLAN: Final = "keptPlan"
OF_PUSHED: Final = "pushed"
"""Of the DataFrames that we make: as `use` in a session that pushes their filter, which then plans
each query, and as `fail` in another one."""
MESSAGES = "messages"
TABLES: Final = (MESSAGES, "units", "keys", "segments", "gaps")
"""As `tables/schemas.py` has them, which needs Arrow."""
SPLIT_BYTES: Final = 128 << 20
SPLIT_BYTES_MIN: Final = 1 << 10
REFRESH_MS: Final = 1_000
_NEAR = 0.6

OPTIONS: Final[Mapping[str, str]] = {
    "path": "Place of the tier: a directory, or a URL such as s3://bucket/prefix.",
    "table": "messages (default), units, keys, segments or gaps. A stream has messages only.",
    "cluster": "The broker's cluster; not needed where the tier has only one that fits.",
    "broker": "The broker's name; likewise. A pattern, as *, or names and patterns separated by "
    "commas: a table of all brokers that fit, with the columns cluster and broker first.",
    "conf": "A broker's configuration file, which is read on the driver.",
    "javaMetadata": "A tieredStoreMetadata.json, to read a tier that RocketMQ's store wrote.",
    "topics": "Only these topics, separated by commas.",
    "topicPattern": "Only topics whose whole names this regular expression (of Python) matches; a "
    "stream also reads those that come later.",
    "queues": "Only these queues, separated by commas: numbers, or topic/queue.",
    "startingOffsets": "earliest (default) or a JSON object of first queue offsets, such as "
    '{"Orders/0": 17}; queues that it does not name are read from their beginning. A stream also '
    "takes latest.",
    "endingOffsets": "latest (default) or a JSON object of the queue offsets after the last.",
    "startTime": "Only what was stored then or later: 2026-11-21T12:00:00Z, 2h (ago) or Unix "
    "milliseconds. A stream begins in each queue at the first message of that time.",
    "endTime": "Only what was stored before that time.",
    "splitBytes": (
        "Bytes of messages that one task reads, about; default 134217728. A task reads one queue."
    ),
    "damaged": "fail (default): a damaged message ends the job; skip: it is skipped.",
    KEPT_PLAN: "fail (default): a query that has the plan of an earlier one, as Spark gives it "
    "where no filter is pushed, is an error once the tier has other rows or brokers; use: it "
    "reads that plan; pushed, of tiers.messages: use in a session that pushes filters, else fail.",
    "pushFilters": "Of older programs, without effect: the scans of a DataFrame share what Spark "
    "pushes into a source in Python. The options choose what is read.",
    "maxRowsPerTrigger": "Messages of one batch of a stream, at most, shared among the queues.",
    "failOnDataLoss": "true (default): a stream ends where messages that it should have next are "
    "not in the tier; false: it continues after them.",
    "refreshInterval": "Milliseconds between two polls of a tier by an idle stream; default 1000, "
    "at least one request each.",
}
"""Every option by name, with its meaning. Keys of the configuration may be given besides."""
_STREAM_ONLY = ("maxRowsPerTrigger", "failOnDataLoss", "refreshInterval")
_BATCH_ONLY = ("endingOffsets", "endTime", KEPT_PLAN, "pushFilters")


@dataclass(frozen=True, slots=True)
class TableOptions:
    """Options of `spark.read`."""

    address: TierAddress
    brokers: tuple[str, ...]
    """Patterns of the brokers' names; (): the one of the address."""
    table: str
    wanted: WantedMessages
    split_bytes: int
    skips_damage: bool
    kept_plan: str


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """Options of `spark.readStream`."""

    address: TierAddress
    wanted: WantedMessages
    """Selection without offsets and times, which are the beginning of the stream."""
    begins_at: str
    """`earliest` or `latest`, for queues that `starts` does not name."""
    starts: Offsets
    since_ms: int | None
    split_bytes: int
    skips_damage: bool
    rows_max: int | None
    fails_on_loss: bool
    refresh_s: float
    begins_at_a_moving_place: bool
    """Whether the same options may mean another beginning later: `latest`, or a time ago."""


def table_named(given: Mapping[str, str]) -> str:
    """The table that the options of a table or a stream name.

    Raises:
        ConfigError: there is no such table; names the nearest.
    """
    named = {name.lower(): str(value).strip() for name, value in given.items()}
    table = named.get("table") or MESSAGES
    if table not in TABLES:
        near = get_close_matches(table, TABLES, 1) or TABLES
        raise ConfigError(f"table: there is no {table!r}: write {' or '.join(near)}")
    return table


def brokers_named(given: Mapping[str, object]) -> tuple[str, ...]:
    """The patterns of brokers that options name; () if one broker is meant."""
    text = next((str(value) for name, value in given.items() if name.lower() == "broker"), "")
    if not set(text) & {*PATTERN, ","}:
        return ()
    return tuple(one.strip() for one in text.split(",") if one.strip())


def table_options(given: Mapping[str, str], *, now_ms: int) -> TableOptions:
    """Parse the options of a table.

    Raises:
        ConfigError: an option is unknown, or its value is invalid; names the valid forms.
    """
    values = OptionValues(given, _STREAM_ONLY, "a stream")
    values.switch("pushFilters", default=False)
    table = table_named(given)
    since_ms, until_ms = values.moment("startTime", now_ms), values.moment("endTime", now_ms)
    if since_ms is not None and until_ms is not None and until_ms <= since_ms:
        raise ConfigError("endTime is not later than startTime")
    brokers = brokers_named(given)
    for name in ("startingOffsets", "endingOffsets", "javaMetadata") if brokers else ():
        if values.text(name):
            raise ConfigError(f"{name} is of one broker: name it, and give it no pattern")
    wanted = WantedMessages(
        topics=values.topics(),
        topic_pattern=values.topic_pattern(),
        queues=values.queues(),
        starts=values.offsets("startingOffsets", (EARLIEST,))[1],
        ends=values.offsets("endingOffsets", (LATEST,))[1],
        since_ms=since_ms,
        until_ms=until_ms,
    )
    return TableOptions(
        values.address(),
        brokers,
        table,
        wanted,
        values.number("splitBytes", SPLIT_BYTES, least=SPLIT_BYTES_MIN),
        skips_damage=values.choice("damaged", ("fail", "skip")) == "skip",
        kept_plan=values.choice(KEPT_PLAN, ("fail", "use", OF_PUSHED)),
    )


def stream_options(given: Mapping[str, str], *, now_ms: int) -> StreamOptions:
    """Parse the options of a stream.

    Raises:
        ConfigError: as `table_options`, or the stream begins both at offsets and at a time.
    """
    values = OptionValues(given, _BATCH_ONLY, "a table")
    table = table_named(given)
    if table != MESSAGES:
        raise ConfigError(f"table: a stream has {MESSAGES} only, not {table}")
    if brokers_named(given):
        raise ConfigError("broker: a stream is of one broker: begin one for each")
    since_ms = values.moment("startTime", now_ms)
    if values.text("startingOffsets") and since_ms is not None:
        raise ConfigError("a stream begins at startingOffsets or at startTime: give one of them")
    begins_at, starts = values.offsets("startingOffsets", (EARLIEST, LATEST))
    rows_max = values.number("maxRowsPerTrigger", 0, least=1)
    return StreamOptions(
        values.address(),
        WantedMessages(
            topics=values.topics(), topic_pattern=values.topic_pattern(), queues=values.queues()
        ),
        begins_at,
        starts,
        since_ms,
        values.number("splitBytes", SPLIT_BYTES, least=SPLIT_BYTES_MIN),
        skips_damage=values.choice("damaged", ("fail", "skip")) == "skip",
        rows_max=rows_max or None,
        fails_on_loss=values.switch("failOnDataLoss", default=True),
        refresh_s=values.number("refreshInterval", REFRESH_MS, least=0) / 1000,
        begins_at_a_moving_place=begins_at == LATEST or is_span(values.text("startTime")),
    )


class OptionValues:
    """Options by their names, whatever case they were given in."""

    def __init__(
        self,
        given: Mapping[str, str],
        foreign: tuple[str, ...],
        whose: str,
        known: Mapping[str, str] = OPTIONS,
    ) -> None:
        """Accept options of `known` and keys of the configuration.

        `foreign`: options that only `whose` has.

        Raises:
            ConfigError: an option is unknown, foreign or a secret.
        """
        names = {name.lower(): name for name in (*KEYS, *known)}
        self._values: dict[str, str] = {}
        for written, value in given.items():
            name = names.get(written.lower())
            if name is None:
                if written.lower() == "paths":  # what Spark makes of `load([one, two])`
                    raise ConfigError("a DataFrame is of one place: join those of several by union")
                near = get_close_matches(written, [*known, *KEYS], 1, _NEAR)
                hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
                raise ConfigError(f"there is no option {written}: {hint}")
            if name in foreign:
                raise ConfigError(f"{name} is an option of {whose} only")
            if name in KEYS and KEYS[name].kind is Kind.SECRET:
                raise ConfigError(f"{name} is a secret: give it in the environment of the workers")
            self._values[name] = str(value)

    def text(self, name: str) -> str:
        """The value without blanks around it; "" where it was not given."""
        return self._values.get(name, "").strip()

    @property
    def settings(self) -> dict[str, str]:
        """The keys of the configuration that were given."""
        return {name: value for name, value in self._values.items() if name in KEYS}

    def address(self) -> TierAddress:
        """Return the address of the tier."""
        return TierAddress(
            self.text("path") or None,
            self.text("cluster") or None,
            self.text("broker") or None,
            self.text("conf") or None,
            self.text("javaMetadata") or None,
            self.settings,
        )

    def topics(self) -> frozenset[str] | None:
        """Names between commas; None where none was given."""
        return frozenset(self._listed("topics")) or None

    def topic_pattern(self) -> str | None:
        """A regular expression; None where none was given."""
        pattern = self.text("topicPattern")
        if pattern and self.text("topics"):
            raise ConfigError("topics are chosen by topics or by topicPattern: give one of them")
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(
                f"topicPattern: {pattern!r} is no regular expression: {error}"
            ) from error
        return pattern or None

    def queues(self) -> frozenset[QueueId | int] | None:
        """Numbers and `topic/queue` between commas; None where none was given."""
        listed = self._listed("queues")
        numbers = {int(one) for one in listed if one.isascii() and one.isdecimal()}
        named = {parse_queue(one) for one in listed if not (one.isascii() and one.isdecimal())}
        return frozenset(numbers | named) or None

    def _listed(self, name: str) -> list[str]:
        parts = [part.strip() for part in self.text(name).split(",")]
        return [part for part in parts if part]

    def offsets(self, name: str, words: tuple[str, ...]) -> tuple[str, Offsets]:
        """Parse one of `words`, in any case, or offsets. The first word is the default."""
        text = self.text(name)
        if text.lower() in {"", *words}:
            return text.lower() or words[0], {}
        return words[0], parse_offsets(text, option=name, words=words)

    def moment(self, name: str, now_ms: int) -> int | None:
        """A time as Unix ms; None where it was not given."""
        text = self.text(name)
        return self._as(name, text, lambda: parse_moment(text, now_ms=now_ms)) if text else None

    def number(self, name: str, default: int, *, least: int) -> int:
        """A whole number from `least` on."""
        text = self.text(name)
        if not text:
            return default
        number = self._as(name, text, lambda: int(text))
        if number < least:
            raise ConfigError(f"{name}: {text} is less than {least}")
        return number

    def switch(self, name: str, *, default: bool) -> bool:
        """True or false."""
        text = self.text(name).lower()
        if text not in {"", "true", "false"}:
            raise ConfigError(f"{name}: write true or false, not {text!r}")
        return text == "true" if text else default

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """Parse one of `choices`. The first one is the default."""
        text = self.text(name) or choices[0]
        if text not in choices:
            raise ConfigError(f"{name}: write {' or '.join(choices)}, not {text!r}")
        return text

    def _as(self, name: str, text: str, parse: Callable[[], int]) -> int:
        try:
            return parse()
        except ValueError as error:
            said = str(error) if text in str(error) and "invalid literal" not in str(error) else ""
            raise ConfigError(f"{name}: {said or f'{text!r} is no whole number'}") from error


WRITE_OPTIONS: Final[Mapping[str, str]] = {
    "path": "The store directory, on the driver's machine; made if missing. Not needed where conf "
    "names it (storePathRootDir).",
    "conf": "A broker's configuration file, which is read on the driver.",
    "cluster": "The broker's cluster, where there is a tier (tieredStoreFilePath).",
    "broker": "The broker's name; likewise.",
    "staging": "A directory that all workers and the driver see under one name; default: "
    "writes/staged in the store directory, which does where all of them run on one machine.",
    "writeId": "A name of this write, at most 64 of A-Z a-z 0-9 . _ -: given again, it is finished "
    "if it was ended in the middle, and nothing is appended if it is done.",
}
"""Every option by name, with its meaning. Keys of the configuration may be given besides."""
_URL = "://"


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """Address of a store of our own. Holds no secret."""

    conf: str | None
    settings: Mapping[str, str]

    def load(self) -> Config:
        """The configuration that it names; reads `conf` and the environment.

        Raises:
            ConfigError: a setting is wrong.
        """
        conf = None if self.conf is None else Path(self.conf)
        return Config.load(conf=conf, settings=self.settings)


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of `df.write`."""

    address: StoreAddress
    staging: str | None
    write_id: str | None

    def new_run(self, config: Config) -> StagedWrite:
        """Return a run of this write, with a directory for its files that does not exist yet."""
        root = self.staging or str(config.store_dir.absolute() / DIRECTORY / STAGED)
        write_id = self.write_id or uuid4().hex[:16]
        directory = Path(root, write_id, uuid4().hex)
        return StagedWrite(write_id, str(directory), is_named=self.write_id is not None)


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """Parse the options of a write.

    Raises:
        ConfigError: an option is unknown, or its value is invalid; names the valid forms.
    """
    values = OptionValues(given, (), "", WRITE_OPTIONS)
    path, write_id = values.text("path"), values.text("writeId")
    if _URL in path:
        raise ConfigError(f"path: a store lies in a directory of the driver's machine, not {path}")
    staging = values.text("staging")
    if staging and not Path(staging).is_absolute():
        raise ConfigError(f"staging: {staging} is no whole path: workers run elsewhere")
    if write_id and not WRITE_ID.fullmatch(write_id):
        raise ConfigError(
            f"writeId: {write_id!r} is no name of at most 64 of A-Z a-z 0-9 . _ -, the first a "
            f"letter or a digit"
        )
    named = {
        "storePathRootDir": path,
        "brokerClusterName": values.text("cluster"),
        "brokerName": values.text("broker"),
    }
    settings = {**values.settings, **{name: text for name, text in named.items() if text}}
    return WriteOptions(
        StoreAddress(values.text("conf") or None, settings), staging or None, write_id or None
    )


def check_store(config: Config) -> None:
    """Refuse a place without a store, and a store in use, before anything is computed.

    Raises:
        ConfigError: no store is named, or the place holds other files.
        InUse: a process writes the store.
        Denied, Unavailable: the directory cannot be read.
    """
    if not config.gives("storePathRootDir"):
        raise ConfigError("the store is not named: write save(DIRECTORY), or give a conf")
    root = config.store_dir
    with posix_errors(str(root)):
        if is_there(root) and not is_directory(root):
            raise ConfigError(f"path: {root} is no directory")
        is_store = config.gives("storePathCommitLog") or is_directory(root / COMMIT_LOG)
        found = {path.name for path in root.iterdir()} if is_directory(root) else set[str]()
        if not is_store and found - {DIRECTORY}:
            raise ConfigError(
                f"path: {root} holds something else than a store: name a store directory, or a new "
                f"one; a tier is written by its store (tieredStoreFilePath)"
            )
        where = config.hot_write.commit_log_path
        refuse_if_written(root, Path(where) if where else None)
