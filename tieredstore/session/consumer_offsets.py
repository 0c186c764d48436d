"""Offsets of consumer groups, kept in RocketMQ's own file `consumerOffset.json`."""

import asyncio
import logging
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, cast

import orjson

from provider.clock import give_way
from provider.errors import Corrupt, NotFound, StoreError
from provider.posix.files import posix_errors
from tieredstore.config.sources import ConfigError
from tieredstore.hot.log.files import replace_file

LOGGER = logging.getLogger("tieredstore.offsets")
NAME = "consumerOffset.json"
GROUPS_MAX = 10_000
"""Groups that are known at once, over all clients."""
GROUP_NAME = re.compile(r"[%|a-zA-Z0-9_-]{1,255}", re.ASCII)
"""Name of a group, as a broker allows it."""
KEYS_MAX = 10 * GROUPS_MAX
"""Pairs of topic and group that have offsets."""
TAKEN_TOGETHER = 500
"""Pairs whose offsets are set before other tasks run."""
SEPARATOR = "@"
BARE_KEY = re.compile(rb"([{,]\s*)(\d+)(\s*:)")
"""Number as a key of an object, as RocketMQ's JSON library writes it. Names of topics and groups
have none of the characters around it."""

Table = dict[str, dict[int, int]]
"""Offset by queue, by `topic@group`."""


class OffsetRefused(ValueError):
    """Offset that is not kept: the name of its group is not allowed, or there are too many."""


class QueueKey(NamedTuple):
    """Queue of a group."""

    group: str
    topic: str
    queue_id: int


def refuse_name(group: str) -> None:
    """Refuse a name that no group of a broker can have.

    Raises:
        OffsetRefused: it has other characters, or is too long.
    """
    if not GROUP_NAME.fullmatch(group):
        raise OffsetRefused("the name of the group is not allowed")


class ConsumerOffsets:
    """Offsets in memory, and the file that keeps them over a restart."""

    def __init__(self, table: Table, path: Path, *, counter: int = 0) -> None:
        self._table = table
        self._path = path
        self._counter = counter
        self._groups = {key.rpartition(SEPARATOR)[2] for key in table}
        self._changes = 0
        self._saved = 0
        self._saving = threading.Lock()
        self.failure: StoreError | None = None
        """Failure of the last `save`."""

    @classmethod
    def load(
        cls, path: Path, seed: Path | None = None, *, is_poll: bool = False
    ) -> "ConsumerOffsets":
        """Read the file, or else its backup; if there is neither, begin with those of `seed`.

        `seed` is a broker's own file, so that a group continues where it was. A fallback is logged,
        at level DEBUG by a poll. Blocks.

        Raises:
            ConfigError: a file is there and none of them is whole: groups would begin again.
            Unavailable, Denied: the storage fails.
        """
        damage: list[str] = []
        warning, info = (logging.DEBUG,) * 2 if is_poll else (logging.WARNING, logging.INFO)
        for one in (path, path.with_name(f"{path.name}.bak"), seed):
            if one is None:
                continue
            try:
                with posix_errors(str(one)):
                    table, counter = parse(one.read_bytes(), str(one))
            except NotFound:
                continue
            except Corrupt as error:
                LOGGER.log(warning, "%s", error)
                damage.append(str(error))
                continue
            if one == seed and damage:
                break
            if one != path:
                LOGGER.log(info, "%d offsets of groups are taken from %s", len(table), one)
            return cls(table, path, counter=counter)
        if damage:
            raise ConfigError(
                f"{'; '.join(damage)}: bring the file back, or remove it to have all groups begin "
                f"as new ones"
            )
        return cls({}, path)

    def __len__(self) -> int:
        return len(self._table)

    def get(self, key: QueueKey) -> int | None:
        """Return the offset at which a group continues; None if it has none."""
        return self._table.get(f"{key.topic}{SEPARATOR}{key.group}", {}).get(key.queue_id)

    def put(self, key: QueueKey, offset: int) -> None:
        """Set the offset of a group.

        Raises:
            OffsetRefused: too many groups have offsets, or the group's name is not allowed.
        """
        name = f"{key.topic}{SEPARATOR}{key.group}"
        row = self._table.get(name)
        if row is None:
            refuse_name(key.group)
            if key.group not in self._groups and len(self._groups) >= GROUPS_MAX:
                raise OffsetRefused(f"{GROUPS_MAX} groups have offsets")
            if len(self._table) >= KEYS_MAX:
                raise OffsetRefused(f"{KEYS_MAX} offsets of groups are kept")
            row = self._table[name] = {}
            self._groups.add(key.group)
        before = row.get(key.queue_id)
        if before == offset:
            return
        if before is not None and offset < before:
            LOGGER.info(
                "the group %s goes back in %s/%d from %d to %d",
                key.group, key.topic, key.queue_id, before, offset,
            )  # fmt: skip
        row[key.queue_id] = offset
        self._changes += 1

    async def take(self, raw: bytes, path: str) -> int:
        """Set the offsets of a broker's `consumerOffset.json`. Return the number of its rows.

        Offsets that are refused are left out.

        Raises:
            Corrupt: it is no such file.
        """
        table, _ = await asyncio.to_thread(parse, raw, path)
        for count, (name, row) in enumerate(table.items(), 1):
            topic, _, group = name.rpartition(SEPARATOR)
            with suppress(OffsetRefused):
                for queue_id, offset in row.items():
                    self.put(QueueKey(group, topic, queue_id), offset)
            if not count % TAKEN_TOGETHER:
                await give_way()
        return len(table)

    def has_group(self, group: str) -> bool:
        """Whether a group has an offset of any queue."""
        return group in self._groups

    def groups(self, topic: str | None = None) -> set[str]:
        """Return the groups that have an offset, of any topic or of this one. O(offsets)."""
        if topic is None:
            return set(self._groups)
        return {group for one, group in self._pairs() if one == topic}

    def topics(self, group: str) -> set[str]:
        """Return the topics of which a group has an offset. O(offsets)."""
        return {topic for topic, one in self._pairs() if one == group}

    def topics_by_group(self) -> dict[str, set[str]]:
        """Return the topics of which each group has an offset. O(offsets)."""
        found = dict[str, set[str]]()
        for topic, group in self._pairs():
            found.setdefault(group, set()).add(topic)
        return found

    def _pairs(self) -> Iterator[tuple[str, str]]:
        """Yield topic and group of each row."""
        for key in self._table:
            topic, _, group = key.rpartition(SEPARATOR)
            yield topic, group

    def prepare(self) -> bytes | None:
        """Return the file's content if there is a change since the last `save`, else None."""
        if self._saved == self._changes:
            return None
        self._counter += 1
        return self.content()

    def content(self) -> bytes:
        """Return all offsets as the file has them. O(offsets)."""
        version = {"counter": self._counter, "stateVersion": 0, "timestamp": 0}
        return orjson.dumps(
            {"dataVersion": version, "offsetTable": self._table}, option=orjson.OPT_NON_STR_KEYS
        )

    def save(self, content: bytes) -> None:
        """Replace the file atomically and durably, and keep the old one as `.bak`. Blocks.

        Raises:
            Unavailable, Denied: the storage fails; the old content stays.
        """
        backup = self._path.with_name(f"{self._path.name}.bak")
        # A thread can outlive the task that waited for it.
        with self._saving, posix_errors(str(self._path)):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._path, content, backup=backup)

    async def keep(self) -> None:
        """Save in a thread what changed. A failure is logged once, and kept as `failure`."""
        changes, content = self._changes, self.prepare()
        if content is None:
            return
        try:
            await asyncio.to_thread(self.save, content)
        except StoreError as error:
            if self.failure is None:
                LOGGER.error("offsets are not saved: %s", error)  # noqa: TRY400 - says all
            self.failure = error
        else:
            if self.failure is not None:
                LOGGER.info("offsets are saved again")
            self.failure = None
            self._saved = changes


def _checked(key: str) -> str:
    """A key of the offsets, `topic@group`."""
    if SEPARATOR not in key:
        raise ValueError(f"{key!r} is not TOPIC@GROUP")
    return key


def _number(value: str | int, bits: int) -> int:
    """Return a number of the file.

    Raises:
        ValueError: it is negative, or has more bits than Java's.
    """
    number = int(value)
    if number < 0 or number >> bits:
        raise ValueError(f"{number} is neither a queue nor an offset")
    return number


def quoted_keys(raw: bytes) -> bytes:
    """Quote the numbers that are keys of objects. Pure."""
    return BARE_KEY.sub(rb'\1"\2"\3', raw)


def parse(raw: bytes, path: str) -> tuple[Table, int]:
    """Parse a `consumerOffset.json`, of ours or of a broker. Return offsets and version. Pure.

    Raises:
        Corrupt: it is no such file.
    """
    try:
        parsed: Any = orjson.loads(quoted_keys(raw))
        document = cast("dict[str, dict[str, Any]]", parsed)
        rows: dict[str, Any] = document.get("offsetTable") or {}
        table = {
            _checked(key): {
                _number(queue, 31): _number(offset, 63) for queue, offset in row.items()
            }
            for key, row in rows.items()
        }
        version: dict[str, Any] = document.get("dataVersion") or {}
        return table, int(version.get("counter") or 0)
    except (ValueError, AttributeError, TypeError) as error:
        raise Corrupt(f"the offsets of consumer groups are damaged: {error}", path) from error
