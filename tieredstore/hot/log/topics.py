"""Topics of a store in RocketMQ's form, `config/topics.json`. Pure but for `TopicsFile`."""

import json
import logging
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from container.names.queue_id import QueueId, check_path_component
from container.record.checksum import crc32c
from provider.errors import Corrupt, NotFound
from provider.names import is_there
from tieredstore.hot.log.files import replace_file

LOGGER = logging.getLogger("tieredstore.hot")
RESERVE_TIME = "reserve.time"
"""RocketMQ's attribute of a topic: its retention in the tier, in hours."""
CONFIRMED = "confirmedReserveTimes"
"""Extension of the file: retentions that a command or a program set, each with a checksum."""

DEFAULTS: Mapping[str, object] = {
    "attributes": {},
    "order": False,
    "perm": 6,
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": 0,
}
WIDTHS = ("readQueueNums", "writeQueueNums")
QUEUES_MAX = (1 << 31) - 1
SETTINGS_CHARACTERS_MAX = 4096
"""Length of the kept settings of a topic. The attributes of a broker have some hundred."""


class ConfirmedTime(NamedTuple):
    """Retention of a topic that a command or a program set."""

    hours: int
    """-1: the default."""
    at_ms: int
    """Time of the call, Unix ms."""


def confirmed_times(document: Mapping[str, Any]) -> dict[str, ConfirmedTime]:
    """Return the confirmed retentions by topic, without those whose checksum is wrong. Pure."""
    found: dict[str, ConfirmedTime] = {}
    rows: object = document.get(CONFIRMED)
    for topic, row in cast("dict[str, Any]", rows).items() if isinstance(rows, dict) else ():
        try:
            one = ConfirmedTime(int(row["hours"]), int(row["atMs"]))
            is_right = row["crc32c"] == _checksum(topic, one)
        except (KeyError, TypeError, ValueError, OverflowError):
            continue
        if is_right:
            found[topic] = one
    return found


def _checksum(topic: str, time: ConfirmedTime) -> str:
    return f"{crc32c(f'{time.hours} {time.at_ms} {topic}'.encode()):08x}"


def kept_settings(row: Mapping[str, Any]) -> str:
    """Return the settings of a topic as the tier keeps them; "" if there are none. Pure.

    JSON of the file's row without defaults.
    """
    known = _known_settings(row)
    text = json.dumps(
        {key: value for key, value in sorted(known.items()) if value != DEFAULTS.get(key)},
        ensure_ascii=False,
        separators=(",", ":"),
    )
    return text if known.keys() >= set(WIDTHS) and len(text) <= SETTINGS_CHARACTERS_MAX else ""


def row_of(topic: str, settings: str) -> dict[str, Any] | None:
    """Return the file's row of a topic with these kept settings; None if they are unknown. Pure."""
    try:
        found: object = json.loads(settings)
    except (ValueError, RecursionError):
        return None
    known = _known_settings(cast("dict[str, Any]", found) if isinstance(found, dict) else {})
    return {**_default_row(topic), **known} if known.keys() >= set(WIDTHS) else None


def _known_settings(row: Mapping[str, Any]) -> dict[str, Any]:
    known: dict[str, Any] = {
        key: value
        for key, default in DEFAULTS.items()
        if type(value := row.get(key)) is type(default)
    }
    known |= {
        key: value
        for key in WIDTHS
        if type(value := row.get(key)) is int and 0 <= value <= QUEUES_MAX
    }
    attributes = known.get("attributes", {})
    texts = {key: value for key, value in attributes.items() if isinstance(value, str)}
    return {**known, "attributes": texts}


def _default_row(topic: str) -> dict[str, Any]:
    return {**DEFAULTS, "attributes": {}, "topicName": topic}


def with_queues(document: dict[str, Any], queues: Iterable[QueueId], queues_min: int) -> bool:
    """Add the topics of `queues`, with as many queues as they need.

    Return whether anything changed. An existing topic keeps its settings, but for a number of
    queues that is too small.
    """
    table: dict[str, dict[str, Any]] = document.setdefault("topicConfigTable", {})
    changed = False
    for topic, queue_id in queues:
        config = table.get(topic)
        if config is None:
            config = table[topic] = _default_row(topic) | dict.fromkeys(WIDTHS, queues_min)
            changed = True
        for key in WIDTHS:
            if config.get(key, 0) <= queue_id:
                config[key] = queue_id + 1
                changed = True
    return changed


class TopicsFile:
    """File of the topics, replaced as a whole for a new topic or queue."""

    def __init__(self, path: Path) -> None:
        """Read the file, or its backup if it does not exist.

        Raises:
            Corrupt: it is not JSON with topics in it.
            OSError: it cannot be read.
        """
        self._path = path
        self._backup = path.with_name(path.name + ".bak")
        self._document: dict[str, Any] = {}
        self._raw = b""
        """Content of the file when last read or written."""
        self._known: set[QueueId] = set()
        for found in (path, self._backup):
            if is_there(found) and (raw := found.read_bytes()).strip():
                self._document, self._raw = parse_topics(raw, found), raw
                break

    def enter(self, queues: Iterable[QueueId], queues_min: int, now_ms: int) -> None:
        """Add these queues to the file. Durable on return. Writes nothing if they exist.

        Raises:
            OSError: it cannot be written; the old file stays.
        """
        new = set(queues) - self._known
        if not new:
            return
        document, is_ours = self._current()
        wanted = new if is_ours else new | self._known
        if with_queues(document, sorted(wanted), queues_min):
            self._write(document, now_ms)
        self._known |= new

    def set_retention(self, topic: str, hours: int | None, now_ms: int) -> None:
        """Set `reserve.time` of a topic, and confirm it; None: the default. Durable on return.

        All else in the file stays as it is.

        Raises:
            NotFound: there is no such topic in the file.
            OSError: it cannot be written; the old file stays.
        """
        document, _ = self._current()
        config = document.get("topicConfigTable", {}).get(topic)
        if config is None:
            raise NotFound("there is no such topic", topic)
        attributes = dict(config.get("attributes") or {})
        attributes.pop(RESERVE_TIME, None)
        if hours is not None:
            attributes[RESERVE_TIME] = str(hours)
        config["attributes"] = attributes
        time = ConfirmedTime(-1 if hours is None else hours, now_ms)
        row = {"hours": time.hours, "atMs": time.at_ms, "crc32c": _checksum(topic, time)}
        document[CONFIRMED] = {**(document.get(CONFIRMED) or {}), topic: row}
        self._write(document, now_ms)

    def _current(self) -> tuple[dict[str, Any], bool]:
        """Return a copy of the file's present document, and whether it is the last written one.

        An operator may have changed it. A file that cannot be parsed is ignored.
        """
        try:
            raw = self._path.read_bytes()
            if raw.strip() and raw != self._raw:
                return parse_topics(raw, self._path), False
        except (FileNotFoundError, Corrupt) as error:
            if self._raw:
                LOGGER.warning("%s is written as it was known: %s", self._path, error)
        return json.loads(json.dumps(self._document)), True

    def has(self, topics: Collection[str]) -> bool:
        """Whether one of these topics is in the file."""
        return not self._document.get("topicConfigTable", {}).keys().isdisjoint(topics)

    def write_queues(self, topic: str) -> int:
        """Return the number of write queues of a topic; 0 if it is not in the file."""
        config: dict[str, Any] = self._document.get("topicConfigTable", {}).get(topic, {})
        found = config.get("writeQueueNums", 0)
        return found if isinstance(found, int) and found > 0 else 0

    def forget(self, topics: Collection[str], now_ms: int) -> None:
        """Remove these topics from the file. Durable on return. Writes nothing if there are none.

        Raises:
            OSError: it cannot be written; the old file stays.
        """
        self._known = {queue for queue in self._known if queue.topic not in topics}
        if not self.has(topics):
            return
        document, _ = self._current()
        for topic in topics:
            document.get("topicConfigTable", {}).pop(topic, None)
            document.get(CONFIRMED, {}).pop(topic, None)
        self._write(document, now_ms)

    def _write(self, document: dict[str, Any], now_ms: int) -> None:
        version = document.setdefault("dataVersion", {"counter": 0, "stateVersion": 0})
        version["counter"] = version.get("counter", 0) + 1
        version["timestamp"] = now_ms
        raw = json.dumps(document, ensure_ascii=False, indent="\t").encode()
        replace_file(self._path, raw, backup=self._backup)
        self._document, self._raw = document, raw


def parse_topics(raw: bytes, path: Path) -> dict[str, Any]:
    """Parse the file's content. Pure.

    Raises:
        Corrupt: it is not JSON with topics in it.
    """
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError):
        document = None
    if not _is_document(document):
        raise Corrupt(
            "the topics cannot be read: the file is not as it was written; without a backup, move"
            " it away, and the topics of all queues are entered again with default settings; else"
            f" restore it from a backup, such as {path.name}.bak",
            str(path),
        )
    return cast("dict[str, Any]", document)


def given_topics(raw: bytes, path: Path) -> dict[str, Any]:
    """Parse a file of the user, whose topics become directories of a broker. Pure.

    Raises:
        Corrupt: as `parse_topics`, or a topic has a name or a number of queues that no broker has.
    """
    document = parse_topics(raw, path)
    for topic, row in document.get("topicConfigTable", {}).items():
        reason = check_path_component(topic)
        if reason is None and row.get("topicName", topic) != topic:
            reason = f"its row is that of {row['topicName']!a}"
        if reason is None and not all(0 <= row.get(key, 0) <= QUEUES_MAX for key in WIDTHS):
            reason = f"a number of its queues is not from 0 to {QUEUES_MAX}"
        if reason is not None:
            raise Corrupt(f"the topic {topic!a} is refused, for {reason}", str(path))
    return document


def _is_document(document: object) -> bool:
    """Whether the fields that are read here have their types."""
    if not isinstance(document, dict):
        return False
    found = cast("dict[str, Any]", document)
    table: Any = found.get("topicConfigTable", {})
    version: Any = found.get("dataVersion", {})
    confirmed: Any = found.get(CONFIRMED, {})
    if not all(isinstance(one, dict) for one in (table, version, confirmed)):
        return False
    configs = list(cast("dict[str, Any]", table).values())
    numbers: list[Any] = [cast("dict[str, Any]", version).get("counter", 0)]
    for config in configs:
        if not isinstance(config, dict):
            return False
        known = cast("dict[str, Any]", config)
        numbers += [known.get(key, 0) for key in ("readQueueNums", "writeQueueNums")]
    return all(type(number) is int for number in numbers)
